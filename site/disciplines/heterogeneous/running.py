"""Waiting, running and paused jobs of a site with different machines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from gridweave.site.job import Job
from gridweave.site.kernels.work import RATE_ONE


class WaitingJob(msgspec.Struct, kw_only=True):
    """A waiting job, new or evicted.

    Attributes
    ----------
    job : Job
    submit_ms : int
    done_ms : int
        Work saved from the job's earlier runs, in ms at speed 1.
    evictions : int
        Number of times the job was evicted or paused.
    evicted_ms : int, optional
        Time of the last eviction.
    why_evicted : str
        Reason for the last eviction, including the job that got the machines.
    planned_ms : int, optional
        Planned start in the last mapping.
    planned_length_ms, planned_on : int
        Planned run time and number of machines in the last mapping.
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
    """A running or paused job.

    Attributes
    ----------
    was : WaitingJob
    start_ms, expected_ms, limit_ms : int
        Start; expected end; and time limit, at which the job is killed. A pause delays the last two by its length.
    machines : tuple of int
        Ascending.
    rate : int
        Speed of the job on these machines, in units of `gridweave.site.kernels.work.RATE_ONE`.
    resource : str
        Name of the machine class or team in the experience.
    is_team : bool
    form : int
        Index of the job's form among its own forms, or else among the forms of its class.
    memory_mb : int
        Memory that the job uses on each machine.
    paused_ms : int, optional
        When the job was paused; None if it is running.
    resumes_ms : int
        When the job is expected to resume.
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
        """How much the current pause delays the expected end and the time limit, in ms; 0 if the job is running."""
        return 0 if self.paused_ms is None else self.resumes_ms - self.paused_ms

    @property
    def ends_ms(self) -> int:
        """The expected end, including the delay by the current pause."""
        return self.expected_ms + self.put_off_ms

    def go_on(self, now_ms: int) -> None:
        """Resume after a pause; delay the expected end and the time limit by the length of the pause."""
        self.resumes_ms = now_ms
        put_off_ms = self.put_off_ms
        self.expected_ms += put_off_ms
        self.limit_ms += put_off_ms
        self.paused_ms = None

    def worked_ms(self, now_ms: int) -> int:
        """Return the run time so far in ms, without pauses, derived from the time limit and the allowed run time.

        The start is not reliable: a job may first have to wait for evicted jobs to save their work. Such a wait also
        moves the time limit, so the limit is reliable.
        """
        now_ms = now_ms if self.paused_ms is None else self.paused_ms
        return max(0, now_ms - self.limit_ms + work_limit_ms(self.was, self.rate))


def stand_in_order(runs: Iterable[JobOnMachines], level_of: Callable[[WaitingJob], int]) -> list[JobOnMachines]:
    """Return the paused jobs in the order in which they resume: highest level first, ties by job id."""
    return sorted(
        (run for run in runs if run.paused_ms is not None), key=lambda run: (level_of(run.was), run.was.job.job_id)
    )


def expect_resumptions(now_ms: int, runs: Collection[JobOnMachines], standing: Sequence[JobOnMachines]) -> None:
    """Set each paused job's expected resumption to the time when all jobs ahead of it have left its machines.

    Parameters
    ----------
    standing : sequence of JobOnMachines
        The paused jobs among `runs`, in the order in which they resume.
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
    """Return the paused jobs that can resume now, in order, because no running or resuming job uses their machines.

    `standing` lists the paused jobs among `runs`, in the order in which they resume.
    """
    busy = {machine for run in runs if run.paused_ms is None for machine in run.machines}
    resuming = []
    for run in standing:
        if busy.isdisjoint(run.machines):
            resuming.append(run)
            busy.update(run.machines)
    return resuming


def those_that_may_stay(
    holders: Sequence[JobOnMachines], machines: Collection[int], memory_mb: int, free_mb: Mapping[int, int | None]
) -> list[JobOnMachines]:
    """Return the jobs that can stay paused in memory while another job runs on some of their machines.

    Parameters
    ----------
    holders : sequence of JobOnMachines
        All jobs on those machines; they are tried in this order, and a job may stay if it still fits into memory.
    machines : collection of int
        The machines of the other job.
    memory_mb : int
        Memory that the other job uses on each machine.
    free_mb : mapping from int to int, optional
        Memory of each machine; None: unlimited.
    """
    used = dict.fromkeys(machines, memory_mb)
    staying = []
    for run in holders:
        needs = {machine: used[machine] + run.memory_mb for machine in run.machines if machine in used}
        if all((capacity_mb := free_mb[machine]) is None or need <= capacity_mb for machine, need in needs.items()):
            used |= needs
            staying.append(run)
    return staying


def work_limit_ms(waiting_job: WaitingJob, rate: int) -> int:
    """Return how long a job may run at this rate, in ms: the time for the rest of its estimate, at least 1 ms."""
    return max(1, -(-(waiting_job.job.estimate_ms - waiting_job.done_ms) * RATE_ONE // rate))
