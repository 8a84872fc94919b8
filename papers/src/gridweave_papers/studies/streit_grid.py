"""Chapter 7 of Streit's thesis, multi-site scheduling on extracts of CTC: Tables 7.3, 7.4 and 7.6, and its conclusions.

The synthetic workload of the thesis (syn_org) is not public, so its column is left out. Table 7.6, which the
thesis computes from syn_org, is computed for the three extracts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gridweave.grid.policy import LIMITED_FRAGMENTS, GridPolicy
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.traces.load import load_workload
from gridweave.scenarios.workload.estimates import perfect
from gridweave.scenarios.workload.homes import assign_homes
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.workload.transform import cut, split
from gridweave_papers.studies.report import EACH, Conclusion, Findings, Row, Section, Value, Verdict, change_pct
from gridweave_papers.studies.streit import THESIS_TRACES
from gridweave_papers.studies.study import Study, judge, printed

CONFIGURATIONS: dict[str, tuple[int, ...]] = {
    "m64": (*[64] * 4, *[32] * 6, *[8] * 8),
    "m64-8": (64,) * 8,
    "m128": (128,) * 4,
    "m256": (256,) * 2,
    "m256-5": (256, *[64] * 4),
    "m384": (384, 64, *[16] * 4),
    "m512": (512,),
}
"""Nodes of each site by configuration, largest site first (Table 7.1); each has 512 nodes."""

EXTRACTS: dict[str, int] = {"10_20k_org": 10_000, "30_40k_org": 30_000, "60_70k_org": 60_000}
"""Number of jobs before each extract (Table 7.2); each has 10,000 jobs."""

EXTRACT_JOBS = 10_000


class GridSetting(NamedTuple):
    """One simulation of an extract on a configuration; ``estimates`` is "real" or "perfect"."""

    extract: str
    machines: str
    policy: GridPolicy
    max_width: int | None = None
    estimates: str = "real"


class GridRuns:
    """The schedules of chapter 7 on the CTC trace, each run once; homes are assigned round robin."""

    def __init__(self, path: Path) -> None:
        self._trace, _ = load_workload(path, nodes=THESIS_TRACES["CTC"].nodes, columns=())
        self._extracts = Study(self._cut)
        self._results = Study(self._simulate)

    def extract(self, name: str, max_width: int | None = None) -> Workload:
        """Return one of `EXTRACTS`; if ``max_width`` is given, wide jobs are split into parts of at most this width."""
        return self._extracts[name, max_width]

    def result(
        self,
        name: str,
        machines: str,
        policy: GridPolicy,
        *,
        max_width: int | None = None,
        estimates: str = "real",
    ) -> SimulationResult:
        """Return the schedule of a `GridSetting`."""
        return self._results[GridSetting(name, machines, policy, max_width, estimates)]

    def awrt_s(self, name: str, machines: str, policy: GridPolicy) -> float:
        """Return the average response time weighted by resource consumption (section 7.3.3), in seconds."""
        return self.result(name, machines, policy).metrics().awrt_area_ms / 1000

    def awrt_by_width_s(self, name: str, machines: str, policy: GridPolicy, *, max_width: int | None = None) -> float:
        """Return the average response time weighted by width (section 7.3.1, equation 7.1), in seconds."""
        return self.result(name, machines, policy, max_width=max_width).metrics().awrt_width_ms / 1000

    def consumption_node_ms(self, name: str, machines: str, policy: GridPolicy) -> float:
        """Return the resource consumption of the jobs that ran on several sites (Table 7.6)."""
        result = self.result(name, machines, policy)
        area = result.workload.width * (result.end_ms - result.start_ms).astype(np.float64)
        return float(area[result.multi_site].sum())

    def _cut(self, extract: tuple[str, int | None]) -> Workload:
        name, max_width = extract
        first = EXTRACTS[name]
        jobs = cut(self._trace, first=first + 1, last=first + EXTRACT_JOBS)
        return jobs if max_width is None else split(jobs, max_width)

    def _simulate(self, setting: GridSetting) -> SimulationResult:
        jobs = self.extract(setting.extract, setting.max_width)
        workload = perfect(jobs) if setting.estimates == "perfect" else jobs
        return simulate(workload, CONFIGURATIONS[setting.machines], setting.policy)


def with_homes(jobs: Workload, sites: int) -> Workload:
    """Return jobs with homes assigned round robin, which draws no random numbers (section 7.2)."""
    return assign_homes(jobs, "round-robin", [str(site) for site in range(sites)], np.random.default_rng(1))


def _columns(table: str) -> dict[str, tuple[float, ...]]:
    rows = printed(table)
    return {name: tuple(float(row[name]) for row in rows) for name in EXTRACTS}


OVERHEADS_PCT = tuple(int(row["overhead_pct"]) for row in printed("streit-7.3"))

TABLE_7_3 = _columns("streit-7.3")
"""Number of multi-site jobs on m128, for the overheads in `OVERHEADS_PCT`."""

TABLE_7_4 = _columns("streit-7.4")
"""Squashed area of multi-site jobs on m128, in per cent of the squashed area of all jobs."""

TABLE_7_6 = {row["configuration"]: (float(row["30"]), float(row["300"])) for row in printed("streit-7.6")}
"""Multi-site jobs under adaptive scheduling at overheads of 30% and 300%, for syn_org."""

# "A few per cent": the thesis has 7% for m384 from 30% to 300%.
_FEW_PCT = 7.0
# Words such as "the best" allow for chance: differences below this count as equal.
_EQUAL_PCT = 1.0

BOUNDS = (0, 8, 16, 32, 64, 96, 128, 256)

READINGS = {"head reserved": "anywhere", "whoever fits": "nothing"}
"""Head reservation (see `gridweave.grid.policy.HEAD_RESERVATIONS`) under each reading of the thesis, which has "normal
backfilling" (section 6.5.3), but also "some jobs can surpass queued jobs" (section 7.3.1)."""


def multi_site(
    overhead: float, *, lower_bound: int = 0, limited: bool = False, head_reservation: str = "anywhere"
) -> GridPolicy:
    """Return the policy of non-adaptive multi-site scheduling."""
    return GridPolicy(
        mode="multi-site",
        overhead=overhead,
        lower_bound=lower_bound,
        max_fragments=LIMITED_FRAGMENTS if limited else (),
        head_reservation=head_reservation,
    )


def adaptive(overhead: float) -> GridPolicy:
    """Return the adaptive policy, with no lower bound and no limit on fragments (section 7.3.3)."""
    return GridPolicy(mode="adaptive", overhead=overhead)


def table_7_3(runs: GridRuns) -> Findings:
    """Recompute Table 7.3, the number of multi-site jobs by overhead."""

    def count(name: str, policy: GridPolicy) -> float:
        return float(runs.result(name, "m128", policy).multi_site.sum())

    return _by_overhead("Number of multi-site jobs on m128", "Table 7.3", TABLE_7_3, count, decimals=0, growth_pct=30)


def table_7_4(runs: GridRuns) -> Findings:
    """Recompute Table 7.4, the squashed area of the multi-site jobs by overhead."""

    def share(name: str, policy: GridPolicy) -> float:
        return 100 * runs.result(name, "m128", policy).multi_site_area()

    title = "Squashed area of multi-site jobs on m128 [%]"
    return _by_overhead(title, "Table 7.4", TABLE_7_4, share, decimals=2, growth_pct=50)


def _by_overhead(
    title: str,
    table: str,
    published: dict[str, tuple[float, ...]],
    ours: Callable[[str, GridPolicy], float],
    *,
    decimals: int,
    growth_pct: float,
) -> Findings:
    """Compare a table by overhead and extract under each reading, and check that the numbers grow as published."""
    sections, verdicts, notes = [], {}, []
    for reading, head in READINGS.items():
        policies = [multi_site(pct / 100, head_reservation=head) for pct in OVERHEADS_PCT]
        numbers = {name: [ours(name, policy) for policy in policies] for name in EXTRACTS}
        rows = []
        for k, pct in enumerate(OVERHEADS_PCT):
            values = (
                Value(published=published[name][k], ours=numbers[name][k], decimals=decimals) for name in EXTRACTS
            )
            rows.append(Row((f"p = {pct}%",), tuple(values)))
        sections.append(Section(f"{title}: {reading}", ("overhead",), tuple(EXTRACTS), tuple(rows), EACH))
        grown = {name: change_pct(column[-1], column[0]) for name, column in numbers.items()}
        verdicts[reading] = Verdict(min(grown.values()) >= growth_pct, _listed(grown, "%"))
        notes.append(f"{reading}: off by {mean_error_pct(sections[-1]):.1f}% on average over {_CELLS} cells")
    claim = f"From p = 0% to 60% they grow by at least {growth_pct:.0f}% for every workload"
    return Findings(sections=tuple(sections), conclusions=(Conclusion(table, claim, verdicts),), notes=tuple(notes))


_CELLS = len(OVERHEADS_PCT) * len(EXTRACTS)


def mean_error_pct(section: Section) -> float:
    """Return the mean absolute difference of a table's numbers from the published numbers, in per cent."""
    return float(np.mean([abs(value.difference_pct or 0.0) for row in section.rows for value in row.values]))


def table_7_6(runs: GridRuns) -> Findings:
    """Compute Table 7.6 for the extracts: multi-site jobs under adaptive scheduling at overheads of 30% and 300%."""
    rows = []
    for machines, published in TABLE_7_6.items():
        for overhead, number in zip((0.3, 3.0), published, strict=True):
            counts = [float(runs.result(name, machines, adaptive(overhead)).multi_site.sum()) for name in EXTRACTS]
            values = tuple(Value(published=number, ours=count) for count in counts)
            rows.append(Row((machines, f"p = {overhead:.0%}"), values))
    section = Section(
        "Published for syn_org, ours for the extracts", ("configuration", "overhead"), tuple(EXTRACTS), tuple(rows)
    )
    notes = (
        "The published numbers are for a synthetic workload that is not public; only their magnitude can be compared.",
    )
    return Findings(
        sections=(section,),
        conclusions=(_fewer_when_it_costs_more(runs), _smaller_on_m384(runs)),
        notes=notes,
    )


def _fewer_when_it_costs_more(runs: GridRuns) -> Conclusion:
    changes = {}
    for name in EXTRACTS:
        for machines in TABLE_7_6:
            few, many = (int(runs.result(name, machines, adaptive(p)).multi_site.sum()) for p in (3.0, 0.3))
            changes[f"{name} {machines}"] = change_pct(few, many)
    more = {label: change for label, change in changes.items() if change >= 0}
    return Conclusion(
        "Table 7.6",
        "At an overhead of 300% fewer jobs are split than at 30%, on every configuration",
        {"numbers": Verdict(not more, _listed(more or {"largest change": max(changes.values())}, "%"))},
    )


def _smaller_on_m384(runs: GridRuns) -> Conclusion:
    ratio = {}
    for name in EXTRACTS:
        much, little = (runs.consumption_node_ms(name, "m384", adaptive(p)) for p in (3.0, 0.3))
        ratio[name] = change_pct(much, little)
    return Conclusion(
        "Table 7.6",
        "On m384, where no job must be split, their resource consumption falls too (published: by 71%)",
        {"numbers": Verdict(max(ratio.values()) < 0, _listed(ratio, "%"))},
    )


def conclusions(runs: GridRuns) -> Findings:
    """Check each conclusion of sections 7.3.1 to 7.3.3 on the extracts."""
    checks = (
        _equal_machines_are_better,
        _multi_site_beats_one_machine,
        _sharing_beats_local,
        _multi_site_pays_up_to,
        _lower_bound_of_half,
        _adaptive_is_best,
        _adaptive_on_m384,
    )
    extracts = {name: name for name in EXTRACTS}
    return Findings(conclusions=judge("streit-7", [partial(check, runs) for check in checks], extracts))


def _equal_machines_are_better(runs: GridRuns, name: str) -> Verdict:
    awrt = {m: runs.awrt_by_width_s(name, m, multi_site(0.5)) for m in ("m64", "m64-8", "m128", "m256", "m256-5")}
    order = awrt["m64"] > awrt["m64-8"] > awrt["m128"] > awrt["m256"] < awrt["m256-5"]
    return Verdict(order, "AWRT " + _listed(awrt, " s"))


def _multi_site_beats_one_machine(runs: GridRuns, name: str) -> Verdict:
    """Check the claim "the AWRT for m128, m256, and m384 is smaller in comparison to m512 for p = 0%".

    According to the thesis, jobs surpass queued jobs only in multi-site scheduling, so m512 always backfills normally.
    """
    single_machine = runs.awrt_by_width_s(name, "m512", multi_site(0.0))
    texts, best = [], float("inf")
    for reading, head in READINGS.items():
        policy = multi_site(0.0, head_reservation=head)
        changes = {
            m: change_pct(runs.awrt_by_width_s(name, m, policy), single_machine) for m in ("m128", "m256", "m384")
        }
        best = min(best, max(changes.values()))
        texts.append(f"{reading}, AWRT against m512: {_listed(changes, '%', 1)}")
    return Verdict(best < 0, "; ".join(texts) + "; judged by the better reading")


def _sharing_beats_local(runs: GridRuns, name: str) -> Verdict:
    local, shared = (
        runs.result(name, "m128", GridPolicy(mode=mode), max_width=128).metrics() for mode in ("local", "sharing")
    )
    by_area = 100 * (1 - shared.awrt_area_ms / local.awrt_area_ms)
    by_width = 100 * (1 - shared.awrt_width_ms / local.awrt_width_ms)
    return Verdict(
        by_width > 50, f"{by_width:.0f}% weighted by width (equation 7.1), {by_area:.0f}% by resource consumption"
    )


def _multi_site_pays_up_to(runs: GridRuns, name: str) -> Verdict:
    shared = runs.awrt_by_width_s(name, "m128", GridPolicy(mode="sharing"), max_width=128)
    gains = {
        f"p = {pct}%": 100 * (1 - runs.awrt_by_width_s(name, "m128", multi_site(pct / 100), max_width=128) / shared)
        for pct in (0, 10, 20, 25, 30, 40)
    }
    return Verdict(gains["p = 25%"] > 0, "AWRT is better than with sharing by " + _listed(gains, "%", 1))


def _lower_bound_of_half(runs: GridRuns, name: str) -> Verdict:
    awrt = {str(bound): runs.awrt_s(name, "m256", multi_site(0.8, lower_bound=bound)) for bound in BOUNDS}
    good = awrt["128"] <= min(awrt.values()) * (1 + _EQUAL_PCT / 100)
    return Verdict(good, "AWRT by lower bound " + _listed(awrt, " s"))


def _best_other(runs: GridRuns, name: str, machines: str, overhead: float) -> float:
    """Return the lowest AWRT of a non-adaptive policy with any lower bound, with or without a limit on fragments."""
    policies = (
        multi_site(overhead, lower_bound=bound, limited=limited) for bound in BOUNDS for limited in (False, True)
    )
    return min(runs.awrt_s(name, machines, policy) for policy in policies)


def _adaptive_is_best(runs: GridRuns, name: str) -> Verdict:
    ahead = {
        f"p = {overhead:.0%}": 100
        * (1 - runs.awrt_s(name, "m384", adaptive(overhead)) / _best_other(runs, name, "m384", overhead))
        for overhead in (0.0, 0.3, 0.6, 1.2, 3.0)
    }
    return Verdict(min(ahead.values()) > -_EQUAL_PCT, "ahead by " + _listed(ahead, "%", 1))


def _adaptive_on_m384(runs: GridRuns, name: str) -> Verdict:
    loss = change_pct(*(runs.awrt_s(name, "m384", adaptive(p)) for p in (3.0, 0.3)))
    return Verdict(loss <= _FEW_PCT, f"{loss:+.1f}%")


def _listed(numbers: dict[str, float], unit: str, decimals: int = 0) -> str:
    return ", ".join(f"{label}: {number:,.{decimals}f}{unit}" for label, number in numbers.items())


TABLES: Mapping[str, Callable[[GridRuns], Findings]] = {
    "streit-7": conclusions,
    "streit-7.3": table_7_3,
    "streit-7.4": table_7_4,
    "streit-7.6": table_7_6,
}


def report(table: str, runs: GridRuns) -> Findings:
    """Recompute a table of `TABLES`."""
    return TABLES[table](runs)
