"""How soon the best plan of 20 waiting jobs is found and proven: CP-SAT beside the thesis's program with HiGHS.

    python benchmarks/optimum.py [TRACE] [NODES] [--limit SECONDS] [--instants N]

Of CP-SAT the gap is shown as it closes; the other tells nothing before it ends. Submit times are multiplied by 0.9, so
that queues are long enough. The thesis solved instants of 17 to 32 jobs in hours (Table 4.4).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.optimum.table import OptimumLine, instants_by_size, lines_of
from gridweave.scenarios.traces.load import load_workload
from gridweave.scenarios.workload.transform import shrink
from gridweave.site.disciplines.dynp.policy import DynPPolicy

JOBS = 20
SHRINK = 0.9
SHOWN_S = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


def gaps(line: OptimumLine) -> Iterator[str]:
    """Yield the gap after each of some times; a dash while nothing is known."""
    for until_s in SHOWN_S:
        known = [point for point in line.course if point.seconds <= until_s]
        yield f"{min(100.0, known[-1].gap_pct):.1f}" if known else "-"


def main() -> None:
    """Solve some instants both ways, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", default="CTC-SP2-1996-3.1-cln")
    parser.add_argument("nodes", nargs="?", type=int, default=430)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for each instant and solver")
    parser.add_argument("--instants", type=int, default=4)
    asked = parser.parse_args()
    workload, _ = load_workload(asked.trace, nodes=asked.nodes)
    result = simulate(shrink(workload, SHRINK), asked.nodes, DynPPolicy())
    instants_ms = instants_by_size(result, [JOBS], asked.instants)[JOBS]
    for solver in ("cp-sat", "highs"):
        print(f"{solver}: at [s], jobs, loss of the best policy [%], gap [%], seconds")
        for line in lines_of(result, instants_ms, solver=solver, limit_s=asked.limit):
            gap = "-" if line.gap_pct is None else f"{line.gap_pct:.2f}"
            course = ", ".join(f"{until_s:g} s {text}" for until_s, text in zip(SHOWN_S, gaps(line), strict=True))
            told = f"   gap after {course}" if line.course else ""
            print(f"{line.at_ms / 1000:14,.0f} {line.jobs:4} {line.loss_pct:8.2f} {gap:>8} {line.seconds:8.1f}{told}")


if __name__ == "__main__":
    main()
