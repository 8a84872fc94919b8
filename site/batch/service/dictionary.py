"""The batch systems that a site's nodes may belong to: by the name of each, what makes its plug."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gridweave.errors import OptionError
from gridweave.site.batch.slurm.commands import Slurm
from gridweave.site.batch.system import BatchPlan, BatchSystem

SYSTEMS: dict[str, Callable[[Any], BatchSystem]] = {
    "slurm": Slurm,
}
"""What is called with the settings of a plan (`BatchPlan.settings`), by the name of the batch system."""


def system_of(plan: BatchPlan) -> BatchSystem:
    """Return the batch system of a plan; OptionError if there is none of that name."""
    if plan.system not in SYSTEMS:
        raise OptionError("system", f"{plan.system!r} is not a batch system; one of {', '.join(SYSTEMS)}")
    return SYSTEMS[plan.system](plan.settings)
