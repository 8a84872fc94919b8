"""Write one or several runs as a single HTML file that works offline, with their schedules and metrics side by side."""

from __future__ import annotations

import csv
import hashlib
import html
from base64 import b64encode
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gridweave.errors import InputError

_STATIC = Path(__file__).parents[2] / "grid" / "gateway" / "web"
_SCRIPTS = ("text.js", "gantt.js", "report.js")
_COLUMNS = ("job_id", "submit_ms", "start_ms", "end_ms", "width", "site", "killed")

_METRICS = (
    ("util", "Utilisation", "%"),
    ("awrt_area_ms", "AWRT (area)", "time"),
    ("art_ms", "Mean response time", "time"),
    ("awt_ms", "Mean wait", "time"),
    ("wait_p95_ms", "95% of waits below", "time"),
    ("wait_max_ms", "Longest wait", "time"),
    ("sldwa", "SLDwA", ""),
    ("bounded_slowdown_10s", "Bounded slowdown (10 s)", ""),
    ("loss_of_capacity", "Loss of capacity", "%"),
    ("makespan_ms", "Makespan", "time"),
    ("jobs", "Jobs", ""),
)
"""The main metrics (docs/metrics.md): name in ``summary.json``, label, and unit."""


class FinishedRun(msgspec.Struct, frozen=True):
    """A finished run, read from its folder."""

    label: str
    sites: list[tuple[str, int]]
    metrics: dict[str, int | float | None]
    # The fields of the gateway's `ScheduledJob`; times are counted from the beginning of the workload.
    jobs: list[tuple[int, str, str, str, int, int, int, list[tuple[str, int]]]]


def read_run(folder: str | Path) -> FinishedRun:
    """Read a run from a folder that was written with ``--out``.

    Raises
    ------
    InputError
        If a file is missing or does not describe a run; the error names the file and, if known, the line.
    """
    folder = Path(folder)
    summary = _read_summary(folder / "summary.json")
    try:
        with (folder / "jobs.csv").open(encoding="utf-8", newline="") as lines:
            jobs = list(_jobs(folder / "jobs.csv", csv.DictReader(lines)))
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "is not text"
        raise InputError(f"{folder / 'jobs.csv'}: {problem}; name a folder that --out has written") from None
    sites = [(site.name, site.nodes) for site in summary.sites] or [(summary.site, summary.nodes)]
    names = (folder.resolve().name, summary.label, summary.workload.name)
    return FinishedRun(", ".join(text for text in names if text), sites, summary.metrics, jobs)


class _Site(msgspec.Struct):
    name: str
    nodes: int


class _Workload(msgspec.Struct):
    name: str = ""


class _Summary(msgspec.Struct):
    """The part of ``summary.json`` that a report needs; ``sites`` is present only if sites have names."""

    label: str
    metrics: dict[str, int | float | None]
    nodes: int
    site: str = "site"
    sites: list[_Site] = []
    workload: _Workload = msgspec.field(default_factory=_Workload)


def _read_summary(path: Path) -> _Summary:
    try:
        summary = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; name a folder that --out has written") from None
    except msgspec.DecodeError as error:
        raise InputError(f"{path}: {error}; name a folder that --out has written") from None
    missing = [name for name in ("label", "metrics", "nodes") if name not in summary]
    if missing:
        raise InputError(f"{path}: has no {', '.join(missing)}; it is not the summary of one run")
    try:
        return msgspec.convert(summary, _Summary)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {error}; it is not the summary of one run") from None


def _jobs(path: Path, rows: csv.DictReader[str]) -> Iterator[tuple[Any, ...]]:
    missing = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        raise InputError(f"{path}: has no column {', '.join(missing)}; it is not the schedule of one run")
    for row in rows:
        try:
            job_id, submit_ms, start_ms, end_ms, width = (int(row[name]) for name in _COLUMNS[:5])
            placement = _places(row["site"], width)
            state = "limit" if int(row["killed"]) else "finished"
        except (ValueError, TypeError):
            expected = "whole numbers, and a site as NAME or NAME:NODES+NAME:NODES"
            raise InputError(f"{path}: line {rows.line_num}: cannot be read; expected {expected}") from None
        yield job_id, "", "", state, submit_ms, start_ms, end_ms, placement


def _places(text: str, width: int) -> list[tuple[str, int]]:
    """Parse a job's sites, and its number of nodes at each site.

    Examples
    --------
    >>> _places("alpha:4+beta:2", 6), _places("alpha", 6)
    ([('alpha', 4), ('beta', 2)], [('alpha', 6)])
    """
    if ":" not in text:
        return [(text, width)]
    parts = (part.rpartition(":") for part in text.split("+"))
    return [(name, int(nodes)) for name, _, nodes in parts]


def report(runs: Sequence[FinishedRun]) -> str:
    """Return a self-contained HTML page for one or several runs; it loads no files and runs only its own script."""
    style = (_STATIC / "style.css").read_text(encoding="utf-8")
    # Concatenate the modules that the web pages import, because a report is a single file.
    script = "\n".join((_STATIC / name).read_text(encoding="utf-8").replace("\nexport ", "\n") for name in _SCRIPTS)
    title = html.escape(" and ".join(run.label for run in runs))
    policy = f"default-src 'none'; script-src {_csp_hash(script)}; style-src {_csp_hash(style)}"
    # Escape "<", so that no job's text can close the script element.
    data = msgspec.json.encode({"runs": runs, "metrics": _METRICS}).decode().replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<title>{title}</title><style>{style}</style></head>
<body><main id="main"></main><script type="application/json" id="data">{data}</script>
<script type="module">{script}</script></body></html>
"""


def _csp_hash(text: str) -> str:
    """Return the hash source of a script or style for the Content-Security-Policy."""
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
