"""Figures 5 to 8 of Zhang et al.: the workloads, the curves, and the checks of the conclusions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import pytest

from gridweave.errors import OptionError
from gridweave.scenarios.generators.common import Moments
from gridweave.scenarios.generators.hyper_erlang import HyperErlang, HyperErlangModel, SizeClass, generate_hyper_erlang
from gridweave.scenarios.workload.estimates import omega, perfect, phi
from gridweave.scenarios.workload.table import Workload
from gridweave_papers.figures import draw_zhang
from gridweave_papers.studies import zhang as claims
from gridweave_papers.studies.report import Verdict
from gridweave_papers.studies.study import judge
from gridweave_papers.studies.zhang import (
    CLASSES,
    FIGURES,
    LARGE_SHARE,
    NODES,
    READINGS,
    RUN_FACTORS,
    Curve,
    Setting,
    ZhangRuns,
    curves_of,
    estimator_class,
    panels_of,
    values_of,
    with_large_share,
)

JOBS = 150


def _law(mean_ms: float) -> HyperErlang:
    return HyperErlang(order=1, probabilities=(1.0,), means_ms=(mean_ms,))


@pytest.fixture(scope="module")
def model() -> HyperErlangModel:
    """Make a model of two classes by hand: many narrow and short jobs, few wide and long ones."""
    classes = [
        SizeClass(32, [1, 8, 32], [5, 3, 2], interarrival=_law(60_000.0), run=_law(600_000.0)),
        SizeClass(256, [64, 256], [3, 1], interarrival=_law(600_000.0), run=_law(3_600_000.0)),
    ]
    moments = Moments(100, 55_000.0, 20.0, 900_000.0, 900_000.0, 2e7, 0.5, 1.0, 0.0)
    return HyperErlangModel("by hand", NODES, 1000, classes, moments)


@pytest.fixture(scope="module")
def runs(model: HyperErlangModel) -> ZhangRuns:
    """Run small workloads of that model."""
    return ZhangRuns(model, seeds=2, jobs=JOBS)


# --- workloads -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.05, 0.3, 0.9])
def test_large_jobs_get_the_wanted_share(model: HyperErlangModel, share: float) -> None:
    """Only the rate of the classes beyond 32 nodes changes, and their share in the rate of all is the one wanted."""
    changed = with_large_share(model, share)
    narrow, wide = (group.jobs_per_ms(NODES) for group in changed.classes)
    assert wide / (narrow + wide) == pytest.approx(share)
    assert changed.classes[0] == model.classes[0]
    assert changed.classes[1].run == model.classes[1].run
    assert changed.classes[1].counts == model.classes[1].counts
    drawn = generate_hyper_erlang(changed, 4000, np.random.default_rng(1))
    assert np.mean(drawn.width > 32) == pytest.approx(share, abs=0.03)


def test_large_jobs_are_counted_in_the_baseline(runs: ZhangRuns) -> None:
    """A tenth of the rate is large jobs as fitted, and the share of the paper where the model is changed to it."""
    fitted, changed = runs.large_jobs(), runs.large_jobs(LARGE_SHARE)
    assert fitted[0] == pytest.approx(1 / 11, abs=0.05)
    assert changed[0] == pytest.approx(LARGE_SHARE, abs=0.08)
    assert fitted[1] < changed[1] < 1


def _jobs(run_ms: list[int], estimate_ms: list[int]) -> Workload:
    n = len(run_ms)
    return Workload(
        job_id=np.arange(1, n + 1),
        submit_ms=np.arange(n),
        width=np.ones(n, np.int64),
        run_ms=np.array(run_ms),
        estimate_ms=np.array(estimate_ms),
    )


def test_classes_under_the_omega_model() -> None:
    """Class i has the ratios of estimate to run time from 1 + 0.3 i up to, not including, 1 + 0.3 (i + 1)."""
    jobs = _jobs([1000] * 5, [1000, 1299, 1301, 3999, 4000])
    assert estimator_class(jobs, "omega:3").tolist() == [0, 0, 1, 9, 9]


def test_classes_under_the_phi_model() -> None:
    """Class i has the jobs that use more than i and at most i + 1 tenths of their estimate."""
    jobs = _jobs([1000, 899, 900, 901, 100, 101, 1], [1000] * 7)
    assert estimator_class(jobs, "phi:0.2").tolist() == [9, 8, 8, 9, 0, 1, 0]


@pytest.mark.parametrize("estimates", ["perfect", "keep", "omega:0"])
def test_perfect_estimates_have_no_classes(estimates: str) -> None:
    """Where all estimate alike there are no better and worse ones."""
    with pytest.raises(OptionError, match="no classes"):
        estimator_class(_jobs([1000], [1000]), estimates)


def test_every_class_is_met_by_what_the_models_draw(model: HyperErlangModel) -> None:
    """Under both models all ten classes occur, under Omega about equally often."""
    jobs = perfect(generate_hyper_erlang(model, 5000, np.random.default_rng(3)))
    of_omega = np.bincount(estimator_class(omega(jobs, 3, np.random.default_rng(4)), "omega:3"), minlength=CLASSES)
    of_phi = np.bincount(estimator_class(phi(jobs, 0.2, np.random.default_rng(4)), "phi:0.2"), minlength=CLASSES)
    assert of_omega.min() > 350
    assert of_phi.min() > 300
    assert of_phi.argmax() == CLASSES - 1


# --- curves ----------------------------------------------------------------------------------------------------------


def test_a_curve_is_read_between_its_points() -> None:
    """Values are on the straight line to the first point that reaches it; beyond the last there is none."""
    rho = np.array([0.50, 0.60, 0.58, 0.70])
    curve = _curve(rho, np.array([100.0, 200.0, 300.0, 400.0]))
    assert curve.highest == 0.70
    assert curve.at(curve.wait_s, 0.40) == 100.0
    assert curve.at(curve.wait_s, 0.55) == pytest.approx(150.0)
    assert curve.at(curve.wait_s, 0.60) == pytest.approx(200.0)
    assert curve.at(curve.wait_s, 0.64) == pytest.approx(350.0)
    assert np.isnan(curve.at(curve.wait_s, 0.71))


def test_runs_are_repeatable_and_rise_with_the_load(model: HyperErlangModel, runs: ZhangRuns) -> None:
    """The same seeds give the same curves; longer run times make the machine busier and the waits longer."""
    setting = Setting("fcfs", "omega:3")
    first = runs.curves("EASY", [setting])[setting]
    again = ZhangRuns(model, seeds=2, jobs=JOBS).curves("EASY", [setting])[setting]
    for name in ("rho", "wait_s", "slowdown", "loss", "class_wait_s"):
        assert np.array_equal(getattr(first, name), getattr(again, name), equal_nan=True), name
    assert first.rho.shape == (len(RUN_FACTORS),)
    assert (np.diff(first.wait_s) > 0).all()
    assert 0 < first.rho[0] < first.rho[-1] <= 1
    assert ((first.loss >= 0) & (first.loss <= 1 - first.rho + 1e-9)).all()


def test_curves_are_means_over_the_seeds(model: HyperErlangModel, runs: ZhangRuns) -> None:
    """With two seeds the curve lies between, and in the middle of, that of the first and that of the second."""
    setting = Setting("sjf", "perfect")
    one, both = (ZhangRuns(model, seeds=n, jobs=JOBS).curves("planning", [setting])[setting] for n in (1, 2))
    assert np.array_equal(both.wait_s, runs.curves("planning", [setting])[setting].wait_s)
    second = 2 * both.wait_s - one.wait_s
    assert (second > 0).all()
    assert not np.array_equal(second, one.wait_s)


def test_class_waits_average_to_the_wait_of_all(runs: ZhangRuns) -> None:
    """The waits of the classes lie on both sides of the average wait; perfect estimates have none."""
    phi_curve = runs.curves("EASY", [claims.PHI_02])[claims.PHI_02]
    assert (np.nanmin(phi_curve.class_wait_s, axis=1) <= phi_curve.wait_s).all()
    assert (np.nanmax(phi_curve.class_wait_s, axis=1) >= phi_curve.wait_s).all()
    assert np.isnan(runs.curves("EASY", [claims.FCFS])[claims.FCFS].class_wait_s).all()


def test_seeds_are_needed(model: HyperErlangModel) -> None:
    """No seed means no workload."""
    with pytest.raises(OptionError, match="seeds"):
        ZhangRuns(model, seeds=0)


# --- reports and figures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("figure", list(FIGURES))
def test_report_of_a_figure(figure: str, runs: ZhangRuns) -> None:
    """Each line of a panel has a row for each reading, each conclusion a verdict, and the file all nine workloads."""
    report = claims.report(figure, runs)
    panels = FIGURES[figure]
    for panel, section in zip(panels, report.sections, strict=True):
        made = [reading for reading in READINGS if panel in panels_of(figure, reading)]
        wanted = [(reading, line.label) for reading in made for line in panel.lines]
        assert [row.labels for row in section.rows] == wanted
    assert len(report.conclusions) == len(claims.CHECKS[figure])
    assert all(list(conclusion.verdicts) == list(READINGS) for conclusion in report.conclusions)
    settings = sum(len(one) for one in curves_of(figure, runs).values())
    assert len(report.data["curves"]) == settings * len(RUN_FACTORS)
    assert len(report.notes) == 3


def test_panels_without_a_conclusion_are_made_for_the_first_reading_alone() -> None:
    """Figures 5(c) and (d) are given "for completeness" in the paper."""
    assert [len(panels_of("zhang-5", reading)) for reading in READINGS] == [4, 2, 2, 2]
    assert all(len(panels_of("zhang-8", reading)) == 2 for reading in READINGS)


@pytest.mark.parametrize("figure", list(FIGURES))
def test_figures_show_the_curves(figure: str, runs: ZhangRuns) -> None:
    """There is one picture for each reading; its panels have the lines of the figure, and loss has its bound."""
    drawn = draw_zhang(figure, "", runs)
    slugs = ("easy", "planning", "easy-30-large", "planning-30-large")
    assert list(drawn) == [f"{figure}-{slug}" for slug in slugs]
    for reading, picture in zip(READINGS, drawn.values(), strict=True):
        panels = panels_of(figure, reading)
        for axes, panel in zip(picture.axes, panels, strict=True):
            assert len(axes.lines) == len(panel.lines) + (panel.quantity == "loss")
            curve = curves_of(figure, runs)[reading][panel.lines[-1].setting]
            drawn_y = axes.lines[len(panel.lines) - 1].get_ydata()
            assert np.array_equal(drawn_y, values_of(panel.lines[-1], panel.quantity, curve))


# --- conclusions -----------------------------------------------------------------------------------------------------

RHO = np.linspace(0.55, 0.95, 9)


def _curve(rho: np.ndarray, wait_s: np.ndarray, slowdown: np.ndarray | None = None) -> Curve:
    points = len(rho)
    class_wait_s = np.outer(wait_s, np.linspace(0.5, 1.5, CLASSES))
    return Curve(rho, wait_s, np.ones(points) if slowdown is None else slowdown, np.zeros(points), class_wait_s)


def _as_published() -> dict[Setting, Curve]:
    """Make curves for which every conclusion of the paper holds."""
    wait = 1000 * np.exp(8 * (RHO - 0.55))
    slowdown = 1 + wait / 1000
    saturated = np.minimum(RHO, 0.85)
    low = np.where(RHO <= 0.76, 0.9, 3.0)
    curves = {
        claims.FCFS: _curve(RHO, wait, slowdown),
        claims.BFIT: _curve(RHO, 1.2 * wait),
        claims.SJF: _curve(saturated, low * wait),
        claims.WFIT: _curve(saturated, np.where(RHO <= 0.76, 1.1, 3.0) * wait),
        claims.PHI_02: _curve(RHO, 1.1 * wait, slowdown),
    }
    late = np.where(RHO < 0.88, 1.02, 1.2)
    curves |= {one: _curve(RHO, late * wait, 0.8 * slowdown) for one in (*claims.OMEGAS, *claims.GREAT_OMEGAS)}
    curves |= {one: _curve(RHO, 1.05 * wait, slowdown) for one in claims.PHIS if one != claims.PHI_02}
    backwards = curves[claims.PHI_02].class_wait_s[:, ::-1]
    curves[claims.PHI_02] = dataclasses.replace(curves[claims.PHI_02], class_wait_s=backwards)
    return curves


def _verdicts(curves: Mapping[Setting, Curve]) -> dict[str, Verdict]:
    found = (one for figure, checks in claims.CHECKS.items() for one in judge(figure, checks, {"": curves}))
    return {one.claim: one.verdicts[""] for one in found}


def test_all_conclusions_hold_for_curves_like_those_described() -> None:
    """Curves that do what the paper says pass every check."""
    verdicts = _verdicts(_as_published())
    assert len(verdicts) == 15
    assert [claim for claim, verdict in verdicts.items() if not verdict.holds] == []


def _scaled(curve: Curve, wait: float = 1.0, slowdown: float = 1.0, top: float = 1.0) -> Curve:
    rho = np.minimum(curve.rho, top)
    return Curve(rho, wait * curve.wait_s, slowdown * curve.slowdown, curve.loss, curve.class_wait_s)


def _flat(curve: Curve) -> Curve:
    return dataclasses.replace(curve, class_wait_s=np.ones_like(curve.class_wait_s))


@pytest.mark.parametrize(
    ("settings", "change", "broken"),
    [
        ([claims.BFIT], {"wait": 1.6}, {"Up to 75% utilisation all policies are comparable"}),
        ([claims.SJF], {"wait": 1.3}, {"There SJF performs slightly better"}),
        ([claims.SJF], {"top": 0.80}, {"SJF and WFit saturate at a utilisation of 85%"}),
        ([claims.WFIT], {"top": 0.80}, {"SJF and WFit saturate at a utilisation of 85%"}),
        ([claims.BFIT], {"top": 0.90}, {"BFit and FCFS can sustain more than 90%"}),
        (
            [claims.BFIT],
            {"wait": 0.8},
            {
                "At higher utilisation FCFS performs better than the other policies",
                "At these loads FCFS has a better average wait than BFit",
            },
        ),
        (
            list(claims.OMEGAS),
            {"slowdown": 0.5},
            {
                "Ω: the impact of over-estimation on averages is minimal",
                "Ω: up to 90% over-estimation reduces the average slowdown by approximately 20%",
                "Ω: over-estimation has no real impact regardless of its degree (Ω up to 10)",
            },
        ),
        (
            list(claims.OMEGAS),
            {"wait": 0.85},
            {"Ω: up to 85% the average wait varies negligibly", "Ω: only at very high utilisation some impact is seen"},
        ),
        (
            list(claims.GREAT_OMEGAS),
            {"wait": 1.5},
            {"Ω: over-estimation has no real impact regardless of its degree (Ω up to 10)"},
        ),
        ([claims.PHIS[0]], {"wait": 1.5}, {"Φ: there is very little impact of over-estimation"}),
        ([claims.PHI_02], {"wait": 0.85}, {"Φ: more accurate estimates have a little benefit in wait"}),
    ],
)
def test_each_conclusion_fails_when_its_curves_say_otherwise(
    settings: list[Setting], change: dict[str, float], broken: set[str]
) -> None:
    """A change of the curves that a conclusion is about breaks that conclusion, and no other."""
    curves = _as_published()
    for setting in settings:
        curves[setting] = _scaled(curves[setting], **change)
    assert {claim for claim, verdict in _verdicts(curves).items() if not verdict.holds} == broken


@pytest.mark.parametrize(
    ("setting", "claim"),
    [
        (claims.OMEGA_3, "Ω = 3: good estimators get a lower average wait"),
        (claims.PHI_02, "Φ = 0.2: good estimators get a lower average wait"),
    ],
)
def test_good_estimators_must_wait_less(setting: Setting, claim: str) -> None:
    """If all classes wait alike, good estimators have no benefit."""
    curves = _as_published()
    curves[setting] = _flat(curves[setting])
    assert {name for name, verdict in _verdicts(curves).items() if not verdict.holds} == {claim}


def test_nothing_holds_of_curves_that_end_early() -> None:
    """Where no utilisation that a conclusion speaks of is reached, it does not hold, and says so without an error."""
    ended = {setting: _scaled(curve, top=0.52) for setting, curve in _as_published().items()}
    holding = {claim for claim, verdict in _verdicts(ended).items() if verdict.holds}
    assert holding == {claim for claim in _verdicts(ended) if "good estimators" in claim}


def test_a_policy_that_does_not_get_so_far_is_no_better() -> None:
    """If FCFS does not reach the high utilisations, it is not the best there, and sustains none."""
    curves = _as_published()
    curves[claims.FCFS] = _scaled(curves[claims.FCFS], top=0.78)
    verdicts = _verdicts(curves)
    for claim in (
        "At higher utilisation FCFS performs better than the other policies",
        "BFit and FCFS can sustain more than 90%",
        "At these loads FCFS has a better average wait than BFit",
    ):
        assert not verdicts[claim].holds
