"""The jobs of a site of machines that differ: those that wait, those on machines, and those that stand still there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from gridweave.site.job import Job
from gridweave.site.kernels.work import RATE_ONE


class WaitingJob(msgspec.Struct, kw_only=True):
    """A job that waits, or waits again.

    Attributes
    ----------
    job : Job
    submit_ms : int
    done_ms : int
        Work at speed 1 that it keeps from before.
    evictions : int
        How often it was evicted.
    evicted_ms : int, optional
        When that was last.
    why_evicted : str
        For which job that was, and why.
    planned_ms : int, optional
        Its start by the last mapping.
    planned_length_ms, planned_on : int
        For how long, and on how many machines.
    """

    job: Job
    submit_ms: int
    done_ms: int = 0
    evictions: int = 0
    evicted_ms: int | None = None
    why_evicted: str = ""
    planned_ms: int | None = None
    planned_length_ms: int = 0
    planned_on: int = 0


class JobOnMachines(msgspec.Struct, kw_only=True):
    """A running job.

    Attributes
    ----------
    was : WaitingJob
    start_ms, expected_ms, limit_ms : int
        When it started, when it is expected to end, and when it is ended.
    machines : tuple of int
        Ascending.
    rate : int
    resource : str
        As the experience calls it.
    is_team : bool
    form : int
        The number of its form, of those that it has of its own or else of its class, from 0.
    """

    was: WaitingJob
    start_ms: int
    expected_ms: int
    limit_ms: int
    machines: tuple[int, ...]
    rate: int
    resource: str
    is_team: bool
    form: int = 0
    memory_mb: int = 0
    paused_ms: int | None = None
    resumes_ms: int = 0

    @property
    def put_off_ms(self) -> int:
        """By how much its ends move as it stands still now."""
        return 0 if self.paused_ms is None else self.resumes_ms - self.paused_ms

    @property
    def ends_ms(self) -> int:
        """When it is expected to end, the time for which it stands still included."""
        return self.expected_ms + self.put_off_ms

    def go_on(self, now_ms: int) -> None:
        """Work again after a pause."""
        self.resumes_ms = now_ms
        put_off_ms = self.put_off_ms
        self.expected_ms += put_off_ms
        self.limit_ms += put_off_ms
        self.paused_ms = None

    def worked_ms(self, now_ms: int) -> int:
        """Return for how long it has worked: as long ago as its limit was as far ahead as it may run.

        That is later than its start where its machines were not free at once, as those that it took them from had time
        to save what they had done; its limit was moved then.
        """
        now_ms = now_ms if self.paused_ms is None else self.paused_ms
        return max(0, now_ms - self.limit_ms + work_limit_ms(self.was, self.rate))


def stand_in_order(runs: Iterable[JobOnMachines], level_of: Callable[[WaitingJob], int]) -> list[JobOnMachines]:
    """Return the jobs that stand still, in the order in which they go on: the highest level first, then by job id."""
    return sorted(
        (run for run in runs if run.paused_ms is not None), key=lambda run: (level_of(run.was), run.was.job.job_id)
    )


def expect_resumptions(now_ms: int, runs: Collection[JobOnMachines], standing: Sequence[JobOnMachines]) -> None:
    """Expect each job that stands still to go on when all others have left its machines that go before it.

    Parameters
    ----------
    standing : sequence of JobOnMachines
        Of the jobs, those that stand still, in the order in which they go on.
    """
    free_ms: dict[int, int] = defaultdict(lambda: now_ms)
    for run in runs:
        if run.paused_ms is None:
            for machine in run.machines:
                free_ms[machine] = max(free_ms[machine], run.expected_ms)
    for run in standing:
        run.resumes_ms = max(free_ms[machine] for machine in run.machines)
        for machine in run.machines:
            free_ms[machine] = run.ends_ms


def those_that_go_on(runs: Collection[JobOnMachines], standing: Sequence[JobOnMachines]) -> list[JobOnMachines]:
    """Return the jobs on whose machines nobody works any more, of `standing`, in their order."""
    busy = {machine for run in runs if run.paused_ms is None for machine in run.machines}
    found = []
    for run in standing:
        if busy.isdisjoint(run.machines):
            found.append(run)
            busy.update(run.machines)
    return found


def those_that_may_stay(
    holders: Sequence[JobOnMachines], machines: Collection[int], memory_mb: int, room_mb: Mapping[int, int | None]
) -> list[JobOnMachines]:
    """Return the jobs that keep their memory on their machines beside a job that takes some of these.

    Parameters
    ----------
    holders : sequence of JobOnMachines
        All jobs on those machines; the first that fits stays.
    memory_mb : int
        What the job that comes has of each machine.
    room_mb : mapping from int to int, optional
        What each machine has; None where that is not counted.
    """
    used = dict.fromkeys(machines, memory_mb)
    found = []
    for run in holders:
        needs = {machine: used[machine] + run.memory_mb for machine in run.machines if machine in used}
        if all((room := room_mb[machine]) is None or need <= room for machine, need in needs.items()):
            used |= needs
            found.append(run)
    return found


def work_limit_ms(one: WaitingJob, rate: int) -> int:
    """Return how long a job may run at a rate: its estimate, less what it has done."""
    return max(1, -(-(one.job.estimate_ms - one.done_ms) * RATE_ONE // rate))
