"""The gain from reserved starts in adaptive multi-site scheduling, Streit's future work, on an extract of CTC.

The thesis (chapter 8) expects that with reservations "the response time of the waiting job is guaranteed", and calls
for an evaluation of whether this "actually increases the performance, because at the same time reservations might
constrain the local scheduler in their abilities". No published numbers exist for comparison.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.workload.table import IntArray
from gridweave_papers.studies.report import (
    OURS,
    Conclusion,
    Findings,
    Row,
    Section,
    Verdict,
    change_pct,
    our_values,
)
from gridweave_papers.studies.streit_grid import GridRuns
from gridweave_papers.studies.study import Study

EXTRACT = "10_20k_org"
MACHINES = ("m128", "m384")
ONE_MACHINE = "m512"
OVERHEADS = (0.0, 0.1, 0.3, 0.6, 1.0)
ESTIMATES = ("real", "perfect")
BACKFILLS = ("easy", "conservative")

WIDE_NODES = 32
"""Jobs with more nodes than this count as wide, as in Zhang et al., section 2.2."""

_SOURCE = "Streit, chapter 8"
_COLUMNS = ("AWRT [s]", "AWT [s]", "AWT wide [s]", "multi-site jobs")


class _Runs:
    """The schedules of the study and their metrics."""

    def __init__(self, runs: GridRuns) -> None:
        self._runs = runs
        self._figures = Study(self._figures_of)

    def result(
        self, machines: str, estimates: str, overhead: float, backfill: str, mode: str = "adaptive"
    ) -> SimulationResult:
        """Return the schedule of the extract in one setting."""
        policy = GridPolicy(mode=mode, overhead=overhead, backfill=backfill)
        return self._runs.result(EXTRACT, machines, policy, estimates=estimates)

    def figures(self, machines: str, estimates: str, overhead: float, backfill: str) -> dict[str, float]:
        """Return the metrics of one simulation, named as in `_COLUMNS`."""
        return self._figures[machines, estimates, overhead, backfill]

    def _figures_of(self, run: tuple[str, str, float, str]) -> dict[str, float]:
        result = self.result(*run)
        metrics = result.metrics()
        wide = result.workload.width > WIDE_NODES
        wide_ms = float((result.start_ms - result.workload.submit_ms)[wide].mean())
        numbers = (metrics.awrt_area_ms / 1000, metrics.awt_ms / 1000, wide_ms / 1000, float(result.multi_site.sum()))
        return dict(zip(_COLUMNS, numbers, strict=True))

    def changes_pct(self, machines: str, column: str, overheads: tuple[float, ...]) -> dict[str, list[float]]:
        """Return the change of a metric due to reserved starts in per cent, by kind of estimates, for each overhead."""
        changes: dict[str, list[float]] = {}
        for estimates in ESTIMATES:
            pairs = (
                [self.figures(machines, estimates, p, backfill)[column] for backfill in BACKFILLS] for p in overheads
            )
            changes[estimates] = [change_pct(reserved, easy) for easy, reserved in pairs]
        return changes


def report(table: str, runs: GridRuns) -> Findings:
    """Compare adaptive scheduling with EASY and with reserved starts (docs/grid.md), by overhead and estimates."""
    study = _Runs(runs)
    sections = [_section(study, machines, OVERHEADS) for machines in MACHINES]
    sections.append(_section(study, ONE_MACHINE, (0.0,)))
    return Findings(
        sections=tuple(sections),
        conclusions=tuple(_conclusions(study)),
        notes=(f"The workload is {EXTRACT}. Wide jobs have more than {WIDE_NODES} nodes.",),
    )


def _section(study: _Runs, machines: str, overheads: tuple[float, ...]) -> Section:
    rows = []
    for estimates in ESTIMATES:
        for overhead in overheads:
            easy, reserved = (study.figures(machines, estimates, overhead, variant) for variant in BACKFILLS)
            values = our_values(*(variant[column] for column in _COLUMNS for variant in (easy, reserved)))
            rows.append(Row((estimates, f"p = {overhead:.0%}"), values))
    columns = tuple(name for column in _COLUMNS for name in (f"{column}, EASY", "reserved"))
    return Section(f"{machines}: EASY, and with reserved starts", ("estimates", "overhead"), columns, tuple(rows), OURS)


def _conclusions(study: _Runs) -> Iterator[Conclusion]:
    claims = {
        "AWRT [s]": "Reserved starts lower AWRT at every overhead",
        "AWT [s]": "Reserved starts lower the average wait at every overhead",
        "AWT wide [s]": f"Reserved starts lower the average wait of jobs of more than {WIDE_NODES} nodes",
    }
    for column, claim in claims.items():
        verdicts = {}
        for machines in MACHINES:
            for estimates, changes in study.changes_pct(machines, column, OVERHEADS).items():
                verdicts[f"{machines}, {estimates}"] = Verdict(max(changes) < 0, _listed(changes))
        yield Conclusion(_SOURCE, claim, verdicts)
    yield _same_on_one_machine(study)
    yield _splitting_pays(study)
    yield _not_guaranteed(study)


def _listed(changes: list[float]) -> str:
    return ", ".join(f"p = {p:.0%}: {change:+.1f}%" for p, change in zip(OVERHEADS, changes, strict=True))


def _same_on_one_machine(study: _Runs) -> Conclusion:
    """Check whether reserved starts change the waits on one machine in the same way as in a grid."""
    verdicts = {}
    for estimates in ESTIMATES:
        changes = {c: study.changes_pct(ONE_MACHINE, c, (0.0,))[estimates][0] for c in ("AWT [s]", "AWT wide [s]")}
        holds = changes["AWT [s]"] > 0 > changes["AWT wide [s]"]
        figures = f"all {changes['AWT [s]']:+.1f}%, wide {changes['AWT wide [s]']:+.1f}%"
        verdicts[estimates] = Verdict(holds, figures)
    claim = f"The same holds on one machine ({ONE_MACHINE}): on average jobs wait longer, but wide jobs shorter"
    return Conclusion(_SOURCE, claim, verdicts)


def _splitting_pays(study: _Runs) -> Conclusion:
    """Check whether splits, most of them reserved for later, pay off on a configuration that requires no split."""
    verdicts = {}
    for estimates in ESTIMATES:
        shared_ms = study.result("m384", estimates, 0.0, "conservative", "sharing").metrics().awrt_area_ms
        results = [study.result("m384", estimates, p, "conservative") for p in OVERHEADS]
        changes = [change_pct(result.metrics().awrt_area_ms, shared_ms) for result in results]
        later = [int((result.multi_site & (result.start_ms > result.workload.submit_ms)).sum()) for result in results]
        figures = f"AWRT {_listed(changes)}; split jobs that had waited: {', '.join(map(str, later))}"
        verdicts[estimates] = Verdict(max(changes) < 0, figures)
    return Conclusion(
        _SOURCE, "With reserved starts on m384, adaptive splits lower AWRT against sharing at every overhead", verdicts
    )


def _not_guaranteed(study: _Runs) -> Conclusion:
    verdicts = {}
    for machines in MACHINES:
        figures = []
        for overhead in OVERHEADS:
            late_ms = lateness_ms(study.result(machines, "real", overhead, "easy"))
            late = late_ms[late_ms > 0]
            hours = late.mean() / 3_600_000 if len(late) else 0.0
            figures.append((f"p = {overhead:.0%}: {len(late):,} of {len(late_ms):,}, by {hours:.1f} h", len(late)))
        verdicts[machines] = Verdict(all(count for _, count in figures), ", ".join(text for text, _ in figures))
    return Conclusion(
        "Streit, section 7.3.3",
        "Under EASY, waiting jobs end later than the expected end on one site with which their splits are compared",
        verdicts,
    )


def lateness_ms(result: SimulationResult) -> IntArray:
    """Return the end of each job that waited minus its expected end, both from estimates; negative if earlier.

    The expected end is the earliest end on a single site, according to the estimates of the jobs running at submission.
    The adaptive scheduler compares a split with this end (Streit, section 7.3.3).
    """
    jobs = result.workload
    assert result.policy is not None, "of a grid"
    overhead = result.policy.overheads[0]
    stretch_ms = np.where(result.multi_site, np.floor(jobs.estimate_ms * overhead).astype(np.int64), 0)
    end_ms = result.start_ms + jobs.estimate_ms + stretch_ms
    job_of = result.job_of_fragments()
    waited = np.flatnonzero((result.start_ms > jobs.submit_ms) & (jobs.width <= result.site_nodes.max()))
    late: IntArray = np.empty(len(waited), np.int64)
    for i, row in enumerate(waited):
        now_ms, width = jobs.submit_ms[row], jobs.width[row]
        holds = np.flatnonzero((result.start_ms[job_of] <= now_ms) & (now_ms < result.end_ms[job_of]))
        reckoned_ms = jobs.estimate_ms[row] + min(
            _fits_at(nodes, now_ms, width, end_ms[job_of[here]], result.fragments["width"][here])
            for nodes, here in _by_site(result, holds)
            if nodes >= width
        )
        late[i] = end_ms[row] - reckoned_ms
    return late


def _by_site(result: SimulationResult, fragments: IntArray) -> Iterator[tuple[int, IntArray]]:
    """For each site, yield its number of nodes and the indices of the fragments that run there."""
    for site, nodes in enumerate(result.site_nodes):
        yield int(nodes), fragments[result.fragments["site"][fragments] == site]


def _fits_at(nodes: int, now_ms: np.int64, width: int, end_ms: IntArray, held: npt.NDArray[np.int64]) -> int:
    """Return the earliest time at which `width` nodes are free, given the ends and widths of running fragments."""
    order = np.argsort(end_ms, kind="stable")
    free = nodes - int(held.sum()) + np.concatenate([[0], np.cumsum(held[order])])
    first = int(np.argmax(free >= width))
    return int(now_ms if first == 0 else end_ms[order][first - 1])
