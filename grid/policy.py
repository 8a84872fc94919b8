"""How the grid schedules, as its operator writes it down: names, their checks, and what compiled code makes of them."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.errors import OptionError, check_known
from gridweave.grid.kernels.links import MAX_OVERHEAD
from gridweave.grid.kernels.overhead import stretched_ms
from gridweave.grid.kernels.placement import (
    ANYWHERE,
    BEST_FIT,
    BIGGEST_FREE,
    EARLIEST_END,
    EQUAL_UTIL,
    NOTHING,
    RANDOM,
    SINGLE_SITE,
    GridCodes,
)
from gridweave.jit import prepared
from gridweave.site.disciplines.dynp.policy import DECIDERS, THREE, DynPPolicy
from gridweave.site.job import MAX_WIDTH
from gridweave.site.kernels.order import ORDERS

MODES = ("local", "sharing", "multi-site", "adaptive")
CONTROLS = ("full", "limited", "none")
SELECTIONS = {
    "best-fit": BEST_FIT,
    "biggest-free": BIGGEST_FREE,
    "equal-util": EQUAL_UTIL,
    "random": RANDOM,
    "earliest-end": EARLIEST_END,
}
MAPPINGS = ("olb", "best-assignment", "min-min", "min-max", "sjs", "pjs")
"""Selections under limited control that map all jobs that wait over the sites, by what these expect of each."""
ALL_SELECTIONS = (*SELECTIONS, *MAPPINGS)
BACKFILLS = ("easy", "none", "conservative")
HEAD_RESERVATIONS = {"anywhere": ANYWHERE, "single-site": SINGLE_SITE, "nothing": NOTHING}

LIMITED_FRAGMENTS = ((64, 1), (128, 2), (512, 8))
"""Streit's Table 7.5, the configuration *limited*: (width up to, fragments allowed)."""


class GridTuning(msgspec.Struct, frozen=True, kw_only=True):
    """How the grid tunes the order of its queue, as a self-tuning site tunes its plan (docs/grid.md, "Tuning").

    Attributes
    ----------
    policies : tuple of str
        The orders to choose from; the first is in force at the beginning.
    decider : {"advanced", "simple", "preferred"}
    preferred : str, optional
        For ``preferred``: one of the orders.
    tuning : {"full", "half"}
        After what there is a decision: submissions and ends, or submissions alone.
    slackness_pct : float
        By how much another order's plan must be better than that of the one in force, in per cent of it.

    Raises
    ------
    OptionError
        If a name is unknown, or a number is out of its range.
    """

    policies: tuple[str, ...] = THREE
    decider: str = "advanced"
    preferred: str | None = None
    tuning: str = "full"
    slackness_pct: float = 0.0

    def __post_init__(self) -> None:
        for option, known in (("decider", tuple(DECIDERS)), ("tuning", ("full", "half"))):
            check_known(option, getattr(self, option), known)
        self.as_site.codes()

    @property
    def as_site(self) -> DynPPolicy:
        """The same choices at a site, judged on AWRT, whose checks and codes hold here too."""
        return DynPPolicy(
            policies=self.policies,
            decider=self.decider,
            preferred=self.preferred,
            metric="artwa",
            tuning=self.tuning,
            slackness_pct=self.slackness_pct,
        )

    @property
    def label(self) -> str:
        """What tables and plots call it."""
        words = ["tuned", f"{self.preferred}-preferred" if self.preferred else self.decider, "+".join(self.policies)]
        words += [self.tuning] if self.tuning != "full" else []
        words += [f"slackness={self.slackness_pct:.15g}"] if self.slackness_pct else []
        return " ".join(words)


RESERVE_AFTER_S = 300.0
"""So long a job that is wider than every site waits for free nodes before they are reserved ahead (a guess)."""

MAX_RESERVE_AFTER_S = 31 * 86_400.0


class GridPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How the grid schedules under full control (docs/grid.md).

    Attributes
    ----------
    mode : str
        ``local``, ``sharing``, ``multi-site`` or ``adaptive``.
    control : str
        How much the grid has to say: ``full``, ``limited`` or ``none`` (docs/control.md).
    order : str
        Of the queue: a name in `gridweave.site.kernels.order.ORDERS`.
    backfill : str
        ``easy``, ``none`` or ``conservative``.
    head_reservation : str
        What the first in the queue reserves under ``easy``: ``anywhere`` (one site, or several where that pays),
        ``single-site`` (a job wider than any: several), or ``nothing``.
    selection : str
        Of a single site: ``best-fit``, ``biggest-free``, ``equal-util``, ``random`` or ``earliest-end``. Under limited
        control also, of the sites of all jobs that wait at once, one of `MAPPINGS`.
    overhead : float or tuple of float
        By which part of itself a split job takes longer, >= 0 (Streit's p). Several numbers: in 2, 3, ... fragments;
        the last one holds for more. Between sites with a network it does not count.
    lower_bound : int
        Jobs that are split are wider than this, or than the largest site.
    max_fragments : tuple of (int, int)
        (width up to, fragments allowed), in ascending order of width; wider jobs have no limit.
    tuning : GridTuning, optional
        How the order of the queue changes; ``order`` is then left out.
    reserve_after_s : float
        Under limited control: when a job that is wider than every site has waited for so many seconds, sites are asked
        to reserve nodes ahead for it.

    Raises
    ------
    OptionError
        If a name is unknown, or a number makes no sense.
    """

    mode: str = "adaptive"
    control: str = "full"
    order: str = "fcfs"
    backfill: str = "easy"
    head_reservation: str = "anywhere"
    selection: str = "best-fit"
    overhead: float | tuple[float, ...] = 0.0
    lower_bound: int = 0
    max_fragments: tuple[tuple[int, int], ...] = ()
    tuning: GridTuning | None = None
    reserve_after_s: float = RESERVE_AFTER_S

    def __post_init__(self) -> None:
        for option, known in (
            ("mode", MODES),
            ("control", CONTROLS),
            ("order", tuple(ORDERS)),
            ("backfill", BACKFILLS),
            ("head_reservation", tuple(HEAD_RESERVATIONS)),
            ("selection", ALL_SELECTIONS),
        ):
            check_known(option, getattr(self, option), known)
        if not self.overheads:
            raise OptionError("overhead", "is empty; a number, or one for 2, 3, ... fragments")
        for overhead in self.overheads:
            if not 0 <= overhead <= MAX_OVERHEAD:
                raise OptionError("overhead", f"is {overhead:g}; a number from 0 to {MAX_OVERHEAD:,}, 0.3 for 30%")
        if not 0 <= self.reserve_after_s <= MAX_RESERVE_AFTER_S:
            said = f"is {self.reserve_after_s:g}; seconds, from 0 to {MAX_RESERVE_AFTER_S:,.0f}"
            raise OptionError("reserve_after_s", said)
        if not 0 <= self.lower_bound <= MAX_WIDTH:
            raise OptionError("lower_bound", f"is {self.lower_bound}; nodes, from 0 to {MAX_WIDTH:,}")
        bounds = [bound for bound, _ in self.max_fragments]
        if bounds != sorted(set(bounds)) or any(fragments < 1 for _, fragments in self.max_fragments):
            raise OptionError("max_fragments", "has widths in ascending order, each with at least 1 fragment")
        if self.maps and (self.control != "limited" or self.mode == "local"):
            said = f"{self.selection!r} goes by what sites expect of a job when they are asked"
            raise OptionError("selection", f"{said}; it needs control limited, and another mode than local")
        self._check_tuning()

    def _check_tuning(self) -> None:
        if self.tuning is None:
            return
        if self.mode == "local" or self.control != "full":
            raise OptionError("tuning", "is of the grid queue; it needs control full, and another mode than local")
        if self.order != "fcfs":
            raise OptionError("order", f"{self.order!r} does not go with tuning, whose policies are the orders")
        if self.backfill == "conservative":
            raise OptionError("tuning", "does not go with backfill conservative, which keeps the starts it reserved")

    @property
    def splits(self) -> bool:
        """Whether a job may be split at all."""
        return self.mode in ("multi-site", "adaptive") and self.control != "none"

    @property
    def maps(self) -> bool:
        """Whether all jobs that wait are mapped over the sites at once."""
        return self.selection in MAPPINGS

    @property
    def reserve_after_ms(self) -> int:
        """After what wait sites reserve ahead for a job that is wider than every site, in ms."""
        return round(self.reserve_after_s * 1000)

    @property
    def adaptive(self) -> bool:
        """Whether a job is split only if that ends earlier than waiting for a single site."""
        return self.mode == "adaptive"

    @property
    def overheads(self) -> tuple[float, ...]:
        """The overhead in 2, 3, ... fragments; the last one holds for more."""
        return self.overhead if isinstance(self.overhead, tuple) else (self.overhead,)

    @property
    def label(self) -> str:
        """What tables and plots call this policy."""
        parts = [self.mode]
        if self.splits:
            parts.append("p=" + ", ".join(f"{overhead:.0%}" for overhead in self.overheads))
            parts += [f"above {self.lower_bound} nodes"] * (self.lower_bound > 0)
            parts += ["limited fragments"] * bool(self.max_fragments)
        if self.control != "full":
            parts.append("limited control" if self.control == "limited" else "no control")
        for name, usual in (("order", "fcfs"), ("backfill", "easy"), ("selection", "best-fit")):
            value = getattr(self, name)
            parts += [f"{name} {value}"] * (value != usual)
        parts += [f"head reserves {self.head_reservation}"] * (self.head_reservation != "anywhere")
        parts += [self.tuning.label] if self.tuning is not None else []
        return " ".join(parts)

    def codes(self) -> GridCodes:
        """Return this policy as compiled code reads it."""
        rows = np.array(self.max_fragments, np.int64).reshape(-1, 2)
        return GridCodes(
            splits=self.splits,
            adaptive=self.adaptive,
            backfills=self.backfill == "easy",
            head_reservation=HEAD_RESERVATIONS[self.head_reservation],
            # What is mapped over the sites is not selected for one job: nobody asks.
            selection=SELECTIONS.get(self.selection, BEST_FIT),
            lower_bound=self.lower_bound,
            width_up_to=rows[:, 0].copy(),
            fragments=rows[:, 1].copy(),
            overhead=np.array(self.overheads, np.float64),
        )

    def split_length_ms(self, length_ms: int, n_fragments: int, sensitivity: float = 1.0) -> int:
        """Return how long a job that takes ``length_ms`` on one site takes in so many fragments."""
        table = np.array(self.overheads, np.float64)
        stretched = prepared(stretched_ms, table, 1, 1.0, 1)
        return int(stretched(table, n_fragments, float(sensitivity), length_ms))

    def why_never(self, nodes: npt.NDArray[np.int64], width: int) -> str | None:
        """Return why a job of this width could not be placed on the idle grid, or None if it could.

        Parameters
        ----------
        nodes : numpy.ndarray of int64, shape (sites,)
        """
        largest, total = int(nodes.max()), int(nodes.sum())
        if width <= largest:
            return None
        if not self.splits:
            who = "control none" if self.control == "none" else f"mode {self.mode}"
            return f"it needs {width} nodes, the largest site has {largest}, and {who} splits no job"
        if width > total:
            return f"it needs {width} nodes and all sites together have {total}"
        fewest = 1 + int(np.searchsorted(np.cumsum(np.sort(nodes)[::-1]), width))
        allowed = next((fragments for bound, fragments in self.max_fragments if width <= bound), fewest)
        if fewest > allowed:
            return f"it needs {width} nodes, {fewest} fragments at least, and {allowed} are allowed for its width"
        return None
