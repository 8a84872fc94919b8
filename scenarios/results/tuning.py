"""What a self-tuning site chose: which policy was in force when, and which job it started."""

from __future__ import annotations

import csv
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.site.disciplines.dynp.kernels.deciding import CASES
from gridweave.site.disciplines.dynp.kernels.state import NO_CANDIDATE, TuningMemory

IntArray = npt.NDArray[np.int64]


class PolicyUse(msgspec.Struct, frozen=True, kw_only=True):
    """How a policy was used.

    Attributes
    ----------
    policy : str
    active_ms : int
        How long it was in force, from the first submission to the last end.
    switches : int
        How often it came into force after another.
    jobs : int
        Jobs that were started while it was in force.
    """

    policy: str
    active_ms: int
    switches: int
    jobs: int


class TuningUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a self-tuning site chose in a run.

    Attributes
    ----------
    policies : tuple of str
        Its candidates; the first was in force at the beginning.
    decisions : int
        Tuning steps.
    cases : dict from str to int
        Of these, those of each case of Streit, Table 4.3; empty unless there are its three policies.
    switched_ms, switched_to : numpy.ndarray of int64, shape (switches,)
        When the policy was switched, and to which candidate.
    started_by : numpy.ndarray of int64, shape (n,)
        The candidate that was in force when each job of the workload started; -1 if it never was.
    """

    policies: tuple[str, ...]
    decisions: int
    cases: dict[str, int]
    switched_ms: IntArray
    switched_to: IntArray
    started_by: IntArray

    def uses(self, from_ms: int, to_ms: int) -> list[PolicyUse]:
        """Return how each policy was used.

        Parameters
        ----------
        from_ms, to_ms : int
            What counts of the time: from the first submission to the last end.

        Returns
        -------
        list of PolicyUse
            In the order of the candidates.
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


def tuning_use(policies: tuple[str, ...], memory: TuningMemory, rows: IntArray, count: int) -> TuningUse:
    """Return what a site remembers of its decisions, for the jobs of a workload.

    Parameters
    ----------
    policies : tuple of str
        The candidates.
    memory : TuningMemory
        Of a site whose slots are the rows that were played, and whose log holds all switches.
    rows : numpy.ndarray of int64
        The rows of the workload that were played.
    count : int
        Jobs of the workload.
    """
    log = memory.log[: int(memory.now["n_logged"][0])]
    started_by = np.full(count, NO_CANDIDATE)
    started_by[rows] = memory.started_by
    return TuningUse(
        policies=policies,
        decisions=int(memory.now["decisions"][0]),
        cases=dict(zip(CASES, memory.cases.tolist(), strict=True)) if memory.cases.any() else {},
        switched_ms=log["when_ms"].copy(),
        switched_to=log["candidate"].copy(),
        started_by=started_by,
    )


def write_switches_csv(tuning: TuningUse, path: Path) -> None:
    """Write one line per switch: when, and to which policy."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("when_ms", "policy"))
        names = (tuning.policies[number] for number in tuning.switched_to.tolist())
        writer.writerows(zip(tuning.switched_ms.tolist(), names, strict=True))
