"""The planning problem at one point in time: the waiting jobs, and the free nodes over time (Streit, section 4.6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gridweave.errors import OptionError
from gridweave.site.kernels.order import order_keys
from gridweave.site.kernels.profile import clear, earliest_fit, occupy

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

METRICS = ("artww", "art", "artwa", "sld", "sldww")
"""The self-tuning metrics that are weighted sums of response times (docs/dynp.md)."""


def check_metric(metric: str) -> None:
    """Raise OptionError unless a metric is a known weighted sum of response times."""
    if metric not in METRICS:
        raise OptionError("metric", f"{metric!r} is not a weighted sum of response times; one of {', '.join(METRICS)}")


@dataclass(frozen=True, eq=False, kw_only=True)
class Instance:
    """The jobs waiting at time `now_ms`, in order of submission, and the free nodes from then on.

    Attributes
    ----------
    now_ms : int
    job_id, submit_ms, width, estimate_ms : numpy.ndarray of int64, shape (n,)
    step_ms, step_free : numpy.ndarray of int64, shape (steps,)
        Start times of the steps, the first of them `now_ms`, and the free nodes in each step; the last step never ends.
    """

    now_ms: int
    job_id: IntArray
    submit_ms: IntArray
    width: IntArray
    estimate_ms: IntArray
    step_ms: IntArray
    step_free: IntArray

    def __len__(self) -> int:
        return len(self.job_id)

    def weights(self, metric: str) -> FloatArray:
        """Return the metric's weight for each job's response time (per ms), shape (n,).

        Raises
        ------
        OptionError
            If the metric is unknown or not a weighted sum of response times.
        """
        check_metric(metric)
        width, estimate_ms = self.width.astype(np.float64), self.estimate_ms.astype(np.float64)
        weight = {"artww": width, "art": np.ones(len(self)), "artwa": width * estimate_ms}.get(metric)
        if weight is not None:
            return np.asarray(weight / weight.sum())
        weight = width if metric == "sldww" else np.ones(len(self))
        return np.asarray(weight / estimate_ms / weight.sum())

    def worth(self, start_ms: npt.ArrayLike, metric: str = "artww") -> float:
        """Return a plan's value in a metric; lower is better."""
        response_ms = np.asarray(start_ms, np.int64) + self.estimate_ms - self.submit_ms
        return float((self.weights(metric) * response_ms).sum())

    def listed(self, rows: Sequence[int] | IntArray) -> IntArray:
        """Place the jobs in this order, each as early as possible, and return their start times, shape (n,)."""
        capacity = len(self.step_ms) + 2 * len(self) + 2
        step_ms, step_free = np.zeros((2, capacity), np.int64)
        n_steps = len(self.step_ms)
        clear(step_ms, step_free, np.int64(self.now_ms), np.int64(0))
        step_ms[:n_steps], step_free[:n_steps] = self.step_ms, self.step_free
        start_ms = np.zeros(len(self), np.int64)
        for row in rows:
            width, length_ms = self.width[row], self.estimate_ms[row]
            fit_ms = np.int64(earliest_fit(step_ms, step_free, n_steps, np.int64(self.now_ms), width, length_ms))
            start_ms[row] = fit_ms
            n_steps = int(occupy(step_ms, step_free, n_steps, fit_ms, fit_ms + length_ms, width))
        return start_ms

    def planned(self, order: str) -> IntArray:
        """Return the start times that a planning site with this ``order`` would plan, shape (n,)."""
        keys = order_keys(order, submit_ms=self.submit_ms, width=self.width, estimate_ms=self.estimate_ms)
        return self.listed(np.lexsort((self.job_id, self.submit_ms, keys)))

    def best_policy(self, policies: Sequence[str], metric: str) -> tuple[str, IntArray]:
        """Return the policy with the best plan (ties: the first policy), and the plan's start times."""
        plans = {policy: self.planned(policy) for policy in policies}
        best = min(plans, key=lambda policy: self.worth(plans[policy], metric))
        return best, plans[best]

    def is_plan(self, start_ms: IntArray) -> bool:
        """Whether a plan is valid: no job starts before now, and the jobs never use more nodes than are free."""
        if (start_ms < self.now_ms).any():
            return False
        ends_ms = start_ms + self.estimate_ms
        for when_ms in np.unique(np.concatenate([start_ms, self.step_ms])):
            taken = int(self.width[(start_ms <= when_ms) & (when_ms < ends_ms)].sum())
            if taken > self.step_free[np.searchsorted(self.step_ms, when_ms, side="right") - 1]:
                return False
        return True
