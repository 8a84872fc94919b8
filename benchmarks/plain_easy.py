"""FCFS with EASY backfilling in bare Python, as a baseline for the speed and the results of the compiled loop."""

from __future__ import annotations

import heapq
from bisect import insort

from gridweave.scenarios.workload.table import Workload


def plain_easy(workload: Workload, nodes: int) -> list[int]:
    """Return the start of every job, in ms, in the order of the workload.

    Parameters
    ----------
    workload : Workload
    nodes : int
        Nodes of the site; no job is wider.

    Returns
    -------
    list of int
    """
    submit, ids = workload.submit_ms.tolist(), workload.job_id.tolist()
    width, estimate, run = workload.width.tolist(), workload.estimate_ms.tolist(), workload.run_ms.tolist()
    start = [-1] * len(ids)
    free = nodes
    ends: list[tuple[int, int, int]] = []
    expected: list[tuple[int, int, int]] = []
    queue: list[int] = []
    row = 0

    def begin(job: int, now: int) -> None:
        nonlocal free
        start[job] = now
        free -= width[job]
        heapq.heappush(ends, (now + run[job], ids[job], job))
        insort(expected, (now + estimate[job], ids[job], job))

    while row < len(ids) or ends:
        now = min(submit[row] if row < len(ids) else ends[0][0], ends[0][0] if ends else submit[row])
        while ends and ends[0][0] == now:
            job = heapq.heappop(ends)[2]
            free += width[job]
            expected.remove((start[job] + estimate[job], ids[job], job))
        while row < len(ids) and submit[row] == now:
            queue.append(row)
            row += 1
        while queue and width[queue[0]] <= free:
            begin(queue.pop(0), now)
        if not queue or not free:
            continue
        available, shadow = free, 0
        for end, _, job in expected:
            if available >= width[queue[0]] and end > shadow:
                break
            available += width[job]
            shadow = end
        extra = available - width[queue[0]]
        waiting = queue[:1]
        for job in queue[1:]:
            if width[job] <= free and (now + estimate[job] <= shadow or width[job] <= extra):
                if now + estimate[job] > shadow:
                    extra -= width[job]
                begin(job, now)
            else:
                waiting.append(job)
        queue = waiting
    return start
