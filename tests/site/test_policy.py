"""Policies: what is refused, and what is made of what is not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridweave.errors import InputError, OptionError
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.workload.table import Workload
from gridweave.site.kernels.dispatch import PlanRules, PromiseRules, QueueRules
from gridweave.site.kernels.order import ORDERS, order_keys
from gridweave.site.kernels.state import empty_plan, empty_state
from gridweave.site.policy import BACKFILLS, DAY_MS, Limit, SitePolicy, Window

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown discipline": ({"discipline": "gang"}, "discipline: 'gang' is not known; one of queue, planning"),
    "unknown order": ({"order": "lifo"}, "order: 'lifo' is not known; one of fcfs, sjf"),
    "unknown backfilling": ({"backfill": "hard"}, "backfill of a queue site: 'hard' is not known"),
    "planning has no slack": ({"discipline": "planning", "backfill": "slack"}, "one of easy, none"),
    "unknown choice": ({"choice": "worst-fit"}, "choice: 'worst-fit' is not known"),
    "choice without candidates": ({"backfill": "none", "choice": "best-fit"}, "only works with a queue and backfill"),
    "negative slack": ({"slack": -0.1}, "slack: is -0.1"),
    "slack that is no number": ({"slack": math.nan}, "slack: is nan"),
    "aging that stands still": ({"aging_ms": 0.0}, "aging_ms: is 0.0"),
    "limits on a queue": ({"limits": (Limit(max_jobs=1),)}, "limits: only work with the discipline planning"),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(options: dict[str, Any], message: str) -> None:
    """A policy that makes no sense is refused by the name of the option, with what would be right."""
    with pytest.raises(OptionError) as caught:
        SitePolicy(**options)
    assert message in str(caught.value)


def test_a_limit_has_one_effect() -> None:
    """A limit with no effect, with two, or that lets nothing ever start is refused."""
    with pytest.raises(OptionError, match="exactly one"):
        Limit(wider_than=3)
    with pytest.raises(OptionError, match="exactly one"):
        Limit(max_jobs=1, max_nodes=1)
    with pytest.raises(OptionError, match="expected 1 to"):
        Limit(max_nodes=0)
    with pytest.raises(OptionError, match="days of the week"):
        Window(days=(7,))
    with pytest.raises(OptionError, match="within one day"):
        Window(from_ms=DAY_MS)


def test_rules() -> None:
    """What compiled code reads says the same as the names, for the one discipline of the policy and no other."""
    assert SitePolicy().rules(None, None) == QueueRules((True, False, 0.0))
    assert SitePolicy(backfill="none").rules(None, None) == QueueRules((False, False, 0.0))
    slack = SitePolicy(backfill="slack", slack=0.25, choice="best-fit")
    assert slack.rules(None, None) == QueueRules((True, True, 0.25))
    plan = empty_plan(empty_state(4, slots=2), np.array([4]))
    assert isinstance(promised := SitePolicy(backfill="conservative").rules(plan, None), PromiseRules)
    assert promised == (plan, None)
    planning = SitePolicy(discipline="planning", backfill="none")
    limits = planning.limit_arrays()
    assert isinstance(planned := planning.rules(plan, limits), PlanRules)
    assert planned == (plan, limits, False, None)
    kept = [SitePolicy(), SitePolicy(backfill="conservative"), SitePolicy(discipline="planning")]
    assert [policy.makes_plan for policy in kept] == [False, True, True]
    assert [policy.limit_arrays() is not None for policy in kept] == [False, False, True]


def test_a_window_over_the_end_of_the_week_is_cut() -> None:
    """A window from Sunday night to Monday morning is two spans of the week."""
    limit = Limit(window=Window(days=(6,), from_ms=22 * 3_600_000, to_ms=6 * 3_600_000))
    arrays = SitePolicy(discipline="planning", limits=(limit,)).limit_arrays()
    assert arrays is not None
    spans = sorted(zip(arrays.window_from_ms.tolist(), arrays.window_to_ms.tolist(), strict=True))
    assert spans == [(0, 6 * 3_600_000), (6 * DAY_MS + 22 * 3_600_000, 7 * DAY_MS)]


def test_a_whole_week_closed_by_two_windows_is_never() -> None:
    """A job that two windows together give no time is refused for good."""
    limits = (
        Limit(wider_than=2, window=Window(days=(0, 1, 2, 3))),
        Limit(wider_than=3, window=Window(days=(4, 5, 6))),
    )
    policy = SitePolicy(discipline="planning", limits=limits)
    assert policy.why_never(8, width=4, limits=0b11) is not None
    assert policy.why_never(8, width=3, limits=0b01) is None


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_keys_of_one_job_and_of_many_agree(order: str) -> None:
    """The key of a job does not depend on the jobs beside it."""
    columns: dict[str, list[float]] = {
        "submit_ms": [0, 7, 7],
        "width": [3, 1, 8],
        "estimate_ms": [50, 900, 20],
        "weight": [1.0, 2.5, 0.5],
        "priority": [0, 3, -1],
    }
    keys = order_keys(order, **columns, aging_ms=2.0)  # type: ignore[arg-type]
    alone = [float(order_keys(order, **{k: v[i] for k, v in columns.items()}, aging_ms=2.0)) for i in range(3)]  # type: ignore[arg-type]
    assert keys.tolist() == alone


def _what_decides(policy: SitePolicy) -> tuple[object, ...]:
    """Return what of a policy its kernels read."""
    slack = policy.slack if policy.backfill == "slack" else None
    aging_ms = policy.aging_ms if policy.order == "priority" else None
    return policy.discipline, policy.order, policy.backfill, policy.choice, slack, aging_ms, policy.limits


@st.composite
def policies(draw: st.DrawFn) -> SitePolicy:
    """Draw a policy from few values, so that two are often nearly alike."""
    discipline = draw(st.sampled_from(("queue", "planning")))
    backfill = draw(st.sampled_from(BACKFILLS[discipline]))
    whom: dict[str, Any] = {
        "wider_than": st.integers(0, 1),
        "longer_than_ms": st.sampled_from((0, 1, 1000)),
        "user": st.none() | st.just(1),
    }
    times = st.sampled_from((0, 60_000, 60_001, 3_600_000))
    window = st.builds(Window, days=st.sampled_from(((0,), (0, 1), (0, 1, 2, 3, 4, 5, 6))), from_ms=times, to_ms=times)
    limit = st.one_of(
        st.builds(Limit, **whom, window=window),
        st.builds(Limit, **whom, max_nodes=st.integers(1, 2)),
        st.builds(Limit, **whom, max_jobs=st.integers(1, 2)),
    )
    chooses = discipline == "queue" and backfill in ("easy", "slack")
    return SitePolicy(
        discipline=discipline,
        order=draw(st.sampled_from(("fcfs", "priority"))),
        backfill=backfill,
        choice=draw(st.sampled_from(("first-fit", "best-fit"))) if chooses else "first-fit",
        slack=draw(st.sampled_from((0.5, 0.25, 1, 0.1 + 0.2, 0.3))),
        aging_ms=draw(st.sampled_from((math.inf, 1, 1000, 1000.5))),
        limits=tuple(draw(st.lists(limit, max_size=2))) if discipline == "planning" else (),
    )


@settings(max_examples=500)
@given(policies(), policies())
def test_labels_tell_policies_apart(one: SitePolicy, other: SitePolicy) -> None:
    """Two policies have one label exactly if they decide alike."""
    assert (one.label == other.label) == (_what_decides(one) == _what_decides(other))


def test_labels_name_what_is_not_the_default() -> None:
    """What a policy leaves at its default is not in its label."""
    assert SitePolicy().label == "fcfs easy"
    assert SitePolicy(backfill="slack").label == "fcfs slack"
    assert SitePolicy(backfill="slack", slack=2.0, choice="best-fit").label == "fcfs slack=2 best-fit"
    assert SitePolicy(order="priority", aging_ms=7_200_000).label == "priority aging=7200s easy"
    assert SitePolicy(discipline="planning", order="sjf", aging_ms=5).label == "planning sjf"


def test_an_order_that_gives_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN sorts nowhere: the schedule would depend on the sort."""
    monkeypatch.setitem(ORDERS, "broken", lambda submit, width, *_: np.where(np.asarray(width) > 1, np.nan, submit))
    jobs = Workload([1, 2], [0, 0], [1, 2], [10, 10], [10, 10])
    for options in ({}, {"driver": "core"}, {"discipline": "planning"}):
        with pytest.raises(InputError, match="order 'broken': the key of a job is NaN"):
            simulate(jobs, 4, order="broken", **options)
        assert simulate(jobs.take([0]), 4, order="broken", **options).start_ms.tolist() == [0]
