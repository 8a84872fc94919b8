"""What benchmarks share: times of calls, the time within a compiled loop, lengths of queues, and files of results."""

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
    """Return the shortest of some calls, in seconds of this thread, after a first one, which compiles."""
    call()
    took_s = []
    for _ in range(times):
        began_s = time.thread_time()
        call()
        took_s.append(time.thread_time() - began_s)
    return min(took_s)


class Stopwatch:
    """Takes the place of `gridweave.jit.prepared` in a module, and adds up the time in what that returns."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, kernel: Any, *arguments: Any) -> Callable[..., Any]:
        """Return the compiled kernel behind the watch."""
        loop: Any = prepared(kernel, *arguments)

        def watched(*arguments: Any) -> Any:
            began = time.thread_time()
            done = loop(*arguments)
            self.seconds += time.thread_time() - began
            return done

        return watched


def waiting(result: SimulationResult) -> tuple[float, int]:
    """Return the mean, over the instants of submission and start, and the largest number of waiting jobs."""
    import numpy as np

    instants = np.concatenate([result.workload.submit_ms, result.start_ms])
    change = np.repeat([1, -1], len(result.workload))
    lengths = np.cumsum(change[np.lexsort((-change, instants))])
    return float(lengths.mean()), int(lengths.max())


def write_results(name: str, found: Any) -> None:
    """Write what was found to ``results/NAME.json``."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(f"written to {path}")
