"""A live site on the Slurm cluster of a file of tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from batch_site import BatchSite
from slurm_cluster import SlurmCluster


@pytest_asyncio.fixture
async def site(cluster: SlurmCluster, tmp_path: Path) -> AsyncIterator[BatchSite]:
    """Return a site that runs; in the end nothing of it is left in Slurm."""
    found = BatchSite(cluster, tmp_path)
    await found.start()
    yield found
    await found.kill()
    cluster.run("scancel", "--partition=main")
    cluster.wait(lambda: not found.queue(), "an empty queue")
