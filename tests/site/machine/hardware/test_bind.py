"""Which cores and GPUs of a machine the nodes of a site get."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gridweave.site.machine.hardware.bind import bind, share_of
from gridweave.site.machine.hardware.find import Gpu, Hardware
from gridweave.site.resources.chunks import NodeKind

GPUS = tuple(Gpu(number=number, type="a100") for number in (0, 1, 3))
MACHINE = Hardware(cores=4, memory_mb=8000, gpus=GPUS, threads=((0, 4), (1, 5), (2, 6), (3, 7)))
HALF = NodeKind(name="half", count=2, cores=2, memory_mb=4000, gpus=1, gpu_type="a100")


def test_each_node_has_consecutive_cores_and_gpus_of_its_machine() -> None:
    binding = bind(MACHINE, [HALF, HALF])
    assert binding.cores == (((0, 4), (1, 5)), ((2, 6), (3, 7)))
    assert binding.gpus == ((0,), (1,))
    assert binding.notes == ()


def test_machines_of_several_sites_on_one_host_get_different_cores() -> None:
    one = NodeKind(name="one", count=1, cores=1, gpus=2)
    assert bind(MACHINE, [one], share_of([one], after=[HALF])).cores == (((0, 4),),)
    binding = bind(MACHINE, [HALF], share_of([HALF], before=[one]))
    assert (binding.cores, binding.gpus) == ((((1, 5), (2, 6)),), ((3,),))


def test_nodes_that_are_larger_than_their_machine_are_only_numbered() -> None:
    big = NodeKind(name="big", count=1, cores=64, memory_mb=10_000, gpus=8)
    binding = bind(MACHINE, [big, big])
    assert binding.cores == ()
    assert binding.gpus == (tuple(range(8)), tuple(range(8, 16)))
    assert binding.notes == (
        "jobs are not bound to cores: the nodes on this machine have 128 cores together, and the machine has 4",
        "GPUs are only numbered: the nodes on this machine have 16 GPUs together, and the machine has 3",
        (
            "jobs may run out of memory: the nodes on this machine have 20,000 MB of memory together, "
            "and the machine has 8,000"
        ),
    )


def test_gpus_of_another_type_are_one_line() -> None:
    other = NodeKind(name="v", count=1, cores=1, gpus=2, gpu_type="v100")
    assert bind(MACHINE, [other]).notes == ("kind 'v' has GPUs v100:2, but this machine has a100:2 there",)


def test_why_gpus_are_missing_is_said() -> None:
    broken = Hardware(cores=4, memory_mb=8000, threads=MACHINE.threads, problem="nvidia-smi failed")
    assert bind(broken, [HALF]).notes[-1] == "nvidia-smi failed"
    assert bind(broken, [NodeKind(name="cpu", count=1)]).notes == ()


def test_only_processor_time_is_limited() -> None:
    """A container with a share of the host's processor time binds no job to the first cores of the host."""
    binding = bind(Hardware(cores=4, memory_mb=8000, gpus=GPUS), [HALF])
    assert binding.cores == ()
    assert "limits the processor time" in binding.notes[0]


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=4), st.integers(0, 3))
def test_no_two_nodes_of_a_host_share_a_core_or_a_gpu(sizes: list[tuple[int, int]], split: int) -> None:
    """That also holds for the numbers of GPUs that the machine does not have."""
    nodes = [NodeKind(name="x", count=1, cores=cores, gpus=gpus) for cores, gpus in sizes]
    mine, others = nodes[:split], nodes[split:]
    bindings = [bind(MACHINE, mine, share_of(mine, after=others)), bind(MACHINE, others, share_of(others, before=mine))]
    cores = [core for binding in bindings for node in binding.cores for core in node]
    gpus = [gpu for binding in bindings for node in binding.gpus for gpu in node]
    assert len(cores) == len(set(cores))
    assert len(gpus) == len(set(gpus)) == sum(node.gpus for node in nodes)
    if sum(node.cores for node in nodes) <= 4:
        assert len(cores) == sum(node.cores for node in nodes)
