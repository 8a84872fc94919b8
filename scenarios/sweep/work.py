"""Carry out one run of a sweep, from scenario to metrics, in any process; read and write the files of finished runs.

Every finished run is saved in a small file, so that an interrupted sweep can be continued.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import platformdirs

from gridweave.errors import GridweaveError, InputError, UnavailableError
from gridweave.grid.config.checks import grid_policy, site_policy
from gridweave.jit import one_at_a_time
from gridweave.scenarios.results.metrics import Metrics
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.scenario.build import Built, build_scenario
from gridweave.scenarios.scenario.read import contention_of, sites_of
from gridweave.scenarios.scenario.run import run_built
from gridweave.scenarios.scenario.tables import Scenario
from gridweave.scenarios.sweep.identity import InputFile, code_stamp, digest_of, with_file, workload_key
from gridweave.scenarios.sweep.plan import PlannedRun, SweepPlan
from gridweave.scenarios.traces.text import new_file, one_line, write_file

Values = dict[str, int | float | None]
Fetch = Callable[[str], bytes]
"""Returns the content of the file with this digest."""

MULTI_SITE = ("multi_site_jobs", "multi_site_share_of_jobs", "multi_site_share_of_area")
METRICS = (*MULTI_SITE, *Metrics.__struct_fields__)
"""The metrics recorded for every run."""

_FEW_JOBS = 8
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""A terminal's escape sequence."""


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of a run: its metrics (`METRICS`; undefined metrics are None), or the reason why it failed."""

    metrics: Values | None
    problem: str = ""
    seconds: float = 0.0


def perform(run: PlannedRun, stamp: str, fetch: Fetch | None = None) -> Outcome:
    """Run one combination with one seed; an error becomes part of the outcome.

    ``stamp`` identifies the code that planned the run; ``fetch`` returns the content of files missing on this machine.
    """
    began = time.perf_counter()
    try:
        if stamp != code_stamp():
            raise UnavailableError(
                f"this worker has gridweave {code_stamp()}, but the sweep was started with {stamp}; "
                "install the same version there, or start the sweep again if its sources have changed"
            )
        scenario = _with_local_files(run.scenario, run.files, fetch)
        built = _built(scenario, workload_key(scenario, run.files))
        _compile(built)
        return Outcome(values_of(run_built(built)), seconds=time.perf_counter() - began)
    except Exception as error:
        return Outcome(None, problem_of(error), time.perf_counter() - began)


def problem_of(error: Exception) -> str:
    r"""Return a one-line reason why a run failed, without colours; for a Ray error, report the worker's exception.

    Examples
    --------
    >>> problem_of(InputError("nodes is 0\nname is missing")), problem_of(OSError("\x1b[31mred\x1b[0m"))
    ('nodes is 0; name is missing', 'OSError: red')
    """
    raised = getattr(error, "cause", None)  # Ray keeps the original exception if it can be pickled
    error = raised if isinstance(raised, Exception) else error
    lines = [line.strip() for line in _ESCAPE.sub("", str(error)).splitlines() if line.strip()]
    if isinstance(error, GridweaveError):
        return "; ".join(lines)
    shown = lines[-1:] if "Traceback" in str(error) or "ray::" in str(error) else lines
    return " ".join(" ".join((f"{type(error).__name__}:", *shown)).split())


def values_of(run: SimulationResult) -> Values:
    """Return a run's recorded metrics (`METRICS`) by name, with None for undefined metrics."""
    several = run.multi_site_summary()
    values = (several["jobs"], several["share_of_jobs"], several["share_of_squashed_area"])
    return dict(zip(MULTI_SITE, values, strict=True)) | run.metrics().to_dict()


# This process's latest workloads. Runs are sorted by workload, but runs of two workloads may overlap.
_BUILT: dict[str, Built] = {}
_BUILT_AT_MOST = 2
_COMPILED: set[bytes] = set()


def _built(scenario: Scenario, key: str) -> Built:
    """Build a scenario; runs that differ only in the grid's policy share the built workload."""
    built = _BUILT.pop(key, None)
    if built is None:
        built = build_scenario(scenario)
    else:
        built = dataclasses.replace(
            built,
            scenario=scenario,
            policy=grid_policy(scenario.grid),
            site_policies=tuple(site_policy(site, scenario.grid) for site in sites_of(scenario)),
        )
    _BUILT[key] = built
    while len(_BUILT) > _BUILT_AT_MOST:
        del _BUILT[next(iter(_BUILT))]
    return built


def _compile(built: Built) -> None:
    """Compile a policy's kernels by simulating a few jobs; meanwhile, other workers on this machine wait.

    Compilation takes many seconds and is cached on disk, so the workers should not all compile at the same time.
    """
    policy = msgspec.structs.replace(built.policy, overhead=0.0)
    grid = built.scenario.grid
    network = None if built.net is None else (contention_of(built.scenario), grid.split, grid.data)
    kind = msgspec.json.encode((policy, built.site_policies, network))
    if kind in _COMPILED:
        return
    one_of_each_site = np.unique(built.home, return_index=True)[1]
    few = np.union1d(one_of_each_site, np.arange(min(_FEW_JOBS, len(built.workload))))
    with one_at_a_time("sweep"):
        workload, home, to_grid = built.workload.take(few), built.home[few], built.to_grid[few]
        run_built(dataclasses.replace(built, workload=workload, home=home, to_grid=to_grid))
    _COMPILED.add(kind)


def _with_local_files(scenario: Scenario, files: tuple[InputFile, ...], fetch: Fetch | None) -> Scenario:
    """Replace files of the scenario that are missing or different on this machine with fetched copies."""
    for file in files:
        path = Path(file.path)
        if path.is_file() and digest_of(path) == file.digest:
            continue
        if fetch is None:
            raise UnavailableError(f"{file.path}: has changed since the sweep began; start the sweep again")
        scenario = with_file(scenario, file.field, _fetched(path.name, file.digest, fetch))
    return scenario


def _fetched(name: str, digest: str, fetch: Fetch) -> str:
    """Fetch a file to the user's cache folder on this machine; return its path."""
    folder = platformdirs.user_cache_path("gridweave") / "sweep-files" / digest[:32]
    path = folder / name
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with new_file(path) as (_, stream):
            stream.write(fetch(digest))
    return str(path)


FOLDER = "runs"
"""Subfolder of a sweep's folder that contains the files of finished runs."""

_FORMAT = 1


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a finished run's file: a readable description of the run, and its metrics."""

    format: int
    key: str
    scenario: str
    settings: dict[str, Any]
    seed: int
    seconds: float
    metrics: Values


class FinishedRuns:
    """The finished runs that are saved in a sweep's folder.

    Parameters
    ----------
    folder : pathlib.Path
        Folder of the sweep, created when the first run is saved.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / FOLDER

    def find(self, run: PlannedRun) -> Values | None:
        """Return a run's metrics, or None if the run is not finished or its file is damaged or has another format."""
        try:
            record = msgspec.json.decode((self.folder / f"{run.key}.json").read_bytes(), type=_Record)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None
        whole = (record.format, record.key, set(record.metrics)) == (_FORMAT, run.key, set(METRICS))
        return {name: record.metrics[name] for name in METRICS} if whole else None

    def keep(self, plan: SweepPlan, run: PlannedRun, outcome: Outcome) -> None:
        """Save a finished run; the file is written atomically."""
        assert outcome.metrics is not None, "only finished runs are saved"
        settings = plan.settings(run.combination)
        record = _Record(_FORMAT, run.key, plan.name, settings, run.seed, round(outcome.seconds, 3), outcome.metrics)
        text = msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.folder}: cannot be written: {one_line(error)}") from None
        write_file(self.folder / f"{run.key}.json", lambda file: file.write(text))
