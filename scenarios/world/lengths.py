"""How long jobs really take in the simulated world: by a rule of thumb, or by the links between their sites."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from gridweave.grid.control.coallocation import Fragments
from gridweave.site.kernels.state import NEVER_MS


class Pace(NamedTuple):
    """How a job goes on from now.

    Attributes
    ----------
    job_id, attempt : int
    rate : int
        In units of `gridweave.site.kernels.rates.RATE_ONE`.
    left : int or None
        By its estimate, in units of work, of all that it has still to do; None if it is what was left so far.
    works : bool
        Whether it is its work that goes on at this rate, rather than its data.
    """

    job_id: int
    attempt: int
    rate: int
    left: int | None = None
    works: bool = True


class Served(NamedTuple):
    """A job whose data has come, or has all been sent.

    Attributes
    ----------
    pace : Pace
    run_ms : int or None
        How long it works from now on at rate 1; None if its output is where it is wanted, and the job over.
    """

    pace: Pace
    run_ms: int | None


class Lengths(Protocol):
    """What the world asks when a job is placed, begins and ends."""

    are_plain: bool
    """Whether rates never change and no data is moved: nothing need be told then, and only `begins` be asked."""

    stirred: bool
    """Whether something has happened at this instant that may change the rates of jobs."""

    next_ms: int
    """When the next data arrives."""

    def handed_in(self, now_ms: int, job_id: int) -> None:
        """Take note that a job waits from now on."""

    def given_up(self, job_id: int) -> None:
        """Take note that a job waits no more, and will not run."""

    def asked(self, job_id: int, attempt: int) -> None:
        """Take note that the grid asks for the nodes of an attempt, now."""

    def begins(self, now_ms: int, job_id: int, attempt: int, fragments: Fragments, run_ms: int) -> int | None:
        """Return how long a job takes at rate 1, which takes ``run_ms`` on one site and begins now on these nodes.

        None if it has to wait for its data first; `served` tells when that has come.
        """

    def served(self, now_ms: int) -> Iterable[Served]:
        """Return the jobs whose data has come, or been sent, by now."""

    def delivers(self, now_ms: int, job_id: int) -> Pace | None:
        """Return how a job goes on that has done its work; None if it has no output to send."""

    def ends(self, job_id: int) -> None:
        """Take note that a job works no more."""

    def rates(self, now_ms: int) -> Iterable[Pace]:
        """Return how those jobs go on that do so at another rate from now on."""


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
        self.are_plain = True
        self.stirred = False
        self.next_ms = int(NEVER_MS)

    def handed_in(self, now_ms: int, job_id: int) -> None:
        """Take no note: there is no data."""

    def given_up(self, job_id: int) -> None:
        """Take no note: there is no data."""

    def asked(self, job_id: int, attempt: int) -> None:
        """Take no note: when a job was placed does not matter."""

    def begins(self, now_ms: int, job_id: int, attempt: int, fragments: Fragments, run_ms: int) -> int:
        """Return how long a job takes."""
        return run_ms if len(fragments) == 1 else self._stretch(run_ms, len(fragments), self._sensitivity[job_id])

    def served(self, now_ms: int) -> Iterable[Served]:
        """Return nothing."""
        return ()

    def delivers(self, now_ms: int, job_id: int) -> Pace | None:
        """Return None: there is no data."""
        return None

    def ends(self, job_id: int) -> None:
        """Take no note: jobs do nothing to each other."""

    def rates(self, now_ms: int) -> Iterable[Pace]:
        """Return nothing."""
        return ()
