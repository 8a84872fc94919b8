"""The batch systems that can lend nodes to a site, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gridweave.errors import OptionError
from gridweave.slurm.cluster.commands import Slurm
from gridweave.slurm.system import BatchPlan, BatchSystem

SYSTEMS: dict[str, Callable[[Any], BatchSystem]] = {
    "slurm": Slurm,
}
"""Factories of batch systems by name; each takes the settings in `BatchPlan.settings`."""


def system_of(plan: BatchPlan) -> BatchSystem:
    """Create the batch system of a plan; raise OptionError if its name is unknown."""
    if plan.system not in SYSTEMS:
        raise OptionError("system", f"{plan.system!r} is not a batch system; expected one of {', '.join(SYSTEMS)}")
    return SYSTEMS[plan.system](plan.settings)
