"""How long jobs really take in the simulated world: by a rule of thumb, or by the links between their sites."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from gridweave.grid.coallocation import Fragments


class Lengths(Protocol):
    """What the world asks when a job is placed, begins and ends."""

    stirred: bool
    """Whether something has happened at this instant that may change the rates of jobs."""

    def asked(self, job_id: int, attempt: int) -> None:
        """Take note that the grid asks for the nodes of an attempt, now."""

    def begins(self, now_ms: int, job_id: int, attempt: int, fragments: Fragments, run_ms: int) -> int:
        """Return how long a job takes at rate 1, which takes ``run_ms`` on one site and begins now on these nodes."""

    def ends(self, job_id: int) -> None:
        """Take note that a job works no more."""

    def rates(self, now_ms: int) -> Iterable[tuple[int, int, int]]:
        """Return (job id, attempt, rate) of the jobs that go on at another rate from now on."""


class PlainLengths:
    """A number of fragments, and by how much a job takes longer in them.

    Parameters
    ----------
    stretch : callable (run_ms, n_fragments, sensitivity) -> int
        How long a job that takes ``run_ms`` on one site takes in so many fragments.
    sensitivity : dict from int to float
        Of each job.
    """

    def __init__(self, stretch: Callable[[int, int, float], int], sensitivity: dict[int, float]) -> None:
        self._stretch = stretch
        self._sensitivity = sensitivity
        self.stirred = False

    def asked(self, job_id: int, attempt: int) -> None:
        """Take no note: when a job was placed does not matter."""

    def begins(self, now_ms: int, job_id: int, attempt: int, fragments: Fragments, run_ms: int) -> int:
        """Return how long a job takes."""
        return run_ms if len(fragments) == 1 else self._stretch(run_ms, len(fragments), self._sensitivity[job_id])

    def ends(self, job_id: int) -> None:
        """Take no note: jobs do nothing to each other."""

    def rates(self, now_ms: int) -> Iterable[tuple[int, int, int]]:
        """Return nothing."""
        return ()
