"""Files of results: tables, JSON and figures, all complete before the first gets its name."""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gridweave.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


ROWS_AT_ONCE = 65_536
"""Of ``jobs.csv``: made and written in blocks, so that memory does not grow with their number."""

_DPI = 150
_COMPRESSION = 3
"""Of PNG: files are a fifth larger than with the most that can be had, and written in half the time."""

Writer = Callable[[Path], None]
"""Writes a file at the place that it is given."""


def write_all(folder: Path, files: Mapping[str, Writer]) -> tuple[Path, ...]:
    """Write all files beside their places, and give them their names when all are complete."""
    try:
        with _scratch_folder(folder) as scratch:
            for name, writer in files.items():
                (scratch / name).parent.mkdir(exist_ok=True)
                writer(scratch / name)
            for name in files:
                (folder / name).parent.mkdir(exist_ok=True)
                os.replace(scratch / name, folder / name)
    except OSError as error:
        where = error.filename2 or error.filename or folder
        raise InputError(f"{where}: cannot be written: {error.strerror or error}") from None
    return tuple(folder / name for name in files)


@contextlib.contextmanager
def _scratch_folder(folder: Path) -> Iterator[Path]:
    """Make a folder, with a hidden one in it that goes in any case; after an error, also the folder if it is new."""
    new = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".gridweave-", dir=folder))
    try:
        yield scratch
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        with contextlib.suppress(OSError):
            for parent in new:
                parent.rmdir()
        raise
    shutil.rmtree(scratch)


def write_json(path: Path, value: Any) -> None:
    """Write JSON with sorted keys: the same result gives the same bytes."""
    try:
        text = msgspec.json.encode(value, enc_hook=_plain, order="sorted")
    except (TypeError, ValueError) as error:
        raise InputError(f"{path.name}: an option is not a plain value: {error}") from None
    path.write_bytes(msgspec.json.format(text, indent=2) + b"\n")


def _plain(value: Any) -> Any:
    """Return a number of numpy's as one of Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} is a {type(value).__name__}")


def plain_numbers(figures: Mapping[str, float]) -> dict[str, int | float | None]:
    """Return figures as JSON takes them: None for what is not defined."""
    return {name: None if math.isnan(value) else value for name, value in figures.items()}


def save_figure(path: Path, figure: Figure) -> None:
    """Write a figure as PNG, and be done with it: the same figure gives the same bytes."""
    figure.set_dpi(_DPI)
    layout = figure.get_layout_engine()
    if layout is not None:  # with one, savefig draws everything twice, the first time for the layout alone
        layout.execute(figure)
        figure.set_layout_engine(None)
    figure.savefig(path, dpi=_DPI, metadata={"Software": None}, pil_kwargs={"compress_level": _COMPRESSION})


def folder_name(label: str) -> str:
    """Return a label as the name of a folder: what is no letter, digit, dot, plus or minus becomes a minus.

    Parameters
    ----------
    label : str
        For example "fcfs easy".

    Returns
    -------
    str
        For example "fcfs-easy".

    Examples
    --------
    >>> folder_name("fcfs easy"), folder_name("../SJF (no backfilling)")
    ('fcfs-easy', 'SJF-no-backfilling')
    """
    return re.sub(r"[^\w.+-]+", "-", label).strip("-.") or "result"


def write_jobs_csv(path: Path, jobs: int, columns_of: Callable[[slice], Mapping[str, Any]]) -> None:
    """Write one line per job, in the order of the workload, under the names of its columns.

    `columns_of` returns the columns of some rows (`SimulationResult.job_columns`): arrays, and for "site" a text or a
    list of texts. Rows are made in blocks, so memory does not grow with their number.

    Numbers of the header are whole; ``killed`` is 0 or 1. The name of the site is quoted where it holds a comma, a
    quote or an end of line (RFC 4180). Lines end with a line feed.
    """
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(",".join(columns_of(slice(0, 0))) + "\n")
        for first in range(0, jobs, ROWS_AT_ONCE):
            columns = columns_of(slice(first, first + ROWS_AT_ONCE))
            forms = [_form(values) for values in columns.values()]
            lists = [_fields(values) for values in columns.values() if not isinstance(values, str)]
            file.write("".join(map((",".join(forms) + "\n").__mod__, zip(*lists, strict=True))))


def _form(values: Any) -> str:
    """Return how a column is written: a text that all rows have as itself."""
    if isinstance(values, str):
        return _csv_field(values).replace("%", "%%")
    if isinstance(values, list):
        return "%s"
    return "%d" if values.dtype.kind in "biu" else "%r"


def _fields(values: Any) -> list[Any]:
    return list(map(_csv_field, values)) if isinstance(values, list) else values.tolist()


@functools.lru_cache
def _csv_field(text: str) -> str:
    """Return a text as a field of a CSV file, quoted if need be."""
    written = io.StringIO()
    csv.writer(written, lineterminator="\r\n").writerow([text])  # so that both kinds of line ends are quoted
    return written.getvalue().removesuffix("\r\n")
