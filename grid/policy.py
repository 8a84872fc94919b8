"""The grid's scheduling policy: its options, their checks, and their encoding for kernels."""

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
"""Selections under limited control that map all waiting jobs to sites at once, based on the sites' quotes."""
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
        The orders to choose from; the first is active at the beginning.
    decider : {"advanced", "simple", "preferred"}
        The rule that chooses the order.
    preferred : str, optional
        The preferred order, one of `policies`; only for the decider ``preferred``.
    tuning : {"full", "half"}
        The events that cause a decision: submissions and ends (``full``), or only submissions (``half``).
    slackness_pct : float
        How much better another order's plan must be than the active order's plan, in per cent.

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
        for option, valid_values in (("decider", tuple(DECIDERS)), ("tuning", ("full", "half"))):
            check_known(option, getattr(self, option), valid_values)
        self.as_site.codes()

    @property
    def as_site(self) -> DynPPolicy:
        """The equivalent site policy, which compares plans by AWRT; it provides the checks and the kernel codes."""
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
        """The name of this tuning in tables and plots."""
        words = ["tuned", f"{self.preferred}-preferred" if self.preferred else self.decider, "+".join(self.policies)]
        words += [self.tuning] if self.tuning != "full" else []
        words += [f"slackness={self.slackness_pct:.15g}"] if self.slackness_pct else []
        return " ".join(words)


RESERVE_AFTER_S = 300.0
"""Seconds that a job wider than every site waits for free nodes before sites reserve nodes in advance (a guess)."""

MAX_RESERVE_AFTER_S = 31 * 86_400.0


class GridPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How the grid schedules under full control (docs/grid.md).

    Attributes
    ----------
    mode : str
        ``local``, ``sharing``, ``multi-site`` or ``adaptive``.
    control : str
        The level of control: ``full``, ``limited`` or ``none`` (docs/control.md).
    order : str
        The order of the queue, a name in `gridweave.site.kernels.order.ORDERS`.
    backfill : str
        ``easy``, ``none`` or ``conservative``.
    head_reservation : str
        The nodes that the head of the queue reserves under ``easy``: ``anywhere`` (one site, or several if that pays),
        ``single-site`` (several only for a job wider than every site), or ``nothing``.
    selection : str
        How to select a site for a job: ``best-fit``, ``biggest-free``, ``equal-util``, ``random`` or ``earliest-end``.
        Under limited control also one of `MAPPINGS`, which map all waiting jobs to sites at once.
    overhead : float or tuple of float
        The overhead of a split as a fraction of the run time, >= 0 (Streit's p). Several numbers are for 2, 3, ...
        fragments, and the last one for more. It has no effect if the grid has a network.
    lower_bound : int
        Jobs up to this width are not split, unless they are wider than the largest site.
    max_fragments : tuple of (int, int)
        (width up to, fragments allowed), in ascending order of width; wider jobs have no limit.
    tuning : GridTuning, optional
        How the order of the queue changes; only with the default `order`.
    reserve_after_s : float
        How long a job wider than every site waits before sites are asked to reserve nodes for it in advance [s]; only
        under limited control.

    Raises
    ------
    OptionError
        If a name is unknown, a number is out of range, or options contradict each other.
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
        for option, valid_values in (
            ("mode", MODES),
            ("control", CONTROLS),
            ("order", tuple(ORDERS)),
            ("backfill", BACKFILLS),
            ("head_reservation", tuple(HEAD_RESERVATIONS)),
            ("selection", ALL_SELECTIONS),
        ):
            check_known(option, getattr(self, option), valid_values)
        if not self.overheads:
            raise OptionError("overhead", "is empty; a number, or one for 2, 3, ... fragments")
        for overhead in self.overheads:
            if not 0 <= overhead <= MAX_OVERHEAD:
                raise OptionError("overhead", f"is {overhead:g}; a number from 0 to {MAX_OVERHEAD:,}, 0.3 for 30%")
        if not 0 <= self.reserve_after_s <= MAX_RESERVE_AFTER_S:
            message = f"is {self.reserve_after_s:g}; seconds, from 0 to {MAX_RESERVE_AFTER_S:,.0f}"
            raise OptionError("reserve_after_s", message)
        if not 0 <= self.lower_bound <= MAX_WIDTH:
            raise OptionError("lower_bound", f"is {self.lower_bound}; nodes, from 0 to {MAX_WIDTH:,}")
        bounds = [bound for bound, _ in self.max_fragments]
        if bounds != sorted(set(bounds)) or any(fragments < 1 for _, fragments in self.max_fragments):
            raise OptionError("max_fragments", "has widths in ascending order, each with at least 1 fragment")
        if self.maps and (self.control != "limited" or self.mode == "local"):
            message = f"{self.selection!r} uses the quotes of sites"
            raise OptionError("selection", f"{message}; it needs control limited and a mode other than local")
        self._check_tuning()

    def _check_tuning(self) -> None:
        if self.tuning is None:
            return
        if self.mode == "local" or self.control != "full":
            raise OptionError("tuning", "applies to the grid queue; it needs control full and a mode other than local")
        if self.order != "fcfs":
            raise OptionError("order", f"{self.order!r} does not work with tuning, which chooses the order")
        if self.backfill == "conservative":
            raise OptionError("tuning", "does not work with backfill conservative, which keeps reserved starts")

    @property
    def splits(self) -> bool:
        """Whether a job may be split at all."""
        return self.mode in ("multi-site", "adaptive") and self.control != "none"

    @property
    def maps(self) -> bool:
        """Whether all waiting jobs are mapped to sites at once."""
        return self.selection in MAPPINGS

    @property
    def reserve_after_ms(self) -> int:
        """How long a job wider than every site waits before sites reserve nodes for it in advance [ms]."""
        return round(self.reserve_after_s * 1000)

    @property
    def adaptive(self) -> bool:
        """Whether a job is split only if it then ends earlier than if it waits for a single site."""
        return self.mode == "adaptive"

    @property
    def overheads(self) -> tuple[float, ...]:
        """The overheads for 2, 3, ... fragments; the last overhead also applies to more fragments."""
        return self.overhead if isinstance(self.overhead, tuple) else (self.overhead,)

    @property
    def label(self) -> str:
        """The name of this policy in tables and plots."""
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
        """Return this policy encoded for kernels."""
        rows = np.array(self.max_fragments, np.int64).reshape(-1, 2)
        return GridCodes(
            splits=self.splits,
            adaptive=self.adaptive,
            backfills=self.backfill == "easy",
            head_reservation=HEAD_RESERVATIONS[self.head_reservation],
            # A policy that maps jobs to sites never selects a site for a single job, so the code does not matter.
            selection=SELECTIONS.get(self.selection, BEST_FIT),
            lower_bound=self.lower_bound,
            width_up_to=rows[:, 0].copy(),
            fragments=rows[:, 1].copy(),
            overhead=np.array(self.overheads, np.float64),
        )

    def split_length_ms(self, length_ms: int, n_fragments: int, sensitivity: float = 1.0) -> int:
        """Return the length of a job in `n_fragments` fragments, given its length on one site, both in ms."""
        table = np.array(self.overheads, np.float64)
        stretched = prepared(stretched_ms, table, 1, 1.0, 1)
        return int(stretched(table, n_fragments, float(sensitivity), length_ms))

    def why_never(self, nodes: npt.NDArray[np.int64], width: int, *, of_chunks: bool = False) -> str | None:
        """Return why a job of this width could not be placed on an idle grid, or None.

        Parameters
        ----------
        nodes : numpy.ndarray of int64, shape (sites,)
            The number of nodes of each site; with ``of_chunks``, how many of the job's chunks fit on it.
        """
        largest, total = int(nodes.max()), int(nodes.sum())
        if width <= largest:
            return None
        if of_chunks and not total:
            return "a chunk of it fits on no node of any site"
        what, have = ("chunks", "has room for") if of_chunks else ("nodes", "has")
        if not self.splits:
            who = "control none" if self.control == "none" else f"mode {self.mode}"
            return f"it needs {width} {what}, the largest site {have} {largest}, and {who} splits no job"
        if width > total:
            have = "have room for" if of_chunks else "have"
            return f"it needs {width} {what} and all sites together {have} {total}"
        fewest = 1 + int(np.searchsorted(np.cumsum(np.sort(nodes)[::-1]), width))
        allowed = next((fragments for bound, fragments in self.max_fragments if width <= bound), fewest)
        if fewest > allowed:
            return f"it needs {width} {what}, {fewest} fragments at least, and {allowed} are allowed for its width"
        return None
