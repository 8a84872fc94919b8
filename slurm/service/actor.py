"""The actor of a site whose nodes belong to a batch system; it runs the driver, the hub and the reconciler."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from gridweave.site.service.actor import SiteActor
from gridweave.slurm.system import BatchPlan

if TYPE_CHECKING:
    from gridweave.site.service.queries import SiteQueries
    from gridweave.slurm.service.hub import Hub
    from gridweave.slurm.service.reconciler import BatchReconciler


class BatchSiteActor(SiteActor):
    """The actor of a site whose machines are nodes lent by a batch system."""

    def __init__(self, *arguments: Any, batch: BatchPlan, **options: Any) -> None:
        self._batch = batch
        self._hub: Hub | None = None
        self._reconciler: BatchReconciler | None = None
        super().__init__(*arguments, **options)

    @override
    def make_queries(self) -> SiteQueries:
        """Create the site's driver, hub and reconciler; return its queries."""
        from gridweave.site.service.queries import SiteQueries
        from gridweave.slurm.service.site import BatchSiteDriver, make_reconciler, shared_folder

        driver = self.make_driver(BatchSiteDriver)
        assert isinstance(driver, BatchSiteDriver), "the driver is of another class"
        folder = shared_folder(driver, self._batch)
        self._hub, self._reconciler = make_reconciler(driver, folder, self._batch)
        return SiteQueries(driver, uplink=self.uplink_status, read=self._reconciler.output.read)

    @override
    async def look_after_machines(self, queries: SiteQueries) -> None:
        """Accept connections from nodes, and run the reconciler forever."""
        assert self._hub is not None, "the queries were not made yet"
        assert self._reconciler is not None, "the queries were not made yet"
        await self._hub.open(self._batch.host or socket.gethostname())
        await self._reconciler.run()

    @override
    async def _to_machine(self, machine: str, data: bytes) -> None:
        if self._hub is not None:
            self._hub.order(machine, data)

    @override
    async def stop(self) -> None:
        """Close the journal and the connections to nodes; running jobs continue."""
        await super().stop()
        if self._hub is not None:
            await self._hub.close()
        if self._reconciler is not None:
            self._reconciler.output.close()
