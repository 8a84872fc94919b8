"""Figures 5 to 8 of Zhang et al., recomputed with the trace CTC-SP2, because the original trace is not public.

Zhang, Franke, Moreira and Sivasubramaniam, *A Comparative Analysis of Space- and Time-Sharing Techniques for Parallel
Job Scheduling in Large Scale Parallel Systems* (below: *Zhang*), sections 2 to 4. Their model is fitted to CTC-SP2;
everything else is as in section 2.2: 320 nodes, jobs of up to 256 nodes, 10,000 jobs, a baseline load of 0.55 and eight
more workloads with the same arrivals and run times 1.1 to 1.8 times as long.

CTC-SP2 has far fewer large jobs than the paper's workload, so every figure is also computed with 30% large jobs, as in
the paper.

The paper states its conclusions from the figures in words. Constants define what these words mean here, and why. Curves
are compared at equal utilisation, as in the figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from gridweave.errors import OptionError
from gridweave.scenarios.generators.hyper_erlang import (
    HyperErlang,
    HyperErlangModel,
    generate_hyper_erlang,
    learn_hyper_erlang,
    rescale,
)
from gridweave.scenarios.scenario.run import Progress
from gridweave.scenarios.traces.swf import read_swf
from gridweave.scenarios.traces.text import FloatArray
from gridweave.scenarios.workload.columns import NARROW_UP_TO
from gridweave.scenarios.workload.estimates import with_estimates
from gridweave.scenarios.workload.table import MS_PER_S, IntArray, Workload
from gridweave_papers.studies.report import OURS, Findings, Record, Row, Section, Verdict, all_hold, our_values
from gridweave_papers.studies.streit import THESIS_TRACES
from gridweave_papers.studies.study import Study, judge, seeds_of

if TYPE_CHECKING:
    from pathlib import Path

    from gridweave.scenarios.results.schedule import SimulationResult

TRACE, TRACE_NODES = THESIS_TRACES["CTC"].name, THESIS_TRACES["CTC"].nodes
NODES, MAX_WIDTH, JOBS, BASELINE_LOAD = 320, 256, 10_000, 0.55
RUN_FACTORS = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8)
CLASSES = 10
DEFAULT_SEEDS = 3


class Backfilling(NamedTuple):
    """The discipline of a reading ("queue" for EASY, or "planning"), and the share of large jobs; None: as fitted."""

    discipline: str
    large_share: float | None = None


LARGE_SHARE = 0.30
"""Share of jobs of more than 32 nodes in the paper's workload (Zhang, section 2.2)."""

READINGS = {
    "EASY": Backfilling("queue"),
    "planning": Backfilling("planning"),
    "EASY (30% large)": Backfilling("queue", LARGE_SHARE),
    "planning (30% large)": Backfilling("planning", LARGE_SHARE),
}
"""Readings by name."""


class Setting(NamedTuple):
    """The setting of a curve: the queue order and the model of the estimates."""

    order: str
    estimates: str


@dataclass(frozen=True, eq=False, slots=True)
class Curve:
    """Results of one setting at the nine workloads: means over the seeds, overall and by class of estimators."""

    rho: FloatArray
    wait_s: FloatArray
    slowdown: FloatArray
    loss: FloatArray
    class_wait_s: FloatArray

    @property
    def highest(self) -> float:
        """The highest utilisation of the nine workloads."""
        return float(self.rho.max())

    def at(self, values: FloatArray, utilisation: float) -> float:
        """Interpolate a quantity linearly between workloads; NaN above the highest utilisation."""
        if utilisation > self.highest:
            return float("nan")
        after = int(np.argmax(self.rho >= utilisation))
        if after == 0:
            return float(values[0])
        part = (utilisation - self.rho[after - 1]) / (self.rho[after] - self.rho[after - 1])
        return float(values[after - 1] + part * (values[after] - values[after - 1]))


class _Point(NamedTuple):
    """The metrics of one simulation."""

    rho: float
    wait_s: float
    slowdown: float
    loss: float
    class_wait_s: FloatArray


def estimator_class(workload: Workload, estimates: str) -> IntArray:
    """Return each job's estimator class, 0 to 9, under the model of its estimates (Zhang, section 4).

    With estimates omega:X, class i has ratios of estimate to run time from 1 + i X / 10 to below 1 + (i + 1) X / 10.
    With estimates phi:X, class i has jobs whose run time is more than i and at most i + 1 tenths of the estimate.
    Rounding of estimates to milliseconds never adds an eleventh class.
    """
    name, _, text = estimates.partition(":")
    if name == "omega" and float(text) > 0:
        excess = (workload.estimate_ms - workload.run_ms) / workload.run_ms
        number = np.floor(excess * CLASSES / float(text))
    elif name == "phi":
        number = np.ceil(workload.run_ms / workload.estimate_ms * CLASSES) - 1
    else:
        raise OptionError("estimates", f"{estimates!r} has no classes of estimators; omega:X (X > 0) and phi:X have")
    return np.clip(number, 0, CLASSES - 1).astype(np.int64)


def learn_model(path: str | Path) -> HyperErlangModel:
    """Fit Zhang's model to an SWF file of CTC-SP2, for 320 nodes and jobs of up to 256 nodes."""
    workload, _ = read_swf(path, nodes=TRACE_NODES)
    return rescale(learn_hyper_erlang(workload, nodes=TRACE_NODES), nodes=NODES, max_width=MAX_WIDTH)


def with_large_share(model: HyperErlangModel, share: float) -> HyperErlangModel:
    """Return a model in which jobs of more than 32 nodes make up `share` of all jobs."""
    rates = [(group.max_width > NARROW_UP_TO, group.jobs_per_ms(model.nodes)) for group in model.classes]
    large, small = (sum(rate for wide, rate in rates if wide is kind) for kind in (True, False))
    factor = large * (1 - share) / (small * share)
    classes = [
        msgspec.structs.replace(group, interarrival=_multiplied(group.interarrival, factor)) if wide else group
        for group, (wide, _) in zip(model.classes, rates, strict=True)
    ]
    return msgspec.structs.replace(model, classes=classes)


def _multiplied(law: HyperErlang, factor: float) -> HyperErlang:
    return HyperErlang(law.order, law.probabilities, tuple(mean * factor for mean in law.means_ms))


class ZhangRuns:
    """The curves of all figures, with ``seeds`` baseline workloads; each point is simulated once.

    The workloads of one seed have the same jobs, arrivals and over-estimation draws for every run time factor, policy
    and estimate parameter, so differences between curves are not due to chance.
    """

    def __init__(
        self, model: HyperErlangModel, *, seeds: int = DEFAULT_SEEDS, jobs: int = JOBS, progress: Progress | None = None
    ) -> None:
        shares = sorted({reading.large_share for reading in READINGS.values() if reading.large_share is not None})
        self._models = {None: model} | {share: with_large_share(model, share) for share in shares}
        self.seeds = seeds_of(seeds)
        self.jobs = jobs
        self._jobs_of = lru_cache(maxsize=16)(self._workload)  # simulations of one workload follow each other
        self._points = Study(self._point, title="Zhang", progress=progress)

    def curves(self, reading: str, settings: Iterable[Setting]) -> dict[Setting, Curve]:
        """Return the curves of these settings, under one of `READINGS`."""
        unique_settings = list(dict.fromkeys(settings))
        factors = reversed(RUN_FACTORS)  # start the longest simulations first
        points = self._points.results(
            (reading, setting, factor, seed) for factor in factors for seed in self.seeds for setting in unique_settings
        )
        curves = {}
        for key in unique_settings:
            values = ([points[reading, key, factor, seed] for seed in self.seeds] for factor in RUN_FACTORS)
            means = ([np.mean(quantity, axis=0) for quantity in zip(*at, strict=True)] for at in values)
            curves[key] = Curve(*map(np.array, zip(*means, strict=True)))
        return curves

    def large_jobs(self, large_share: float | None = None) -> tuple[float, float]:
        """Return the mean shares of large jobs in all jobs and in all work of the baselines (paper: 30%, over 80%)."""
        shares = []
        for seed in self.seeds:
            workload = self._workload(large_share, seed, RUN_FACTORS[0])
            large = workload.width > NARROW_UP_TO
            work = workload.width.astype(np.float64) * workload.run_ms
            shares.append((float(large.mean()), float(work[large].sum() / work.sum())))
        of_jobs, of_work = np.mean(shares, axis=0).tolist()
        return of_jobs, of_work

    def _point(self, run: tuple[str, Setting, float, int]) -> _Point:
        reading, setting, factor, seed = run
        discipline, share = READINGS[reading]
        return _simulate(self._jobs_of(share, seed, factor), setting, discipline, seed)

    def _workload(self, large_share: float | None, seed: int, factor: float) -> Workload:
        """Return the workload generated with this seed; the factor changes only the run times."""
        model, rng = self._models[large_share], np.random.default_rng(seed)
        return generate_hyper_erlang(model, self.jobs, rng, load=BASELINE_LOAD, run_factor=factor)


def _simulate(workload: Workload, setting: Setting, discipline: str, seed: int) -> _Point:
    from gridweave.scenarios.batch.simulate import simulate
    from gridweave.site.policy import SitePolicy

    estimated = with_estimates(workload, setting.estimates, np.random.default_rng([seed, 1]))
    policy = SitePolicy(discipline=discipline, order=setting.order)
    result = simulate(estimated, workload.nodes, policy)
    metrics = result.metrics()
    return _Point(
        rho=metrics.rho,
        wait_s=metrics.awt_ms / MS_PER_S,
        slowdown=metrics.bounded_slowdown_10s,
        loss=metrics.kappa,
        class_wait_s=_class_waits(result, setting.estimates),
    )


def _class_waits(result: SimulationResult, estimates: str) -> FloatArray:
    if estimates == "perfect":
        return np.full(CLASSES, np.nan)
    number = estimator_class(result.workload, estimates)
    wait_s = (result.start_ms - result.workload.submit_ms) / MS_PER_S
    jobs = np.bincount(number, minlength=CLASSES)
    sums = np.bincount(number, weights=wait_s, minlength=CLASSES)
    waits: FloatArray = np.divide(sums, jobs, out=np.full(CLASSES, np.nan), where=jobs > 0)
    return waits


Curves = Mapping[Setting, Curve]
Check = Callable[[Curves], Verdict]

FCFS, SJF, BFIT, WFIT = (Setting(order, "perfect") for order in ("fcfs", "sjf", "bfit", "wfit"))
POLICIES = (FCFS, SJF, BFIT, WFIT)
POLICIES_PHI = tuple(Setting(setting.order, "phi:0.2") for setting in POLICIES)

# Section 4 names perfect estimates and Omega = 3. The introduction speaks of any degree of over-estimation.
OMEGAS = tuple(Setting("fcfs", f"omega:{omega}") for omega in (1, 2, 3))
GREAT_OMEGAS = tuple(Setting("fcfs", f"omega:{omega}") for omega in (5, 10))
PHIS = tuple(Setting("fcfs", f"phi:{phi}") for phi in (0.8, 0.6, 0.4, 0.2))
OMEGA_3, PHI_02 = Setting("fcfs", "omega:3"), Setting("fcfs", "phi:0.2")

NAMES = {"fcfs": "FCFS", "sjf": "SJF", "bfit": "BFit", "wfit": "WFit"}

GRID = (0.55, 0.60, 0.65, 0.70, 0.75, 0.80, 0.85, 0.90)
"""Utilisations at which curves are read: from the baseline to the highest one in the text, about as far apart as the
nine workloads."""

LOW = 0.75
LOW_GRID, HIGH_GRID = tuple(rho for rho in GRID if rho <= LOW), tuple(rho for rho in GRID if rho > LOW)
"""Points of `GRID` at "lower utilization (up to 75%)" and at "higher utilizations" (section 3)."""

COMPARABLE_RATIO = 1.5
"""Largest ratio of mean waits under "comparable" policies; users would notice a larger difference."""

SATURATION, SUSTAINED = 0.85, 0.90
SATURATION_MARGIN = (RUN_FACTORS[-1] - RUN_FACTORS[0]) / (len(RUN_FACTORS) - 1) * BASELINE_LOAD / 2
"""Distance within which a highest utilisation counts as 85%: 0.0275, half the distance between two workloads."""

MINIMAL_PCT = 25.0
"""Largest change that counts as "minimal" or "very little"; the paper calls about 20% minimal."""

ABOUT_20_PCT = (15.0, 25.0)
"""Changes that count as "approximately 20%": nearer to 20 than to 10 or 30."""

NEGLIGIBLE_PCT = 10.0
"""Largest change that counts as "negligible": half of the 20% that the paper still mentions."""


def waits_at(curves: Curves, settings: Sequence[Setting], utilisation: float) -> dict[str, float]:
    """Return the average wait in seconds at a utilisation, for each policy that reaches this utilisation."""
    waits = {NAMES[setting.order]: curves[setting].at(curves[setting].wait_s, utilisation) for setting in settings}
    return {name: wait for name, wait in waits.items() if not np.isnan(wait)}


def _comparable_at_low_utilisation(curves: Curves) -> Verdict:
    """Check the claim "at lower utilization (up to 75%) all policies are comparable" (section 3, Figure 5(a))."""
    worst = (1.0, "")
    for rho in LOW_GRID:
        waits = waits_at(curves, POLICIES, rho)
        if len(waits) < len(POLICIES):
            return _not_reached(waits, rho)
        least, most = min(waits, key=lambda name: waits[name]), max(waits, key=lambda name: waits[name])
        text = f"{most} {waits[most]:,.0f} s against {least} {waits[least]:,.0f} s at {rho:.0%}"
        worst = max(worst, (waits[most] / waits[least], text))
    return Verdict(
        worst[0] <= COMPARABLE_RATIO,
        f"largest ratio of mean waits up to {LOW:.0%} is {worst[0]:.2f} ({worst[1]}); comparable is {COMPARABLE_RATIO}",
    )


def _sjf_best_at_low_utilisation(curves: Curves) -> Verdict:
    """Check the claim "with SJF displaying slightly better performance" (section 3, Figure 5(a))."""
    ratios = []
    for rho in LOW_GRID:
        waits = waits_at(curves, POLICIES, rho)
        if len(waits) < len(POLICIES):
            return _not_reached(waits, rho)
        ratios.append(min(wait for name, wait in waits.items() if name != "SJF") / waits["SJF"])
    return Verdict(
        min(ratios) > 1,
        f"up to {LOW:.0%} the best other policy waits {min(ratios):.2f} to {max(ratios):.2f} times as long as SJF",
    )


def _not_reached(waits: Mapping[str, float], rho: float) -> Verdict:
    return Verdict(False, f"{', '.join(name for name in NAMES.values() if name not in waits)} does not reach {rho:.0%}")


def _fcfs_best_at_high_utilisation(curves: Curves) -> Verdict:
    """Check that "at higher utilizations FCFS performs better than the other policies" (section 3, Figure 5(a))."""
    checks = []
    for rho in HIGH_GRID:
        waits = waits_at(curves, POLICIES, rho)
        texts = [f"{name} {waits[name]:,.0f} s" if name in waits else f"{name} –" for name in NAMES.values()]
        best = min(waits.values(), default=math.nan)
        checks.append((waits.get("FCFS") == best, f"{rho:.0%}: {', '.join(texts)}"))
    return all_hold(checks, " (–: not reached)", before="mean waits at ")


def _sjf_wfit_saturate(curves: Curves) -> Verdict:
    """Check the claim "both SJF and WFit saturate at an utilization of 85%" (section 3, Figure 5(b))."""
    highest = {NAMES[setting.order]: curves[setting].highest for setting in (SJF, WFIT)}
    holds = all(abs(rho - SATURATION) <= SATURATION_MARGIN for rho in highest.values())
    return Verdict(holds, f"{_highest(highest)}; at 85% is within {SATURATION_MARGIN * 100:.2f} points")


def _bfit_fcfs_sustain(curves: Curves) -> Verdict:
    """Check the claim "both BFit and FCFS can sustain utilizations of more than 90%" (section 3, Figure 5(b))."""
    highest = {NAMES[setting.order]: curves[setting].highest for setting in (BFIT, FCFS)}
    return Verdict(all(rho > SUSTAINED for rho in highest.values()), _highest(highest))


def _fcfs_before_bfit(curves: Curves) -> Verdict:
    """Check that "at this high loads, FCFS exhibits better average job wait time than BFit" (section 3, Figure 5)."""
    pairs = {rho: waits_at(curves, (FCFS, BFIT), rho) for rho in GRID if rho >= SATURATION}
    both = {rho: waits for rho, waits in pairs.items() if len(waits) == 2}
    if not both:
        return Verdict(False, f"neither or only one of the two reaches {SATURATION:.0%}")
    parts = [f"FCFS {pair['FCFS']:,.0f} s, BFit {pair['BFit']:,.0f} s at {rho:.0%}" for rho, pair in both.items()]
    return Verdict(all(pair["FCFS"] < pair["BFit"] for pair in both.values()), f"mean waits {'; '.join(parts)}")


def _highest(highest: Mapping[str, float]) -> str:
    return "highest utilisation " + ", ".join(f"{name} {rho:.1%}" for name, rho in highest.items())


def changes_pct(curves: Curves, settings: Sequence[Setting], quantity: str, up_to: float) -> FloatArray:
    """Return the change of a quantity due to over-estimation in per cent, by setting (rows) and utilisation (columns).

    NaN if a curve or the curve with perfect estimates does not reach the utilisation.
    """
    rows = []
    for setting in settings:
        curve, perfect = curves[setting], curves[FCFS]
        rhos = [rho for rho in GRID if rho <= up_to]
        ours = np.array([curve.at(getattr(curve, quantity), rho) for rho in rhos])
        base = np.array([perfect.at(getattr(perfect, quantity), rho) for rho in rhos])
        rows.append(100 * (ours / base - 1))
    return np.array(rows)


def _impact(settings: Sequence[Setting]) -> Check:
    """Return the check that over-estimation hardly changes slowdown and wait."""

    def check(curves: Curves) -> Verdict:
        checks = []
        for quantity, name in (("slowdown", "average slowdown"), ("wait_s", "average wait")):
            changes = changes_pct(curves, settings, quantity, SUSTAINED)
            checks.append((_largest(changes) <= MINIMAL_PCT, f"{name} {_range(changes)}"))
        before = f"against perfect estimates, up to {SUSTAINED:.0%}: "
        return all_hold(checks, f"; minimal is {MINIMAL_PCT:.0f}%", before=before)

    return check


def _omega_reduces_slowdown(curves: Curves) -> Verdict:
    """Check that "overestimation actually helps in reducing average slow down in approximately 20%" (Figure 6(a))."""
    changes = changes_pct(curves, OMEGAS, "slowdown", SUSTAINED)
    mean = _mean(changes)
    low, high = ABOUT_20_PCT
    return Verdict(
        low <= -mean <= high,
        f"average slowdown up to {SUSTAINED:.0%} {_range(changes)}, on average {mean:+.0f}%; "
        f"approximately 20% is {low:.0f} to {high:.0f}%",
    )


def _omega_wait_negligible(curves: Curves) -> Verdict:
    """Check the claim "the variation in average wait time for utilizations up to 0.85 is negligible" (Figure 6(b))."""
    changes = changes_pct(curves, OMEGAS, "wait_s", SATURATION)
    return Verdict(
        _largest(changes) <= NEGLIGIBLE_PCT,
        f"average wait up to {SATURATION:.0%} {_range(changes)}; negligible is {NEGLIGIBLE_PCT:.0f}%",
    )


def _omega_impact_only_at_very_high(curves: Curves) -> Verdict:
    """Check the claim "only at very high utilizations we start to see some impact of overestimation" (Figure 6(b))."""
    changes = changes_pct(curves, OMEGAS, "wait_s", SUSTAINED)
    below, most = _largest(changes[:, :-1]), _largest(changes[:, -1:])
    if np.isnan(most):
        return Verdict(False, f"with over-estimation no run reaches {SUSTAINED:.0%}")
    return Verdict(
        below <= NEGLIGIBLE_PCT < most,
        f"largest change of the average wait {below:.0f}% up to {SATURATION:.0%}, {most:.0f}% at {SUSTAINED:.0%}",
    )


def _phi_accuracy_pays_little(curves: Curves) -> Verdict:
    """Check that "we can see a little benefit in wait time from more accurate estimates" (section 4, Figure 7(b))."""
    changes = changes_pct(curves, (PHI_02,), "wait_s", SUSTAINED)
    mean = _mean(changes)
    return Verdict(
        0 < mean <= MINIMAL_PCT,
        f"average wait with Φ = 0.2 against perfect estimates, up to {SUSTAINED:.0%}: {_range(changes)}, "
        f"on average {mean:+.0f}%; a little benefit is more than 0 and up to {MINIMAL_PCT:.0f}%",
    )


def _good_estimators(setting: Setting, best: int, worst: int) -> Check:
    """Return the check that the best estimators wait less than the worst at every workload."""

    def check(curves: Curves) -> Verdict:
        wait_s = curves[setting].class_wait_s
        shorter = wait_s[:, best] < wait_s[:, worst]
        ratio = wait_s[:, best] / wait_s[:, worst]
        return Verdict(
            bool(shorter.all()),
            f"class {best} waits less than class {worst} at {int(shorter.sum())} of {len(shorter)} workloads, "
            f"{ratio.min():.2f} to {ratio.max():.2f} times as long",
        )

    return check


def _largest(changes: FloatArray) -> float:
    """Return the largest absolute change; NaN, for which no claim holds, if all changes are NaN."""
    finite = changes[~np.isnan(changes)]
    return float(np.abs(finite).max()) if finite.size else float("nan")


def _mean(changes: FloatArray) -> float:
    finite = changes[~np.isnan(changes)]
    return float(finite.mean()) if finite.size else float("nan")


def _range(changes: FloatArray) -> str:
    finite = changes[~np.isnan(changes)]
    return f"{finite.min():+.0f}% to {finite.max():+.0f}%" if finite.size else "not reached"


CHECKS: Mapping[str, Sequence[Check]] = {
    "zhang-5": (
        _comparable_at_low_utilisation,
        _sjf_best_at_low_utilisation,
        _fcfs_best_at_high_utilisation,
        _sjf_wfit_saturate,
        _bfit_fcfs_sustain,
        _fcfs_before_bfit,
    ),
    "zhang-6": (
        _impact(OMEGAS),
        _omega_reduces_slowdown,
        _omega_wait_negligible,
        _omega_impact_only_at_very_high,
        _impact((*OMEGAS, *GREAT_OMEGAS)),
    ),
    "zhang-7": (_impact(PHIS), _phi_accuracy_pays_little),
    "zhang-8": (_good_estimators(OMEGA_3, 0, CLASSES - 1), _good_estimators(PHI_02, CLASSES - 1, 0)),
}
"""Checks of the paper's conclusions, by figure."""


class PanelLine(NamedTuple):
    """One curve of a panel, for all jobs or for one class of estimators."""

    label: str
    setting: Setting
    estimators: int | None = None


class Panel(NamedTuple):
    """A quantity against utilisation; panels that are not judged are computed for the first reading only."""

    title: str
    quantity: str
    lines: tuple[PanelLine, ...]
    judged: bool = True


QUANTITIES = {
    "wait_s": ("Average wait [s]", 0),
    "slowdown": ("Average slowdown, bounded by 10 s", 1),
    "loss": ("Loss of capacity", 3),
}
"""Name and decimals of each quantity."""

_PERFECT, _PHI = (tuple(PanelLine(NAMES[one.order], one) for one in group) for group in (POLICIES, POLICIES_PHI))
_OMEGA_LINES = (
    PanelLine("Ω = 0", FCFS),
    *(PanelLine(f"Ω = {one.estimates.partition(':')[2]}", one) for one in (*OMEGAS, *GREAT_OMEGAS)),
)
_PHI_LINES = (
    PanelLine("Φ = 1", FCFS),
    *(PanelLine(f"Φ = {one.estimates.partition(':')[2]}", one) for one in PHIS),
)


def _estimators(setting: Setting, first: str, last: str) -> tuple[PanelLine, ...]:
    """Return the curves for all jobs, for the best estimators, and for the worst estimators."""
    end = CLASSES - 1
    return (
        PanelLine("all jobs", setting),
        PanelLine(f"class 0 ({first} estimators)", setting, 0),
        PanelLine(f"class {end} ({last} estimators)", setting, end),
    )


FIGURES: Mapping[str, tuple[Panel, ...]] = {
    "zhang-5": (
        Panel("(a) perfect estimates", "wait_s", _PERFECT),
        Panel("(b) perfect estimates", "loss", _PERFECT),
        Panel("(c) Φ = 0.2", "wait_s", _PHI, judged=False),
        Panel("(d) Φ = 0.2", "loss", _PHI, judged=False),
    ),
    "zhang-6": (Panel("(a) Ω model", "slowdown", _OMEGA_LINES), Panel("(b) Ω model", "wait_s", _OMEGA_LINES)),
    "zhang-7": (Panel("(a) Φ model", "slowdown", _PHI_LINES), Panel("(b) Φ model", "wait_s", _PHI_LINES)),
    "zhang-8": (
        Panel("(a) Ω = 3", "wait_s", _estimators(OMEGA_3, "best", "worst")),
        Panel("(b) Φ = 0.2", "wait_s", _estimators(PHI_02, "worst", "best")),
    ),
}
"""Panels of each figure."""


def values_of(line: PanelLine, quantity: str, curve: Curve) -> FloatArray:
    """Return the values of a curve at the nine workloads."""
    if line.estimators is not None:
        return curve.class_wait_s[:, line.estimators]
    values: FloatArray = getattr(curve, quantity)
    return values


def panels_of(figure: str, reading: str) -> list[Panel]:
    """Return the panels of a figure that are computed for a reading."""
    first = reading == next(iter(READINGS))
    return [panel for panel in FIGURES[figure] if first or panel.judged]


def curves_of(figure: str, runs: ZhangRuns) -> dict[str, Curves]:
    """Return the curves of a figure, for each reading."""
    curves: dict[str, Curves] = {}
    for reading in READINGS:
        lines = [line for panel in panels_of(figure, reading) for line in panel.lines]
        curves[reading] = runs.curves(reading, [FCFS, *(line.setting for line in lines)])
    return curves


def report(table: str, runs: ZhangRuns) -> Findings:
    """Recompute a figure, given by its key in `FIGURES`."""
    curves = curves_of(table, runs)
    return Findings(
        sections=tuple(_section(table, panel, curves) for panel in FIGURES[table]),
        conclusions=judge(table, CHECKS[table], curves),
        data={"curves": [record for reading, by_setting in curves.items() for record in _records(reading, by_setting)]},
        notes=_notes(runs),
    )


def _notes(runs: ZhangRuns) -> tuple[str, ...]:
    """Return notes on the workloads."""
    fitted, changed = (runs.large_jobs(share) for share in (None, LARGE_SHARE))
    count = len(runs.seeds)
    baselines = f"mean of {count} baseline workload{'s' if count > 1 else ''}"
    shares = f"{fitted[0]:.0%} and {fitted[1]:.0%} as fitted, {changed[0]:.0%} and {changed[1]:.0%} when more frequent"
    return (
        f"The trace of the paper is not public: its model is fitted to {TRACE}",
        f"{NODES} nodes, {runs.jobs:,} jobs, {baselines}",
        f"Jobs of more than 32 nodes, share in jobs and in work: {shares}; in the paper 30% and more than 80%",
    )


def _section(figure: str, panel: Panel, curves: Mapping[str, Curves]) -> Section:
    """Format a panel as a table with a row per curve and a column per utilisation."""
    name, decimals = QUANTITIES[panel.quantity]
    rows = []
    for reading, settings in curves.items():
        for line in panel.lines if panel in panels_of(figure, reading) else ():
            curve = settings[line.setting]
            values = values_of(line, panel.quantity, curve)
            cells = our_values(*(curve.at(values, rho) for rho in GRID), decimals=decimals)
            rows.append(Row((reading, line.label), (*cells, *our_values(100 * curve.highest, decimals=1))))
    columns = (*(f"{rho:.0%}" for rho in GRID), "highest [%]")
    return Section(
        f"{panel.title}: {name[0].lower()}{name[1:]} at a utilisation", ("reading", ""), columns, tuple(rows), OURS
    )


def _records(reading: str, curves: Curves) -> list[Record]:
    """Return one record per point of every curve."""
    records: list[Record] = []
    for setting, curve in curves.items():
        for place, factor in enumerate(RUN_FACTORS):
            point: Record = {"reading": reading, **setting._asdict(), "run_factor": factor}
            for name, values in (
                ("utilisation", curve.rho),
                ("wait_s", curve.wait_s),
                ("slowdown", curve.slowdown),
                ("loss_of_capacity", curve.loss),
            ):
                point[name] = float(values[place])
            for number, wait in enumerate(curve.class_wait_s[place].tolist()):
                point[f"class_{number}_wait_s"] = None if math.isnan(wait) else wait
            records.append(point)
    return records
