"""The policy of a dynP site, i.e. the options set by its operator (docs/dynp.md)."""

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
"""The name of the discipline."""

THREE = ("fcfs", "sjf", "ljf")
"""The policies of the thesis, in the order of preference of its simple decider."""

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
    """A weekly window, and the policy that is active in this window.

    Attributes
    ----------
    window : Window
    policy : str
        A name in `gridweave.site.kernels.order.ORDERS`.
    """

    window: Window
    policy: str


class DynPPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The policy of a dynP site.

    Attributes
    ----------
    policies : tuple of str
        The candidates, as names from `gridweave.site.kernels.order.ORDERS`. The first is active at the beginning. Of
        equally good candidates, the first is chosen.
    decider : {"advanced", "simple", "preferred", "bounds", "calendar"}
        How the policy is chosen: ``bounds`` by the average estimate, ``calendar`` by the time of the week, and the
        others by comparing the plans of the candidates.
    preferred : str, optional
        For the decider ``preferred``: one of the candidates.
    metric : {"art", "artwa", "artww", "makespan", "sld", "sldww", "ppsld60"}
        The metric by which plans are compared (Streit, section 5.1.3).
    tuning : {"full", "half", "starts"}
        Events that cause a tuning step. ``full``: submissions and ends; ``half``: only submissions; ``starts``:
        submissions, ends and starts.
    slackness_pct : float
        How much better another plan must be than the active policy's plan, as a percentage of its value, 0 to 100.
    first_jobs : int, optional
        The metric covers only this many waiting jobs, in order of submission. None: all.
    within_ms : int, optional
        The metric covers only jobs whose planned start is at most this far from now. None: all.
    lower_ms, upper_ms : float
        For the decider ``bounds``: SJF for an average estimate up to the lower bound, FCFS up to the upper bound, else
        LJF. The upper bound may be infinite.
    calendar : tuple of CalendarEntry
        For the decider ``calendar``: the first entry whose window contains the current time applies; if there is none,
        the first of ``policies`` is active.
    reading : {"true", "thesis"}
        ``thesis`` follows the tables in the thesis, which suggest a single list of waiting jobs that is sorted in place
        for each policy except FCFS (docs/dynp.md, "The two readings").
    aging_ms : float
        For the candidate ``priority``; see `gridweave.site.policy.SitePolicy`.
    limits : tuple of Limit
        Limits that apply under every policy.

    Raises
    ------
    OptionError
        If a name is unknown, a number is out of range, or options contradict each other.

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
        # The planning policy checks the limits and the aging.
        assert self.planning.discipline == "planning"

    def _check_policies(self) -> None:
        for policy in self.policies:
            check_known("policies", policy, ORDERS)
        if not self.policies or len(set(self.policies)) < len(self.policies):
            raise OptionError(
                "policies",
                f"are {', '.join(self.policies) or 'none'}; expected at least one policy, without repetition",
            )
        if self.reading == "thesis" and (self.policies != THREE or self.decider not in DECIDERS):
            raise OptionError(
                "reading", f"'thesis' requires the policies {', '.join(THREE)} and a decider that compares plans"
            )

    def _check_numbers(self) -> None:
        if not 0 <= self.slackness_pct <= 100:
            raise OptionError("slackness_pct", f"is {self.slackness_pct:g}; expected 0 to 100 per cent")
        if self.first_jobs is not None and not 1 <= self.first_jobs <= MAX_JOBS:
            raise OptionError("first_jobs", f"is {self.first_jobs}; expected 1 to {MAX_JOBS:,} jobs")
        if self.within_ms is not None and not 0 <= self.within_ms <= MAX_TIME_MS:
            raise OptionError("within_ms", f"is {self.within_ms}; expected 0 to {MAX_TIME_MS:,} ms")
        if not 0 <= self.lower_ms <= self.upper_ms:
            bounds = f"{self.lower_ms:,.15g} ms, and the upper is {self.upper_ms:,.15g} ms"
            raise OptionError("lower_ms", f"is {bounds}; expected a lower bound from 0 to the upper")

    def _check_decider(self) -> None:
        if (self.preferred is not None) != (self.decider == "preferred"):
            raise OptionError("preferred", "goes with the decider 'preferred', which needs one of the candidates")
        if self.preferred is not None and self.preferred not in self.policies:
            raise OptionError("preferred", f"{self.preferred!r} is not a candidate; one of {', '.join(self.policies)}")
        if self.decider == "bounds" and self.policies != THREE:
            raise OptionError(
                "policies", f"are {', '.join(self.policies)}; the decider 'bounds' requires {', '.join(THREE)}"
            )
        if (self.decider == "calendar") != bool(self.calendar):
            raise OptionError("calendar", "goes with the decider 'calendar', which needs at least one entry")
        for entry in self.calendar:
            if entry.policy not in self.policies:
                raise OptionError("calendar", f"{entry.policy!r} is not a candidate; one of {', '.join(self.policies)}")

    @property
    def planning(self) -> SitePolicy:
        """The planning policy of the site while the first candidate is active."""
        return SitePolicy(discipline="planning", order=self.policies[0], aging_ms=self.aging_ms, limits=self.limits)

    @property
    def judges_plans(self) -> bool:
        """Whether the decider compares the plans of all candidates."""
        return WAYS[self.decider] == SELF_TUNING

    @property
    def label(self) -> str:
        """The label in tables and plots; policies that schedule differently have different labels."""
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
        """Return the options, encoded for the kernels."""
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
        """Return the calendar as arrays for the kernels."""
        spans = [
            (*span, self.policies.index(entry.policy)) for entry in self.calendar for span in window_spans(entry.window)
        ]
        from_ms, to_ms, candidate = np.array(spans, np.int64).reshape(-1, 3).T.copy()
        return Calendar(from_ms, to_ms, candidate)

    def rules(self, state: SiteState, plan: Plan, limits: LimitArrays, *, log: int) -> TuningRules:
        """Return the rules of a new site, for the kernels.

        Parameters
        ----------
        state : SiteState
        plan : Plan
            The plan of the active candidate.
        limits : LimitArrays
        log : int
            Number of switches to keep.
        """
        count = len(self.policies)
        candidates = empty_candidates(state, plan, count)
        memory = empty_memory(len(state.jobs), count, log)
        return TuningRules(Tuning(plan, limits, self.codes(), self.calendar_arrays(), candidates, memory))


def candidate_keys(policy: DynPPolicy, arrivals: np.ndarray, **columns: np.ndarray) -> np.ndarray:
    """Return, for each candidate, the keys by which it sorts jobs.

    Parameters
    ----------
    arrivals : numpy.ndarray of int64, shape (n,)
        Number of jobs that arrived before each job.
    **columns : numpy.ndarray, shape (n,)
        As in `gridweave.site.kernels.order.order_keys`.

    Returns
    -------
    numpy.ndarray of float64, shape (candidates, n)
    """
    keys = np.array([order_keys(order, aging_ms=policy.aging_ms, **columns) for order in policy.policies])
    if policy.reading == "thesis":
        # The list is not sorted for FCFS: a new job always goes to the end.
        keys[0] = arrivals
    return keys


def _window_text(window: Window) -> str:
    return Limit(window=window).label.replace(" ", ",")
