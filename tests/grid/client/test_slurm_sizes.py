"""The sizes in `#SBATCH` lines, as chunks that are all alike."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave.errors import OptionError, ProblemsError
from gridweave.grid.client.chunk_options import requested_chunk
from gridweave.grid.client.slurm_sizes import in_chunks, in_whole_nodes

GIB = 1 << 30
NOT_A_RESOURCE = "is not a resource; expected a name and a number such as fpga:2"


def chunks(**options: Any) -> dict[str, Any]:
    found: dict[str, Any] = {**in_chunks(options)}  # type: ignore[typeddict-item]
    del found["slurm_variables"]
    return found


def problems(**options: Any) -> dict[str, str]:
    with pytest.raises(ProblemsError) as refused:
        in_chunks(options)  # type: ignore[arg-type]
    errors = [error for error in refused.value.problems if isinstance(error, OptionError)]
    assert len(errors) == len(refused.value.problems)
    return {error.option: error.problem for error in errors}


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"slurm_nodes": 2}, {"nodes": 2}),
        ({"slurm_nodes": 2, "exclusive": True}, {"nodes": 2, "exclusive": True}),
        ({"tasks": 8}, {"nodes": 8, "cores": 1}),
        ({"cpus_per_task": 8}, {"nodes": 1, "cores": 8}),
        ({"slurm_nodes": 2, "cpus_per_task": 8}, {"nodes": 2, "cores": 8, "per_node": 1}),
        ({"slurm_nodes": 2, "tasks_per_node": 4}, {"nodes": 8, "cores": 1, "per_node": 4}),
        ({"tasks": 8, "tasks_per_node": 4}, {"nodes": 8, "cores": 1, "per_node": 4}),
        ({"tasks": 2, "tasks_per_node": 4}, {"nodes": 2, "cores": 1, "per_node": 2}),
        ({"slurm_nodes": 2, "tasks": 8}, {"nodes": 8, "cores": 1, "per_node": 4}),
        ({"slurm_nodes": 4, "tasks": 2}, {"nodes": 2, "cores": 1, "per_node": 1}),
        # Tasks that differ in number by node cannot be chunks; the job gets the nodes.
        ({"slurm_nodes": 2, "tasks": 7}, {"nodes": 2}),
        ({"tasks": 1, "slurm_memory": "8G"}, {"nodes": 1, "cores": 1, "memory": "8590MB", "per_node": 1}),
        ({"slurm_memory": "4096"}, {"nodes": 1, "cores": 1, "memory": "4295MB", "per_node": 1}),
        (
            {"tasks": 4, "cpus_per_task": 2, "slurm_memory_per_cpu": "500M"},
            {"nodes": 4, "cores": 2, "memory": "1049MB"},
        ),
        ({"slurm_memory": "0", "exclusive": True}, {"nodes": 1, "cores": 1, "exclusive": True}),
        ({"tasks": 4, "slurm_gpus": "a100:8"}, {"nodes": 4, "cores": 1, "gpus": "a100:2"}),
        ({"slurm_nodes": 2, "tasks": 8, "slurm_gpus": "2"}, {"nodes": 2, "cores": 4, "gpus": "1", "per_node": 1}),
        ({"slurm_nodes": 2, "slurm_gpus_per_node": "4"}, {"nodes": 2, "cores": 1, "gpus": "4", "per_node": 1}),
        (
            {"slurm_nodes": 2, "tasks": 8, "slurm_gres": "gpu:4,fpga:8"},
            {"nodes": 8, "cores": 1, "gpus": "1", "gres": {"fpga": 2}, "per_node": 4},
        ),
        ({"slurm_gres": "gpu"}, {"nodes": 1, "cores": 1, "gpus": "1", "per_node": 1}),
        ({"slurm_gres": "gpu:a100"}, {"nodes": 1, "cores": 1, "gpus": "a100:1", "per_node": 1}),
        ({"slurm_gres": "none"}, {"nodes": 1, "cores": 1}),
        # 16 tasks share 4 GPUs: the chunk is what the job gets on the node.
        (
            {"slurm_nodes": 1, "tasks": 16, "slurm_gres": "gpu:4", "slurm_memory": "64G"},
            {"nodes": 1, "cores": 16, "gpus": "4", "memory": "68720MB", "per_node": 1},
        ),
    ],
)
def test_sizes_map_to_chunks(options: dict[str, Any], found: dict[str, Any]) -> None:
    assert chunks(**options) == found


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"slurm_nodes": 2, "tasks": 7, "cpus_per_task": 2}, {"tasks": "7 tasks do not divide evenly among 2 nodes"}),
        ({"tasks": 7, "tasks_per_node": 2}, {"tasks_per_node": "is 2; expected a divisor of 7 tasks"}),
        (
            {"slurm_nodes": 2, "tasks": 8, "tasks_per_node": 2},
            {"tasks_per_node": "is 2; expected at least 4 for 8 tasks on 2 nodes"},
        ),
        (
            {"tasks": 8, "slurm_memory": "8G", "slurm_gres": "fpga:1"},
            dict.fromkeys(
                ("slurm_memory", "slurm_gres"),
                "is per node, and the number of tasks per node is open; give --nodes or --ntasks-per-node, too",
            ),
        ),
        (
            {"slurm_memory": "8G", "slurm_memory_per_cpu": "1G"},
            {"slurm_memory": "is given together with --mem-per-cpu; leave one of them out"},
        ),
        ({"tasks": 8, "slurm_gpus": "3"}, {"slurm_gpus": "3 GPUs do not divide evenly among the 8 tasks of the job"}),
        ({"slurm_gres": "fpga:intel:2"}, {"slurm_gres": f"'fpga:intel:2' {NOT_A_RESOURCE}"}),
    ],
)  # fmt: skip
def test_sizes_without_equal_chunks_are_refused(options: dict[str, Any], found: dict[str, str]) -> None:
    assert problems(**options) == found


@pytest.mark.parametrize("text", ["0", "-1G", "8X", "", "1.5G", "8 G"])
def test_memory_must_be_a_size_as_in_slurm(text: str) -> None:
    assert problems(slurm_memory_per_cpu=text)["slurm_memory_per_cpu"].startswith(f"{text!r} is not a size of memory")


@given(
    nodes=st.integers(1, 4),
    per_node=st.integers(1, 6),
    cores=st.integers(1, 4),
    memory_gib=st.integers(0, 7),
    gpus=st.integers(0, 6),
)
def test_chunks_ask_for_exactly_what_slurm_would_give(
    nodes: int, per_node: int, cores: int, memory_gib: int, gpus: int
) -> None:
    """On each node, the chunks add up to the tasks' cores, and to the memory and GPUs per node."""
    options: dict[str, Any] = {"slurm_nodes": nodes, "tasks": nodes * per_node, "cpus_per_task": cores}
    options |= {"slurm_memory": f"{memory_gib}G"} if memory_gib else {}
    options |= {"slurm_gpus_per_node": str(gpus)} if gpus else {}
    found = chunks(**options)
    chunk = requested_chunk(found)  # type: ignore[arg-type]
    assert chunk
    assert found["nodes"] == nodes * chunk.per_node
    assert chunk.per_node * chunk.cores == per_node * cores
    assert chunk.per_node * chunk.gpus == gpus
    assert chunk.per_node * chunk.memory_mb == -(-memory_gib * GIB // 10**6)


def test_a_grid_of_whole_nodes_gets_nodes_and_options_of_its_batch_systems() -> None:
    options: Any = {"tasks": 8, "slurm_memory": "8G", "constraint": "a|b", "batch_options": ("nice=7",)}
    found: dict[str, Any] = {**in_whole_nodes(options, None)}
    assert (found["nodes"], found["batch_options"]) == (8, ("constraint=a|b", "mem=8G", "nice=7"))
    ignored: list[str] = []
    options = {"slurm_nodes": 2, "tasks": 8, "cpus_per_task": 2, "slurm_memory": "8G"}
    found = {**in_whole_nodes(options, ignored)}
    assert (found["nodes"], "batch_options" in found, ignored) == (2, False, ["cpus_per_task", "slurm_memory"])
    with pytest.raises(ProblemsError, match="cpus_per_task: asks for parts of nodes"):
        in_whole_nodes(options, None)
