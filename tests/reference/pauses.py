"""Evicted jobs that are paused, on machines that are alike: a slow second writing, second by second.

Jobs are mapped by opportunistic load balancing, by their estimates, which none exceeds. All times are whole seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class PausedJob:
    """A job; `level` 0 is the highest, `done` what it has worked, `machine` where it runs or stands still."""

    number: int
    submit: int
    level: int
    estimate: int
    run: int
    memory: int = 0
    done: int = 0
    machine: int | None = None
    paused: bool = False
    start: int | None = None
    end: int | None = None
    evictions: int = 0

    def works(self) -> bool:
        """Whether it works now."""
        return self.machine is not None and not self.paused and self.end is None

    def is_there(self, machine: int) -> bool:
        """Whether it works, or stands still, on a machine."""
        return self.machine == machine and self.end is None


def play_pauses(jobs: Sequence[PausedJob], machines: int, evicts: Sequence[set[int]], room: int | None = None) -> None:
    """Fill in when each job starts last and ends, and how often it was evicted.

    `evicts` says of each level which levels it may evict; `room` is the memory of a machine.
    """
    now = 0
    while any(job.end is None for job in jobs):
        for job in jobs:
            if job.works() and job.done == job.run:
                job.end = now
        claimed = [now] * machines
        for level in range(len(evicts)):
            _map_level(now, jobs, level, claimed, evicts, room)
        for job in _standing(jobs):
            if not any(other.works() and other.machine == job.machine for other in jobs):
                job.paused = False
        for job in jobs:
            job.done += job.works()
        now += 1


def _map_level(
    now: int, jobs: Sequence[PausedJob], level: int, claimed: list[int], evicts: Sequence[set[int]], room: int | None
) -> None:
    ready = claimed.copy()
    free = dict.fromkeys(range(len(claimed)), now)
    for job in jobs:
        if job.works():
            assert job.machine is not None
            free[job.machine] = now + job.estimate - job.done
    for job in [job for job in jobs if job.works()] + _standing(jobs):
        assert job.machine is not None
        if job.paused:
            free[job.machine] += job.estimate - job.done
        if job.level not in evicts[level]:
            ready[job.machine] = max(ready[job.machine], free[job.machine])
    waiting = [job for job in jobs if job.submit <= now and job.machine is None and job.level == level]
    begin = []
    trouble = [
        2 * any(job.works() and job.machine == machine and job.level in evicts[level] for job in jobs)
        or int(any(job.machine == machine and job.level in evicts[level] for job in _standing(jobs)))
        for machine in range(len(ready))
    ]
    for job in sorted(waiting, key=lambda job: (job.submit, job.number)):
        machine = min(range(len(ready)), key=lambda one: (ready[one], trouble[one]))
        if ready[machine] == now:
            begin.append((job, machine))
        ready[machine] += job.estimate
        claimed[machine] = ready[machine]
    for job, machine in begin:
        used = job.memory
        for other in sorted((one for one in jobs if one.is_there(machine)), key=lambda one: (one.level, one.number)):
            if room is not None and used + other.memory > room:
                other.machine, other.paused, other.done, other.evictions = None, False, 0, other.evictions + 1
                continue
            used += other.memory
            other.evictions += not other.paused
            other.paused = True
        job.machine, job.start = machine, now


def _standing(jobs: Sequence[PausedJob]) -> list[PausedJob]:
    return sorted((job for job in jobs if job.paused and job.end is None), key=lambda job: (job.level, job.number))
