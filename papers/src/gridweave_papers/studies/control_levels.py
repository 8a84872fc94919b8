"""The cost of Gehring and Preiss's three levels of control, and of owners' rules, on an extract of CTC.

Streit's thesis (section 2.5) describes three levels of information between a meta-scheduler and the schedulers of the
sites, calls full control "obviously" the most promising and limited control a compromise, but compares none of them.
There are no published numbers to compare with; every number here is ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.workload.homes import home_of
from gridweave.scenarios.workload.table import MS_PER_S, BoolArray
from gridweave.scenarios.workload.transform import split
from gridweave.scenarios.world.simulate import simulate_world
from gridweave.site.users.owner import OwnerPolicy
from gridweave_papers.studies.report import OURS, Conclusion, Findings, Row, Section, Verdict, lower, our_values
from gridweave_papers.studies.streit_grid import CONFIGURATIONS, GridRuns, with_homes
from gridweave_papers.studies.study import Study, awrt_s, check_all_ran

EXTRACT = "10_20k_org"
MACHINES = "m128"
OVERHEAD = 0.3
LEVELS: tuple[tuple[str, str], ...] = (
    ("local", "full"),
    ("sharing", "none"),
    ("sharing", "limited"),
    ("sharing", "full"),
    ("adaptive", "limited"),
    ("adaptive", "full"),
)
"""The mode and the level of control of each simulation; with mode ``local`` there is no grid."""

EVERYTHING = OwnerPolicy()
OWNERS: dict[str, OwnerPolicy] = {
    "all nodes": EVERYTHING,
    "all, own users first": OwnerPolicy(own_users_first=True),
    "three quarters": OwnerPolicy(grid_share=0.75),
    "half": OwnerPolicy(grid_share=0.5),
}
"""Rules by which owners share their sites with the grid."""

OWNERS_RUNS: tuple[tuple[str, str], ...] = (
    ("limited", "all nodes"),
    ("limited", "all, own users first"),
    ("limited", "three quarters"),
    ("full", "all nodes"),
    ("full", "three quarters"),
    ("full", "half"),
)
"""The level of control and the owners' rule of each simulation, without slow or ineffective combinations."""

HALF_SEED = 1
"""Seed for choosing the half of the jobs that are submitted to the grid."""

_SOURCE = "Streit, section 2.5"
_TABLE_COLUMNS = ("AWRT [s]", "AWT [s]", "multi-site jobs", "messages per job")
_PARTY_COLUMNS = ("AWRT [s]", "AWT [s]", "own users: AWRT", "AWT", "grid: AWRT", "AWT")


class _Setting(NamedTuple):
    """A mode, a level of control, whether only half of the jobs are submitted to the grid, and the owners' rule."""

    mode: str
    control: str
    half: bool = False
    max_width: int = CONFIGURATIONS[MACHINES][0]
    owner: OwnerPolicy = EVERYTHING


class _Runs:
    """The schedules of the study, each simulated once.

    No job is wider than a site (or half a site, if owners keep a part), so that every level runs the same jobs.
    """

    def __init__(self, runs: GridRuns) -> None:
        self._nodes = CONFIGURATIONS[MACHINES]
        self.site_nodes = self._nodes[0]
        jobs = with_homes(runs.extract(EXTRACT), len(self._nodes))
        self._workloads = {width: split(jobs, width) for width in (self.site_nodes, self.site_nodes // 2)}
        self._results = Study(self._simulate)

    def to_grid(self, max_width: int) -> BoolArray:
        """Return a mask of the jobs submitted to the grid, each chosen with probability 0.5."""
        return np.random.default_rng(HALF_SEED).random(len(self._workloads[max_width])) < 0.5

    def result(self, mode: str, control: str, *, half: bool = False) -> SimulationResult:
        """Return the schedule of one simulation, whose jobs are no wider than a site."""
        return self._results[_Setting(mode, control, half)]

    def owners_result(self, mode: str, control: str, owner: OwnerPolicy) -> SimulationResult:
        """Return the schedule of jobs no wider than half a site; half of the jobs are submitted to the grid."""
        return self._results[_Setting(mode, control, True, self.site_nodes // 2, owner)]

    def _simulate(self, setting: _Setting) -> SimulationResult:
        workload = self._workloads[setting.max_width]
        return simulate_world(
            workload,
            self._nodes,
            GridPolicy(mode=setting.mode, control=setting.control, overhead=OVERHEAD),
            home=home_of(workload),
            to_grid=self.to_grid(setting.max_width) if setting.half and setting.mode != "local" else None,
            owners=[setting.owner] * len(self._nodes),
        )


def report(table: str, runs: GridRuns) -> Findings:
    """Compare three levels of control with no grid, and report gains and costs of owners' rules (docs/control.md)."""
    study = _Runs(runs)
    return Findings(
        sections=(_all_to_grid(study), _half_to_grid(study), _by_owners(study)),
        conclusions=tuple(_conclusions(study)),
        notes=(
            f"The workload is {EXTRACT} on {MACHINES}. AWRT is weighted by width.",
            f"Jobs are in parts of at most {study.site_nodes} nodes; in the last table of {study.site_nodes // 2}.",
            "Messages take no time and nothing fails: the levels differ only in what the grid knows and may decide.",
        ),
    )


def _label(mode: str, control: str) -> tuple[str, str]:
    return ("no grid", "local") if mode == "local" else (control, mode)


def _all_to_grid(study: _Runs) -> Section:
    rows = []
    for mode, control in LEVELS:
        result = study.result(mode, control)
        assert result.world is not None, "a run in the world"
        messages = 0.0 if mode == "local" else result.world.messages / len(result.workload)
        figures = (awrt_s(result), result.metrics().awt_ms / MS_PER_S, float(result.multi_site.sum()))
        rows.append(Row(_label(mode, control), (*our_values(*figures), *our_values(messages, decimals=1))))
    return Section("All jobs are submitted to the grid", ("control", "mode"), _TABLE_COLUMNS, tuple(rows), OURS)


def parties(result: SimulationResult, to_grid: BoolArray) -> tuple[float, ...]:
    """Return AWRT by width and AWT in seconds, for all jobs, the own users' jobs and the grid's jobs."""
    check_all_ran(result)
    jobs = result.workload
    figures: list[float] = []
    for rows in (np.ones(len(jobs), np.bool_), ~to_grid, to_grid):
        response_ms = (result.end_ms - jobs.submit_ms)[rows]
        figures += [
            float(np.average(response_ms, weights=jobs.width[rows])) / MS_PER_S,
            float((result.start_ms - jobs.submit_ms)[rows].mean()) / MS_PER_S,
        ]
    return tuple(figures)


def _half_to_grid(study: _Runs) -> Section:
    to_grid = study.to_grid(study.site_nodes)
    rows = [Row(_label(*level), our_values(*parties(study.result(*level, half=True), to_grid))) for level in LEVELS]
    return Section(
        "Half of the jobs are submitted to the grid, the others to their own sites",
        ("control", "mode"),
        _PARTY_COLUMNS,
        tuple(rows),
        OURS,
    )


def _by_owners(study: _Runs) -> Section:
    rows = [Row(run, our_values(*_owners_figures(study, *run))) for run in OWNERS_RUNS]
    return Section(
        "The same with owners' rules, under sharing", ("control", "owners give"), _PARTY_COLUMNS, tuple(rows), OURS
    )


def _owners_figures(study: _Runs, control: str, name: str) -> tuple[float, ...]:
    return parties(study.owners_result("sharing", control, OWNERS[name]), study.to_grid(study.site_nodes // 2))


def _conclusions(study: _Runs) -> Iterator[Conclusion]:
    yield _compared(study, "Full control gives the lowest AWRT", "full", "limited", ("sharing", "adaptive"))
    yield _compared(study, "Limited control gives a lower AWRT than none", "limited", "none", ("sharing",))
    yield _compared(study, "A grid without control gives a lower AWRT than no grid", "none", None, ("sharing",))
    yield from _of_owners(study)


def _compared(study: _Runs, claim: str, better: str, worse: str | None, modes: tuple[str, ...]) -> Conclusion:
    """Check whether one level of control has a lower AWRT than another level, or than no grid."""
    verdicts = {}
    for half in (False, True):
        for mode in modes:
            levels = (mode, better), ("local", "full") if worse is None else (mode, worse)
            reading = f"{mode}, {'half of the jobs' if half else 'all jobs'}"
            verdicts[reading] = lower(*(awrt_s(study.result(*level, half=half)) for level in levels))
    return Conclusion(_SOURCE, claim, verdicts)


def _of_owners(study: _Runs) -> Iterator[Conclusion]:
    """Check whether each owners' rule helps the site's own users, at the expense of the grid's jobs."""
    for name in list(OWNERS)[1:]:
        verdicts = {}
        for control in (control for control, rule in OWNERS_RUNS if rule == name):
            without = _owners_figures(study, control, "all nodes")
            kept = _owners_figures(study, control, name)
            own, grid = (f"{without[party]:,.0f} s → {kept[party]:,.0f} s" for party in (3, 5))
            figures = f"AWT of own users {own}, of the grid's jobs {grid}"
            verdicts[control] = Verdict(kept[3] < without[3] and kept[5] > without[5], figures)
        yield Conclusion(
            "docs/control.md",
            f"Where the grid is given '{name}', own users wait less and the grid's jobs longer",
            verdicts,
        )
