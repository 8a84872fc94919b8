"""What a self-tuning site tells of its decisions: columns of jobs, counts, and metrics made of them (docs/dynp.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gridweave.site.disciplines.dynp.kernels.deciding import CASES
from gridweave.site.disciplines.dynp.kernels.state import TuningMemory
from gridweave.site.disciplines.protocol import Played

COLUMNS = ("policy",)
"""The candidate that was in force when a job started, as its place among the candidates."""


def totals_of(policies: Sequence[str], memory: TuningMemory) -> dict[str, float]:
    """Return what a site has counted, by name.

    Parameters
    ----------
    policies : sequence of str
        The candidates.
    memory : TuningMemory

    Returns
    -------
    dict from str to float
        ``decisions``; since when the policy in force is so (``since_ms``), and which it is (``active``); ``active_ms``,
        ``switches`` and ``jobs`` of each policy, as ``switches sjf``; and of each case of Table 4.3 that was met.
    """
    now = memory.now[0]
    totals = {name: float(now[name]) for name in ("decisions", "since_ms", "active")}
    for number, policy in enumerate(policies):
        totals[f"active_ms {policy}"] = float(memory.active_ms[number])
        totals[f"switches {policy}"] = float(memory.switches[number])
        totals[f"jobs {policy}"] = float(memory.started[number])
    counted = zip(CASES, memory.cases.tolist(), strict=True)
    return totals | {f"case {case}": float(count) for case, count in counted if count}


def metrics_of(played: Played) -> Mapping[str, float]:
    """Return how often the policy was switched, and of each policy how long it was in force and what it started.

    Parameters
    ----------
    played : Played

    Returns
    -------
    mapping from str to float
        Of each policy the part of the time from the first submission to the last end, the part of the jobs, and how
        often it came into force.
    """
    totals = played.totals
    policies = [name.partition(" ")[2] for name in totals if name.startswith("active_ms ")]
    begin_ms, end_ms = int(played.submit_ms.min()), int(played.end_ms.max())
    active_ms = np.array([totals[f"active_ms {policy}"] for policy in policies])
    active_ms[0] -= begin_ms if totals["switches " + policies[0]] or active_ms[0] else 0.0
    active_ms[int(totals["active"])] += end_ms - max(totals["since_ms"], begin_ms)
    found = {"decisions": totals["decisions"]}
    for policy, lasted_ms in zip(policies, active_ms.tolist(), strict=True):
        found[f"{policy}_time_pct"] = 100.0 * lasted_ms / (end_ms - begin_ms)
        found[f"{policy}_jobs_pct"] = 100.0 * totals[f"jobs {policy}"] / len(played.submit_ms)
        found[f"{policy}_switches"] = totals[f"switches {policy}"]
    return found
