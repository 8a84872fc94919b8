"""Define and check a site's scheduling policy as its operator configures it, and convert it for compiled code."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.errors import OptionError, check_known
from gridweave.site.kernels.chunks import NodeArrays
from gridweave.site.kernels.dispatch import PlanRules, PromiseRules, QueueRules, SiteRules
from gridweave.site.kernels.limits import FROM_MONDAY, WEEK_MS, LimitArrays, WeekClock, next_open
from gridweave.site.kernels.node_plan import NodePlan
from gridweave.site.kernels.order import ORDERS
from gridweave.site.kernels.queueing import QueueCodes
from gridweave.site.kernels.state import NEVER_MS, Plan
from gridweave.site.resources.chunks import Chunk, NodeKind
from gridweave.site.resources.problems import kind_problems
from gridweave.site.resources.refusals import why_never_on, why_whole_only

DAY_MS = 24 * 3600 * 1000

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

BACKFILLS = {"queue": ("easy", "none", "conservative", "slack"), "planning": ("easy", "none")}
"""The backfilling methods of each discipline; the first is the default."""

CHOICES = ("first-fit", "best-fit")

PLACEMENTS = ("best-fit", "worst-fit", "first-fit")
"""Orders in which a job fills nodes whose resources are counted; the index is the code in kernels."""

DEFAULT_SLACK = 0.5

MAX_SLACK = 10_000
"""Largest slack; it keeps the product of slack and estimate within int64."""

MAX_CAP = 10**9

MAX_LIMITS = 62
"""Largest number of limits at a site; each limit takes one bit of an int64."""


class Window(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A recurring period of the week, in the site's local time.

    Attributes
    ----------
    days : tuple of int
        Days on which the window opens; Monday is 0.
    from_ms, to_ms : int
        Start and end of the window in ms since midnight; ``to_ms`` is exclusive. If ``to_ms`` is not after ``from_ms``,
        the window ends on the next day.
    """

    days: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6)
    from_ms: int = 0
    to_ms: int = DAY_MS

    def __post_init__(self) -> None:
        if not self.days or any(not 0 <= day <= 6 for day in self.days):
            raise OptionError("days", f"is {self.days}; expected days of the week, from 0 (Monday) to 6 (Sunday)")
        if not (0 <= self.from_ms < DAY_MS and 0 <= self.to_ms <= DAY_MS):
            raise OptionError(
                "window", f"is {self.from_ms} to {self.to_ms} ms; expected times within one day of {DAY_MS} ms"
            )


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """A restriction on some jobs at a planning site (docs/disciplines.md, "Limits"; Streit, section 3.1.2).

    The limit applies to jobs that are wider than `wider_than`, longer than `longer_than_ms`, and submitted by `user`;
    conditions that are not set are ignored. Exactly one of `window`, `max_nodes` and `max_jobs` must be set.

    Attributes
    ----------
    wider_than : int
        Number of nodes that the jobs exceed.
    longer_than_ms : int
        Estimate that the jobs exceed.
    window : Window, optional
        The affected jobs do not start within this window.
    max_nodes : int, optional
        Largest total number of nodes that the affected jobs may have at any time.
    max_jobs : int, optional
        Largest number of affected jobs that may run at any time.

    Examples
    --------
    "From 8:00 to 18:00 on weekdays no job wider than 75%" of 100 nodes:

    >>> hour_ms = 3_600_000
    >>> limit = Limit(wider_than=75, window=Window(days=(0, 1, 2, 3, 4), from_ms=8 * hour_ms, to_ms=18 * hour_ms))
    >>> limit.applies_to(width=[80, 75], estimate_ms=hour_ms).tolist()
    [True, False]
    """

    wider_than: int = 0
    longer_than_ms: int = 0
    user: int | None = None
    window: Window | None = None
    max_nodes: int | None = None
    max_jobs: int | None = None

    def __post_init__(self) -> None:
        effects = [self.window, self.max_nodes, self.max_jobs]
        if sum(effect is not None for effect in effects) != 1:
            raise OptionError("limit", "must have exactly one of window, max_nodes and max_jobs")
        for name in ("max_nodes", "max_jobs"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= MAX_CAP:
                raise OptionError(name, f"is {value}; expected 1 to {MAX_CAP:,}")

    @property
    def label(self) -> str:
        """The limit in the syntax of the command line; different limits have different labels.

        Examples
        --------
        >>> Limit(wider_than=75, window=Window(days=(0, 1), from_ms=28_800_000, to_ms=64_800_000)).label
        'wider-than=75 days=mon+tue from=8:00 to=18:00'
        >>> Limit(user=7, max_jobs=2).label
        'user=7 max-jobs=2'
        """
        words = {
            "wider-than": self.wider_than or None,
            "longer-than": f"{_number(self.longer_than_ms / 1000)}s" if self.longer_than_ms else None,
            "user": self.user,
            "max-nodes": self.max_nodes,
            "max-jobs": self.max_jobs,
        }
        if self.window is not None:
            days = sorted(set(self.window.days))
            words |= {
                "days": "+".join(DAYS[day] for day in days) if len(days) < 7 else None,
                "from": _time_of_day(self.window.from_ms),
                "to": _time_of_day(self.window.to_ms),
            }
        return " ".join(f"{key}={value}" for key, value in words.items() if value is not None)

    def applies_to(
        self, *, width: npt.ArrayLike, estimate_ms: npt.ArrayLike, user: npt.ArrayLike | None = None
    ) -> npt.NDArray[np.bool_]:
        """Whether the limit applies to a job, or to each job of an array; ``user`` is required for a user's limit."""
        wide = np.asarray(width) > self.wider_than
        long = np.asarray(estimate_ms) > self.longer_than_ms
        whose = self.user is None or (user is not None and np.asarray(user) == self.user)
        return np.asarray(wide & long & whose)


class SitePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A site's scheduling policy.

    Attributes
    ----------
    discipline : str
        ``queue`` or ``planning``.
    order : str
        A name in `gridweave.site.kernels.order.ORDERS`.
    backfill : str
        For a queue: ``easy``, ``none``, ``conservative`` or ``slack``; for planning: ``easy`` (implicit) or ``none``.
    choice : str
        How to choose a job for backfilling: ``first-fit`` or ``best-fit`` (with EASY and slack).
    slack : float
        For ``slack``: how long the job at the head of the queue can be delayed, as a fraction of its estimate, >= 0.
    aging_ms : float
        For the order ``priority``: the waiting time in ms that raises the priority by one level, > 0; infinite: no
        aging.
    limits : tuple of Limit
        Limits on jobs; only for planning.
    kinds : tuple of NodeKind
        The kinds of the site's nodes, if the site counts cores, memory and GPUs; empty: jobs get whole nodes.
    placement : str
        Which nodes a job gets first, if the site counts resources: a name in `PLACEMENTS` (docs/resources.md).

    Raises
    ------
    OptionError
        If a name is unknown, or an option does not work with the discipline.

    Examples
    --------
    >>> SitePolicy(order="sjf", backfill="conservative").label
    'sjf conservative'
    """

    discipline: str = "queue"
    order: str = "fcfs"
    backfill: str = "easy"
    choice: str = "first-fit"
    slack: float = DEFAULT_SLACK
    aging_ms: float = math.inf
    limits: tuple[Limit, ...] = ()
    kinds: tuple[NodeKind, ...] = ()
    placement: str = "best-fit"

    def __post_init__(self) -> None:
        check_known("placement", self.placement, PLACEMENTS)
        if problems := [*kind_problems(self.kinds)]:
            texts = (f"{self.kinds[number].name!r}: {field} {what}" for number, field, what in problems)
            raise OptionError("kinds", "; ".join(texts))
        check_known("discipline", self.discipline, BACKFILLS)
        check_known("order", self.order, ORDERS)
        check_known(f"backfill of a {self.discipline} site", self.backfill, BACKFILLS[self.discipline])
        check_known("choice", self.choice, CHOICES)
        if not 0 <= self.slack <= MAX_SLACK:
            raise OptionError("slack", f"is {self.slack}; expected a number from 0 to {MAX_SLACK:,}")
        if not self.aging_ms > 0:
            raise OptionError("aging_ms", f"is {self.aging_ms}; expected ms above 0, or infinity for no aging")
        if self.limits and self.discipline != "planning":
            raise OptionError("limits", "only work with the discipline planning")
        if len(self.limits) > MAX_LIMITS:
            raise OptionError("limits", f"has {len(self.limits)} entries; expected at most {MAX_LIMITS}")
        if self.choice != "first-fit" and (self.discipline != "queue" or self.backfill not in ("easy", "slack")):
            raise OptionError("choice", f"{self.choice!r} only works with a queue and backfill easy or slack")

    @property
    def label(self) -> str:
        """The policy's name in tables and plots; policies that schedule differently have different labels.

        Examples
        --------
        >>> SitePolicy(backfill="slack", slack=2).label, SitePolicy(order="priority", aging_ms=7_200_000).label
        ('fcfs slack=2', 'priority aging=7200s easy')
        """
        words = ["planning"] if self.discipline == "planning" else []
        words.append(self.order)
        if self.order == "priority" and math.isfinite(self.aging_ms):
            words.append(f"aging={_number(self.aging_ms / 1000)}s")
        if not (self.discipline == "planning" and self.backfill == "easy"):
            is_default = self.backfill != "slack" or self.slack == DEFAULT_SLACK
            words.append(self.backfill if is_default else f"slack={_number(self.slack)}")
        if self.choice != "first-fit":
            words.append(self.choice)
        words += [f"[{limit.label}]" for limit in self.limits]
        return " ".join(words)

    @property
    def makes_plan(self) -> bool:
        """Whether a site with this policy keeps a plan of promised starts."""
        return self.discipline == "planning" or self.backfill == "conservative"

    @property
    def keeps_promises(self) -> bool:
        """Whether promised starts are never delayed, unless another job moves ahead in the queue."""
        return self.discipline == "queue" and (self.backfill != "slack" or self.slack == 0)

    @property
    def codes(self) -> QueueCodes:
        """The policy of a queue without promised starts, in the form used by compiled code."""
        slack = float(self.slack) if self.backfill == "slack" else 0.0
        return QueueCodes(self.backfill != "none", self.choice == "best-fit", slack)

    def on(self, nodes: int | Sequence[NodeKind] | None) -> tuple[int | None, SitePolicy]:
        """Return the number of nodes, and the policy for them; ``nodes`` is a number, kinds of nodes, or None."""
        if isinstance(nodes, Sequence) and any(isinstance(kind, NodeKind) for kind in nodes):
            policy = msgspec.structs.replace(self, kinds=tuple(nodes))
            return sum(kind.count for kind in policy.kinds), policy
        if not self.kinds:
            return cast("int | None", nodes), self
        count = sum(kind.count for kind in self.kinds)
        if nodes not in (None, count):
            raise OptionError("nodes", f"is {nodes!r}, but the kinds of nodes add up to {count}; leave it out")
        return count, self

    def rules(
        self,
        plan: Plan | None,
        limits: LimitArrays | None,
        nodes: NodeArrays | None = None,
        node_plan: NodePlan | None = None,
    ) -> SiteRules:
        """Return this policy's rules for compiled code.

        ``plan`` is required if `makes_plan` is true. If there are `kinds`, so is ``node_plan`` or, without a plan,
        ``nodes``.
        """
        if plan is None:
            return QueueRules(self.codes, nodes)
        if limits is None:
            return PromiseRules(plan, node_plan)
        return PlanRules(plan, limits, self.backfill != "none", node_plan)

    def profile_totals(self, nodes: int) -> npt.NDArray[np.int64]:
        """Return the capacity of each availability profile in a plan: the nodes, then the cap of each limit."""
        caps = [limit.max_nodes or limit.max_jobs or 0 for limit in self.limits if limit.window is None]
        return np.array([nodes, *caps], np.int64)

    @property
    def has_windows(self) -> bool:
        """Whether a limit depends on the local time of the week."""
        return any(limit.window is not None for limit in self.limits)

    def limit_arrays(self, *, week: WeekClock = FROM_MONDAY) -> LimitArrays | None:
        """Return the limits in the form used by compiled code; None for a queue, which has no limits."""
        if self.discipline != "planning":
            return None
        windows = [
            (1 << k, *span)
            for k, limit in enumerate(self.limits)
            if limit.window
            for span in window_spans(limit.window)
        ]
        caps = [(0, False)]
        caps += [(1 << k, limit.max_jobs is not None) for k, limit in enumerate(self.limits) if limit.window is None]
        window_bit, window_from_ms, window_to_ms = np.array(windows, np.int64).reshape(-1, 3).T.copy()
        return LimitArrays(
            window_bit=window_bit,
            window_from_ms=window_from_ms,
            window_to_ms=window_to_ms,
            cap_bit=np.array([bit for bit, _ in caps], np.int64),
            cap_counts_jobs=np.array([counts_jobs for _, counts_jobs in caps], np.bool_),
            week=week,
        )

    def limit_masks(
        self, *, width: npt.ArrayLike, estimate_ms: npt.ArrayLike, user: npt.ArrayLike | None = None
    ) -> npt.NDArray[np.int64]:
        """Return which limits apply to a job, or to each job of an array, as bit masks."""
        masks = np.zeros(np.shape(width), np.int64)
        for k, limit in enumerate(self.limits):
            masks |= np.int64(1 << k) * limit.applies_to(width=width, estimate_ms=estimate_ms, user=user)
        return masks

    def why_never(
        self, nodes: int, width: int, limits: int, chunk: Chunk | msgspec.UnsetType = msgspec.UNSET
    ) -> str | None:
        """Return why a job could never start at a site, or None; ``limits`` is the bit mask of the job's limits."""
        reason = why_never_on(self.kinds, width, chunk) if self.kinds else why_whole_only(chunk)
        if reason is not None:
            return reason
        if width > nodes and not self.kinds:
            return f"it needs {width} nodes and the site has {nodes}"
        for k, limit in enumerate(self.limits):
            if limits & (1 << k) and limit.max_nodes is not None and width > limit.max_nodes:
                return f"it needs {width} nodes and limit {k + 1} allows such jobs {limit.max_nodes}"
        arrays = self.limit_arrays()
        if arrays is not None and next_open(arrays, np.int64(limits), np.int64(0)) == NEVER_MS:
            return "the windows of its limits cover the whole week"
        return None


def _number(value: float) -> str:
    """Return the shortest text that identifies a number exactly."""
    return repr(int(value)) if float(value).is_integer() else repr(float(value))


def _time_of_day(of_day_ms: int) -> str:
    minutes, rest_ms = divmod(of_day_ms, 60_000)
    return f"{minutes // 60}:{minutes % 60:02}" + (f":{_number(rest_ms / 1000)}" if rest_ms else "")


def window_spans(window: Window) -> list[tuple[int, int]]:
    """Return a window as (start, end) spans in ms since the start of the week, split at the end of the week."""
    spans = []
    for day in sorted(set(window.days)):
        start_ms = day * DAY_MS + window.from_ms
        end_ms = day * DAY_MS + window.to_ms + (DAY_MS if window.to_ms <= window.from_ms else 0)
        spans.append((start_ms, min(end_ms, WEEK_MS)))
        if end_ms > WEEK_MS:
            spans.append((0, end_ms - WEEK_MS))
    return spans
