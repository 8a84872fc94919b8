"""gridweave schedules parallel jobs over several sites as if they were one machine."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from gridweave.version import __version__

if TYPE_CHECKING:
    from gridweave.errors import (
        GridweaveError,
        InputError,
        JobFailedError,
        NotAllowedError,
        NotFoundError,
        OptionError,
        RefusedError,
        TraceError,
        UnavailableError,
    )
    from gridweave.grid.client.client import Client, JobHandle
    from gridweave.grid.client.job_options import JobOptions
    from gridweave.grid.client.sync import SyncClient, SyncJobHandle
    from gridweave.grid.client.transport import Patience
    from gridweave.scenarios.batch.simulate import simulate, simulate_grid, simulate_site
    from gridweave.scenarios.results.schedule import SimulationResult
    from gridweave.scenarios.sweep.api import SweepResult, sweep
    from gridweave.scenarios.traces.load import load_workload
    from gridweave.scenarios.workload.table import Workload
    from gridweave.site.job import After, JobRequest, Program
    from gridweave.site.launch import Call
    from gridweave.site.policy import Limit, SitePolicy, Window
    from gridweave.site.scheduler.core import SiteCore

_HOMES = {
    "After": "gridweave.site.job",
    "Call": "gridweave.site.launch",
    "Client": "gridweave.grid.client.client",
    "GridweaveError": "gridweave.errors",
    "InputError": "gridweave.errors",
    "JobHandle": "gridweave.grid.client.client",
    "JobFailedError": "gridweave.errors",
    "JobOptions": "gridweave.grid.client.job_options",
    "JobRequest": "gridweave.site.job",
    "Limit": "gridweave.site.policy",
    "NotAllowedError": "gridweave.errors",
    "NotFoundError": "gridweave.errors",
    "OptionError": "gridweave.errors",
    "Patience": "gridweave.grid.client.transport",
    "Program": "gridweave.site.job",
    "RefusedError": "gridweave.errors",
    "SimulationResult": "gridweave.scenarios.results.schedule",
    "SiteCore": "gridweave.site.scheduler.core",
    "SitePolicy": "gridweave.site.policy",
    "SweepResult": "gridweave.scenarios.sweep.api",
    "SyncClient": "gridweave.grid.client.sync",
    "SyncJobHandle": "gridweave.grid.client.sync",
    "TraceError": "gridweave.errors",
    "UnavailableError": "gridweave.errors",
    "Window": "gridweave.site.policy",
    "Workload": "gridweave.scenarios.workload.table",
    "load_workload": "gridweave.scenarios.traces.load",
    "simulate": "gridweave.scenarios.batch.simulate",
    "simulate_grid": "gridweave.scenarios.batch.simulate",
    "simulate_site": "gridweave.scenarios.batch.simulate",
    "sweep": "gridweave.scenarios.sweep.api",
}

__all__ = [
    "After",
    "Call",
    "Client",
    "GridweaveError",
    "InputError",
    "JobFailedError",
    "JobHandle",
    "JobOptions",
    "JobRequest",
    "Limit",
    "NotAllowedError",
    "NotFoundError",
    "OptionError",
    "Patience",
    "Program",
    "RefusedError",
    "SimulationResult",
    "SiteCore",
    "SitePolicy",
    "SweepResult",
    "SyncClient",
    "SyncJobHandle",
    "TraceError",
    "UnavailableError",
    "Window",
    "Workload",
    "__version__",
    "load_workload",
    "simulate",
    "simulate_grid",
    "simulate_site",
    "sweep",
]


def __getattr__(name: str) -> object:
    # Public names are imported on first use, because importing the compiler alone takes half a second.
    if name not in _HOMES:
        raise AttributeError(f"module 'gridweave' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
