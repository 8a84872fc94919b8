"""How a self-tuning site schedules, as its operator writes it down (docs/dynp.md)."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from gridweave.errors import OptionError, check_known
from gridweave.site.disciplines.dynp.kernels.state import (
    ADVANCED,
    ART,
    ARTWA,
    ARTWW,
    BOUNDS,
    CALENDAR,
    ENDED,
    MAKESPAN,
    NO_CANDIDATE,
    PPSLD_60,
    PREFERRED,
    SELF_TUNING,
    SIMPLE,
    SLD,
    SLDWW,
    STARTED,
    SUBMITTED,
    Calendar,
    Tuning,
    TuningCodes,
    empty_candidates,
    empty_memory,
)
from gridweave.site.disciplines.dynp.kernels.tuning import TuningRules
from gridweave.site.job import MAX_TIME_MS
from gridweave.site.kernels.limits import LimitArrays
from gridweave.site.kernels.order import ORDERS, order_keys
from gridweave.site.kernels.state import NEVER_MS, Plan, SiteState
from gridweave.site.policy import Limit, SitePolicy, Window, window_spans

NAME = "dynp"
"""Of the discipline."""

THREE = ("fcfs", "sjf", "ljf")
"""The policies of the thesis, in the order in which its simple decider prefers them."""

DECIDERS = {"simple": SIMPLE, "advanced": ADVANCED, "preferred": PREFERRED}
WAYS = {**dict.fromkeys(DECIDERS, SELF_TUNING), "bounds": BOUNDS, "calendar": CALENDAR}
METRICS = {
    "art": ART,
    "artwa": ARTWA,
    "artww": ARTWW,
    "makespan": MAKESPAN,
    "sld": SLD,
    "sldww": SLDWW,
    "ppsld60": PPSLD_60,
}
TUNINGS = {"full": SUBMITTED | ENDED, "half": SUBMITTED, "starts": SUBMITTED | ENDED | STARTED}
READINGS = ("true", "thesis")

MAX_JOBS = 10**9


class CalendarEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of every week, and the policy that is in force in it.

    Attributes
    ----------
    window : Window
    policy : str
        A name in `gridweave.site.kernels.order.ORDERS`.
    """

    window: Window
    policy: str


class DynPPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How a site with the discipline dynP schedules.

    Attributes
    ----------
    policies : tuple of str
        The candidates, names in `gridweave.site.kernels.order.ORDERS`. The first is in force at the beginning, and of
        several that are equally good the first is taken.
    decider : {"advanced", "simple", "preferred", "bounds", "calendar"}
        Who chooses: a decider that judges plans, the bounds of the average estimate, or the time of the week.
    preferred : str, optional
        For ``preferred``: one of the candidates.
    metric : {"art", "artwa", "artww", "makespan", "sld", "sldww", "ppsld60"}
        By which plans are judged (Streit, section 5.1.3).
    tuning : {"full", "half", "starts"}
        After what there is a tuning step: submissions and ends; submissions alone; or also after jobs have started.
    slackness_pct : float
        By how much another plan must be better than that of the policy in force, in per cent of it, 0 to 100.
    first_jobs : int, optional
        Only so many waiting jobs count in a decision, those that were submitted first.
    within_ms : int, optional
        Only jobs count that a plan starts within this time.
    lower_ms, upper_ms : float
        For ``bounds``: SJF up to the lower, FCFS up to the upper, else LJF; the upper may be infinite.
    calendar : tuple of CalendarEntry
        For ``calendar``: the first entry that holds the time decides, and where none does, the first of ``policies``.
    reading : {"true", "thesis"}
        ``thesis``: as the tables of the thesis seem to have been made, with one list of waiting jobs that is sorted in
        place, and not sorted for FCFS (docs/dynp.md, "The two readings").
    aging_ms : float
        For the candidate ``priority``.
    limits : tuple of Limit
        They hold under every policy.

    Raises
    ------
    OptionError
        If a name is unknown, a number is out of its range, or an option does not go with the others.

    Examples
    --------
    >>> DynPPolicy().label
    'dynp advanced'
    >>> DynPPolicy(decider="preferred", preferred="sjf", slackness_pct=2).label
    'dynp sjf-preferred slackness=2'
    """

    policies: tuple[str, ...] = THREE
    decider: str = "advanced"
    preferred: str | None = None
    metric: str = "artww"
    tuning: str = "full"
    slackness_pct: float = 0.0
    first_jobs: int | None = None
    within_ms: int | None = None
    lower_ms: float = 7_200_000.0
    upper_ms: float = 9_000_000.0
    calendar: tuple[CalendarEntry, ...] = ()
    reading: str = "true"
    aging_ms: float = math.inf
    limits: tuple[Limit, ...] = ()
    discipline: str = NAME

    def __post_init__(self) -> None:
        check_known("decider", self.decider, WAYS)
        check_known("metric", self.metric, METRICS)
        check_known("tuning", self.tuning, TUNINGS)
        check_known("reading", self.reading, READINGS)
        self._check_policies()
        self._check_numbers()
        self._check_decider()
        # The limits and the aging are checked there.
        assert self.planning.discipline == "planning"

    def _check_policies(self) -> None:
        for policy in self.policies:
            check_known("policies", policy, ORDERS)
        if not self.policies or len(set(self.policies)) < len(self.policies):
            raise OptionError("policies", f"are {', '.join(self.policies) or 'none'}; at least one, and each once")
        if self.reading == "thesis" and (self.policies != THREE or self.decider not in DECIDERS):
            raise OptionError(
                "reading", f"'thesis' is of the policies {', '.join(THREE)} and a decider that judges plans"
            )

    def _check_numbers(self) -> None:
        if not 0 <= self.slackness_pct <= 100:
            raise OptionError("slackness_pct", f"is {self.slackness_pct:g}; per cent from 0 to 100")
        if self.first_jobs is not None and not 1 <= self.first_jobs <= MAX_JOBS:
            raise OptionError("first_jobs", f"is {self.first_jobs}; from 1 to {MAX_JOBS:,} jobs")
        if self.within_ms is not None and not 0 <= self.within_ms <= MAX_TIME_MS:
            raise OptionError("within_ms", f"is {self.within_ms}; milliseconds from 0 to {MAX_TIME_MS:,}")
        if not 0 <= self.lower_ms <= self.upper_ms:
            bounds = f"{self.lower_ms:,.15g} ms, and the upper is {self.upper_ms:,.15g} ms"
            raise OptionError("lower_ms", f"is {bounds}; the lower bound is at least 0 and at most the upper")

    def _check_decider(self) -> None:
        if (self.preferred is not None) != (self.decider == "preferred"):
            raise OptionError("preferred", "goes with the decider 'preferred', which needs one of the candidates")
        if self.preferred is not None and self.preferred not in self.policies:
            raise OptionError("preferred", f"{self.preferred!r} is not a candidate; one of {', '.join(self.policies)}")
        if self.decider == "bounds" and self.policies != THREE:
            raise OptionError("policies", f"are {', '.join(self.policies)}; bounds choose of {', '.join(THREE)}")
        if (self.decider == "calendar") != bool(self.calendar):
            raise OptionError("calendar", "goes with the decider 'calendar', which needs at least one entry")
        for entry in self.calendar:
            if entry.policy not in self.policies:
                raise OptionError("calendar", f"{entry.policy!r} is not a candidate; one of {', '.join(self.policies)}")

    @property
    def planning(self) -> SitePolicy:
        """How the site schedules while the first candidate is in force."""
        return SitePolicy(discipline="planning", order=self.policies[0], aging_ms=self.aging_ms, limits=self.limits)

    @property
    def judges_plans(self) -> bool:
        """Whether plans are made of every candidate."""
        return WAYS[self.decider] == SELF_TUNING

    @property
    def label(self) -> str:
        """What tables and plots call this policy; it tells apart any two that schedule differently."""
        words = [NAME, f"{self.preferred}-preferred" if self.preferred else self.decider]
        if self.policies != THREE:
            words.append("+".join(self.policies))
        plain = DynPPolicy()
        words += [self.metric] if self.judges_plans and self.metric != plain.metric else []
        words += [self.tuning] if self.tuning != plain.tuning else []
        if self.slackness_pct:
            words.append(f"slackness={self.slackness_pct:.15g}")
        if self.first_jobs is not None:
            words.append(f"first={self.first_jobs}")
        if self.within_ms is not None:
            words.append(f"within={self.within_ms / 1000:.15g}s")
        if self.decider == "bounds":
            words.append(f"{self.lower_ms / 1000:.15g}s-{self.upper_ms / 1000:.15g}s")
        words += [f"{entry.policy}({_window_text(entry.window)})" for entry in self.calendar]
        words += [f"aging={self.aging_ms / 1000:.15g}s"] if math.isfinite(self.aging_ms) else []
        words += [self.reading] if self.reading != plain.reading else []
        return " ".join([*words, *(f"[{limit.label}]" for limit in self.limits)])

    def codes(self) -> TuningCodes:
        """Return the options as compiled code reads them."""
        thesis = self.reading == "thesis"
        never = int(NEVER_MS)
        return TuningCodes(
            way=WAYS[self.decider],
            decider=DECIDERS.get(self.decider, ADVANCED),
            preferred=int(NO_CANDIDATE) if self.preferred is None else self.policies.index(self.preferred),
            metric=METRICS[self.metric],
            follows=TUNINGS[self.tuning],
            keeps=1.0 - self.slackness_pct / 100.0,
            first_jobs=never if self.first_jobs is None else self.first_jobs,
            within_ms=never if self.within_ms is None else self.within_ms,
            least_waiting=2 if thesis else 1,
            unsorted=0 if thesis else int(NO_CANDIDATE),
            lower_ms=float(self.lower_ms),
            upper_ms=float(self.upper_ms),
        )

    def calendar_arrays(self) -> Calendar:
        """Return the calendar as compiled code reads it."""
        spans = [
            (*span, self.policies.index(entry.policy)) for entry in self.calendar for span in window_spans(entry.window)
        ]
        from_ms, to_ms, candidate = np.array(spans, np.int64).reshape(-1, 3).T.copy()
        return Calendar(from_ms, to_ms, candidate)

    def rules(self, state: SiteState, plan: Plan, limits: LimitArrays, *, log: int) -> TuningRules:
        """Return what the kernels of this discipline work with, on a site that has done nothing yet.

        Parameters
        ----------
        state : SiteState
        plan : Plan
            Of the candidate in force.
        limits : LimitArrays
        log : int
            How many switches are kept.
        """
        count = len(self.policies)
        candidates = empty_candidates(state, plan, count)
        memory = empty_memory(len(state.jobs), count, log)
        return TuningRules(Tuning(plan, limits, self.codes(), self.calendar_arrays(), candidates, memory))


def candidate_keys(policy: DynPPolicy, arrivals: np.ndarray, **columns: np.ndarray) -> np.ndarray:
    """Return the keys of jobs under every candidate.

    Parameters
    ----------
    arrivals : numpy.ndarray of int64, shape (n,)
        How many jobs had come before each.
    **columns : numpy.ndarray, shape (n,)
        As for `gridweave.site.kernels.order.order_keys`.

    Returns
    -------
    numpy.ndarray of float64, shape (candidates, n)
    """
    keys = np.array([order_keys(order, aging_ms=policy.aging_ms, **columns) for order in policy.policies])
    if policy.reading == "thesis":
        # Its list is not sorted for FCFS: a new job stands at the end, whatever stands before it.
        keys[0] = arrivals
    return keys


def _window_text(window: Window) -> str:
    return Limit(window=window).label.replace(" ", ",")
