"""Figures about the decisions of a dynP site: job columns, totals and metrics (docs/dynp.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from gridweave.jit import Ints
from gridweave.site.disciplines.dynp.kernels.deciding import CASES
from gridweave.site.disciplines.dynp.kernels.state import TuningMemory
from gridweave.site.disciplines.entry import SiteOutcome

COLUMNS = ("policy",)
"""The job columns; ``policy`` is the index of the candidate that was active when the job started."""


class PolicyUse(msgspec.Struct, frozen=True, kw_only=True):
    """How long and how often a policy was active in a simulation.

    Attributes
    ----------
    policy : str
    active_ms : int
        Time for which the policy was active between the first submission and the last end.
    switches : int
        Number of switches to the policy.
    jobs : int
        Number of jobs that started while the policy was active.
    """

    policy: str
    active_ms: int
    switches: int
    jobs: int


class TuningUse(msgspec.Struct, frozen=True, kw_only=True):
    """The decisions of a dynP site in a simulation.

    Attributes
    ----------
    policies : tuple of str
        The candidates; the first is active at the beginning.
    decisions : int
        Number of tuning steps.
    cases : dict from str to int
        Number of decisions by case of Streit, Table 4.3; empty unless there are three candidates.
    switched_ms, switched_to : numpy.ndarray of int64, shape (switches,)
        The time and the new candidate of each switch.
    started_by : numpy.ndarray of int64, shape (n,)
        The candidate that was active when each job of the workload started; -1 if the job never started.
    """

    policies: tuple[str, ...]
    decisions: int
    cases: dict[str, int]
    switched_ms: Ints
    switched_to: Ints
    started_by: Ints

    def uses(self, from_ms: int, to_ms: int) -> list[PolicyUse]:
        """Return how long and how often each policy was active.

        Parameters
        ----------
        from_ms, to_ms : int
            The period to count, from the first submission to the last end.

        Returns
        -------
        list of PolicyUse
            One entry per candidate, in the order of the candidates.
        """
        edges_ms = np.clip(np.concatenate([[from_ms], self.switched_ms, [to_ms]]), from_ms, to_ms)
        in_force = np.concatenate([[0], self.switched_to])
        lasted_ms = np.diff(edges_ms)
        return [
            PolicyUse(
                policy=policy,
                active_ms=int(lasted_ms[in_force == number].sum()),
                switches=int((self.switched_to == number).sum()),
                jobs=int((self.started_by == number).sum()),
            )
            for number, policy in enumerate(self.policies)
        ]


def tuning_use(
    policies: tuple[str, ...], memory: TuningMemory, switches: Sequence[tuple[int, int]], started_by: Ints
) -> TuningUse:
    """Return the decisions that a site made while simulating a workload.

    Parameters
    ----------
    policies : tuple of str
        The candidates.
    memory : TuningMemory
    switches : sequence of (int, int)
        All switches, as (time in ms, candidate) pairs.
    started_by : numpy.ndarray of int64, shape (n,)
        The candidate that was active when each job of the workload started; -1 if the job never started.
    """
    switched = np.array(switches, np.int64).reshape(-1, 2)
    return TuningUse(
        policies=policies,
        decisions=int(memory.now["decisions"][0]),
        cases=dict(zip(CASES, memory.cases.tolist(), strict=True)) if memory.cases.any() else {},
        switched_ms=switched[:, 0],
        switched_to=switched[:, 1],
        started_by=started_by,
    )


def switches_after(memory: TuningMemory, count: int) -> list[tuple[int, int]]:
    """Return (time in ms, candidate) for each switch after the first ``count`` that is still in the log."""
    logged, kept = int(memory.now["n_logged"][0]), len(memory.log)
    entries = (memory.log[number % kept] for number in range(max(count, logged - kept), logged))
    return [(int(entry["when_ms"]), int(entry["candidate"])) for entry in entries]


def totals_of(policies: Sequence[str], memory: TuningMemory) -> dict[str, float]:
    """Return the totals of a site, by name.

    Parameters
    ----------
    policies : sequence of str
        The candidates.
    memory : TuningMemory

    Returns
    -------
    dict from str to float
        ``decisions``; ``active``: index of the active policy; ``since_ms``: when this policy became active; for each
        policy, such as sjf, ``active_ms sjf`` (until the last switch), ``switches sjf`` and ``jobs sjf``; for each case
        of Table 4.3 that occurred, such as 4a, ``case 4a``.
    """
    now = memory.now[0]
    totals = {name: float(now[name]) for name in ("decisions", "since_ms", "active")}
    for number, policy in enumerate(policies):
        totals[f"active_ms {policy}"] = float(memory.active_ms[number])
        totals[f"switches {policy}"] = float(memory.switches[number])
        totals[f"jobs {policy}"] = float(memory.started[number])
    counted = zip(CASES, memory.cases.tolist(), strict=True)
    return totals | {f"case {case}": float(count) for case, count in counted if count}


def metrics_of(outcome: SiteOutcome) -> Mapping[str, float]:
    """Return the number of decisions, and how long and how often each policy was active.

    Returns
    -------
    mapping from str to float
        ``decisions``; for each policy, such as sjf, ``sjf_time_pct``: percentage of the time from the first submission
        to the last end for which the policy was active; ``sjf_jobs_pct``: percentage of jobs that started under the
        policy; ``sjf_switches``: number of switches to the policy.
    """
    totals = outcome.totals
    policies = [name.partition(" ")[2] for name in totals if name.startswith("active_ms ")]
    begin_ms, end_ms = int(outcome.submit_ms.min()), int(outcome.end_ms.max())
    active_ms = np.array([totals[f"active_ms {policy}"] for policy in policies])
    active_ms[0] -= begin_ms if totals["switches " + policies[0]] or active_ms[0] else 0.0
    active_ms[int(totals["active"])] += end_ms - max(totals["since_ms"], begin_ms)
    metrics = {"decisions": totals["decisions"]}
    for policy, lasted_ms in zip(policies, active_ms.tolist(), strict=True):
        metrics[f"{policy}_time_pct"] = 100.0 * lasted_ms / (end_ms - begin_ms)
        metrics[f"{policy}_jobs_pct"] = 100.0 * totals[f"jobs {policy}"] / len(outcome.submit_ms)
        metrics[f"{policy}_switches"] = totals[f"switches {policy}"]
    return metrics
