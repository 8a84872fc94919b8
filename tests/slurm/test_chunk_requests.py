"""What Slurm is asked for when jobs ask for chunks, and what it reports about its nodes. No cluster."""

from __future__ import annotations

import msgspec
import pytest

from gridweave.errors import InputError, UnavailableError
from gridweave.site.resources.chunks import Chunk, NodeKind
from gridweave.site.resources.groups import NodeGroup
from gridweave.slurm.cluster.answers import NodesAnswer, details_of
from gridweave.slurm.cluster.nodes import UNKNOWN_MS, read_gres, read_nodes
from gridweave.slurm.cluster.parse import Partition, read_squeue, view_of
from gridweave.slurm.cluster.settings import SlurmSettings
from gridweave.slurm.cluster.size import sbatch_options, size_of
from gridweave.slurm.cluster.submit import job_of
from gridweave.slurm.system import AllocationRequest


def asked(chunk: Chunk | None, width: int = 3, nodes: int = 8) -> AllocationRequest:
    """Return a request for chunks on at most eight nodes."""
    return AllocationRequest(name="gw-1", nodes=nodes, length_ms=60_000, script="x", chunk=chunk, width=width)


@pytest.mark.parametrize(
    ("chunk", "options"),
    [
        (None, "--nodes=8 --exclusive"),
        (Chunk(cores=0, exclusive=True, labels=("ib",)), "--nodes=8 --exclusive --constraint=ib"),
        (Chunk(), "--ntasks=3 --cpus-per-task=1"),
        (Chunk(cores=4, memory_mb=8000), "--ntasks=3 --cpus-per-task=4 --mem-per-cpu=1908M"),
        (Chunk(cores=3, memory_mb=1), "--ntasks=3 --cpus-per-task=3 --mem-per-cpu=1M"),
        (Chunk(gpus=2, gpu_type="a100"), "--ntasks=3 --cpus-per-task=1 --gpus-per-task=a100:2"),
        (Chunk(gpus=1, labels=("ib", "milan")), "--ntasks=3 --cpus-per-task=1 --gpus-per-task=1 --constraint=ib&milan"),
        (Chunk(per_node=3), "--nodes=1 --ntasks=3 --cpus-per-task=1 --ntasks-per-node=3"),
        (Chunk(exclusive=True), "--exclusive --ntasks=3 --cpus-per-task=1"),
        (
            Chunk(others=(("fpga", 2),), per_node=3),
            "--nodes=1 --ntasks=3 --cpus-per-task=1 --ntasks-per-node=3 --gres=fpga:6",
        ),
        # The number of chunks on a node is open, and Slurm counts per node: each chunk gets its own node.
        (
            Chunk(others=(("fpga", 2),)),
            "--nodes=3 --ntasks=3 --cpus-per-task=1 --ntasks-per-node=1 --gres=fpga:2",
        ),
    ],
)
def test_a_chunk_is_a_task(chunk: Chunk | None, options: str) -> None:
    assert sbatch_options(size_of(asked(chunk)), ()) == options.split()


def test_more_chunks_than_nodes_get_as_few_nodes_as_possible() -> None:
    options = sbatch_options(size_of(asked(Chunk(), width=40, nodes=4)), ())
    assert options[:2] == ["--nodes=1-4", "--use-min-nodes"]


def test_a_cluster_that_counts_gpus_per_node() -> None:
    """Without ``cons_tres``, Slurm does not accept GPUs per task."""
    size = size_of(asked(Chunk(gpus=2, gpu_type="a100", per_node=3)), gpus_per_task=False)
    assert sbatch_options(size, ())[-1] == "--gres=gpu:a100:6"
    with pytest.raises(InputError, match=r"Slurm counts gpu per node, and the job has 9 chunks .* --per-node"):
        size_of(asked(Chunk(gpus=2), width=9), gpus_per_task=False)


def test_further_options_stay_in_force() -> None:
    """Features and generic resources of both are asked for; memory is that of the chunk."""
    chunk = Chunk(memory_mb=1, others=(("fpga", 1),), labels=("ib",), per_node=1)
    options = sbatch_options(size_of(asked(chunk)), ("constraint=a|b", "gres=disk:10", "mem=4G", "nice=5", "qos=x"))
    assert options[-4:] == ["--nice=5", "--qos=x", "--constraint=(a|b)&ib", "--gres=disk:10,fpga:1"]
    assert sbatch_options(size_of(asked(Chunk())), ("mem=4G",))[-1] == "--mem=4G"


def test_chunks_over_slurmrestd() -> None:
    """Plain values up to v0.0.38; later versions name GPUs as trackable resources."""
    settings = SlurmSettings(partition="main", submit="rest", rest="unix:/x", tokens="/t", options=("constraint=fast",))
    chunk = Chunk(cores=2, memory_mb=2000, gpus=1, gpu_type="a100", labels=("ib",))
    request = asked(chunk, width=9)
    old, new, first = (
        job_of(request, settings, version, {}, size_of(request))["job"] for version in ("v0.0.38", "v0.0.41", "v0.0.39")
    )
    same = {"tasks": 9, "cpus_per_task": 2, "constraints": "fast&ib"}
    assert same.items() <= old.items()
    assert same.items() <= new.items()
    assert old["nodes"] == [1, 8]
    assert (old["minimum_nodes"], old["memory_per_cpu"], old["gpus_per_task"]) == (True, 954, "a100:1")
    assert (new["minimum_nodes"], new["maximum_nodes"], new["flags"]) == (1, 8, ["USE_MIN_NODES"])
    assert new["memory_per_cpu"] == {"set": True, "infinite": False, "number": 954}
    assert (new["tres_per_task"], first["tres_per_task"]) == ("gres/gpu:a100:1", "gres:gpu:a100:1")
    assert not {"shared", "exclusive"} & {*old, *new}


# Recorded from 22.05.8; on g1 runs a job of three CPUs, 600 MiB and two GPUs, and c2 is drained.
SINFO = """\
c1|idle|0/16/0/16|4000|0|(null)|gpu:0,fpga:0|fast,milan|
c2|drained|0/0/16/16|4000|0|(null)|gpu:0,fpga:0|fast|
g1|mixed|3/5/0/8|8000|600|gpu:a100:4,fpga:2|gpu:a100:2(IDX:0-1),fpga:1|(null)|
g2|idle|0/8/0/8|8000|0|gpu:a100:4,fpga:2|gpu:a100:0(IDX:N/A),fpga:0|(null)|
"""
SQUEUE = "|main|g1|7|RUNNING|1795524110|1795524170|1|root|None|gw-x-1-1\n"

GPU = NodeKind(name="", count=2, cores=8, memory_mb=8388, gpus=4, gpu_type="a100", others=(("fpga", 2),))


def test_what_is_free_on_each_node() -> None:
    """A node that is drained has a kind, because it may come back, but nothing is free on it."""
    seen = Partition(nodes=3, idle=2, longest_ms=None, details=read_nodes(SINFO))
    view = view_of(seen, read_squeue(SQUEUE)[0], "main", "gw-x-")
    assert view.kinds[0] == GPU
    assert [(kind.cores, kind.count, kind.labels) for kind in view.kinds[1:]] == [
        (16, 1, ("fast",)),
        (16, 1, ("fast", "milan")),
    ]
    used = (8 - 3, 8388 - 630, 2, 1)
    assert view.groups == (
        NodeGroup(2, 1, (16, 4194, 0, 0), 0),
        NodeGroup(0, 1, used, 1795524170000),
        NodeGroup(0, 1, (8, 8388, 4, 2), 0),
    )
    unknown = view_of(seen, [], "main", "gw-x-")
    assert unknown.groups[1].idle_from_ms == UNKNOWN_MS


def test_slurmrestd_reports_the_same_nodes() -> None:
    """Versions differ in whether features are a text or a list, and numbers plain or objects."""
    plain = {
        "name": "g1", "state": "mixed", "partitions": ["main"], "cpus": 8, "alloc_cpus": 3, "real_memory": 8000,
        "alloc_memory": 600, "gres": "gpu:a100:4,fpga:2", "gres_used": "gpu:a100:2(IDX:0-1),fpga:1", "features": "",
    }  # fmt: skip
    number = {"set": True, "infinite": False, "number": 8}
    later = plain | {"state": ["MIXED"], "cpus": number, "features": []}
    other = {"name": "x", "state": "idle", "partitions": ["other"]}
    (printed,) = [node for node in read_nodes(SINFO) if node.name == "g1"]
    for node in (plain, later):
        (seen,) = details_of(msgspec.convert({"nodes": [node, other]}, NodesAnswer).nodes, "main")
        assert (seen.kind, seen.used_cpus) == (printed.kind, 3)
        assert seen.free(GPU, ("cores", "memory_mb", "gpus", "fpga")) == (5, 7758, 2, 1)


def test_of_several_types_of_gpu_the_most_frequent_counts() -> None:
    (node,) = read_nodes("g|idle|0/8/0/8|1000|0|gpu:v100:1,gpu:a100:2|gpu:v100:1,gpu:a100:1||\n")
    assert (node.kind.gpus, node.kind.gpu_type) == (2, "a100")
    assert node.free(node.kind, ("cores", "memory_mb", "gpus"))[2] == 1
    assert read_gres("gpu:2(S:0-1),shard:no_consume:8") == {("gpu", ""): 2}


@pytest.mark.parametrize("line", ["c1|idle|0/16/0|4000|0|||", "c1|idle|0/16/0/16|x|0||||", "c1"])
def test_a_line_that_cannot_be_parsed_is_an_error(line: str) -> None:
    with pytest.raises(UnavailableError, match="a line of sinfo cannot be parsed: 'c1"):
        read_nodes(line)
