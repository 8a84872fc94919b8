"""What the jobs of a live run execute: a program that does a given amount of work at the rate that its agent reports.

It works by doing nothing until the rates in the file ``$GRIDWEAVE_RATE`` add up to its work (docs/live-processes.md,
"How fast a job works"). It is sent to the machines as text, so it needs nothing but Python.
"""

from __future__ import annotations

import os
import sys
import time

SHORTEST_MS, LONGEST_MS = 1.0, 1_000.0
"""How long it sleeps between two looks at its rates at least and at most."""


def work_left(work_ms: float, text: str, now_ms: float) -> tuple[float, float]:
    """Return how much is left of some work at an instant, and the highest rate so far, at least 1.

    Parameters
    ----------
    work_ms : float
        The work, in ms at rate 1.
    text : str
        A line for each change of the rate: the Unix time in ms, and the new rate.
    now_ms : float
        Unix time, not before the first line.
    """
    changes = [line.split() for line in text.splitlines()]
    times = [*(float(change[0]) for change in changes[1:]), now_ms]
    top = 1.0
    for change, until_ms in zip(changes, times):  # noqa: B905  # any Python 3 runs this
        rate = float(change[1])
        work_ms -= rate * (min(until_ms, now_ms) - float(change[0]))
        top = max(top, rate)
    return work_ms, top


def work(work_ms: float, path: str) -> None:
    """Return when the work is done, by the rates in a file."""
    while True:
        with open(path) as file:
            left_ms, top = work_left(work_ms, file.read(), time.time() * 1000)
        if left_ms <= 0:
            return
        # The rate may change meanwhile, but the work is not done sooner than at the highest rate so far.
        time.sleep(min(max(left_ms / top, SHORTEST_MS), LONGEST_MS) / 1000)


if __name__ == "__main__":
    work(float(sys.argv[1]), os.environ["GRIDWEAVE_RATE"])
