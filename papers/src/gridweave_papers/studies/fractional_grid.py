"""Beyond DFRS: sites that give jobs fractions of nodes, in the grids of the catalogue.

The paper leaves grids of such sites to future work. Here a site quotes the slowdown with which a job could start now,
and the grid weighs this slowdown against waiting and splitting. No published numbers exist for comparison.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.scenario.read import read_scenario, sites_of
from gridweave.scenarios.scenario.run import Progress, run_scenario
from gridweave_papers.studies.report import OURS, Conclusion, Findings, Row, Section, gained, our_values
from gridweave_papers.studies.study import Study, awrt_s, check_all_ran, slowdowns

GRIDS = ("two-sites", "control-levels", "national-grid")
LEVELS = (("local", "none"), ("sharing", "limited"), ("adaptive", "limited"))
"""The mode and the level of control of each simulation; with mode ``local`` there is no grid."""

EASY, FRACTIONAL, MIXED = "EASY", "fractional", "EASY, fractional in turn"
LINES = {EASY: (), FRACTIONAL: (0, 1), MIXED: (1,)}
"""For each line of the table, which sites allocate fractions of nodes: the site numbers modulo 2."""

SITE = {"algorithm": "GreedyPM*/per/OPT=MIN/MINVT=600", "period_s": 3000.0, "penalty_s": 300.0}
"""The best algorithm of `dfrs`, with a longer period."""

NEEDS = "lublin"
JOBS = 2_000
"""Jobs per grid, at the load in the catalogue; more jobs would take too long."""

_SOURCE = "DFRS, section 6"


class _Setting(NamedTuple):
    grid: str
    mode: str
    control: str
    line: str


class FractionalGridRuns:
    """The schedules of the grids, each simulated once.

    Parameters
    ----------
    jobs : int
        Number of jobs per grid.
    grids : tuple of str
        Names of scenarios in the catalogue.
    progress : callable, optional
    """

    def __init__(self, jobs: int = JOBS, grids: tuple[str, ...] = GRIDS, progress: Progress | None = None) -> None:
        self.grids, self._jobs = grids, jobs
        self._results = Study(self._simulate, title="fractions at sites", progress=progress)

    def result(self, grid: str, mode: str, control: str, line: str) -> SimulationResult:
        """Return the schedule of a grid; ``line``, a key of `LINES`, selects the sites that allocate fractions."""
        return self._results[_Setting(grid, mode, control, line)]

    def _simulate(self, setting: _Setting) -> SimulationResult:
        sites = [site.name for site in sites_of(read_scenario(setting.grid))]
        changes = {"workload.jobs": self._jobs, "workload.needs": NEEDS, "grid.mode": setting.mode}
        if setting.mode != "local":
            changes["grid.control"] = setting.control
        for number, site in enumerate(sites):
            if number % 2 in LINES[setting.line]:
                changes |= {f"sites.{site}.discipline": "fractional", f"sites.{site}.fractional": SITE}
        result = run_scenario(setting.grid, overrides=changes)
        check_all_ran(result)
        return result


def report(table: str, runs: FractionalGridRuns) -> Findings:
    """Report how sites that allocate fractions change the gain of a grid."""
    rows = []
    for grid in runs.grids:
        for mode, control in LEVELS:
            for line in LINES:
                result = runs.result(grid, mode, control, line)
                values = our_values(awrt_s(result), *slowdowns(result), decimals=1)
                split_jobs = our_values(float(result.multi_site.sum()))
                rows.append(Row((grid, "no grid" if mode == "local" else mode, line), (*values, *split_jobs)))
    columns = ("AWRT [s]", "slowdown", "max. stretch", "multi-site jobs")
    return Findings(
        sections=(
            Section("Sites that give fractions of nodes", ("grid", "mode", "sites"), columns, tuple(rows), OURS),
        ),
        conclusions=tuple(_conclusions(runs)),
        notes=(
            "AWRT is weighted by width. Needs as for `lublin`; at sites with EASY, each task has its own node.",
            f"Fractional sites: {SITE['algorithm']}, period {SITE['period_s']:,.0f} s, penalty 300 s; limited control.",
        ),
    )


def _conclusions(runs: FractionalGridRuns) -> Iterator[Conclusion]:
    """Yield conclusions on the gain from fractions, and on the remaining gain of a grid."""
    shared = ("sharing", "limited")
    for claim, better, worse in (
        ("Without a grid, fractions lower AWRT", (*LEVELS[0], FRACTIONAL), (*LEVELS[0], EASY)),
        (
            "Sites that are joined by job sharing have a lower AWRT with fractions",
            (*shared, FRACTIONAL),
            (*shared, EASY),
        ),
        ("Job sharing lowers AWRT even if all sites give fractions", (*shared, FRACTIONAL), (*LEVELS[0], FRACTIONAL)),
        (
            "AWRT is lower if every second site gives fractions than if none does",
            (*shared, MIXED),
            (*shared, EASY),
        ),
        ("Adaptive multi-site lowers AWRT in addition", (*LEVELS[2], MIXED), (*shared, MIXED)),
    ):
        verdicts = {
            grid: gained(*(awrt_s(runs.result(grid, *setting)) for setting in (better, worse))) for grid in runs.grids
        }
        yield Conclusion(_SOURCE, claim, verdicts)
