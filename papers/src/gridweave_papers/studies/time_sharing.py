"""Beyond Zhang et al.: time sharing on real traces, and at the sites of a grid.

The paper evaluates gang scheduling with model workloads on one machine. ``time-sharing`` simulates its strategies on
the four traces of Streit's thesis; ``time-sharing-grid`` uses time sharing at the sites of a grid, and shows the effect
on the gain from job sharing and adaptive multi-site scheduling. No published numbers exist for comparison.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.workload.homes import home_of
from gridweave.scenarios.workload.table import MS_PER_S
from gridweave.scenarios.workload.transform import split
from gridweave.scenarios.world.simulate import simulate_world
from gridweave.site.disciplines.entry import Policy
from gridweave.site.disciplines.gang.policy import GangPolicy
from gridweave.site.policy import SitePolicy
from gridweave_papers.studies.report import OURS, Conclusion, Findings, Row, Section, Verdict, gained, our_values
from gridweave_papers.studies.streit import ThesisRuns
from gridweave_papers.studies.streit_grid import CONFIGURATIONS, GridRuns, with_homes
from gridweave_papers.studies.study import Study, awrt_s, check_all_ran, slowdowns

SWITCH_MS = 4_000
"""Cost of resuming a job where switches are not free: 2% of a slice, as in the paper."""

BF = "BF"


LINES: dict[str, GangPolicy] = {
    BF: GangPolicy(mpl=1),
    "GS-5": GangPolicy(mpl=5, backfill="none"),
    "BGS-2": GangPolicy(mpl=2),
    "BGS-5": GangPolicy(mpl=5),
    "BGS-5, switches 2%": GangPolicy(mpl=5, switch_ms=SWITCH_MS),
    "MGS-5": GangPolicy(mpl=5, backfill="none", migration="all"),
    "MBGS-5": GangPolicy(mpl=5, migration="all"),
}
"""The strategies by their names in the paper, with slices of 200 s; BF is backfilling alone, i.e. BGS with one row."""

EXTRACT, MACHINES, OVERHEAD = "10_20k_org", "m128", 0.3
GRID_LINES: dict[str, Policy] = {BF: SitePolicy(), "BGS-5": LINES["BGS-5"], "MBGS-5": LINES["MBGS-5"]}
LEVELS = (("local", "full"), ("sharing", "limited"), ("sharing", "full"), ("adaptive", "full"))
"""The mode and the level of control of each grid; with mode ``local`` there is no grid."""

_SOURCE = "Zhang et al., section 7"


def report(table: str, runs: ThesisRuns | GridRuns) -> Findings:
    """Compute the evaluation on traces or the evaluation in a grid, depending on the type of `runs`."""
    return _on_traces(runs) if isinstance(runs, ThesisRuns) else _at_sites(_Grids(runs))


# -- real traces -------------------------------------------------------------------------------------------------------


def _on_traces(runs: ThesisRuns) -> Findings:
    """Compare the paper's strategies on real traces."""
    present = runs.present()

    def figures_of(setting: tuple[str, str]) -> dict[str, float]:
        key, line = setting
        result = simulate(present[key].scheduled, present[key].trace.nodes, LINES[line])
        return dict(result.own_metrics) | {"awrt_s": awrt_s(result)}

    results = Study(figures_of, title="time sharing").results((key, line) for key in present for line in LINES)
    rows = []
    for (key, line), figures in results.items():
        times = (figures["slowdown_10s"], figures["awrt_s"], figures["wait_ms"] / MS_PER_S)
        losses = (100 * figures["utilisation"], 100 * figures["loss_of_capacity"])
        rows.append(Row((key, line), our_values(*times, *losses, decimals=1)))
    columns = ("slowdown", "AWRT [s]", "wait [s]", "utilisation [%]", "loss of capacity [%]")
    section = Section("The paper's strategies on real traces", ("trace", ""), columns, tuple(rows), OURS)
    return Findings(
        sections=(section,) if rows else (),
        conclusions=tuple(_trace_conclusions(results)) if rows else (),
        missing=runs.missing(),
        notes=("Slices of 200 s. AWRT is weighted by width. EASY backfilling in each row, with the users' estimates.",),
    )


def _trace_conclusions(results: dict[tuple[str, str], dict[str, float]]) -> Iterator[Conclusion]:
    """Yield the paper's main conclusions, checked for each trace."""
    for claim, better, worse in (
        ("Gang scheduling with backfilling has a lower slowdown than backfilling alone", "BGS-5", BF),
        ("It has a lower slowdown than gang scheduling alone", "BGS-5", "GS-5"),
        (
            "With switches that cost 2% of a slice, it still has a lower slowdown than backfilling alone",
            "BGS-5, switches 2%",
            BF,
        ),
        ("With migration it has a lower slowdown than without", "MBGS-5", "BGS-5"),
        ("A higher multiprogramming level lowers the slowdown", "BGS-5", "BGS-2"),
    ):
        verdicts = {}
        for key in dict.fromkeys(key for key, _ in results):
            ours, other = (results[key, line]["slowdown_10s"] for line in (better, worse))
            verdicts[key] = Verdict(ours < other, f"{ours:.1f} against {other:.1f}")
        yield Conclusion(_SOURCE, claim, verdicts)


# -- sites of a grid ---------------------------------------------------------------------------------------------------


class _Setting(NamedTuple):
    mode: str
    control: str
    line: str


class _Grids:
    """The schedules of a grid whose sites share time, each simulated once; no job is wider than a site."""

    def __init__(self, runs: GridRuns) -> None:
        self._nodes = CONFIGURATIONS[MACHINES]
        self._workload = split(with_homes(runs.extract(EXTRACT), len(self._nodes)), self._nodes[0])
        self._results = Study(self._simulate)

    def result(self, mode: str, control: str, line: str) -> SimulationResult:
        """Return the schedule of one simulation."""
        return self._results[_Setting(mode, control, line)]

    def _simulate(self, setting: _Setting) -> SimulationResult:
        result = simulate_world(
            self._workload,
            self._nodes,
            GridPolicy(mode=setting.mode, control=setting.control, overhead=OVERHEAD),
            site_policies=[GRID_LINES[setting.line]] * len(self._nodes),
            home=home_of(self._workload),
        )
        check_all_ran(result)
        return result


def _at_sites(grids: _Grids) -> Findings:
    """Report how time sharing at the sites changes the gain from a grid."""
    rows = []
    for mode, control in LEVELS:
        for line in GRID_LINES:
            result = grids.result(mode, control, line)
            slowdown = our_values(slowdowns(result)[0], decimals=1)
            split_jobs = our_values(float(result.multi_site.sum()))
            label = ("no grid", "local") if mode == "local" else (control, mode)
            rows.append(Row((*label, line), (*our_values(awrt_s(result)), *slowdown, *split_jobs)))
    columns = ("AWRT [s]", "slowdown", "multi-site jobs")
    return Findings(
        sections=(Section("Sites that share time", ("control", "mode", "sites"), columns, tuple(rows), OURS),),
        conclusions=tuple(_grid_conclusions(grids)),
        notes=(
            f"The workload is {EXTRACT} on {MACHINES}, in parts of at most a site. AWRT is weighted by width.",
            "Under full control the grid starts jobs only on free nodes, so that its sites never share time.",
            "A site that shares time accepts no fragments of jobs on several sites.",
        ),
    )


def _grid_conclusions(grids: _Grids) -> Iterator[Conclusion]:
    """Yield conclusions on a grid's remaining gain for each strategy of the sites."""
    for claim, after, before in (
        ("Job sharing lowers AWRT even if the sites share time", ("sharing", "limited"), ("local", "full")),
        ("Adaptive multi-site lowers AWRT below that of job sharing", ("adaptive", "full"), ("sharing", "full")),
    ):
        verdicts = {
            line: gained(*(awrt_s(grids.result(*level, line)) for level in (after, before))) for line in GRID_LINES
        }
        yield Conclusion("Streit, chapter 7", claim, verdicts)
    verdicts = {}
    for mode, control in LEVELS:
        ours, other = (slowdowns(grids.result(mode, control, line))[0] for line in ("BGS-5", BF))
        figures = f"slowdown {ours:.1f} against {other:.1f}"
        verdicts[f"{mode}, {control} control"] = Verdict(ours < other, figures)
    yield Conclusion(_SOURCE, "Sites that share time have a lower slowdown than with backfilling alone", verdicts)
