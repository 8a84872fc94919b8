"""Sites that ask real Slurm clusters for nodes ahead of work: many jobs in one pilot, and one job on two clusters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from gridweave.site.lifecycle import OVER
from gridweave.slurm.policy import BatchPolicy, PilotRules
from support.slurm import NODES, BatchSite, DeafSlurm, GridOfClusters, SlurmCluster, running_cluster

pytestmark = pytest.mark.slow

RULES = PilotRules(length_ms=1_200_000, job_ms=600_000, idle_ms=5_000, size=2)
PILOTS = BatchPolicy(pilots=RULES)


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
    """Narrow and wide ones, with their output; Slurm sees a few pilots, which end by themselves when they are idle."""
    before = submitted(cluster)
    text = 'echo "$GRIDWEAVE_RANK of $GRIDWEAVE_SIZE"'
    narrow = [await site.submit("true", key=f"narrow {number}") for number in range(8)]
    wide = await site.submit("sh", "-c", text, nodes=4)
    for job in narrow:
        assert (await site.over(job)).outcome == "finished"
    record = await site.over(wide)
    assert [site.output(record, rank) for rank in range(4)] == [f"{rank} of 4\n" for rank in range(4)]
    assert submitted(cluster) - before < len(narrow)  # two, unless nodes are idle too long on a busy machine
    pilots = site.queue()
    await site.until(lambda: not site.queue(), "pilots that are given back")
    ended = cluster.run("squeue", "-h", "-a", "-t", "all", "-n", ",".join(pilots), "-o", "%T").split()
    assert ended
    assert set(ended) == {"COMPLETED"}
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
    site.plan = msgspec.structs.replace(site.plan, lease_s=5.0)
    await site.start()
    job = await site.submit("sleep", "3", nodes=2)
    await site.until(site.running(job), "a running job")
    await site.kill()
    await site.until(lambda: not site.queue(), "nodes that are given back")
    await site.start()
    record = await site.over(job)
    assert (record.outcome, record.attempt) == ("finished", 1)


@pytest.mark.asyncio
async def test_pilots_in_a_reservation_that_the_operator_grants(site: BatchSite, cluster: SlurmCluster) -> None:
    """They start at once, though the cluster's own users wait for more nodes than the others are."""
    nodes = f"Nodes={cluster.name}[1-2]"
    cluster.run("scontrol", "create", "ReservationName=grid", "StartTime=now", "Duration=30", "Users=root", nodes)
    await site.kill()
    site.slurm = DeafSlurm(msgspec.structs.replace(site.plan.settings, options=("reservation=grid",)))
    await site.start()
    asked = ("sbatch", "--parsable", "-N2", "--exclusive", "-t", "20", "--wrap", "sleep 600")
    own = [cluster.run(*asked).strip() for _ in range(2)]
    job = await site.submit("true", nodes=2)
    record = await site.over(job)
    assert (record.outcome, record.starts) == ("finished", 1)
    assert cluster.run("squeue", "-h", "-j", own[1], "-o", "%T").strip() == "PENDING"
    await site.until(lambda: len(site.queue()) == len(own), "pilots that are given back")
    cluster.run("scancel", *own)
    cluster.run("scontrol", "delete", "ReservationName=grid")


@pytest_asyncio.fixture
async def clusters(
    cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> AsyncIterator[GridOfClusters]:
    """Return a grid under limited control of two real clusters, whose sites have pilots."""
    with running_cluster(tmp_path_factory.mktemp("slurm"), "second", NODES, "120") as second:
        # Nodes are kept for longer than the grid may take on a busy machine to ask again.
        rules = msgspec.structs.replace(RULES, idle_ms=30_000)
        async with GridOfClusters((cluster, second), tmp_path, BatchPolicy(pilots=rules)) as found:
            yield found


@pytest.mark.asyncio
async def test_one_job_starts_on_two_clusters(clusters: GridOfClusters, tmp_path: Path) -> None:
    """While an own user of one has nodes the others wait, and say what that costs; then all ranks begin at once."""
    sites = clusters.sites
    busy = sites[1].cluster
    own = busy.run("sbatch", "--parsable", "-N2", "--exclusive", "-t", "30", "--wrap", "sleep 600").strip()
    busy.wait(lambda: "R" in busy.run("squeue", "-h", "-j", own, "-o", "%t"), "the cluster's own user")
    job = await clusters.submit("sh", "-c", f"date +%s.%N > {tmp_path}/rank.$GRIDWEAVE_RANK", nodes=7)

    def said() -> str:
        forecast = clusters.driver.grid.forecast(clusters.driver.clock.now_ms(), job)
        return "" if forecast is None else "; ".join(row.reason for row in forecast.sites)

    there = "4 of the 4 nodes of the site are in service; 4 of them free, which has cost"
    others = "2 of the 4 nodes of the site are in service, 2 are requested"
    await sites[0].until(lambda: there in said() and others in said(), "pilots that wait for the last")
    busy.run("scancel", own)
    await sites[0].until(lambda: clusters.record(job).state in OVER, "the end of the job")
    record = clusters.record(job)
    assert (record.outcome, record.reason) == ("finished", "")
    assert sorted(nodes for _, nodes in record.places) == [3, 4]
    begun_s = [float((tmp_path / f"rank.{rank}").read_text()) for rank in range(7)]
    assert record.start_ms is not None
    assert 1000 * min(begun_s) >= record.start_ms, "no rank begins before the agreed start"
