"""A live site on a real Slurm cluster whose jobs ask for cores, memory and GPUs instead of whole nodes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest

from gridweave.site.job import Declined, JobRequest, Program
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
    more = "SlurmdParameters=config_overrides\nGresTypes=gpu\nSelectTypeParameters=CR_CPU_Memory\nDefMemPerCPU=100"
    gres = f"NodeName=two[1-2] Name=gpu Type=a100 File={folder}/gpu[0-3]\n"
    options = {"cpus": 16, "of_nodes": [GPU, GPU], "gres": gres, "memory_mb": 4000}
    with running_cluster(folder / "cluster", "two", 4, "120", more, **options) as found:
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
    await site.until(lambda: all(site.running(job)() for job in jobs), "40 running jobs", within_s=120)
    used = cluster.run("squeue", "-h", "-t", "R", "-o", "%N").split()
    assert len(used) == 40
    site.driver.site.core.check_invariants()
    go.touch()
    for job in jobs:
        await site.over(job)
    assert Counter(lines_of(site, job, 1)[0] for job in jobs) == Counter(used)
    assert max(Counter(used).values()) > 1
    await site.until(lambda: not site.queue(), "nodes that are given back")


WHERE = 'echo "$SLURMD_NODENAME $SLURM_PROCID $SLURM_LOCALID $GRIDWEAVE_RANK $SLURM_NTASKS $SLURM_CPUS_PER_TASK"'


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("width", "chunk", "per_node"),
    [
        (3, Chunk(cores=2), [3]),
        (7, Chunk(cores=5), [1, 3, 3]),
        (40, Chunk(), [8, 16, 16]),
        (4, Chunk(cores=2, per_node=2), [2, 2]),
    ],
)
async def test_each_chunk_has_a_rank_where_slurm_has_put_it(
    site: BatchSite, width: int, chunk: Chunk, per_node: list[int]
) -> None:
    """Ranks are numbered node by node, as Slurm numbers its tasks."""
    job = await site.submit("sh", "-c", WHERE, nodes=width, chunk=chunk)
    await site.over(job)
    ranks = [line.split() for line in lines_of(site, job, width)]
    nodes = [node for node, *_ in ranks]
    assert nodes == sorted(nodes)
    assert sorted(Counter(nodes).values()) == per_node
    assert [int(number) for _, number, *_ in ranks] == list(range(width))
    locals_ = {node: [int(local) for where, _, local, *_ in ranks if where == node] for node in nodes}
    assert all(numbers == list(range(len(numbers))) for numbers in locals_.values())
    assert {tuple(line[4:]) for line in ranks} == {(str(width), str(chunk.cores))}


@pytest.mark.asyncio
async def test_each_rank_sees_the_gpus_of_its_chunk(site: BatchSite) -> None:
    """Five chunks with a GPU fill one node and a part of another; a batch script sees all GPUs of its first node."""
    chunk = Chunk(cores=2, gpus=1, gpu_type="a100", labels=("ib",))
    script = 'echo "$SLURMD_NODENAME:$CUDA_VISIBLE_DEVICES"'
    each = await site.submit("sh", "-c", script, nodes=5, chunk=chunk)
    await site.over(each)
    seen = lines_of(site, each, 5)
    assert len(set(seen)) == 5
    assert all(len(line.partition(":")[2]) == 1 for line in seen)
    assert {line.partition(":")[0] for line in seen} == {"two1", "two2"}
    batch = await site.submit("sh", "-c", script, nodes=2, chunk=Chunk(gpus=2), ranks="first-node")
    await site.over(batch)
    (line,) = lines_of(site, batch, 1)
    assert len(line.split(",")) == 4


@pytest.mark.asyncio
async def test_whole_nodes_and_chunks_beside_each_other(site: BatchSite, cluster: SlurmCluster) -> None:
    """A job without a chunk has its node to itself; a chunk that is exclusive, too, and another gets its memory."""
    script = f"while [ ! -e {site.folder / 'go'} ]; do sleep 0.2; done"
    small = Chunk(cores=2, memory_mb=1000)
    asked = [{}, {"chunk": Chunk(cores=2, exclusive=True)}, {"chunk": small}, {"chunk": small}]
    jobs = [
        await site.submit("sh", "-c", script, key=str(number), **options)  # type: ignore[arg-type]
        for number, options in enumerate(asked)
    ]
    await site.until(lambda: all(site.running(job)() for job in jobs), "four running jobs")
    shown = cluster.run("squeue", "-h", "-t", "R", "-o", "%j|%N|%C|%m|%h").split()
    name = site.shared.prefix
    by_job = {int(fields[0].removeprefix(name).partition("-")[0]): fields[1:] for fields in map(_fields, shown)}
    nodes = [by_job[job][0] for job in jobs]
    assert len(set(nodes)) == 3
    assert nodes[2] == nodes[3]
    assert [by_job[job][1] for job in jobs] == ["16", "16", "2", "2"]
    assert by_job[jobs[2]][2] == "477M"  # for each CPU: half of 1000 MB, in MiB, rounded up
    (site.folder / "go").touch()
    for job in jobs:
        assert (await site.over(job)).outcome == "finished"


def _fields(line: str) -> list[str]:
    return line.split("|")


@pytest.mark.asyncio
async def test_a_chunk_that_fits_no_node_is_refused_at_once(site: BatchSite) -> None:
    """With the resource, and the largest node that there is."""
    await site.until(lambda: bool(site.driver.site.core.site.source.discipline._kinds), "the nodes of the cluster")
    refused = {
        Chunk(cores=32): "a chunk needs 32 cores and the largest node that suits has 16",
        Chunk(gpus=5): "a chunk needs 5 GPUs and the largest node that suits has 4",
        Chunk(memory_mb=9000): "a chunk needs 9 GB of memory and the largest node that suits has 4.194 GB",
        Chunk(labels=("fast",)): "no node has the label 'fast'; one of ib",
        Chunk(gpus=1, gpu_type="h100"): "no node has GPUs of type 'h100'; one of a100",
        Chunk(cores=16, per_node=2): "2 chunks on one node need 32 cores and the largest node that suits has 16",
    }
    for number, (chunk, reason) in enumerate(refused.items()):
        program = Program(argv=("true",))
        request = JobRequest(program=program, nodes=2, limit_ms=60_000, user="anna", chunk=chunk)
        (answer,) = await site.driver.submit([(f"refused {number}", request)])
        assert answer == Declined(f"refused {number}", reason)
    assert not site.queue()


@pytest.mark.asyncio
async def test_jobs_with_chunks_outlive_their_site(site: BatchSite) -> None:
    """Killed while two jobs share a node, the site finds both again; each has run once."""
    counted, go = site.folder / "runs", site.folder / "go"
    script = f"echo $GRIDWEAVE_JOB_ID >> {counted}; while [ ! -e {go} ]; do sleep 0.2; done"
    jobs = [await site.submit("sh", "-c", script, nodes=3, key=str(number), chunk=Chunk(cores=2)) for number in (1, 2)]
    await site.until(lambda: all(site.running(job)() for job in jobs), "running jobs")
    await site.kill()
    await site.start()
    go.touch()
    for job in jobs:
        assert (await site.over(job)).outcome == "finished"
    assert Counter(map(int, counted.read_text().split())) == dict.fromkeys(jobs, 3)
    await site.until(lambda: not site.queue(), "nodes that are given back")
