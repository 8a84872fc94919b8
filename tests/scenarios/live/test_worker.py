"""The program of a live run's jobs: how its progress follows the reported rates."""

from __future__ import annotations

import math
import os
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave.scenarios.live.submissions import working
from gridweave.scenarios.live.worker import work_left
from gridweave.site.kernels.work import RATE_ONE, WORK, set_rate, work_of


def text_of(changes: list[tuple[int, float]]) -> str:
    """Format rates as an agent writes them."""
    return "".join(f"{at_ms:.3f} {rate:.9g}\n" for at_ms, rate in changes)


CHANGES = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 3 * RATE_ONE)), min_size=1, max_size=8)


@given(changes=CHANGES, length_ms=st.integers(1, 10_000), after_ms=st.integers(0, 5_000))
def test_a_worker_counts_its_work_as_the_simulation_does(
    changes: list[tuple[int, int]], length_ms: int, after_ms: int
) -> None:
    """Given the same rates at the same times, its remaining work equals that of a simulated job."""
    import numpy as np

    changes = sorted(changes, key=lambda change: change[0])
    job = np.zeros(1, WORK)[0]
    job["left"], job["rate"], job["since_ms"] = work_of(length_ms), 0, changes[0][0]
    job = np.rec.array([tuple(job)], dtype=WORK)[0]
    for at_ms, rate in changes:
        set_rate.py_func(job, rate, at_ms)
    now_ms = changes[-1][0] + after_ms
    set_rate.py_func(job, 0, now_ms)
    told = [(at_ms, rate / RATE_ONE) for at_ms, rate in changes]
    left_ms, top = work_left(length_ms, text_of(told), now_ms)
    assert max(0.0, left_ms) == pytest.approx(job.left / RATE_ONE, abs=1e-4 * length_ms + 1e-3)
    assert top == pytest.approx(max(1.0, *(rate for _, rate in told)))


def test_a_worker_ends_when_its_work_is_done(tmp_path: Path) -> None:
    """As a separate process it works at each rate in turn, and does not need gridweave."""
    program = working(300.0)
    assert program.ranks == "first-node"
    rates, now_ms = tmp_path / "rate", time.time() * 1000
    # 200 ms are done already; of the rest a quarter is done in each ms.
    rates.write_text(text_of([(math.floor(now_ms) - 300, 1.0), (math.floor(now_ms) - 100, 0.25)]))
    environment = {"GRIDWEAVE_RATE": str(rates), "GRIDWEAVE_FOLDER": "/", "GRIDWEAVE_JOB_ID": "1"}
    environment["PATH"] = os.environ["PATH"]
    subprocess.run(program.argv, env=environment, cwd="/", check=True)
    assert time.time() * 1000 >= math.floor(now_ms) - 100 + 400
