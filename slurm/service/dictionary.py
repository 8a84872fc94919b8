"""The batch systems that may lend nodes to a site, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gridweave.errors import OptionError
from gridweave.slurm.cluster.commands import Slurm
from gridweave.slurm.system import BatchPlan, BatchSystem

SYSTEMS: dict[str, Callable[[Any], BatchSystem]] = {
    "slurm": Slurm,
}
"""Makes a batch system from the settings of a plan (`BatchPlan.settings`), by its name."""


def system_of(plan: BatchPlan) -> BatchSystem:
    """Return the batch system of a plan; OptionError if its name is unknown."""
    if plan.system not in SYSTEMS:
        raise OptionError("system", f"{plan.system!r} is not a batch system; expected one of {', '.join(SYSTEMS)}")
    return SYSTEMS[plan.system](plan.settings)
