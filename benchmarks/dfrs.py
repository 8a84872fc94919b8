"""Measure the speed of fractional scheduling and its growth; print it and write benchmarks/results/dfrs.json.

    python benchmarks/dfrs.py

Times are thread times of whole calls, the best of three; the first call, which compiles, is not measured.
"""

from __future__ import annotations

import functools

import numpy as np
from measuring import timed, write_results

from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.generators.lublin import generate_lublin, lublin_model
from gridweave.scenarios.results.bound import stretch_bound
from gridweave.scenarios.workload.needs import with_load, with_needs
from gridweave.scenarios.workload.table import Workload
from gridweave.site.disciplines.fractional.discipline import Fractional
from gridweave.site.disciplines.fractional.kernels.packing import Remapping, remap_all
from gridweave.site.disciplines.fractional.policy import FractionalPolicy
from gridweave.site.job import Job, Resources

NODES = 128


def mcb8_s(jobs: int) -> float:
    """Return the time of one MCB8 with this many jobs on 128 nodes [s]."""
    rng = np.random.default_rng(1)
    site = Fractional(NODES, FractionalPolicy())
    for job_id in range(jobs):
        memory = 0.1 if rng.random() < 0.55 else float(rng.integers(2, 11)) / 10
        needs = Resources(cpu_need=1.0, memory=memory)
        site.submit(0, Job(job_id=job_id, width=int(2 ** rng.integers(0, 6)), estimate_ms=10, resources=needs))
    state, how = site._state, Remapping(np.int64(0), np.int64(0), np.int64(0))
    return timed(lambda: remap_all(state, how, np.int64(0)))


def workload(jobs: int, load: float) -> Workload:
    """Return jobs with needs, from the mode of the Lublin model that `gridweave reproduce dfrs` uses."""
    rng = np.random.default_rng(1)
    drawn = generate_lublin(lublin_model("types", nodes=NODES), jobs, rng)
    return with_load(with_needs(drawn, "lublin", rng), NODES, load)


def main() -> None:
    """Run all measurements, and print them."""
    found = {f"MCB8, {jobs} jobs on {NODES} nodes": mcb8_s(jobs) for jobs in (25, 50, 100, 200, 400)}
    for count, load in ((1_000, 0.1), (1_000, 0.5), (1_000, 0.9), (250, 0.7), (500, 0.7), (2_000, 0.7)):
        jobs = workload(count, load)
        best = functools.partial(simulate, jobs, NODES, FractionalPolicy())
        least = functools.partial(stretch_bound, jobs, NODES)
        found[f"{count:,} jobs at load {load:g}, best algorithm"] = timed(best)
        found[f"bound of {count:,} jobs at load {load:g}"] = timed(least)
    for name, seconds in found.items():
        print(f"{name:45} {1000 * seconds:10,.2f} ms")
    write_results("dfrs", found)


if __name__ == "__main__":
    main()
