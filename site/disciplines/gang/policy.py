"""How a site shares its nodes in time, as its operator writes it down (docs/gang.md)."""

from __future__ import annotations

import msgspec

from gridweave.errors import OptionError, check_known
from gridweave.site.disciplines.gang.kernels.state import CONSERVATIVE, EASY, MAX_ROWS, NO_BACKFILL, GangCodes
from gridweave.site.job import MAX_TIME_MS, MAX_WIDTH
from gridweave.site.kernels.order import ORDERS

NAME = "gang"
"""Of the discipline."""

BACKFILLS = {"easy": EASY, "none": NO_BACKFILL, "conservative": CONSERVATIVE}

SCHEDULINGS = ("continuous", "discrete")

PHASES = ("fill", "clean", "compact")
"""What a decision consists of besides Schedule: up to and with this phase, in the order in which Zhang's Figures 11 and
12 add them."""

MIGRATIONS = ("none", "fill", "all")
"""Whether jobs are moved to other nodes: not at all, to let others run in more rows, or also to empty rows."""


class GangPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How a site shares its nodes in time (Zhang, sections 5 and 6).

    Attributes
    ----------
    mpl : int
        The multiprogramming level: rows of the matrix, at most as many jobs on a node. With 1 space is shared.
    slice_ms : int
        Length of a time slice.
    switch_ms : int
        What a job loses of its slice when it is resumed, less than a slice.
    order : str
        A name in `gridweave.site.kernels.order.ORDERS`.
    backfill : str
        ``easy``, ``conservative`` or ``none``: in each row of the matrix.
    scheduling : str
        ``continuous``: decisions are taken when a job comes or ends, and cut the slice short. ``discrete``: at the end
        of a slice.
    phases : str
        One of `PHASES`; ``compact`` for all.
    migration : str
        One of `MIGRATIONS`.
    migration_ms : int
        What a job loses that is moved: half to save it, half to start it anew.
    max_tasks : int or None
        Tasks that may be moved in one decision; None for any number.
    window_ms : int or None
        Share time below a critical utilisation, and space above it; the utilisation is measured over this window. None:
        always share time.

    Raises
    ------
    OptionError
        If a value is impossible; it says what would be right.

    Examples
    --------
    >>> GangPolicy(mpl=5, backfill="none").label, GangPolicy(mpl=2, migration="all", max_tasks=64).label
    ('GS-5', 'MBGS-2 max_tasks=64')
    """

    mpl: int = 5
    slice_ms: int = 200_000
    switch_ms: int = 0
    order: str = "fcfs"
    backfill: str = "easy"
    scheduling: str = "continuous"
    phases: str = "compact"
    migration: str = "none"
    migration_ms: int = 0
    max_tasks: int | None = None
    window_ms: int | None = None
    discipline: str = NAME

    def __post_init__(self) -> None:
        check_known("discipline", self.discipline, (NAME,))
        check_known("order", self.order, ORDERS)
        check_known("backfill", self.backfill, BACKFILLS)
        check_known("scheduling", self.scheduling, SCHEDULINGS)
        check_known("phases", self.phases, PHASES)
        check_known("migration", self.migration, MIGRATIONS)
        if not 1 <= self.mpl <= MAX_ROWS:
            raise OptionError("mpl", f"is {self.mpl}; a matrix has from 1 row, which shares space alone, to {MAX_ROWS}")
        if not 1 <= self.slice_ms <= MAX_TIME_MS:
            raise OptionError("slice_ms", f"is {self.slice_ms}; a slice takes from 1 to {MAX_TIME_MS:,} ms")
        if not 0 <= self.switch_ms < self.slice_ms:
            problem = f"is {self.switch_ms}; from 0 to less than the slice of {self.slice_ms} ms, or no job gets on"
            raise OptionError("switch_ms", problem)
        if not 0 <= self.migration_ms <= MAX_TIME_MS:
            raise OptionError("migration_ms", f"is {self.migration_ms}; from 0 to {MAX_TIME_MS:,} ms")
        if self.max_tasks is not None and not 0 <= self.max_tasks <= MAX_WIDTH:
            raise OptionError("max_tasks", f"is {self.max_tasks}; from 0, which moves none, to {MAX_WIDTH:,}")
        if self.window_ms is not None and not 1 <= self.window_ms <= MAX_TIME_MS:
            raise OptionError("window_ms", f"is {self.window_ms}; from 1 to {MAX_TIME_MS:,} ms")
        if self.migration != "none" and self.phases != "compact":
            raise OptionError("migration", "goes with all phases; leave phases out")

    @property
    def label(self) -> str:
        """What tables and plots call it, with the paper's names; it tells apart any two that schedule differently."""
        name = ("M" if self.migration != "none" else "") + ("GS" if self.backfill == "none" else "BGS")
        words = [f"{name}-{self.mpl}"]
        usual = {field.name: field.default for field in msgspec.structs.fields(GangPolicy)}
        usual |= {"backfill": "none" if self.backfill == "none" else "easy"}
        usual |= {"migration": "none" if self.migration == "none" else "all"}
        for option, value in usual.items():
            own = getattr(self, option)
            if own != value and option not in ("mpl", "discipline"):
                words.append(f"{option}={own}")
        return " ".join(words)

    @property
    def moves_jobs(self) -> bool:
        """Whether running jobs are moved to other nodes: on a live site they must be able to."""
        return self.migration != "none"

    def longest_stay_ms(self, estimate_ms: int) -> int:
        """Return how long a job of this estimate may have its nodes: in one row of a full matrix, not moved."""
        turns = -(-estimate_ms // (self.slice_ms - self.switch_ms))
        return turns * self.slice_ms * self.mpl

    def codes(self) -> GangCodes:
        """Return the policy as compiled code reads it."""
        return GangCodes(
            slice_ms=self.slice_ms,
            switch_ms=self.switch_ms,
            backfill=BACKFILLS[self.backfill],
            is_discrete=self.scheduling == "discrete",
            cleans=self.phases != "fill",
            compacts=self.phases == "compact",
            migrates_to_compact=self.migration == "all",
            migrates_to_fill=self.migration != "none",
            migration_ms=self.migration_ms,
            max_tasks=MAX_WIDTH * MAX_ROWS if self.max_tasks is None else self.max_tasks,
            window_ms=self.window_ms or 0,
        )
