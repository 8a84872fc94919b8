"""Pilots on a real Slurm cluster whose nodes jobs share: in time, by pauses, and by their hardware threads."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from batch_site import NODES, BatchSite
from gridweave.site.batch.policy import BatchPolicy, PilotRules
from gridweave.site.disciplines.entry import Policy
from gridweave.site.disciplines.gang.policy import GangPolicy
from gridweave.site.disciplines.sharing.policy import SharedNodes
from gridweave.site.job import Resources
from slurm_cluster import SlurmCluster, running_cluster

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Return a cluster of four nodes."""
    with running_cluster(tmp_path_factory.mktemp("slurm"), "shr", NODES, "120") as found:
        yield found


@asynccontextmanager
async def two_pilots(cluster: SlurmCluster, folder: Path, policy: Policy) -> AsyncIterator[BatchSite]:
    """Yield a site with this policy in pilots of two nodes each; in the end nothing of it is left in Slurm."""
    rules = PilotRules(policy=policy, length_ms=2_400_000, job_ms=300_000, idle_ms=2_000, size=2)
    site = BatchSite(cluster, folder, BatchPolicy(pilots=rules))
    await site.start()
    try:
        yield site
        site.driver.site.check_invariants()
        await site.until(lambda: not site.queue(), "pilots that are given back")
    finally:
        await site.kill()
        cluster.run("scancel", "--partition=main")


STAMPS = """
for _ in $(seq 40); do date +%s%3N >> "$0.$GRIDWEAVE_RANK"; sleep 0.05; done
"""


def spans_at_work(path: Path) -> list[tuple[int, int]]:
    """Return from when to when a rank has worked: it writes the time down some twenty times a second."""
    times = [int(line) for line in path.read_text().split()]
    spans = [(times[0], times[0])]
    for now_ms in times[1:]:
        begin_ms, end_ms = spans[-1]
        spans[-1:] = [(begin_ms, now_ms)] if now_ms - end_ms < 500 else [(begin_ms, end_ms), (now_ms, now_ms)]
    return spans


@pytest.mark.asyncio
async def test_jobs_of_two_pilots_take_turns(cluster: SlurmCluster, tmp_path: Path) -> None:
    """Two jobs have all nodes of two pilots in turn; one stands still on all of them while the other works."""
    async with two_pilots(cluster, tmp_path, GangPolicy(mpl=2, slice_ms=1_000)) as site:
        jobs = [await site.submit("sh", "-c", STAMPS, str(tmp_path / name), nodes=4, limit_ms=200_000) for name in "ab"]
        for job in jobs:
            assert (await site.over(job)).outcome == "finished"
    spans = {name: [spans_at_work(tmp_path / f"{name}.{rank}") for rank in range(4)] for name in "ab"}
    assert all(len(found) > 1 for ranks in spans.values() for found in ranks), "nobody has paused"
    (first, *_), (other, *_) = spans["a"][3], spans["b"][0]
    pause = spans["a"][0][0][1], spans["a"][0][1][0]
    assert abs(first[1] - pause[0]) < 500, "the nodes of the other pilot have paused at another instant"
    assert pause[0] - 300 < other[0] < pause[1], "the other job does not work in the pause"


@pytest.mark.asyncio
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two hardware threads")
async def test_jobs_of_one_pilot_share_its_nodes_by_threads(cluster: SlurmCluster, tmp_path: Path) -> None:
    """Two jobs that match run on the same nodes at one time, each on a hardware thread of its own."""
    text = 'grep Cpus_allowed_list /proc/self/status; while [ ! -e "$0" ]; do sleep 0.1; done'
    needs = Resources(cpu=0.9, disk=0.1, memory=0.4), Resources(cpu=0.1, disk=0.9, memory=0.4)
    async with two_pilots(cluster, tmp_path, SharedNodes()) as site:
        end = tmp_path / "end"
        jobs = [
            await site.submit("sh", "-c", text, str(end), nodes=4, limit_ms=200_000, resources=need, key=f"{need}")
            for need in needs
        ]
        for job in jobs:
            await site.until(site.running(job), "two jobs that run on the same nodes")
        assert len(site.queue()) == 2
        end.touch()
        records = [await site.over(job) for job in jobs]
        assert [record.outcome for record in records] == ["finished"] * 2
        assert records[0].machines == records[1].machines
        for rank in range(4):
            threads = [site.output(record, rank).split()[1] for record in records]
            assert len(set(threads)) == 2
            assert all(thread.isdecimal() for thread in threads), threads
