"""The program that the jobs of a live run execute: it does a given amount of work at the rate that the agent reports.

The program sleeps until the rates in the file ``$GRIDWEAVE_RATE`` add up to its work (docs/live-processes.md, "How
fast a job works"). Machines receive its source as text, so it depends only on Python.
"""

from __future__ import annotations

import os
import signal
import sys
import time

SHORTEST_MS, LONGEST_MS = 1.0, 1_000.0
"""Shortest and longest sleep between two readings of the rates."""

GOES_ON = "--goes-on"
"""With this option, the program saves its remaining work on SIGUSR1 and later resumes with that work."""


def work_left(work_ms: float, text: str, now_ms: float) -> tuple[float, float]:
    """Return the work left at ``now_ms``, and the highest rate so far (at least 1).

    Parameters
    ----------
    work_ms : float
        The work, in ms at rate 1.
    text : str
        One line for each rate change: the Unix time in ms, and the new rate.
    now_ms : float
        Unix time in ms, not before the first line's time.
    """
    changes = [line.split() for line in text.splitlines()]
    times = [*(float(change[0]) for change in changes[1:]), now_ms]
    top = 1.0
    for change, until_ms in zip(changes, times):  # noqa: B905  # any Python 3 runs this
        rate = float(change[1])
        work_ms -= rate * (min(until_ms, now_ms) - float(change[0]))
        top = max(top, rate)
    return work_ms, top


def work(work_ms: float, rates: str, saved: str) -> None:
    """Sleep until the work is done.

    Parameters
    ----------
    work_ms : float
        The whole job's work, in ms at rate 1.
    rates : str
        The file with the job's rates.
    saved : str
        The file in which an earlier run of the job saved its remaining work; empty if work is never saved.
    """
    if os.path.exists(saved):
        with open(saved) as file:
            work_ms = float(file.read())
    if saved:
        signal.signal(signal.SIGUSR1, lambda *_: _save(saved, _left(work_ms, rates)[0]))
    left_ms, top = _left(work_ms, rates)
    while left_ms > 0:
        # The rate may change during the sleep; up to the highest rate so far, the sleep is not too long.
        time.sleep(min(max(left_ms / top, SHORTEST_MS), LONGEST_MS) / 1000)
        left_ms, top = _left(work_ms, rates)


def _left(work_ms: float, rates: str) -> tuple[float, float]:
    with open(rates) as file:
        return work_left(work_ms, file.read(), time.time() * 1000)


def _save(path: str, left_ms: float) -> None:
    with open(path, "w") as file:
        file.write(str(left_ms))
    sys.exit()


if __name__ == "__main__":
    # The file is next to the machine's folder, where later starts of the job on this machine find it.
    saved_file = os.path.join(
        os.environ["GRIDWEAVE_FOLDER"], "..", "..", "..", "saved-" + os.environ["GRIDWEAVE_JOB_ID"]
    )
    work(float(sys.argv[1]), os.environ["GRIDWEAVE_RATE"], saved_file if GOES_ON in sys.argv else "")
