"""The files of a result: jobs.csv, summary.json and plots; and several results side by side."""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from gridweave.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gridweave.scenarios.results.schedule import SimulationResult

JOBS_HEADER = (
    "job_id",
    "submit_ms",
    "start_ms",
    "end_ms",
    "width",
    "estimate_ms",
    "run_ms",
    "site",
    "fragments",
    "killed",
)

PLOT_KINDS = ("utilisation", "waits", "schedule")

ROWS_AT_ONCE = 65_536
"""Of ``jobs.csv``: made and written in blocks, so that memory does not grow with their number."""

_DPI = 150

_Writer = Callable[[Path], None]


class _Run(Protocol):
    """What has a summary and plots."""

    @property
    def shared(self) -> bool: ...

    def summary(self) -> dict[str, Any]: ...

    def plot(self, kind: str) -> Figure: ...


def write_result(result: SimulationResult, folder: Path, *, plots: bool = True) -> tuple[Path, ...]:
    """Write the files of one result; see `SimulationResult.write`.

    Parameters
    ----------
    result : SimulationResult
        What to write.
    folder : pathlib.Path
        Where to.
    plots : bool, optional
        Whether to draw the plots.

    Raises
    ------
    InputError
        If the folder cannot be made or written to, or an option is no plain value.
    """
    return write_all(folder, _files_of(result, plots=plots))


def write_comparison(
    results: Sequence[SimulationResult], folder: str | Path, *, plots: bool = True
) -> tuple[Path, ...]:
    """Write several results: each into a folder of its own, named by its label, and what sets them side by side.

    Parameters
    ----------
    results : sequence of SimulationResult
        At least one, with labels of their own.
    folder : str or pathlib.Path
        Where to; it is made if need be.
    plots : bool, optional
        Whether to draw the plots of each result and ``comparison.png``.

    Returns
    -------
    tuple of pathlib.Path
        The files: those of each result, ``comparison.json`` (label, folder, options and metrics of each, in the given
        order) and ``comparison.png``. All are complete before the first gets its name.

    Raises
    ------
    InputError
        If there is no result, if two labels make the same folder, or as for `write_result`.
    """
    if not results:
        raise InputError("there is no result to compare; give at least one")
    names = [folder_name(result.label) for result in results]
    for row, name in enumerate(names):
        if name.casefold() in (other.casefold() for other in names[:row]):
            raise InputError(f"two results would be written to the folder {name!r}; give them labels of their own")
    files: dict[str, _Writer] = {}
    for name, result in zip(names, results, strict=True):
        files |= {f"{name}/{file}": writer for file, writer in _files_of(result, plots=plots).items()}
    entries = [
        {
            "label": result.label,
            "folder": name,
            "site": result.site,
            "nodes": result.nodes,
            "workload": result.workload.name,
            "options": dict(result.options),
            "metrics": result.metrics().to_dict(),
        }
        for name, result in zip(names, results, strict=True)
    ]
    files["comparison.json"] = lambda path: write_json(path, {"results": entries})
    if plots:
        files["comparison.png"] = lambda path: save_figure(path, _plots().plot_comparison(results))
    return write_all(Path(folder), files)


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


def write_jobs_csv(result: SimulationResult, path: Path) -> None:
    """Write one line per job of the workload, in its order, under the header `JOBS_HEADER`.

    Parameters
    ----------
    result : SimulationResult
        What to write.
    path : pathlib.Path
        The file.

    Notes
    -----
    Numbers are whole; ``killed`` is 0 or 1. The name of the site is quoted where it holds a comma, a quote or an end of
    line (RFC 4180). Lines end with a line feed. Rows are made in blocks, so memory does not grow with their number.
    """
    line = (
        ",".join(_csv_field(result.site).replace("%", "%%") if name == "site" else "%d" for name in JOBS_HEADER) + "\n"
    )
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(",".join(JOBS_HEADER) + "\n")
        for first in range(0, len(result.workload), ROWS_AT_ONCE):
            columns = result.job_columns(slice(first, first + ROWS_AT_ONCE))
            numbers = [columns[name].tolist() for name in JOBS_HEADER if name != "site"]
            file.write("".join(map(line.__mod__, zip(*numbers, strict=True))))


def _csv_field(text: str) -> str:
    """Return a text as a field of a CSV file, quoted if need be."""
    written = io.StringIO()
    csv.writer(written, lineterminator="\r\n").writerow([text])  # so that both kinds of line ends are quoted
    return written.getvalue().removesuffix("\r\n")


def files_of(run: _Run, write_jobs: _Writer, *, plots: bool) -> dict[str, _Writer]:
    """Return the files of one run by name, each with the function that writes it."""
    files: dict[str, _Writer] = {
        "jobs.csv": write_jobs,
        "summary.json": lambda path: write_json(path, run.summary()),
    }
    if plots:
        kinds = [kind for kind in PLOT_KINDS if not (run.shared and kind == "schedule")]
        files |= {f"{kind}.png": functools.partial(_save_plot, run, kind) for kind in kinds}
    return files


def _save_plot(run: _Run, kind: str, path: Path) -> None:
    save_figure(path, run.plot(kind))


def _files_of(result: SimulationResult, *, plots: bool) -> dict[str, _Writer]:
    return files_of(result, lambda path: write_jobs_csv(result, path), plots=plots)


def write_all(folder: Path, files: dict[str, _Writer]) -> tuple[Path, ...]:
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
        raise InputError(f"{path.name}: an option is no plain value: {error}") from None
    path.write_bytes(msgspec.json.format(text, indent=2) + b"\n")


def _plain(value: Any) -> Any:
    """Return a number of numpy's as one of Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} is a {type(value).__name__}")


def save_figure(path: Path, figure: Figure) -> None:
    """Write a figure as PNG: the same figure gives the same bytes."""
    figure.savefig(path, dpi=_DPI, metadata={"Software": None})


def _plots() -> Any:
    from gridweave.scenarios.plots import results as plots

    return plots
