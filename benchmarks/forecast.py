"""Measure the time of a forecast: to copy the meta-scheduler, and to simulate the copy until a job is placed.

    python benchmarks/forecast.py

20 sites of 64 nodes, all full, with a queue of jobs of 1 to 64 nodes and up to a day; forecasts of the first job of the
queue, and of jobs at a tenth, in the middle and at the end of it. Times are in milliseconds, the best of three.
"""

from __future__ import annotations

import time

import numpy as np
from rich.console import Console
from rich.table import Table

from gridweave.grid.messages import FromSite, GridCommand, GridEvent, GridJobSubmitted, ToSite
from gridweave.grid.meta.core import MetaCore
from gridweave.grid.policy import GridPolicy
from gridweave.site.explain import Forecast
from gridweave.site.job import Job
from gridweave.site.messages import Reserved, ReserveNodes

SITES, NODES = 20, 64
WAITING = (1_000, 10_000)
MINUTE_MS, DAY_MS = 60_000, 86_400_000
POLICIES = (
    GridPolicy(mode="sharing"),
    GridPolicy(mode="adaptive", overhead=0.25),
    GridPolicy(mode="adaptive", overhead=0.25, backfill="none"),
    GridPolicy(mode="adaptive", overhead=0.25, backfill="conservative"),
)
PLACES = (0.0, 0.1, 0.5, 1.0)


def _granted(commands: list[GridCommand]) -> list[GridEvent]:
    """Return the sites' answers that they hold the nodes requested for a split."""
    requests = [(c.site, c.request) for c in commands if isinstance(c, ToSite) and isinstance(c.request, ReserveNodes)]
    return [FromSite(site, Reserved(hold.job_id, hold.attempt)) for site, hold in requests if hold.start_ms is not None]


def full_grid(policy: GridPolicy, waiting: int, margin_ms: int) -> tuple[MetaCore, int]:
    """Return a grid without free nodes, in which about this many jobs wait, and the last instant."""
    rng = np.random.default_rng(3)
    core = MetaCore([NODES] * SITES, policy, margin_ms=margin_ms)
    job_id = 0
    while sum(1 for _ in core.waiting()) < waiting:
        for _ in range(waiting // 20):
            job_id += 1
            width = min(int(np.ceil(NODES ** rng.random())), NODES)
            job = Job(job_id=job_id, width=width, estimate_ms=int(rng.integers(MINUTE_MS, DAY_MS)))
            granted = _granted(core.handle(job_id, GridJobSubmitted(job)))
            if granted:
                core.handle(job_id, *granted)
    return core, job_id


def forecast_ms(core: MetaCore, now_ms: int, job_id: int) -> tuple[float, float, Forecast]:
    """Return the time of the copy and of the simulation [ms], and the forecast."""
    began_s = time.perf_counter()
    forecaster = core.forecaster(now_ms, job_id)
    copied_s = time.perf_counter()
    assert forecaster is not None
    forecast = forecaster()
    return (copied_s - began_s) * 1e3, (time.perf_counter() - copied_s) * 1e3, forecast


def main() -> None:
    """Run all measurements, and print a table."""
    table = Table("policy", "margin [ms]", "jobs wait", "copy", *(f"simulation at {place:.0%}" for place in PLACES))
    for policy in POLICIES:
        for margin_ms in (0, 500):
            for waiting in WAITING:
                if policy.backfill == "conservative" and waiting > WAITING[0]:
                    continue
                core, now_ms = full_grid(policy, waiting, margin_ms)
                order = list(core.waiting())
                copies, simulations = [], []
                for place in PLACES:
                    job_id = order[min(round(place * len(order)), len(order) - 1)]
                    runs = [forecast_ms(core, now_ms, job_id) for _ in range(3)]
                    copies.append(min(copy_ms for copy_ms, _, _ in runs))
                    bounded = " (bounded)" * (runs[0][2].start_ms is None)  # the simulation took too many steps
                    simulations.append(f"{min(simulation_ms for _, simulation_ms, _ in runs):.1f}{bounded}")
                table.add_row(
                    f"{policy.label} {policy.backfill}",
                    str(margin_ms),
                    str(len(order)),
                    f"{max(copies):.1f}",
                    *simulations,
                )
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
