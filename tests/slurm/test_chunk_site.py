"""A live site on a real Slurm cluster whose jobs ask for cores, memory and GPUs instead of whole nodes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest

from gridweave.site.resources.chunks import Chunk
from support.slurm import BatchSite, SlurmCluster, running_cluster

pytestmark = pytest.mark.slow

GPU = "Gres=gpu:a100:4 Feature=ib"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Return a cluster of four nodes with 16 CPUs; the first two have four GPUs, which are /dev/null."""
    folder = tmp_path_factory.mktemp("slurm")
    devices = [folder / f"gpu{number}" for number in range(4)]
    for device in devices:
        os.mknod(device, 0o020666, os.makedev(1, 3))
    more = "SlurmdParameters=config_overrides\nGresTypes=gpu"
    gres = f"NodeName=two[1-2] Name=gpu Type=a100 File={folder}/gpu[0-3]\n"
    options = {"cpus": 16, "of_nodes": [GPU, GPU], "gres": gres, "memory_mb": 4000}
    with running_cluster(folder / "cluster", "two", 4, "120", more, **options) as found:
        conf = found.conf.read_text().replace("SelectTypeParameters=CR_CPU\n", "SelectTypeParameters=CR_CPU_Memory\n")
        assert conf
        yield found


def lines_of(site: BatchSite, job_id: int, ranks: int) -> list[str]:
    """Return what each rank of an ended job has printed."""
    record = site.record(job_id)
    assert (record.outcome, record.reason) == ("finished", "")
    return [site.output(record, rank).strip() for rank in range(ranks)]


@pytest.mark.asyncio
async def test_jobs_of_one_core_share_nodes(site: BatchSite, cluster: SlurmCluster) -> None:
    """Forty of them run side by side on four nodes with 16 CPUs; as whole nodes, four would."""
    go = site.folder / "go"
    script = f"while [ ! -e {go} ]; do sleep 0.2; done; echo $SLURMD_NODENAME"
    jobs = [await site.submit("sh", "-c", script, key=str(number), chunk=Chunk()) for number in range(40)]
    await site.until(lambda: all(site.running(job)() for job in jobs), "40 running jobs", within_s=240)
    used = cluster.run("squeue", "-h", "-t", "R", "-o", "%N").split()
    assert len(used) == 40
    site.driver.site.core.check_invariants()
    go.touch()
    for job in jobs:
        await site.over(job)
    assert Counter(lines_of(site, job, 1)[0] for job in jobs) == Counter(used)
    assert max(Counter(used).values()) > 1
    await site.until(lambda: not site.queue(), "nodes that are given back")
