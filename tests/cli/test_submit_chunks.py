"""`gridweave submit` and `quote` for parts of nodes: options of their own, and lines of scripts."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from gridweave.site.resources.chunks import Chunk, NodeKind
from support.commands import handed_in, script
from support.gateway import Elsewhere

Shell = Callable[..., tuple[int, str, str]]

KINDS = (NodeKind(name="gpu", count=4, cores=16, memory_mb=64_000, gpus=4, gpu_type="a100", labels=("ib",)),)


@pytest.fixture
def counting(here: Elsewhere) -> Elsewhere:
    """Return a grid of which one site counts cores, memory and GPUs."""
    here.grid.kinds["north"] = KINDS
    return here


def test_options_describe_a_chunk(here: Elsewhere, shell: Shell) -> None:
    options = ["--cores", 4, "--memory", "8GB", "--gpus", "a100:1", "--gres", "fpga:2", "--label", "ib"]
    status, out, err = shell("submit", "-n", 8, *options, "--label", "big", "--per-node", 2, "--", "true")
    assert (status, out) == (0, "1\n")
    chunk = Chunk(
        cores=4, memory_mb=8000, gpus=1, gpu_type="a100", others=(("fpga", 2),), labels=("big", "ib"), per_node=2
    )
    (request,) = handed_in(here)
    assert (request.nodes, request.chunk) == (8, chunk)
    assert "submitted: 8 chunks of 4 cores, 8 GB, 1 a100 GPU, 2 fpga with big and ib, 2 per node for at most" in err


def test_a_chunk_has_a_core_if_it_asks_for_something_else(here: Elsewhere, shell: Shell) -> None:
    shell("submit", "--gpus", 1, "--", "true")
    shell("submit", "--memory", "1GiB", "--exclusive", "--", "true")
    shell("submit", "--label", "ib", "--", "true")
    shell("submit", "-n", 3, "--exclusive", "--", "true")
    assert [request.chunk for request in handed_in(here)] == [
        Chunk(gpus=1),
        Chunk(memory_mb=1074, exclusive=True),
        Chunk(cores=0, exclusive=True, labels=("ib",)),
        msgspec.UNSET,
    ]


def test_lines_of_gridweave_and_the_command_line_add_up(here: Elsewhere, shell: Shell) -> None:
    text = "#!/bin/sh\n#GRIDWEAVE -n 4 --cores 2 --label ib --gres fpga:1\n"
    shell("submit", "--cores", 3, "--label", "ssd", script(text))
    (request,) = handed_in(here)
    assert request.nodes == 4
    assert request.chunk == Chunk(cores=3, others=(("fpga", 1),), labels=("ib", "ssd"))


def test_the_jobs_of_an_array_ask_for_the_same(here: Elsewhere, shell: Shell) -> None:
    shell("submit", "--array", "1-3", "--cores", 2, "--gpus", 1, "--", "true")
    assert [request.chunk for request in handed_in(here)] == [Chunk(cores=2, gpus=1)] * 3


@pytest.mark.parametrize(
    ("options", "problems"),
    [
        (["--gpus", "-1"], ["--gpus: '-1' is not a number of GPUs; expected a whole number such as 4"]),
        (["--gpus", "0.5"], ["--gpus: '0.5' is not a number of GPUs"]),
        (["--memory", "-8GB"], ["--memory: '-8GB' is not an amount of data"]),
        (["--memory", "8"], ["--memory: '8' has no unit; write for example 8MB"]),
        (["--memory", "2000PB"], ["--memory: '2000PB' is too much"]),
        (["--gres", "gpu:1"], ["--gres: 'gpu' has an option of its own"]),
        (["-n", "7", "--per-node", "2"], ["--per-node: is 2; expected a divisor of 7, the width"]),
        (["--label", "a b"], ["--label: 'a b' is not a name"]),
        (["--cores", "2", "--form", "width=1"], ["--cores is given together with forms"]),
        (
            ["-n", "7", "--per-node", "2", "--label", "a b", "--cores", "2000000000"],
            ["--cores: is 2000000000", "--label: 'a b' is not a name", "--per-node: is 2; expected a divisor of 7"],
        ),
        (
            ["--memory", "8", "--gpus", "0.5"],
            ["--memory: '8' has no unit", "--gpus: '0.5' is not a number of GPUs"],
        ),
    ],
)
def test_wrong_chunks_are_refused_before_anything_is_sent(
    here: Elsewhere, shell: Shell, options: list[str], problems: list[str]
) -> None:
    status, out, err = shell("submit", *options, "--", "true")
    assert (status, out, handed_in(here)) == (2, "", [])
    lines = [line.removeprefix("gridweave: ") for line in err.splitlines()]
    assert len(lines) == len(problems)
    for line, problem in zip(lines, problems, strict=True):
        assert line.startswith(problem)


@pytest.mark.parametrize(
    ("lines", "width", "chunk"),
    [
        ("-N 2", 2, msgspec.UNSET),
        ("-N 2 --exclusive", 2, msgspec.UNSET),
        ("-N 2 -C ib&big", 2, Chunk(cores=0, exclusive=True, labels=("big", "ib"))),
        ("-n 8", 8, Chunk()),
        ("-n 8 -c 4 --mem-per-cpu=2G", 8, Chunk(cores=4, memory_mb=8590)),
        # 8 GiB are 8590 MB, which 4 tasks cannot share evenly.
        ("-N 2 -n 8 --mem=8G", 2, Chunk(cores=4, memory_mb=8590, per_node=1)),
        ("-N 1 -n 16 --gres=gpu:a100:4", 1, Chunk(cores=16, gpus=4, gpu_type="a100", per_node=1)),
        ("--gpus-per-task=2 -n 3", 3, Chunk(gpus=2)),
    ],
)
def test_lines_of_slurm_mean_chunks_on_a_grid_that_counts(
    counting: Elsewhere, shell: Shell, lines: str, width: int, chunk: Chunk | msgspec.UnsetType
) -> None:
    status, _, err = shell("submit", script(f"#!/bin/sh\n#SBATCH {lines}\n"))
    assert (status, "warning" in err) == (0, False)
    (request,) = handed_in(counting)
    assert (request.nodes, request.chunk) == (width, chunk)


def test_the_script_finds_the_variables_of_slurm(counting: Elsewhere, shell: Shell) -> None:
    shell("submit", script("#!/bin/sh\n#SBATCH -N 2 --ntasks-per-node=4 -c 2 --mem-per-cpu=512\n"))
    (request,) = handed_in(counting)
    assert {name: value for name, value in request.program.environment.items() if name.startswith("SLURM_")} == {
        "SLURM_NNODES": "2",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NTASKS": "8",
        "SLURM_NTASKS_PER_NODE": "4",
        "SLURM_CPUS_PER_TASK": "2",
        "SLURM_MEM_PER_CPU": "512",
    }


def test_options_of_the_command_line_override_the_sizes_of_slurm(counting: Elsewhere, shell: Shell) -> None:
    shell("submit", "-n", 3, "--cores", 2, script("#!/bin/sh\n#SBATCH -n 8 -c 4 --mem-per-cpu=1G\n"))
    (request,) = handed_in(counting)
    assert (request.nodes, request.chunk) == (3, Chunk(cores=2, memory_mb=4295))


def test_all_lines_that_do_not_map_to_chunks_are_refused_at_once(counting: Elsewhere, shell: Shell) -> None:
    lines = "#SBATCH -N 3 -n 7\n#SBATCH -c 2 --mem=lots\n#SBATCH --gpus=4 --gpus-per-task=1\n#SBATCH -C a|b"
    status, out, err = shell("submit", script(f"#!/bin/sh\n{lines}\n"))
    assert (status, out, handed_in(counting)) == (2, "", [])
    assert [line.removeprefix("gridweave: ").partition(";")[0] for line in err.splitlines()] == [
        "job.sh:2: #SBATCH --ntasks: 7 tasks do not divide evenly among 3 nodes",
        "job.sh:3: #SBATCH --mem: 'lots' is not a size of memory",
        "job.sh:4: #SBATCH --gpus: asks for GPUs a second time",
        "job.sh:5: #SBATCH --constraint: 'a|b' is not supported",
    ]


def test_lines_for_parts_of_nodes_are_refused_by_a_grid_of_whole_nodes(here: Elsewhere, shell: Shell) -> None:
    status, _, err = shell("submit", script("#!/bin/sh\n#SBATCH -N 2 -c 4\n#SBATCH --gpus-per-node=1\n"))
    assert (status, handed_in(here)) == (2, [])
    assert len(err.splitlines()) == 2
    assert "job.sh:2: #SBATCH --cpus-per-task: asks for parts of nodes, and this grid gives out whole nodes" in err
    assert "job.sh:3: #SBATCH --gpus-per-node: asks for parts of nodes" in err


def test_a_site_that_gives_out_whole_nodes_gets_no_chunks(counting: Elsewhere, shell: Shell) -> None:
    shell("submit", "--site", "south", script("#!/bin/sh\n#SBATCH -n 4\n"))
    (request,) = handed_in(counting)
    assert (request.nodes, request.chunk) == (4, msgspec.UNSET)


def test_a_quote_takes_the_same_options(here: Elsewhere, shell: Shell) -> None:
    status, _, err = shell("quote", "-n", 7, "--per-node", 2)
    assert (status, "per_node is 2; expected a divisor of 7" in err) == (2, True)
    assert shell("quote", "-n", 4, "--cores", 2, "--gpus", 1, "--memory", "8GB")[0] == 0


def test_a_packed_array_has_as_many_jobs_as_chunks_fit_twice(counting: Elsewhere, shell: Shell) -> None:
    """With chunks of 4 cores, 16 fit on north and, counting whole nodes, 8 on south."""
    shell("submit", "--array", "1-480", "--pack", "--cores", 4, "--", "true")
    assert len(handed_in(counting)) == 48
