"""Measure full self-tuning against plain planning, on one trace in one run: the rate of each, and their ratio.

    python benchmarks/self_tuning.py [TRACE] [NODES]

A tuning step makes a plan for every candidate, so the reference is the rate of planning divided by their number.
"""

from __future__ import annotations

import argparse
import time

from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.traces.load import load_workload
from gridweave.scenarios.workload.table import Workload
from gridweave.site.disciplines.dynp.policy import THREE, DynPPolicy
from gridweave.site.disciplines.entry import Policy
from gridweave.site.policy import SitePolicy

TARGET = 0.25
"""Target for the rate of full tuning, as a fraction of planning's rate divided by the number of candidates."""


def jobs_per_s(workload: Workload, nodes: int, policy: Policy, *, rounds: int = 3) -> float:
    """Return the rate of the fastest of several rounds [jobs/s], after one in which kernels are compiled."""
    simulate(workload.take(range(min(1_000, len(workload)))), nodes, policy)
    spans_s = []
    for _ in range(rounds):
        began_s = time.perf_counter()
        simulate(workload, nodes, policy)
        spans_s.append(time.perf_counter() - began_s)
    return len(workload) / min(spans_s)


def main() -> None:
    """Run the measurements, and print a line for each policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", default="CTC-SP2-1996-3.1-cln")
    parser.add_argument("nodes", nargs="?", type=int, default=430)
    options = parser.parse_args()
    workload, _ = load_workload(options.trace, nodes=options.nodes, columns=())
    plain = {one: jobs_per_s(workload, options.nodes, SitePolicy(discipline="planning", order=one)) for one in THREE}
    for order, speed in plain.items():
        print(f"planning {order:<20} {speed:>10,.0f} jobs/s")
    slowest = min(plain.values())
    for options in ({}, {"decider": "simple"}, {"tuning": "half"}):
        policy = DynPPolicy(**options)
        speed = jobs_per_s(workload, options.nodes, policy)
        share = speed * len(policy.policies) / slowest
        print(f"{policy.label:<29} {speed:>10,.0f} jobs/s, {share:.2f} of planning a candidate (target: {TARGET})")


if __name__ == "__main__":
    main()
