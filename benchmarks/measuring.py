"""Shared parts of the benchmarks: times of calls, time in a compiled loop, queue lengths, and files of results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridweave.jit import prepared

if TYPE_CHECKING:
    from gridweave.scenarios.results.schedule import SimulationResult

RESULTS = Path(__file__).parent / "results"


def timed(call: Callable[[], object], times: int = 3) -> float:
    """Return the thread time of the fastest of several calls [s], after a first call, which compiles."""
    call()
    took_s = []
    for _ in range(times):
        began_s = time.thread_time()
        call()
        took_s.append(time.thread_time() - began_s)
    return min(took_s)


class Stopwatch:
    """Replaces `gridweave.jit.prepared` in a module, and adds up the time in the kernels that this returns."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, kernel: Any, *arguments: Any) -> Callable[..., Any]:
        """Return the compiled kernel, with its time measured."""
        loop: Any = prepared(kernel, *arguments)

        def watched(*arguments: Any) -> Any:
            began = time.thread_time()
            done = loop(*arguments)
            self.seconds += time.thread_time() - began
            return done

        return watched


def waiting(result: SimulationResult) -> tuple[float, int]:
    """Return the mean number of waiting jobs over the instants of submission and start, and the largest one."""
    import numpy as np

    instants = np.concatenate([result.workload.submit_ms, result.start_ms])
    change = np.repeat([1, -1], len(result.workload))
    lengths = np.cumsum(change[np.lexsort((-change, instants))])
    return float(lengths.mean()), int(lengths.max())


def write_results(name: str, found: Any) -> None:
    """Write the figures to ``results/NAME.json``."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(f"written to {path}")
