"""The cost of links between sites: the p caused by the messages of split jobs, and how it changes the multi-site gain.

Streit's thesis (section 6.5.3) extends the run time of split jobs by one constant p, and says that communication
patterns, network speeds, and the way a job is split should be considered. No published numbers exist for comparison;
the simulations here use an extract of CTC on four sites, with several kinds of jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError
from gridweave.grid.config.networks import find_topology, text_of
from gridweave.grid.policy import GridPolicy
from gridweave.netmodel.changes import CableChange, Timetable
from gridweave.netmodel.communication import PATTERNS
from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.reading import parse_network
from gridweave.netmodel.tables import CONTENTIONS, NetTable
from gridweave.netmodel.topology import Topology
from gridweave.scenarios.batch.grid_network import ANY_SPLIT_FACTOR, GridNet
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.workload.columns import with_communication
from gridweave_papers.studies.report import (
    OURS,
    Conclusion,
    Findings,
    Row,
    Section,
    Verdict,
    against,
    change_pct,
    lower,
    our_values,
)
from gridweave_papers.studies.streit_grid import CONFIGURATIONS, GridRuns
from gridweave_papers.studies.study import Study, awrt_s

EXTRACT, MACHINES = "10_20k_org", "m128"
FRACTION, MESSAGE_BYTES = 0.1, 1e6
"""Default communication: a tenth of the time on one site, and messages of a megabyte."""

FRACTIONS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
SIZES = (1e4, 1e5, 1e6, 1e7, 1e8)
SENDING = tuple(pattern for pattern in PATTERNS if pattern != "none")
OVERHEADS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
"""Values of Streit's constant p that are compared with the network model."""

PLACES: dict[str, tuple[str, ...]] = {
    "Geant2012.gml": ("UK", "CH", "IT", "GR"),
    "europe.toml": ("London", "Geneva", "Milan", "Athens"),
}
"""Network files in order of preference, with the nodes of the four sites."""

CUT_FROM, CUT_TO = 0.4, 0.6
"""Times at which the link fails and is repaired, as fractions of the time from the first to the last submission."""


@dataclass(frozen=True, slots=True)
class Case:
    """One simulation; ``cut`` is a key of `CUTS`, and ``constant`` replaces the network model by Streit's p."""

    mode: str
    pattern: str = "none"
    fraction: float = FRACTION
    message_bytes: float = MESSAGE_BYTES
    split: str = "fewest"
    contention: str = "none"
    cut: str = "none"
    constant: float | None = None


CUTS = {"none": 1.0, "slow": 0.01, "cut": 0.0}
"""Fraction of its bandwidth that the busiest link keeps."""


class NetworkRuns:
    """The schedules of the study, each simulated once."""

    def __init__(self, runs: GridRuns) -> None:
        self._nodes = CONFIGURATIONS[MACHINES]
        # No job is wider than a site, so that every mode runs the same jobs.
        self._jobs = runs.extract(EXTRACT, max_width=max(self._nodes))
        self._results = Study[Case, SimulationResult](
            self._simulate, same=lambda case: Case("sharing") if case.mode == "sharing" else case
        )

    @cached_property
    def source(self) -> str:
        """Name of the network file: GEANT if it is on this machine, otherwise the network shipped with gridweave."""
        for name in PLACES:
            try:
                find_topology(name)
            except InputError:
                continue
            return name
        raise InputError(f"none of {', '.join(PLACES)} is on this machine")

    @cached_property
    def topology(self) -> Topology:
        """The network, with the four sites."""
        text = text_of(find_topology(self.source))
        return parse_network(text, self.source, lambda file: text_of(find_topology(file)), PLACES[self.source])[1]

    @cached_property
    def model(self) -> NetworkModel:
        """The model of the network."""
        return NetworkModel.of_table(NetTable(), self.topology)

    def result(self, case: Case) -> SimulationResult:
        """Return the schedule of a case."""
        return self._results[case]

    def constant(self, overhead: float) -> SimulationResult:
        """Return the schedule under Streit's constant p."""
        return self._results[Case("multi-site", constant=overhead)]

    def _simulate(self, case: Case) -> SimulationResult:
        if case.constant is not None:
            return simulate(self._jobs, self._nodes, GridPolicy(mode=case.mode, overhead=case.constant))
        workload = with_communication(
            self._jobs,
            pattern=case.pattern,
            fraction=case.fraction,
            message_bytes=case.message_bytes,
            rng=np.random.default_rng(0),  # unused: all jobs get the same communication
        )
        timetable = None if case.cut == "none" else self.timetable(case.cut)
        net = GridNet(self.model, timetable, case.contention, case.split, max_split_factor=ANY_SPLIT_FACTOR)
        return simulate(workload, self._nodes, GridPolicy(mode=case.mode), net=None if case.mode == "sharing" else net)

    @cached_property
    def busiest_cable(self) -> int:
        """Number of the cable that the most paths between sites use; ties go to the lowest number."""
        paths, sites = self.model.paths, len(self.topology.sites)
        crossed = [
            int(self.topology.cable[link])
            for site in range(sites)
            for other in range(sites)
            for link in paths.between(site, other)
        ]
        return int(np.argmax(np.bincount(crossed)))

    @property
    def busiest_link(self) -> str:
        """A readable name of the busiest link."""
        return self.topology.link_label(int(np.argmax(self.topology.cable == self.busiest_cable)))

    @property
    def cut_ms(self) -> tuple[int, int]:
        """Times at which the link fails and is repaired."""
        first, last = int(self._jobs.submit_ms[0]), int(self._jobs.submit_ms[-1])
        return tuple(first + round(part * (last - first)) for part in (CUT_FROM, CUT_TO))  # type: ignore[return-value]

    def timetable(self, cut: str) -> Timetable:
        """Return the timetable of the busiest link's bandwidth."""
        begin_ms, end_ms = self.cut_ms
        cables = (self.busiest_cable,)
        return Timetable.of(
            self.topology, [CableChange(begin_ms, "cut", cables, CUTS[cut]), CableChange(end_ms, "cut", cables, 1.0)]
        )

    def change_pct(self, case: Case) -> float:
        """Return the change in AWRT relative to job sharing, in per cent."""
        return change_pct(awrt_s(self.result(case)), awrt_s(self.result(Case("sharing"))))


def overheads_of(result: SimulationResult) -> npt.NDArray[np.float64]:
    """Return the p of each multi-site job: the relative extension of its run time."""
    rows = np.flatnonzero(result.multi_site)
    return (result.end_ms[rows] - result.start_ms[rows]) / result.workload.run_ms[rows] - 1.0


def weighted_overhead(result: SimulationResult) -> float:
    """Return the mean p of the multi-site jobs, weighted by node time on a single site; NaN without such jobs."""
    rows = np.flatnonzero(result.multi_site)
    if not len(rows):
        return float("nan")
    area = result.workload.width[rows] * result.workload.run_ms[rows].astype(np.float64)
    return float(np.average(overheads_of(result), weights=area))


SOURCE = "Streit, section 6.5.3"
MODES = ("multi-site", "adaptive")
CONTENDED_BYTES = 1e7
"""Message size in simulations with contention; large, so that not only latency matters."""

CLOSE_PCT = 5.0
"""Largest difference between average response times that still counts as equal, in per cent."""

_QUANTILES = (0.1, 0.5, 0.9)


def report(table: str, runs: NetworkRuns) -> Findings:
    """Compare multi-site scheduling under the network model with job sharing and with a constant p."""
    latency_ms = runs.model.paths.latency_ms
    near, far = latency_ms[latency_ms > 0].min(), latency_ms.max()
    return Findings(
        sections=(*_by_job(runs), _amounts(runs), _splits(runs), _contention(runs), _cuts(runs)),
        conclusions=tuple(_conclusions(runs)),
        notes=(
            f"The workload is {EXTRACT} on {MACHINES}, in parts of at most 128 nodes. AWRT is weighted by width.",
            f"The sites are at {', '.join(runs.topology.sites)} of {runs.source}, {near:.1f} to {far:.1f} ms apart.",
            f"Unless said otherwise, jobs communicate {FRACTION:.0%} of their time, by {_size(MESSAGE_BYTES)} each.",
            "Every exchange waits for its slowest message. Links are idle except under contention.",
            f"The link that is cut is {runs.busiest_link}, from 40% to 60% of the time of submissions.",
        ),
    )


def _by_job(runs: NetworkRuns) -> Iterator[Section]:
    """Yield the gain over job sharing, by communication fraction and message size."""
    for what, cases in (
        (f"by fraction of time, messages of {_size(MESSAGE_BYTES)}", cases_by_fraction),
        (f"by size of messages, {FRACTION:.0%} of the time", cases_by_size),
    ):
        columns = tuple(cases("adaptive", "ring"))
        rows = [
            Row((pattern, mode), our_values(*map(runs.change_pct, cases(mode, pattern).values()), decimals=1))
            for pattern in SENDING
            for mode in MODES
        ]
        yield Section(f"AWRT against sharing [%], {what}", ("pattern", "mode"), columns, tuple(rows), OURS)


def cases_by_fraction(mode: str, pattern: str) -> dict[str, Case]:
    """Return the cases that differ in the communication fraction, keyed by its label."""
    return {f"{fraction:.0%}": Case(mode, pattern, fraction=fraction) for fraction in FRACTIONS}


def cases_by_size(mode: str, pattern: str) -> dict[str, Case]:
    """Return the cases that differ in the message size, keyed by its label."""
    return {_size(size): Case(mode, pattern, message_bytes=size) for size in SIZES}


def _size(size: float) -> str:
    unit, name = next(scale for scale in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")) if size >= scale[0])
    return f"{size / unit:g} {name}"


def _amounts(runs: NetworkRuns) -> Section:
    """Compare the network model with a constant p for each pattern, set to the mean p of that pattern."""
    rows = []
    for pattern in SENDING:
        result = runs.result(Case("multi-site", pattern))
        mean = weighted_overhead(result)
        model_s, constant_s = awrt_s(result), awrt_s(runs.constant(mean))
        low, median, high = np.quantile(overheads_of(result), _QUANTILES)
        values = our_values(float(result.multi_site.sum()))
        values += our_values(*map(float, (low, median, high, mean)), decimals=3)
        values += our_values(model_s, constant_s)
        values += our_values(change_pct(model_s, constant_s), decimals=1)
        rows.append(Row((pattern,), values))
    return Section(
        "The p that each pattern causes, under mode multi-site",
        ("pattern",),
        ("jobs", "p: 10%", "median", "90%", "mean by area", "AWRT [s]", "with constant p", "[%]"),
        tuple(rows),
        OURS,
    )


def _splits(runs: NetworkRuns) -> Section:
    rows = []
    for mode in MODES:
        for pattern in SENDING:
            fewest, earliest = (runs.result(Case(mode, pattern, split=split)) for split in ("fewest", "earliest-end"))
            seconds = [awrt_s(fewest), awrt_s(earliest)]
            values = our_values(*seconds) + our_values(change_pct(seconds[1], seconds[0]), decimals=1)
            values += our_values(*map(weighted_overhead, (fewest, earliest)), decimals=3)
            values += our_values(*(float(result.multi_site.sum()) for result in (fewest, earliest)))
            rows.append(Row((pattern, mode), values))
    return Section(
        "Fewest fragments against earliest end",
        ("pattern", "mode"),
        ("AWRT [s]: fewest", "earliest", "[%]", "p: fewest", "earliest", "jobs: fewest", "earliest"),
        tuple(rows),
        OURS,
    )


def _contention(runs: NetworkRuns) -> Section:
    rows = []
    for mode in MODES:
        for pattern in SENDING:
            results = [runs.result(contended(mode, pattern, contention)) for contention in CONTENTIONS]
            values = our_values(*map(awrt_s, results))
            rows.append(Row((pattern, mode), values + our_values(*map(weighted_overhead, results), decimals=3)))
    return Section(
        f"Contention, with messages of {_size(CONTENDED_BYTES)}",
        ("pattern", "mode"),
        ("AWRT [s]: none", "static", "dynamic", "p: none", "static", "dynamic"),
        tuple(rows),
        OURS,
    )


def contended(mode: str, pattern: str, contention: str, cut: str = "none") -> Case:
    """Return a case with large messages, so that contention matters."""
    return Case(mode, pattern, message_bytes=CONTENDED_BYTES, contention=contention, cut=cut)


def cut_case(pattern: str, cut: str) -> Case:
    """Return a case of mode adaptive with dynamic contention, in which the busiest link can slow down or fail."""
    return contended("adaptive", pattern, "dynamic", cut)


def _cuts(runs: NetworkRuns) -> Section:
    rows = []
    for pattern in SENDING:
        for cut in CUTS:
            result = runs.result(cut_case(pattern, cut))
            values = our_values(awrt_s(result), float(result.multi_site.sum()))
            rows.append(Row((pattern, cut), values + our_values(*by_period(runs, result), decimals=3)))
    return Section(
        f"The link {runs.busiest_link} is cut in the middle of the run, or slowed to 1%",
        ("pattern", "link"),
        ("AWRT [s]", "multi-site jobs", "mean p of jobs begun before", "meanwhile", "after"),
        tuple(rows),
        OURS,
    )


def by_period(runs: NetworkRuns, result: SimulationResult) -> list[float]:
    """Return the mean p of multi-site jobs that start before, during and after the failure; NaN if there are none."""
    period = np.searchsorted(np.array(runs.cut_ms), result.start_ms[result.multi_site], side="right")
    overheads = overheads_of(result)
    return [float(overheads[period == index].mean()) if (period == index).any() else float("nan") for index in range(3)]


def _conclusions(runs: NetworkRuns) -> Iterator[Conclusion]:
    for mode in MODES:
        cases = {pattern: (Case(mode, pattern), Case("sharing")) for pattern in SENDING}
        yield _judged(runs, f"Mode {mode} has a lower AWRT than sharing", cases)
    verdicts = {}
    for pattern in SENDING:
        result = runs.result(Case("multi-site", pattern))
        model_s, constant_s = awrt_s(result), awrt_s(runs.constant(weighted_overhead(result)))
        holds = abs(change_pct(model_s, constant_s)) <= CLOSE_PCT
        verdicts[pattern] = Verdict(holds, against(model_s, constant_s))
    claim = f"The mean p as a constant gives the same AWRT, within {CLOSE_PCT:g}%"
    yield Conclusion(SOURCE, claim, verdicts)
    for mode in MODES:
        cases = {pattern: (Case(mode, pattern, split="earliest-end"), Case(mode, pattern)) for pattern in SENDING}
        yield _judged(runs, f"Earliest end has a lower AWRT than fewest fragments, under mode {mode}", cases)
    for mode in MODES:
        cases = {
            sending: (contended(mode, sending, "none"), contended(mode, sending, "dynamic")) for sending in SENDING
        }
        yield _judged(runs, f"Idle links give a lower AWRT than dynamic contention, under mode {mode}", cases)
    cases = {sending: (cut_case(sending, "none"), cut_case(sending, "cut")) for sending in SENDING}
    yield _judged(runs, "An intact network gives a lower AWRT than one whose link is cut", cases)


def _judged(runs: NetworkRuns, claim: str, cases: Mapping[str, tuple[Case, Case]]) -> Conclusion:
    """Check for each pattern whether the first of two cases has the lower response time."""
    verdicts = {pattern: lower(*(awrt_s(runs.result(case)) for case in pair)) for pattern, pair in cases.items()}
    return Conclusion(SOURCE, claim, verdicts)
