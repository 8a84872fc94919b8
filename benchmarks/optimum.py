"""Compare CP-SAT with the thesis's program in HiGHS: how soon the best plan of 20 waiting jobs is found and proven.

    python benchmarks/optimum.py [TRACE] [NODES] [--limit SECONDS] [--instants N] [--jobs N]

Prints the gap over time: by how much another plan may still be better than the best one so far. For HiGHS it is the gap
of plans on the time scale, before the repair, and each time is a separate run, as HiGHS reports nothing before its end.
Submit times are multiplied by 0.9, so that queues are long enough. The thesis took hours for instants of 17 to 32 jobs
(Table 4.4).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.optimum.table import OptimumLine, instance_at, instants_by_size, lines_of
from gridweave.scenarios.optimum.time_indexed import solve_time_indexed
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.traces.load import load_workload
from gridweave.scenarios.workload.transform import shrink
from gridweave.site.disciplines.dynp.policy import DynPPolicy

SHRINK = 0.9
SHOWN_S = (1.0, 3.0, 10.0, 30.0, 60.0)
HEADER = f"{'':8} {'at [s]':>12} {'jobs':>4} {'loss [%]':>9} {'seconds':>8}   gap [%] after {{}} s"


def exact(result: SimulationResult, instants_ms: list[int], times_s: list[float]) -> Iterator[str]:
    """Yield a line for each instant, solved by CP-SAT."""
    for line in lines_of(result, instants_ms, limit_s=times_s[-1]):
        gaps = [_gap_after(line, until_s) for until_s in times_s]
        yield _line("cp-sat", line.at_ms, line.jobs, line.loss_pct, line.seconds, gaps)


def _gap_after(line: OptimumLine, until_s: float) -> float | None:
    """Return the gap that was known after a time."""
    if line.seconds <= until_s:
        return line.gap_pct
    known = [point for point in line.course if point.seconds <= until_s]
    return known[-1].gap_pct if known else None


def scaled(result: SimulationResult, instants_ms: list[int], times_s: list[float]) -> Iterator[str]:
    """Yield a line for each instant, solved by the thesis's program in HiGHS."""
    for when_ms in instants_ms:
        instance = instance_at(result, when_ms)
        runs = [solve_time_indexed(instance, limit_s=until_s) for until_s in times_s]
        gaps = [run.scale_gap_pct for run in runs]
        yield _line("highs", when_ms, len(instance), runs[-1].loss_pct, runs[-1].seconds, gaps)


def _line(solver: str, at_ms: int, jobs: int, loss_pct: float, seconds: float, gaps: list[float | None]) -> str:
    texts = " ".join(f"{'-' if gap is None else format(min(gap, 100.0), '.1f'):>5}" for gap in gaps)
    return f"{solver:8} {at_ms / 1000:12,.0f} {jobs:4} {loss_pct:9.2f} {seconds:8.1f}   {texts}"


def main() -> None:
    """Solve some instants both ways, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", default="CTC-SP2-1996-3.1-cln")
    parser.add_argument("nodes", nargs="?", type=int, default=430)
    parser.add_argument("--limit", type=float, default=SHOWN_S[-1], help="seconds for each instant and solver")
    parser.add_argument("--instants", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=20, help="number of waiting jobs, within a tenth")
    options = parser.parse_args()
    workload, _ = load_workload(options.trace, nodes=options.nodes, columns=())
    result = simulate(shrink(workload, SHRINK), options.nodes, DynPPolicy())
    instants_ms = instants_by_size(result, [options.jobs], options.instants)[options.jobs]
    times_s = [until_s for until_s in SHOWN_S if until_s < options.limit] + [options.limit]
    print(HEADER.format(", ".join(f"{until_s:g}" for until_s in times_s)))
    for solver in (exact, scaled):
        for line in solver(result, instants_ms, times_s):
            print(line, flush=True)


if __name__ == "__main__":
    main()
