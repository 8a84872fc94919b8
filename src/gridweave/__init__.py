"""gridweave schedules parallel jobs over several sites as if they were one machine."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gridweave.errors import GridweaveError, InputError, OptionError, TraceError, UnavailableError
    from gridweave.scenarios.load import load_workload
    from gridweave.scenarios.results import SimulationResult
    from gridweave.scenarios.simulator import simulate
    from gridweave.scenarios.sweep.api import SweepResult, sweep
    from gridweave.scenarios.workload import Workload
    from gridweave.site.core import SiteCore
    from gridweave.site.policy import Limit, SitePolicy, Window

__version__ = "0.1.0"

_HOMES = {
    "GridweaveError": "gridweave.errors",
    "InputError": "gridweave.errors",
    "Limit": "gridweave.site.policy",
    "OptionError": "gridweave.errors",
    "SimulationResult": "gridweave.scenarios.results",
    "SiteCore": "gridweave.site.core",
    "SitePolicy": "gridweave.site.policy",
    "SweepResult": "gridweave.scenarios.sweep.api",
    "TraceError": "gridweave.errors",
    "UnavailableError": "gridweave.errors",
    "Window": "gridweave.site.policy",
    "Workload": "gridweave.scenarios.workload",
    "load_workload": "gridweave.scenarios.load",
    "simulate": "gridweave.scenarios.simulator",
    "sweep": "gridweave.scenarios.sweep.api",
}

__all__ = [
    "GridweaveError",
    "InputError",
    "Limit",
    "OptionError",
    "SimulationResult",
    "SiteCore",
    "SitePolicy",
    "SweepResult",
    "TraceError",
    "UnavailableError",
    "Window",
    "Workload",
    "__version__",
    "load_workload",
    "simulate",
    "sweep",
]


def __getattr__(name: str) -> object:
    # Public names are imported at their first use: the compiler alone takes half a second.
    if name not in _HOMES:
        raise AttributeError(f"module 'gridweave' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
