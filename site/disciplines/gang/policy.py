"""The policy of a gang site: the options that its operator sets (docs/gang.md)."""

from __future__ import annotations

import msgspec

from gridweave.errors import OptionError, check_known
from gridweave.site.disciplines.gang.kernels.state import CONSERVATIVE, EASY, MAX_ROWS, NO_BACKFILL, GangCodes
from gridweave.site.job import MAX_TIME_MS, MAX_WIDTH
from gridweave.site.kernels.order import ORDERS

NAME = "gang"
"""The name of the discipline."""

BACKFILLS = {"easy": EASY, "none": NO_BACKFILL, "conservative": CONSERVATIVE}

SCHEDULINGS = ("continuous", "discrete")

PHASES = ("fill", "clean", "compact")
"""The phases of a decision: ``fill`` has only Schedule and FillMatrix, ``clean`` adds CleanMatrix, and ``compact`` has
all phases. Zhang's Figures 11 and 12 add the phases in this order."""

MIGRATIONS = ("none", "fill", "all")
"""When jobs migrate to other nodes: never; only to let other jobs run in more rows; or also to empty a row."""


class GangPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The policy of a gang site (Zhang, sections 5 and 6).

    Attributes
    ----------
    mpl : int
        The multiprogramming level: the number of rows in the matrix, and so the maximum number of jobs per node.
        1 means space sharing.
    slice_ms : int
        Length of a time slice.
    switch_ms : int
        Time that a job loses at the beginning of its slice when it is resumed; less than ``slice_ms``.
    order : str
        A name in `gridweave.site.kernels.order.ORDERS`.
    backfill : str
        ``easy``, ``conservative`` or ``none``; applied in each row of the matrix.
    scheduling : str
        ``continuous``: every job submission or completion ends the slice early and triggers a decision.
        ``discrete``: decisions wait for the end of the slice.
    phases : str
        One of `PHASES`; ``compact`` runs all phases.
    migration : str
        One of `MIGRATIONS`.
    migration_ms : int
        Time that a migrated job loses: half to save the job, half to restart it.
    max_tasks : int or None
        Maximum number of tasks migrated per decision; None: no limit.
    window_ms : int or None
        Window over which the adaptive policy measures utilisation: the site uses time sharing below a critical
        utilisation and space sharing above it. None: always use time sharing.

    Raises
    ------
    OptionError
        If a value is out of range or unknown; the message names the option and its allowed values.

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
            raise OptionError("mpl", f"is {self.mpl}; expected 1 row (space sharing only) to {MAX_ROWS} rows")
        if not 1 <= self.slice_ms <= MAX_TIME_MS:
            raise OptionError("slice_ms", f"is {self.slice_ms}; expected 1 to {MAX_TIME_MS:,} ms")
        if not 0 <= self.switch_ms < self.slice_ms:
            problem = f"is {self.switch_ms}; expected 0 ms to below slice_ms, {self.slice_ms} ms"
            raise OptionError("switch_ms", problem)
        if not 0 <= self.migration_ms <= MAX_TIME_MS:
            raise OptionError("migration_ms", f"is {self.migration_ms}; expected 0 to {MAX_TIME_MS:,} ms")
        if self.max_tasks is not None and not 0 <= self.max_tasks <= MAX_WIDTH:
            raise OptionError("max_tasks", f"is {self.max_tasks}; expected 0 (moves no running job) to {MAX_WIDTH:,}")
        if self.window_ms is not None and not 1 <= self.window_ms <= MAX_TIME_MS:
            raise OptionError("window_ms", f"is {self.window_ms}; expected 1 to {MAX_TIME_MS:,} ms")
        if self.migration != "none" and self.phases != "compact":
            raise OptionError("migration", "requires phases = 'compact', the default")

    @property
    def label(self) -> str:
        """The name in tables and plots, as in the paper; policies that schedule differently have different names."""
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
        """Whether running jobs may migrate to other nodes; on a live site, jobs must then support migration."""
        return self.migration != "none"

    def longest_stay_ms(self, estimate_ms: int) -> int:
        """Return the longest time that a job can hold its nodes: its run time in a single row of a full matrix."""
        turns = -(-estimate_ms // (self.slice_ms - self.switch_ms))
        return turns * self.slice_ms * self.mpl

    def codes(self) -> GangCodes:
        """Return the policy in the form that the kernels read."""
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
