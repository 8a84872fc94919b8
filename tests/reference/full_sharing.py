"""A slow second writing of docs/control.md, "Shared nodes", for full control: which waiting job takes an offer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Waiting(NamedTuple):
    """A job that waits, and the slowdown at which each site offers it shared nodes."""

    job_id: int
    width: int
    estimate_ms: int
    offers: Mapping[int, float]


class Running(NamedTuple):
    """The nodes of a running job by site, and its expected end."""

    nodes: Mapping[int, int]
    end_ms: int


def alone_end_ms(width: int, estimate_ms: int, free: Sequence[int], running: Sequence[Running], now_ms: int) -> float:
    """Return when a job would end on one site alone, by the ends of the running jobs; infinite if never."""
    if max(free) >= width:
        return now_ms + estimate_ms
    for when_ms in sorted({job.end_ms for job in running}):
        for site, nodes in enumerate(free):
            if nodes + sum(job.nodes.get(site, 0) for job in running if job.end_ms <= when_ms) >= width:
                return max(when_ms, now_ms) + estimate_ms
    return math.inf


def taken(
    waiting: Sequence[Waiting],
    free: Sequence[int],
    running: Sequence[Running],
    reserved: tuple[int, set[int]],
    now_ms: int,
) -> list[tuple[int, int]]:
    """Return (job, site) of the jobs that take an offer, in the order of the queue.

    `reserved` has the head of the queue, and the sites on which nodes are reserved for it.
    """
    free, running, used = list(free), list(running), set[int]()
    found: list[tuple[int, int]] = []
    head, kept = reserved
    for job in waiting:
        ends = {
            site: now_ms + math.ceil(slowdown * job.estimate_ms)
            for site, slowdown in job.offers.items()
            if slowdown and site not in used
        }
        if not ends or used & job.offers.keys():
            continue  # of a site that starts one now it is not known what it offers next
        site = min(ends, key=lambda site: (ends[site], site))
        if ends[site] >= alone_end_ms(job.width, job.estimate_ms, free, running, now_ms):
            continue
        if job.job_id != head and site in kept:
            continue
        found.append((job.job_id, site))
        free[site] -= job.width
        running.append(Running({site: job.width}, ends[site]))
        used.add(site)
    return found
