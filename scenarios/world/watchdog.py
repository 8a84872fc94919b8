"""A world that would never end is found out: nothing has got on for longer than anything can take."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from gridweave.scenarios.world.history import ViolationError

LOOK_EVERY = 4096
"""Instants between two looks."""

PATIENCE_MS = 8 * 86_400_000
"""How long nothing may happen though no job runs: a site may be closed to a job until next week, and a message lost."""

PATIENCE_INSTANTS = 1_000_000
"""So many instants, while no job works, are a storm of messages about nothing."""


class Watchdog:
    """Looks now and then whether anything has got on.

    Parameters
    ----------
    longest_ms : callable () -> int
        Returns how long the longest job takes; called only if something looks wrong.
    """

    def __init__(self, longest_ms: Callable[[], int]) -> None:
        self._longest_ms = longest_ms
        self._progress: Hashable = None
        self._since_ms = 0
        self._instants = 0

    def look(self, now_ms: int, progress: Hashable, *, open_jobs: int, works: bool) -> None:
        """Compare what has been reached with the last look.

        Parameters
        ----------
        now_ms : int
        progress : hashable
            What changes whenever something gets on: jobs handed in, jobs done, faults that begin or end.
        open_jobs : int
            Jobs that are not done, for the message.
        works : bool
            Whether a job works now.

        Raises
        ------
        ViolationError
            If nothing has got on for too long.
        """
        if progress != self._progress:
            self._progress, self._since_ms, self._instants = progress, now_ms, 0
            return
        self._instants = 0 if works else self._instants + LOOK_EVERY
        idle_ms = now_ms - self._since_ms
        if self._instants < PATIENCE_INSTANTS and idle_ms <= PATIENCE_MS:
            return
        if self._instants < PATIENCE_INSTANTS and idle_ms <= PATIENCE_MS + self._longest_ms():
            return
        raise ViolationError(
            f"{now_ms} ms: it never ends: nothing has got on since {self._since_ms} ms, and {open_jobs} jobs are open"
        )
