"""Sites that ask real Slurm clusters for nodes ahead of work: many jobs in one pilot, and one job on two clusters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from batch_site import NODES, BatchSite
from gridweave.grid.live import GridSettings
from gridweave.grid.policy import GridPolicy
from gridweave.grid.service.driver import GridDriver
from gridweave.site.disciplines.batch.policy import BatchPolicy, PilotRules
from gridweave.site.job import OVER, Accepted, JobRequest, Program
from gridweave.site.service.clock import Clock
from gridweave.site.service.site_driver import GRID
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


class SiteOfGrid(BatchSite):
    """A site whose grid is in the same event loop."""

    grid: GridDriver

    async def to_grid(self, _peer: str, data: bytes) -> None:
        """Hand the grid what it is to hear."""
        self.grid.packet(self.name, data)


@pytest_asyncio.fixture
async def clusters(
    cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> AsyncIterator[tuple[GridDriver, list[SiteOfGrid]]]:
    """Return a grid under limited control of two real clusters, whose sites have pilots."""
    with running_cluster(tmp_path_factory.mktemp("slurm"), "second", NODES, "120") as second:
        sites = [
            SiteOfGrid(one, tmp_path / one.name, PILOTS, one.name, number)
            for number, one in enumerate((cluster, second))
        ]
        policy = GridPolicy(mode="multi-site", control="limited")
        settings = GridSettings(sites=tuple((site.name, NODES) for site in sites), policy=policy, retry_ms=1_000)

        async def to_site(name: str, data: bytes) -> None:
            next(site for site in sites if site.name == name).driver.packet(GRID, data)

        grid = GridDriver(settings, tmp_path / "grid.journal", Clock(), to_site=to_site)
        for site in sites:
            site.folder.mkdir()
            site.grid = grid
            await site.start()
        works = asyncio.ensure_future(grid.run())
        yield grid, sites
        works.cancel()
        await asyncio.gather(works, return_exceptions=True)
        await grid.close()
        for site in sites:
            await site.kill()
            site.cluster.run("scancel", "--partition=main")
            site.cluster.wait(lambda: not site.queue(), "an empty queue")  # noqa: B023


@pytest.mark.asyncio
async def test_one_job_starts_on_two_clusters(clusters: tuple[GridDriver, list[SiteOfGrid]], tmp_path: Path) -> None:
    """While an own user of one has nodes the others wait, and say what that costs; then all ranks begin at once."""
    grid, sites = clusters
    busy = sites[1].cluster
    own = busy.run("sbatch", "--parsable", "-N2", "--exclusive", "-t", "30", "--wrap", "sleep 600").strip()
    busy.wait(lambda: "R" in busy.run("squeue", "-h", "-j", own, "-o", "%t"), "the cluster's own user")
    program = Program(argv=("sh", "-c", f"date +%s.%N > {tmp_path}/rank.$GRIDWEAVE_RANK"))
    (answer,) = await grid.submit([("key", JobRequest(program=program, nodes=7, limit_ms=60_000, user="anna"))])
    assert isinstance(answer, Accepted), answer

    def said() -> str:
        forecast = grid.grid.forecast(grid.clock.now_ms(), answer.job_id)
        return "" if forecast is None else "; ".join(row.reason for row in forecast.sites)

    await sites[0].until(
        lambda: "4 of the 4 nodes of the site are there; 4 of them free, which has cost" in said(), "pilots"
    )
    assert "2 of the 4 nodes of the site are there, 2 are asked for" in said()
    busy.run("scancel", own)
    records = grid.grid.book.records
    await sites[0].until(
        lambda: answer.job_id not in records or records[answer.job_id].state in OVER, "the end of the job"
    )
    record = records[answer.job_id] if answer.job_id in records else grid.journal.ended([answer.job_id])[answer.job_id]
    assert (record.outcome, record.reason) == ("finished", "")
    assert sorted(nodes for _, nodes in record.places) == [3, 4]
    begun_s = [float((tmp_path / f"rank.{rank}").read_text()) for rank in range(7)]
    assert max(begun_s) - min(begun_s) < 5.0
    for site in sites:
        await site.until(lambda: not site.queue(), "pilots that are given back")  # noqa: B023
