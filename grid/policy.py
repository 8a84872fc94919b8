"""How the grid schedules, as its operator writes it down: names, their checks, and what compiled code makes of them."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.errors import OptionError
from gridweave.grid.kernels.placement import BEST_FIT, BIGGEST_FREE, EQUAL_UTIL, RANDOM, GridCodes
from gridweave.site.kernels.order import ORDERS

MODES = ("local", "sharing", "multi-site", "adaptive")
SELECTIONS = {"best-fit": BEST_FIT, "biggest-free": BIGGEST_FREE, "equal-util": EQUAL_UTIL, "random": RANDOM}
BACKFILLS = ("easy", "none")

MAX_OVERHEAD = 10_000
"""No stretched time is to leave int64."""

LIMITED_FRAGMENTS = ((64, 1), (128, 2), (512, 8))
"""Streit's Table 7.5, the configuration *limited*: (width up to, fragments allowed)."""


class GridPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How the grid schedules under full control (docs/grid.md).

    Attributes
    ----------
    mode : str
        ``local``, ``sharing``, ``multi-site`` or ``adaptive``.
    order : str
        Of the queue: a name in `gridweave.site.kernels.order.ORDERS`.
    backfill : str
        ``easy`` or ``none``.
    selection : str
        Of a single site: ``best-fit``, ``biggest-free``, ``equal-util`` or ``random``.
    overhead : float
        By which part of itself a split job takes longer, >= 0 (Streit's p).
    lower_bound : int
        Jobs that are split are wider than this, or than the largest site.
    max_fragments : tuple of (int, int)
        (width up to, fragments allowed), in ascending order of width; wider jobs have no limit.

    Raises
    ------
    OptionError
        If a name is unknown, or a number makes no sense.
    """

    mode: str = "adaptive"
    order: str = "fcfs"
    backfill: str = "easy"
    selection: str = "best-fit"
    overhead: float = 0.0
    lower_bound: int = 0
    max_fragments: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        for option, known in (
            ("mode", MODES),
            ("order", tuple(ORDERS)),
            ("backfill", BACKFILLS),
            ("selection", tuple(SELECTIONS)),
        ):
            if getattr(self, option) not in known:
                raise OptionError(option, f"{getattr(self, option)!r} is not known; one of {', '.join(known)}")
        if not 0 <= self.overhead <= MAX_OVERHEAD:
            raise OptionError("overhead", f"is {self.overhead}; a number from 0 up, 0.3 for 30%")
        if self.lower_bound < 0:
            raise OptionError("lower_bound", f"is {self.lower_bound}; nodes, from 0 up")
        bounds = [bound for bound, _ in self.max_fragments]
        if bounds != sorted(set(bounds)) or any(fragments < 1 for _, fragments in self.max_fragments):
            raise OptionError("max_fragments", "has widths in ascending order, each with at least 1 fragment")

    @property
    def splits(self) -> bool:
        """Whether a job may be split at all."""
        return self.mode in ("multi-site", "adaptive")

    @property
    def label(self) -> str:
        """What tables and plots call this policy."""
        return f"{self.mode} p={self.overhead:.0%}" if self.splits else self.mode

    def codes(self) -> GridCodes:
        """Return this policy as compiled code reads it."""
        rows = np.array(self.max_fragments, np.int64).reshape(-1, 2)
        return GridCodes(
            splits=self.splits,
            adaptive=self.mode == "adaptive",
            backfills=self.backfill == "easy",
            selection=SELECTIONS[self.selection],
            lower_bound=self.lower_bound,
            width_up_to=rows[:, 0].copy(),
            fragments=rows[:, 1].copy(),
        )

    def stretched_ms(self, times_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return how long jobs take when they are split: time + floor(time x overhead)."""
        stretch: npt.NDArray[np.int64] = np.floor(times_ms * self.overhead).astype(np.int64)
        return times_ms + stretch

    def why_never(self, nodes: npt.NDArray[np.int64], width: int) -> str | None:
        """Return why a job of this width could not be placed on the idle grid, or None if it could.

        Parameters
        ----------
        nodes : numpy.ndarray of int64, shape (sites,)
        width : int
        """
        largest, total = int(nodes.max()), int(nodes.sum())
        if width <= largest:
            return None
        if not self.splits:
            return f"it needs {width} nodes, the largest site has {largest}, and mode {self.mode} splits no job"
        if width > total:
            return f"it needs {width} nodes and all sites together have {total}"
        fewest = 1 + int(np.searchsorted(np.cumsum(np.sort(nodes)[::-1]), width))
        allowed = next((fragments for bound, fragments in self.max_fragments if width <= bound), fewest)
        if fewest > allowed:
            return f"it needs {width} nodes, {fewest} fragments at least, and {allowed} are allowed for its width"
        return None
