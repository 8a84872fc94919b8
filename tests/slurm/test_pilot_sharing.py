"""Pilots on a real Slurm cluster whose nodes jobs share: in time, by pauses, and by their hardware threads."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gridweave.site.disciplines.entry import Policy
from gridweave.site.disciplines.gang.policy import GangPolicy
from gridweave.site.disciplines.sharing.policy import SharedNodes
from gridweave.site.job import Resources
from gridweave.slurm.policy import BatchPolicy, PilotRules
from support.machine import one_works_while_the_other_is_paused, read_turns
from support.slurm import NODES, BatchSite, SlurmCluster, running_cluster

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


# A rank ends when all ranks of both jobs have gone on after a pause, however slow the machine is.
TAKES_TURNS = """
while [ $(ls "$0" | wc -l) -lt 8 ]; do
    grep -q ' 0$' "$GRIDWEAVE_RATE" && touch "$0/$1.$GRIDWEAVE_RANK"
    sleep 0.05
done
cp "$GRIDWEAVE_RATE" "$0.$1.$GRIDWEAVE_RANK"
"""


@pytest.mark.asyncio
async def test_jobs_of_two_pilots_take_turns(cluster: SlurmCluster, tmp_path: Path) -> None:
    """Two jobs have all nodes of two pilots in turn; one is paused on all of them while the other works."""
    turned = tmp_path / "turned"
    turned.mkdir()
    async with two_pilots(cluster, tmp_path, GangPolicy(mpl=2, slice_ms=3_000)) as site:
        jobs = [
            await site.submit("sh", "-c", TAKES_TURNS, str(turned), name, nodes=4, limit_ms=200_000) for name in "ab"
        ]
        for job in jobs:
            assert (await site.over(job)).outcome == "finished"
    turns = {name: [read_turns(tmp_path / f"turned.{name}.{rank}") for rank in range(4)] for name in "ab"}
    for one, other in itertools.product(turns["a"], turns["b"]):
        assert one_works_while_the_other_is_paused(one, other)
    for ranks in turns.values():
        first = [rank.pauses[0] for rank in ranks]
        assert max(begin for begin, _ in first) < min(end for _, end in first), "a pilot has paused on its own"


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
