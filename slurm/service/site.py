"""The driver of a site whose nodes belong to a batch system, and the creation of its hub and reconciler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from gridweave.errors import InputError
from gridweave.site.messages import MachineTakes
from gridweave.site.service.site_driver import SiteDriver
from gridweave.slurm.service.dictionary import system_of
from gridweave.slurm.service.folder import SharedFolder
from gridweave.slurm.service.hub import Hub
from gridweave.slurm.service.reconciler import BatchReconciler
from gridweave.slurm.system import BatchPlan, BatchSystem, size_problem


class BatchSiteDriver(SiteDriver):
    """A `SiteDriver` that wakes the reconciler after every turn, because node requests may have changed."""

    hub: Hub | None = None

    @override
    def act(self, commands: Sequence[Any]) -> None:
        """Send orders to the machines, and wake the reconciler."""
        super().act(commands)
        if self.hub is not None:
            self.hub.news.set()


def shared_folder(driver: SiteDriver, plan: BatchPlan) -> SharedFolder:
    """Return the folder that a site shares with its nodes, which ignores allocations requested under other journals."""
    return _folder_of(plan, driver.journal.journal_id[:8])


def _folder_of(plan: BatchPlan, token: str = "") -> SharedFolder:
    return SharedFolder(Path(plan.folder), token, others=any(user.runs_as for user in plan.users.values()))


async def check_plan(plan: BatchPlan, nodes: int) -> tuple[str, ...]:
    """Check a plan for a site with this number of nodes; return notes for its operator, one line each.

    Raises
    ------
    InputError
        If the batch system can never lend nodes to the site, or to one of its users.
    UnavailableError
        If the batch system does not answer.
    """
    accounts = sorted({user.runs_as for user in plan.users.values()} - {""})
    for problem in map(_folder_of(plan).problem_of, accounts) if accounts else ():
        if problem is not None:
            raise InputError(problem)
    system = system_of(plan)
    notes = await system.check(plan.users.values())
    problem = size_problem(nodes, await system.view(""))
    return notes if problem is None else (problem, *notes)


def make_reconciler(
    driver: BatchSiteDriver, folder: SharedFolder, plan: BatchPlan, system: BatchSystem | None = None
) -> tuple[Hub, BatchReconciler]:
    """Create a site's hub and reconciler, for `system` or by default for the plan's batch system."""
    if driver.site.runs.users != plan.rules.users:
        for machine in driver.settings.machines:
            driver.post(MachineTakes(machine.name, plan.rules.users))
    driver.hub = hub = Hub(folder, driver.report, plan.rules)
    return hub, BatchReconciler(driver, system or system_of(plan), hub, folder, plan)
