"""What the links between sites cost: how the gain of multi-site depends on what jobs send, and what p amounts to.

Streit's thesis (section 6.5.3) stretches a split job by one constant p, and says that communication patterns, network
speeds, and how a job is split would have to be regarded. Nothing is published to compare with; every
number here is ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from gridweave.netmodel.tables import CONTENTIONS
from gridweave.scenarios.grid_simulator import GridResult
from gridweave.scenarios.published.grid_runs import GridRuns
from gridweave.scenarios.published.network_runs import (
    CUTS,
    EXTRACT,
    FRACTION,
    FRACTIONS,
    MACHINES,
    MESSAGE_BYTES,
    SENDING,
    SIZES,
    Case,
    NetworkRuns,
    overheads_of,
    weighted_overhead,
)
from gridweave.scenarios.published.report import OURS, Conclusion, Report, Row, Section, Value, Verdict

SOURCE = "Streit, section 6.5.3"
MODES = ("multi-site", "adaptive")
CONTENDED_BYTES = 1e7
"""Messages of the runs with contention: large, so that bandwidth counts and not latency alone."""

CLOSE_PCT = 5.0
"""Two average response times within so many per cent of each other are said to be the same."""

_QUANTILES = (0.1, 0.5, 0.9)


def network(grid: GridRuns) -> Report:
    """Compare multi-site scheduling by the links between sites with sharing, and with a constant p.

    Parameters
    ----------
    grid : GridRuns

    Returns
    -------
    Report
    """
    runs = runs_of(grid)
    latency_ms = runs.model().paths.latency_ms
    near, far = latency_ms[latency_ms > 0].min(), latency_ms.max()
    return Report(
        id="network",
        title="What the links between sites cost",
        source=SOURCE,
        sections=(*_by_job(runs), _amounts(runs), _splits(runs), _contention(runs), _cuts(runs)),
        conclusions=tuple(_conclusions(runs)),
        notes=(
            f"The workload is {EXTRACT} on {MACHINES}, in parts of at most 128 nodes. AWRT is weighted by width.",
            f"The sites are at {', '.join(runs.topology.sites)} of {runs.source}, {near:.1f} to {far:.1f} ms apart.",
            f"Unless said otherwise, jobs communicate {FRACTION:.0%} of their time, by {_size(MESSAGE_BYTES)} each.",
            "Every exchange waits for its slowest message. Links are idle, but under contention.",
            f"The link that is cut is {runs.busiest_link}, from 40% to 60% of the time of submissions.",
        ),
    )


_RUNS: dict[int, tuple[GridRuns, NetworkRuns]] = {}


def runs_of(grid: GridRuns) -> NetworkRuns:
    """Return the runs that belong to an extract, each made once for the tables and the plots.

    Parameters
    ----------
    grid : GridRuns

    Returns
    -------
    NetworkRuns
    """
    if id(grid) not in _RUNS:
        _RUNS.clear()
        _RUNS[id(grid)] = grid, NetworkRuns(grid)
    return _RUNS[id(grid)][1]


def _by_job(runs: NetworkRuns) -> Iterator[Section]:
    """Yield what is gained over sharing, by fraction and by size."""
    for what, cases in (
        (f"by fraction of time, messages of {_size(MESSAGE_BYTES)}", cases_by_fraction),
        (f"by size of messages, {FRACTION:.0%} of the time", cases_by_size),
    ):
        columns = tuple(cases("adaptive", "ring"))
        rows = [
            Row((pattern, mode), tuple(_percent(runs.change_pct(case)) for case in cases(mode, pattern).values()))
            for pattern in SENDING
            for mode in MODES
        ]
        yield Section(
            title=f"AWRT against sharing [%], {what}",
            headings=("pattern", "mode"),
            columns=columns,
            rows=tuple(rows),
            layout=OURS,
        )


def cases_by_fraction(mode: str, pattern: str) -> dict[str, Case]:
    """Return the runs over which the fraction of communication varies, by its label."""
    return {f"{fraction:.0%}": Case(mode, pattern, fraction=fraction) for fraction in FRACTIONS}


def cases_by_size(mode: str, pattern: str) -> dict[str, Case]:
    """Return the runs over which the size of messages varies, by its label."""
    return {_size(size): Case(mode, pattern, message_bytes=size) for size in SIZES}


def _size(size: float) -> str:
    unit, name = next(one for one in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")) if size >= one[0])
    return f"{size / unit:g} {name}"


def _amounts(runs: NetworkRuns) -> Section:
    """Return which p each pattern amounts to, and what a constant p of that size would have made."""
    rows = []
    for pattern in SENDING:
        result = runs.result(Case("multi-site", pattern))
        mean = weighted_overhead(result)
        model_s, constant_s = runs.awrt_s(result), runs.awrt_s(runs.constant(mean))
        low, median, high = np.quantile(overheads_of(result), _QUANTILES)
        values = [Value(ours=float(result.multi_site.sum()))]
        values += [Value(ours=float(p), decimals=3) for p in (low, median, high, mean)]
        values += [_plain(model_s), _plain(constant_s), _percent(_change_pct(model_s, constant_s))]
        rows.append(Row((pattern,), tuple(values)))
    return Section(
        title="Which p each pattern amounts to, under mode multi-site",
        headings=("pattern",),
        columns=("jobs", "p: 10%", "median", "90%", "mean by area", "AWRT [s]", "with constant p", "[%]"),
        rows=tuple(rows),
        layout=OURS,
    )


def _splits(runs: NetworkRuns) -> Section:
    rows = []
    for mode in MODES:
        for pattern in SENDING:
            fewest, earliest = (runs.result(Case(mode, pattern, split=split)) for split in ("fewest", "earliest-end"))
            seconds = [runs.awrt_s(fewest), runs.awrt_s(earliest)]
            values = [*map(_plain, seconds), _percent(_change_pct(seconds[1], seconds[0]))]
            values += [Value(ours=weighted_overhead(one), decimals=3) for one in (fewest, earliest)]
            values += [_plain(float(one.multi_site.sum())) for one in (fewest, earliest)]
            rows.append(Row((pattern, mode), tuple(values)))
    return Section(
        title="Fewest fragments against earliest end",
        headings=("pattern", "mode"),
        columns=("AWRT [s]: fewest", "earliest", "[%]", "p: fewest", "earliest", "jobs: fewest", "earliest"),
        rows=tuple(rows),
        layout=OURS,
    )


def _contention(runs: NetworkRuns) -> Section:
    rows = []
    for mode in MODES:
        for pattern in SENDING:
            results = [runs.result(contended(mode, pattern, contention)) for contention in CONTENTIONS]
            values = [_plain(runs.awrt_s(result)) for result in results]
            values += [Value(ours=weighted_overhead(result), decimals=3) for result in results]
            rows.append(Row((pattern, mode), tuple(values)))
    return Section(
        title=f"Contention, with messages of {_size(CONTENDED_BYTES)}",
        headings=("pattern", "mode"),
        columns=("AWRT [s]: none", "static", "dynamic", "p: none", "static", "dynamic"),
        rows=tuple(rows),
        layout=OURS,
    )


def contended(mode: str, pattern: str, contention: str, cut: str = "none") -> Case:
    """Return a run with contention."""
    return Case(mode, pattern, message_bytes=CONTENDED_BYTES, contention=contention, cut=cut)


def cut_case(pattern: str, cut: str) -> Case:
    """Return a run in which a link is cut, or is not; under mode adaptive, with dynamic contention."""
    return contended("adaptive", pattern, "dynamic", cut)


def _cuts(runs: NetworkRuns) -> Section:
    rows = []
    for pattern in SENDING:
        for cut in CUTS:
            result = runs.result(cut_case(pattern, cut))
            values = [_plain(runs.awrt_s(result)), _plain(float(result.multi_site.sum()))]
            values += [Value(ours=p, decimals=3) for p in by_period(runs, result)]
            rows.append(Row((pattern, cut), tuple(values)))
    return Section(
        title=f"The link {runs.busiest_link} is cut in the middle of the run, or slowed to 1%",
        headings=("pattern", "link"),
        columns=("AWRT [s]", "multi-site jobs", "mean p of jobs begun before", "meanwhile", "after"),
        rows=tuple(rows),
        layout=OURS,
    )


def by_period(runs: NetworkRuns, result: GridResult) -> list[float]:
    """Return the mean p of the multi-site jobs that began before, during and after the cut; NaN where there are none.

    Parameters
    ----------
    runs : NetworkRuns
    result : GridResult

    Returns
    -------
    list of float
    """
    period = np.searchsorted(np.array(runs.cut_ms), result.start_ms[result.multi_site], side="right")
    overheads = overheads_of(result)
    return [float(overheads[period == one].mean()) if (period == one).any() else float("nan") for one in range(3)]


def _plain(value: float) -> Value:
    return Value(ours=value)


def _percent(value: float) -> Value:
    return Value(ours=value, decimals=1)


def _change_pct(ours: float, others: float) -> float:
    return 100 * (ours / others - 1)


def _conclusions(runs: NetworkRuns) -> Iterator[Conclusion]:
    for mode in MODES:
        cases = {pattern: (Case(mode, pattern), Case("sharing")) for pattern in SENDING}
        yield _judged(runs, f"Mode {mode} has a lower AWRT than sharing", cases)
    verdicts = {}
    for pattern in SENDING:
        result = runs.result(Case("multi-site", pattern))
        model_s, constant_s = runs.awrt_s(result), runs.awrt_s(runs.constant(weighted_overhead(result)))
        holds = abs(_change_pct(model_s, constant_s)) <= CLOSE_PCT
        verdicts[pattern] = Verdict(holds, _figures(model_s, constant_s))
    claim = f"The mean p as a constant gives the same AWRT, within {CLOSE_PCT:g}%"
    yield Conclusion(source=SOURCE, claim=claim, verdicts=verdicts)
    for mode in MODES:
        cases = {pattern: (Case(mode, pattern, split="earliest-end"), Case(mode, pattern)) for pattern in SENDING}
        yield _judged(runs, f"Earliest end has a lower AWRT than fewest fragments, under mode {mode}", cases)
    for mode in MODES:
        cases = {one: (contended(mode, one, "none"), contended(mode, one, "dynamic")) for one in SENDING}
        yield _judged(runs, f"Idle links give a lower AWRT than dynamic contention, under mode {mode}", cases)
    cases = {one: (cut_case(one, "none"), cut_case(one, "cut")) for one in SENDING}
    yield _judged(runs, "A network that stays whole gives a lower AWRT than one whose link is cut", cases)


def _judged(runs: NetworkRuns, claim: str, cases: Mapping[str, tuple[Case, Case]]) -> Conclusion:
    """Whether the first of two runs has the lower response time, for each pattern."""
    verdicts = {}
    for pattern, (one, other) in cases.items():
        ours_s, others_s = runs.awrt_s(runs.result(one)), runs.awrt_s(runs.result(other))
        verdicts[pattern] = Verdict(ours_s < others_s, _figures(ours_s, others_s))
    return Conclusion(source=SOURCE, claim=claim, verdicts=verdicts)


def _figures(ours_s: float, others_s: float) -> str:
    return f"{ours_s:,.0f} s against {others_s:,.0f} s ({_change_pct(ours_s, others_s):+.1f}%)"
