"""Load a workload from a file in any supported format, or a downloaded trace by its name."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from gridweave.errors import InputError, OptionError, TraceError
from gridweave.scenarios.traces.convert import ConversionReport
from gridweave.scenarios.traces.fetch import KNOWN_TRACES, cache_folder, resolve_name
from gridweave.scenarios.traces.mupsie import MUPSIE_FIELDS, read_mupsie, write_mupsie
from gridweave.scenarios.traces.swf import COLUMN_FIELDS, read_swf, write_swf
from gridweave.scenarios.traces.text import open_trace, trace_stem
from gridweave.scenarios.workload.table import Workload

FOLDER_VARIABLE = "GRIDWEAVE_TRACES"
FORMATS = ("swf", "mupsie")

_SUFFIXES = {".swf": "swf", ".mupsie": "mupsie", ".txt": "mupsie"}
_SNIFF_BYTES = 1 << 16


def load_workload(
    path: str | Path, *, nodes: int | None = None, columns: Sequence[str] | None = None, cancelled: bool = False
) -> tuple[Workload, ConversionReport]:
    """Load a workload from an SWF or MuPSiE file, or a trace by name.

    The format is detected from the first non-blank line: ``;`` starts an SWF comment and ``#`` a MuPSiE comment, and a
    record with five fields is MuPSiE. Anything else is read as SWF.

    Parameters
    ----------
    path : str or pathlib.Path
        A file, or the name of a trace (as in `gridweave.scenarios.traces.fetch.resolve_name`, or a file name without
        suffixes). A trace is looked up in ``$GRIDWEAVE_TRACES`` and then in the user's cache.
    nodes : int, optional
        Number of nodes of the machine; defaults to the number in the file.
    columns : sequence of str, optional
        Optional columns to read, as in `gridweave.scenarios.traces.swf.read_swf`; each takes 8 bytes per job. Defaults
        to all columns of the format, so that policies can use users and classes.
    cancelled : bool, optional
        Whether to keep jobs that were cancelled before they started, with the column ``cancel_ms`` (SWF only).

    Raises
    ------
    TraceError
        If the file or trace does not exist, or the file is invalid.
    OptionError
        If `nodes` or `columns` is invalid.
    """
    file = find_trace(path)
    columns = columns_of(file) if columns is None else columns
    if _is_mupsie(file):
        return read_mupsie(file, nodes=nodes, columns=columns)
    return read_swf(file, nodes=nodes, columns=columns, cancelled=cancelled)


def columns_of(path: str | Path) -> tuple[str, ...]:
    """Return the optional columns that a trace's file format can hold."""
    return () if _is_mupsie(find_trace(path)) else tuple(COLUMN_FIELDS)


def find_trace(path: str | Path) -> Path:
    """Find the file for a path or trace name, as in `load_workload`; raise TraceError if no file is found."""
    try:
        if Path(path).exists():
            return Path(path)
    except (OSError, ValueError):
        raise TraceError(path, "is not the name of a file") from None
    name = str(path)
    if Path(name).name != name:  # a path with folders is not the name of a trace
        raise TraceError(path, "there is no such file")
    full = resolve_name(trace_stem(name))
    stems = {trace_stem(name).casefold(), (full or name).casefold()}
    for folder in trace_folders():
        for file in _files(folder):
            if trace_stem(file).casefold() in stems:
                return file
    if full is not None:
        raise TraceError(path, f"this trace is not on this machine; get it with `gridweave trace fetch {full}`")
    names = ", ".join(sorted(KNOWN_TRACES))
    raise TraceError(path, f"there is no such file; traces that `gridweave trace fetch` can get are {names}")


def trace_folders() -> list[Path]:
    """Return the folders searched for a trace by name, in search order."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return [Path(folder), cache_folder()] if folder else [cache_folder()]


def _files(folder: Path) -> list[Path]:
    """Return the trace files in a folder, sorted by name; empty if the folder cannot be read."""
    try:
        files = sorted(folder.iterdir())
    except OSError:
        return []
    return [file for file in files if trace_stem(file) != file.name and file.name[0] != "." and file.is_file()]


# Other formats: a hint for the user, and a test of the first line and the first record.
_OTHERS: tuple[tuple[str, Callable[[str, str], bool]], ...] = (
    ("JSON, as workloads of Batsim are; convert its jobs to SWF", lambda first, _: first[:1] in ("{", "[")),
    ("Parquet; use trace convert --from parquet", lambda first, _: first.startswith("PAR1")),
    ("XML; convert its jobs to SWF", lambda first, _: first.startswith("<")),
    ("output of sacct; use trace convert --from sacct", lambda first, _: "JobID" in first and "|" in first),
    ("GWF, the Grid Workload Format with 29 fields; convert it to SWF", lambda _, record: len(record.split()) == 29),
    ("Alea's variant of SWF with 20 fields; remove the last two", lambda _, record: len(record.split()) == 20),
    ("CSV; use trace convert --from csv", lambda _, record: record.count(",") > len(record.split())),
)


def _is_mupsie(path: Path) -> bool:
    """Whether a file is a MuPSiE job file; raise TraceError if the file has a known format that cannot be read."""
    first, record = _first_lines(path)
    for what, is_of in _OTHERS:
        if is_of(first, record):
            raise TraceError(path, f"is {what}; traces are read in SWF (18 fields) and MuPSiE (5 fields)")
    return first.startswith("#") or (not first.startswith(";") and len(first.split()) == len(MUPSIE_FIELDS))


def _first_lines(path: Path) -> tuple[str, str]:
    """Return the first non-blank line and the first record (non-comment line); "" for a missing line."""
    first = ""
    with open_trace(path) as stream:
        while line := stream.readline(_SNIFF_BYTES):
            text = line.decode("latin-1").strip()
            first = first or text
            if text and text[0] not in ";#":
                return first, text
    return first, ""


def format_of(path: str | Path) -> str | None:
    """Return the format (one of `FORMATS`) for a file's suffix, ignoring ``.gz`` and ``.xz``; None if unknown.

    Examples
    --------
    >>> format_of("a.swf.gz"), format_of("a.mupsie"), format_of("a.csv")
    ('swf', 'mupsie', None)
    """
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes and suffixes[-1] in (".gz", ".xz"):
        suffixes.pop()
    return _SUFFIXES.get(suffixes[-1]) if suffixes else None


def save_workload(workload: Workload, path: str | Path, *, file_format: str | None = None) -> str:
    """Write a workload to a file, in the format given by the file's suffix.

    Parameters
    ----------
    path : str or pathlib.Path
        ``.swf`` for SWF, ``.mupsie`` or ``.txt`` for MuPSiE, optionally followed by ``.gz`` or ``.xz`` for compression.
    file_format : str, optional
        One of `FORMATS`; overrides the suffix.

    Returns
    -------
    str
        The format written.

    Raises
    ------
    OptionError
        If `file_format` is unknown.
    InputError
        If the suffix is not that of a known format, or the file cannot be written.
    """
    if file_format is not None and file_format not in FORMATS:
        raise OptionError("file_format", f"{file_format!r} is not a format; one of {', '.join(FORMATS)}")
    chosen = file_format or format_of(path)
    if chosen is None:
        raise InputError(f"{path}: the suffix names no format; use .swf, .mupsie or .txt, or name the format")
    (write_swf if chosen == "swf" else write_mupsie)(workload, path)
    return chosen
