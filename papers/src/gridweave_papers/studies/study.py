"""Run the simulations for a published table: each setting once, in parallel on all cores."""

from __future__ import annotations

import contextlib
import csv
import hashlib
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import platformdirs

from gridweave.errors import InputError, OptionError, TraceError
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.scenario.run import Progress
from gridweave.scenarios.sweep.identity import code_stamp
from gridweave.scenarios.sweep.runner import in_threads
from gridweave.scenarios.traces.load import find_trace
from gridweave.scenarios.workload.table import MS_PER_S
from gridweave_papers.studies.report import Conclusion, Verdict

SettingT = TypeVar("SettingT", bound=Hashable)
ResultT = TypeVar("ResultT")

MS_PER_DAY = 24 * 3600 * MS_PER_S
MS_PER_WEEK = 7 * MS_PER_DAY

_DATA = Path(__file__).parent / "data"


def check_all_ran(result: SimulationResult) -> None:
    """Raise InputError if a job was refused."""
    if result.refused:
        raise InputError(f"{len(result.refused)} jobs did not run; the first: {result.refused[0][1]}")


def awrt_s(result: SimulationResult) -> float:
    """Return the average response time in seconds; the weights are widths, which do not depend on the schedule."""
    return result.metrics().awrt_width_ms / MS_PER_S


def slowdowns(result: SimulationResult) -> tuple[float, float]:
    """Return the mean and maximum bounded slowdown, with a bound of 10 s (Zhang, section 2.3; DFRS, 2.2)."""
    jobs, least_ms = result.workload, 10 * MS_PER_S
    response_ms = np.maximum(result.end_ms - jobs.submit_ms, least_ms)
    job_slowdowns = response_ms / np.maximum(np.minimum(jobs.run_ms, jobs.estimate_ms), least_ms)
    return float(job_slowdowns.mean()), float(job_slowdowns.max())


class KeptResults:
    """Results stored in a file, one per line, so that an interrupted study can be resumed.

    Parameters
    ----------
    path : pathlib.Path
        The file, which is created when the first result is stored.
    setting, result : type
        Named tuples of plain values or of other named tuples.
    """

    def __init__(self, path: Path, setting: type[Any], result: type[Any]) -> None:
        self._path = path
        self._lines = msgspec.json.Decoder(tuple[setting, result])  # type: ignore[valid-type]

    def load(self) -> dict[Any, Any]:
        """Return the stored results; incomplete lines are ignored."""
        results = {}
        with contextlib.suppress(OSError):
            for line in self._path.read_bytes().splitlines():
                with contextlib.suppress(msgspec.DecodeError):
                    setting, result = self._lines.decode(line)
                    results[setting] = result
        return results

    def add(self, setting: Any, result: Any) -> None:
        """Store a result; write errors are ignored."""
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.write(b"\n" + msgspec.json.encode((setting, result)))  # the newline ends a truncated line


def kept_file(name: str) -> Path:
    """Return the path of a study's results; it changes with the source code of gridweave and of the studies."""
    studies = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    state = f"{code_stamp()}-{hashlib.sha256(studies).hexdigest()[:16]}"  # code_stamp covers only the simulation
    return platformdirs.user_cache_path("gridweave") / "reproduce" / state / f"{name}.jsonl"


class Study(Generic[SettingT, ResultT]):
    """Results by setting, computed on first use.

    ``run`` computes one result, and is called from several threads. ``same`` maps a setting to an equivalent setting
    whose result it shares. ``kept`` stores the results in a file.
    """

    def __init__(
        self,
        run: Callable[[SettingT], ResultT],
        *,
        title: str = "",
        progress: Progress | None = None,
        same: Callable[[SettingT], SettingT] | None = None,
        kept: KeptResults | None = None,
    ) -> None:
        self._run, self._title = run, title
        self._progress = progress or (lambda done, total, what: None)
        self._same = same or (lambda setting: setting)
        self._kept = kept
        self._results: dict[SettingT, ResultT] = {} if kept is None else kept.load()

    def _take(self, setting: SettingT, result: ResultT) -> None:
        self._results[setting] = result
        if self._kept is not None:
            self._kept.add(setting, result)

    def __getitem__(self, setting: SettingT) -> ResultT:
        canonical = self._same(setting)
        if canonical not in self._results:
            self._take(canonical, self._run(canonical))
        return self._results[canonical]

    def results(self, settings: Iterable[SettingT]) -> dict[SettingT, ResultT]:
        """Return the results of these settings, computing missing results on all cores."""
        canonical_of = {setting: self._same(setting) for setting in settings}
        new = [canonical for canonical in dict.fromkeys(canonical_of.values()) if canonical not in self._results]
        for done, (canonical, result) in enumerate(in_threads(self._run, new), start=1):
            self._take(canonical, result)
            self._progress(done, len(new), f"Simulating: {self._title}")
        return {setting: self._results[canonical] for setting, canonical in canonical_of.items()}


def judge(
    table: str, checks: Iterable[Callable[[ResultT], Verdict]], readings: Mapping[str, ResultT]
) -> tuple[Conclusion, ...]:
    """Judge the claims about a table under each reading; `checks` has one function per claim in ``data/claims.csv``."""
    claims = (row for row in printed("claims") if row["table"] == table)
    return tuple(
        Conclusion(row["source"], row["claim"], {name: check(result) for name, result in readings.items()})
        for row, check in zip(claims, checks, strict=True)
    )


def seeds_of(count: int) -> tuple[int, ...]:
    """Return the seeds 1 to `count`; OptionError if `count` is below 1."""
    if count < 1:
        raise OptionError("seeds", f"is {count}; expected at least 1")
    return tuple(range(1, count + 1))


def printed(table: str) -> list[dict[str, str]]:
    """Return the transcribed rows of a table, e.g. "streit-3.6", each as a mapping from column to text."""
    with (_DATA / f"{table}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def path_of(name: str) -> Path | None:
    """Return the path of a trace given by its full name, or None if the trace is not on this machine."""
    try:
        return find_trace(name)
    except TraceError:
        return None
