"""Sites that ask real Slurm clusters for nodes ahead of work: many jobs in one pilot, and one job on two clusters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from batch_site import NODES, BatchSite
from gridweave.site.disciplines.batch.policy import BatchPolicy, PilotRules
from slurm_cluster import SlurmCluster, running_cluster

pytestmark = pytest.mark.slow

PILOTS = BatchPolicy(pilots=PilotRules(length_ms=1_200_000, job_ms=600_000, idle_ms=2_000, size=2))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Return a cluster of four nodes."""
    with running_cluster(tmp_path_factory.mktemp("slurm"), "pil", NODES, "120") as found:
        yield found


@pytest_asyncio.fixture
async def site(cluster: SlurmCluster, tmp_path: Path) -> AsyncIterator[BatchSite]:
    """Return a site with pilots; in the end nothing of it is left in Slurm."""
    found = BatchSite(cluster, tmp_path, PILOTS)
    await found.start()
    yield found
    await found.kill()
    cluster.run("scancel", "--partition=main")
    cluster.wait(lambda: not found.queue(), "an empty queue")


def submitted(cluster: SlurmCluster) -> int:
    """Return how many jobs Slurm has been handed since it was started."""
    line = next(line for line in cluster.run("sdiag").splitlines() if "Jobs submitted" in line)
    return int(line.partition(":")[2])


@pytest.mark.asyncio
async def test_many_jobs_run_in_few_allocations(site: BatchSite, cluster: SlurmCluster) -> None:
    """Narrow and wide ones, with their output; Slurm sees two pilots, which go when they have been idle."""
    before = submitted(cluster)
    text = 'echo "$GRIDWEAVE_RANK of $GRIDWEAVE_SIZE"'
    narrow = [await site.submit("true", key=f"narrow {number}") for number in range(8)]
    wide = await site.submit("sh", "-c", text, nodes=4)
    for job in narrow:
        assert (await site.over(job)).outcome == "finished"
    record = await site.over(wide)
    assert [site.output(record, rank) for rank in range(4)] == [f"{rank} of 4\n" for rank in range(4)]
    assert submitted(cluster) - before <= 4
    await site.until(lambda: not site.queue(), "pilots that are given back")
    site.driver.site.check_invariants()


@pytest.mark.asyncio
async def test_jobs_of_a_pilot_that_is_cancelled_run_again(site: BatchSite, cluster: SlurmCluster) -> None:
    """An administrator who cancels a pilot ends no job for good; nor does a site that is killed meanwhile."""
    job = await site.submit(
        "sh", "-c", 'if [ "$GRIDWEAVE_ATTEMPT" = 1 ]; then sleep 600; fi', nodes=2, limit_ms=600_000
    )
    await site.until(site.running(job), "a running job")
    (name,) = site.queue()
    await site.kill()
    await site.start()
    cluster.run("scancel", f"--name={name}")
    record = await site.over(job)
    assert (record.outcome, record.attempt) == ("finished", 2)
    await site.until(lambda: not site.queue(), "pilots that are given back")


@pytest.mark.asyncio
async def test_pilots_end_by_themselves_while_the_site_is_away(site: BatchSite) -> None:
    """A running job ends first; then the lease of its pilot does, and Slurm has its nodes back."""
    await site.kill()
    site.plan = msgspec.structs.replace(site.plan, lease_s=1.0)
    await site.start()
    job = await site.submit("sleep", "3", nodes=2)
    await site.until(site.running(job), "a running job")
    await site.kill()
    await site.until(lambda: not site.queue(), "nodes that are given back")
    await site.start()
    record = await site.over(job)
    assert (record.outcome, record.attempt) == ("finished", 1)
