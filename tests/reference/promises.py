"""The earliest start that each job of a given schedule is promised (docs/check.md, "Promises")."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from reference.conservative import Conservative
from reference.model import Job, Running, State
from reference.ordering import in_order


def promises(jobs: Sequence[Job], start: Mapping[int, int], nodes: int, kind: str) -> dict[int, int]:
    """Return the earliest start that each job is promised, by id, as the schedule goes on; not of jobs without one."""
    shown = easy_shown(jobs, start, nodes) if kind == "easy" else conservative_shown(jobs, start, nodes)
    found: dict[int, int] = {}
    for job_id, when in shown:
        found[job_id] = min(when, found.get(job_id, when))
    return found


def instants(jobs: Sequence[Job], start: Mapping[int, int]) -> list[int]:
    """Return when anything is submitted, starts or ends."""
    return sorted({when for job in jobs for when in (job.submit, start[job.id], start[job.id] + job.length)})


def easy_shown(jobs: Sequence[Job], start: Mapping[int, int], nodes: int) -> Iterator[tuple[int, int]]:
    """Yield what the first that waits is shown, instant by instant: when it fits by the estimates of who is ahead."""
    for now in instants(jobs, start):
        ahead = [job for job in jobs if start[job.id] < now < start[job.id] + job.length]
        waiting = [job for job in jobs if job.submit <= now <= start[job.id]]
        for job in in_order(State(nodes, "fcfs", 0, now, waiting=waiting)):
            if start[job.id] != now:
                ends = sorted({now, *(start[one.id] + one.estimate for one in ahead)})
                used = {end: sum(one.width for one in ahead if start[one.id] + one.estimate > end) for end in ends}
                yield job.id, next(end for end in ends if used[end] + job.width <= nodes)
                break
            ahead.append(job)


def conservative_shown(jobs: Sequence[Job], start: Mapping[int, int], nodes: int) -> Iterator[tuple[int, int]]:
    """Yield what all that wait are promised, instant by instant; after a start that was not promised, all again."""
    state, discipline, broken = State(nodes, "fcfs", 0), Conservative(), False
    for now in instants(jobs, start):
        state.now = now
        ended = [one for one in state.running if one.end <= now]
        state.running = [one for one in state.running if one.end > now]
        if broken or any(when < now for when in discipline.reserved.values()):
            discipline.nodes_changed(state)
        else:
            discipline.freed(state, early=any(one.end_by_estimate > now for one in ended))
        for job in sorted((job for job in jobs if job.submit == now), key=lambda job: job.id):
            discipline.submitted(state, job)
        yield from discipline.reserved.items()
        broken = False
        for job in [job for job in state.waiting if start[job.id] == now]:
            broken = broken or discipline.reserved.pop(job.id) != now
            state.waiting.remove(job)
            state.running.append(Running(job, now))
