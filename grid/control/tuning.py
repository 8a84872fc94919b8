"""Choose the grid queue's order with the deciders of dynP, by the `awrt_ms` of each order's plan (docs/grid.md)."""

from __future__ import annotations

import copy
from typing import Self

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.grid.policy import GridTuning
from gridweave.site.disciplines.dynp.kernels.deciding import NO_VALUE, decide
from gridweave.site.disciplines.dynp.kernels.state import ENDED, SUBMITTED
from gridweave.site.kernels.state import NEVER_MS

IntArray = npt.NDArray[np.int64]


class QueueTuningState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The active order, the events since the last decision (as bits), and the numbers of decisions and switches."""

    active: int
    due: int
    decisions: int
    switches: list[int]


class QueueTuning:
    """The queue's current order, and the events that trigger a new choice of order."""

    def __init__(self, policy: GridTuning) -> None:
        self.orders = policy.policies
        self._codes = policy.as_site.codes()
        self._active = self._due = self.decisions = 0
        self.switches = [0] * len(self.orders)

    @property
    def order(self) -> str:
        """The active order."""
        return self.orders[self._active]

    @property
    def active(self) -> int:
        """The index of the active order in `orders`."""
        return self._active

    def why_starts_move(self) -> str:
        """Return the active order and the rule that may change it, as text."""
        when = "each submission and end" if self._codes.follows & ENDED else "each submission"
        rule = f"the plan with the best AWRT decides again at {when}"
        return f"the order {self.order} is in force, {rule}, and the start may move"

    def submitted(self) -> None:
        """Record the submission of a job."""
        self._due |= SUBMITTED

    def left(self) -> None:
        """Record that a job has ended or was withdrawn."""
        self._due |= ENDED

    def is_due(self, n_waiting: int) -> bool:
        """Whether to choose an order now: a relevant event has occurred, and at least two jobs are waiting.

        The call clears the recorded events.
        """
        due = self._due & self._codes.follows
        self._due = 0
        return due != 0 and n_waiting > 1

    def choose(self, values: npt.NDArray[np.float64]) -> bool:
        """Choose the order with the smallest value; return whether the order has changed.

        Parameters
        ----------
        values : numpy.ndarray of float64, shape (orders,)
            The AWRT of each order's plan (see `awrt_ms`) in ms; the call can change the active order's value.
        """
        self.decisions += 1
        if values[self._active] < NO_VALUE:
            values[self._active] *= self._codes.keeps
        chosen = int(decide(values, np.int64(self._active), self._codes))
        if chosen == self._active:
            return False
        self.switches[chosen] += 1
        self._active = chosen
        return True

    def state(self) -> QueueTuningState:
        """Return the state."""
        return QueueTuningState(
            active=self._active, due=self._due, decisions=self.decisions, switches=list(self.switches)
        )

    def restore(self, state: QueueTuningState) -> None:
        """Restore the state."""
        self._active, self._due, self.decisions = state.active, state.due, state.decisions
        self.switches = list(state.switches)

    def copy(self) -> Self:
        """Return an independent copy."""
        new = copy.copy(self)
        new.switches = self.switches.copy()
        return new


def awrt_ms(jobs: npt.NDArray[np.void], start_ms: IntArray, length_ms: IntArray) -> float:
    """Return the average weighted response time (AWRT) of planned jobs; the weights are their resource consumption.

    Parameters
    ----------
    jobs : numpy.ndarray of JOB, shape (n,)
    start_ms, length_ms : numpy.ndarray of int64, shape (n,)
        The planned start and length of each job. A job whose start is `NEVER_MS` does not count.

    Returns
    -------
    float
        The average in ms; `NO_VALUE` if no job counts.
    """
    counts = start_ms != NEVER_MS
    if not counts.any():
        return NO_VALUE
    jobs, start_ms, length_ms = jobs[counts], start_ms[counts], length_ms[counts]
    area = jobs["width"].astype(np.float64) * jobs["estimate_ms"]
    return float((area * (start_ms + length_ms - jobs["submit_ms"])).sum() / area.sum())
