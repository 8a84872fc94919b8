"""Forecast a batch system's free nodes as a step function of time, and query the forecast. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gridweave.slurm.system import BatchView

Steps = tuple[tuple[int, int], ...]
"""Steps (instant [ms], number of free nodes from that instant), in order of time; the last step has no end."""

MOST_STEPS = 64
"""Maximum number of steps, to bound the journal's size; the last step has the minimum of all remaining steps."""

UNKNOWN_MS = 86_400_000
"""How long nodes count as taken if it is unknown when they become free and there is no time limit [ms] (a guess)."""

SOON_MS = 60_000
"""How much longer nodes count as taken once their job's time limit has passed [ms] (a guess)."""


def free_steps(view: BatchView, now_ms: int) -> Steps:
    """Forecast the number of free nodes from now on, assuming that every job runs until its time limit.

    Nodes that are neither idle nor in ``view.busy`` count as taken for the longest time limit. Waiting jobs without an
    expected start are ignored, so the forecast may be too high. The first step has the batch system's ``idle``.

    Examples
    --------
    >>> free_steps(BatchView(nodes=4, idle=1, busy=((0, 100, 3), (100, 160, 2))), 50)
    ((50, 1), (100, 2), (160, 4))
    """
    change: Counter[int] = Counter()
    for start_ms, end_ms, nodes in view.busy:
        change[max(start_ms, now_ms)] += nodes
        change[end_ms if end_ms > now_ms else now_ms + SOON_MS] -= nodes
    unknown = max(0, view.nodes - view.idle - change[now_ms])
    change[now_ms] += unknown
    change[now_ms + (view.longest_ms or UNKNOWN_MS)] -= unknown
    steps: list[tuple[int, int]] = []
    taken = 0
    for instant in sorted(change):
        taken += change[instant]
        free = view.idle if instant == now_ms else max(0, min(view.nodes, view.nodes - taken))
        if not steps or steps[-1][1] != free:
            steps.append((instant, free))
    if len(steps) > MOST_STEPS:
        kept, left = steps[:MOST_STEPS], steps[MOST_STEPS:]
        return (*kept[:-1], (kept[-1][0], min(free for _, free in [kept[-1], *left])))
    return tuple(steps)


def free_throughout(steps: Sequence[tuple[int, int]], start_ms: int, end_ms: int) -> int:
    """Return how many nodes are free throughout an interval; 0 if no step overlaps the interval.

    Examples
    --------
    >>> free_throughout(((50, 1), (100, 2), (160, 4)), 120, 200)
    2
    """
    least: int | None = None
    for number, (from_ms, free) in enumerate(steps):
        until_ms = steps[number + 1][0] if number + 1 < len(steps) else None
        if from_ms < end_ms and (until_ms is None or until_ms > start_ms):
            least = free if least is None else min(least, free)
    return least or 0


def earliest_start(steps: Sequence[tuple[int, int]], now_ms: int, width: int, length_ms: int) -> int | None:
    """Return the first instant from which `width` nodes are free for `length_ms`, or None if never.

    Examples
    --------
    >>> earliest_start(((50, 1), (100, 2), (160, 4)), 50, 3, 10)
    160
    """
    start_ms: int | None = None
    for number, (from_ms, free) in enumerate(steps):
        until_ms = steps[number + 1][0] if number + 1 < len(steps) else None
        if until_ms is not None and until_ms <= now_ms:
            continue
        if free < width:
            start_ms = None
        elif start_ms is None:
            start_ms = max(from_ms, now_ms)
        if start_ms is not None and (until_ms is None or start_ms + length_ms <= until_ms):
            return start_ms
    return None


def occupied(steps: Sequence[tuple[int, int]], start_ms: int, end_ms: int, nodes: int) -> Steps:
    """Return the steps with `nodes` fewer free nodes from `start_ms`, at or after the first step, to `end_ms`.

    Examples
    --------
    >>> occupied(((50, 1), (100, 2)), 60, 120, 1)
    ((50, 1), (60, 0), (100, 1), (120, 2))
    """
    new_steps: list[tuple[int, int]] = []
    for number, (from_ms, free) in enumerate(steps):
        until_ms = steps[number + 1][0] if number + 1 < len(steps) else None
        instants = (instant_ms for instant_ms in sorted({from_ms, start_ms, end_ms}) if instant_ms >= from_ms)
        inside = (instant_ms for instant_ms in instants if until_ms is None or instant_ms < until_ms)
        new_steps += [(instant_ms, free - nodes if start_ms <= instant_ms < end_ms else free) for instant_ms in inside]
    return tuple(new_steps)
