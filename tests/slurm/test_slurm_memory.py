"""A real Slurm cluster that holds jobs to their memory by control groups: what is told of those that use more."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gridweave.slurm.cluster.commands import Slurm
from gridweave.slurm.cluster.settings import SlurmSettings
from gridweave.slurm.system import Allocation, AllocationRequest
from support.machine import PATIENCE_S
from support.slurm import BatchSite, DeafSlurm, SlurmCluster, running_cluster

pytestmark = pytest.mark.slow

GROUPS = Path("/sys/fs/cgroup")
MEMORY = """\
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
SelectTypeParameters=CR_CPU_Memory
"""
"""Of a setting that stands twice Slurm takes the second."""

TOO_MUCH = sys.executable, "-c", "bytearray(400 << 20)"


@contextlib.contextmanager
def cluster_of(folder: Path, name: str, more: str) -> Iterator[SlurmCluster]:
    """Yield a cluster of one node with 300 MB of memory."""
    if not all(os.access(GROUPS / each, os.W_OK) for each in ("memory", "freezer")):
        pytest.skip("Slurm cannot hold jobs to their memory: control groups of version 1 cannot be made here")
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nConstrainRAMSpace=yes\nAllowedSwapSpace=0\n")
    try:
        with running_cluster(folder, name, 1, more=more, memory_mb=300) as found:
            yield found
    finally:
        for path in sorted(GROUPS.glob(f"*/slurm_{name}1/**/"), reverse=True):
            with contextlib.suppress(OSError):
                path.rmdir()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Return a cluster that holds jobs to their memory by control groups."""
    with cluster_of(tmp_path_factory.mktemp("slurm"), "mem", MEMORY) as found:
        yield found


@pytest.mark.asyncio
async def test_a_job_that_uses_more_memory_than_slurm_gave_it(site: BatchSite) -> None:
    """It fails, says why, and is not run again; the next one has all of the node."""
    await site.kill()
    site.slurm = DeafSlurm(msgspec.structs.replace(site.plan.settings, options=("mem=200",)))
    await site.start()
    record = await site.over(await site.submit(*TOO_MUCH))
    assert (record.outcome, record.attempt) == ("failed", 1)
    assert "SIGKILL" in record.reason
    assert "out of memory: the jobs on this machine used all memory" in record.reason
    record = await site.over(await site.submit("true"))
    assert (record.outcome, record.reason) == ("finished", "")


AGENT_FIRST = """\
for process in /proc/[0-9]*; do
  tr '\\0' ' ' < $process/cmdline 2>/dev/null | grep -q "service.[n]ode {folder}" && echo 1000 > $process/oom_score_adj
done
exec {python} -c 'bytearray(400 << 20)'
"""
"""The kernel is to choose the agent of this site before its ranks."""


@pytest.mark.asyncio
async def test_a_job_whose_node_is_killed_for_its_memory(site: BatchSite) -> None:
    """The kernel takes what watches the ranks first: all of the allocation ends, and the job is not run forever."""
    await site.kill()
    site.slurm = DeafSlurm(msgspec.structs.replace(site.plan.settings, options=("mem=200",)))
    await site.start()
    script = AGENT_FIRST.format(folder=site.folder, python=sys.executable)
    record = await site.over(await site.submit("sh", "-c", script))
    assert (record.outcome, record.attempt) == ("failed", 1)
    # What supervises the rank may live long enough to tell of it.
    assert re.search("used more memory than Slurm gave it|out of memory", record.reason), record.reason


@pytest.mark.asyncio
async def test_what_slurm_calls_out_of_memory(cluster: SlurmCluster) -> None:
    """An allocation whose own script used too much ends for want of memory, and is told so."""
    slurm = Slurm(SlurmSettings(partition="main", conf=str(cluster.conf), options=("mem=200",)))
    script = f"#!/bin/sh\n{sys.executable} -c 'bytearray(400 << 20)'\n"
    await slurm.submit(AllocationRequest(name="gw-mem-1", nodes=1, length_ms=60_000, script=script, folder="/tmp"))
    found: list[Allocation] = []
    async with asyncio.timeout(PATIENCE_S):
        while not found or found[0].state != "ended":
            await asyncio.sleep(0.2)
            found = list((await slurm.view("gw-mem-")).allocations)
    assert found[0].end == "memory"
    assert found[0].reason == "it used more memory than Slurm gave it (OUT_OF_MEMORY)"
