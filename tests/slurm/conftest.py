"""A live site on the Slurm cluster of a test file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from support.slurm import BatchSite, SlurmCluster


@pytest_asyncio.fixture
async def site(cluster: SlurmCluster, tmp_path: Path) -> AsyncIterator[BatchSite]:
    """Yield a running site; remove all of its jobs from Slurm afterwards."""
    found = BatchSite(cluster, tmp_path)
    await found.start()
    yield found
    await found.kill()
    cluster.run("scancel", "--partition=main")
    cluster.wait(lambda: not found.queue(), "an empty queue")
