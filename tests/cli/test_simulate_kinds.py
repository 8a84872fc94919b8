"""`gridweave simulate` with kinds of nodes and chunks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# A job of one processor with 400,000 KB, two with 1,500,000 KB, and one of three with 400,000 KB each.
SWF = """\
; MaxProcs: 4
1 0 -1 100 1 -1 -1 1 100 400000 1 -1 -1 -1 -1 -1 -1 -1
2 0 -1 100 1 -1 1500000 1 100 -1 1 -1 -1 -1 -1 -1 -1 -1
3 0 -1 100 1 -1 -1 1 100 1500000 1 -1 -1 -1 -1 -1 -1 -1
4 0 -1 100 3 -1 -1 3 100 400000 1 -1 -1 -1 -1 -1 -1 -1
"""
KINDS = ("--kinds", "thin:1,cores=2,memory=2GB", "--kinds", "gpu:1,cores=2,memory=2GB,gpus=a100:2,labels=ib+ssd")

Shell = Callable[..., tuple[int, str, str]]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "four.swf"
    path.write_text(SWF)
    return path


def result_of(shell: Shell, *arguments: object) -> dict[str, Any]:
    status, out, err = shell("simulate", *arguments, "--json")
    assert status == 0, err
    (result,) = json.loads(out)
    return dict(result)


def problems_of(shell: Shell, *arguments: object) -> list[str]:
    status, out, err = shell("simulate", *arguments)
    assert (status, out) == (2, "")
    return [line.removeprefix("gridweave: ") for line in err.splitlines()]


def test_processors_become_chunks_with_their_memory(shell: Shell, trace: Path) -> None:
    """Two jobs with 1.5 GB do not fit on one node; the last job waits."""
    result = result_of(shell, trace, "--chunks", "cores", *KINDS, "--backfill", "none")
    assert [kind["name"] for kind in result["options"]["kinds"]] == ["thin", "gpu"]
    assert result["metrics"]["jobs_waited"] == 1
    uses = {entry["resource"]: (entry["total"], entry["util"]) for entry in result["resources"]}
    assert uses == {
        "cores": (4, 6 / 8),
        "memory_mb": (4000, pytest.approx((410 + 2 * 1536 + 3 * 410) / 8000)),
        "gpus": (2, 0),
    }


def test_chunks_are_read_from_a_file(shell: Shell, trace: Path, tmp_path: Path) -> None:
    """A job that fits no node is refused with the reason."""
    chunks = tmp_path / "chunks.csv"
    chunks.write_text("job_id,cores,gpus\n1,1,a100:2\n2,1,1\n3,1,4\n4,0,\n")
    result = result_of(shell, trace, "--chunks", chunks, *KINDS)
    assert [entry["job_id"] for entry in result["refused"]] == [3, 4]
    assert "4 GPUs" in result["refused"][0]["reason"]
    assert result["metrics"]["jobs_waited"] == 1


def test_without_chunks_jobs_get_whole_nodes_and_a_remark_says_so(shell: Shell, trace: Path) -> None:
    status, _, err = shell("simulate", trace, *KINDS)
    assert status == 0
    assert "four does not say what jobs ask for: all jobs get whole nodes; see --chunks" in err
    assert "  dropped 1: wider than the machine" in err


def test_kinds_are_read_from_a_file(shell: Shell, trace: Path, tmp_path: Path) -> None:
    kinds = tmp_path / "kinds.toml"
    kinds.write_text('kinds = [{ name = "thin", count = 2, cores = 2, memory = "2GB" }]\n')
    result = result_of(shell, trace, "--chunks", "cores", "--kinds", kinds, "--placement", "first-fit")
    assert (result["options"]["nodes"], result["options"]["placement"]) == (2, "first-fit")


def test_a_table_of_results_shows_the_use_of_resources(shell: Shell, trace: Path) -> None:
    status, out, _ = shell("simulate", trace, "--chunks", "cores", *KINDS)
    assert status == 0
    assert next(line.split() for line in out.splitlines() if "GPUs" in line) == ["site", "GPUs", "2", "0.00%"]


def test_all_wrong_kinds_are_listed_at_once(shell: Shell, trace: Path) -> None:
    kinds = ("thin", "a:2,cores=0,memory=x", "b:2,gpus=0.5", "b:1,gres=lic:0", "c:1,core=4")
    problems = problems_of(shell, trace, *(word for kind in kinds for word in ("--kinds", kind)))
    assert [problem.partition(";")[0] for problem in problems] == [
        "--kinds: 'thin' is not a kind of nodes",
        "--kinds: 'core=4' is not key=value with a key of cores, memory, gpus, gres, labels, speed",
    ]
    problems = problems_of(shell, trace, *(word for kind in kinds[1:4] for word in ("--kinds", kind)))
    assert [problem.partition(";")[0] for problem in problems] == [
        "--kinds: memory: 'x' is not an amount of data",
        "--kinds: gpus: '0.5' is not a number of GPUs",
        "--kinds: cores: is 0",
        "--kinds: name: 'b' is also the name of another kind",
        "--kinds: gres: 'lic' is 0",
    ]


def test_problems_in_a_file_of_kinds_have_their_lines(shell: Shell, trace: Path, tmp_path: Path) -> None:
    kinds = tmp_path / "kinds.toml"
    kinds.write_text('kinds = [\n { name = "a", count = 1, core = 4 },\n { name = "b", count = 0 },\n]\n')
    assert problems_of(shell, trace, "--kinds", kinds)[0].startswith(f"{kinds}:2: kinds.core: is not known")
    kinds.write_text('kinds = [\n { name = "b", count = 0 },\n]\n')
    assert problems_of(shell, trace, "--kinds", kinds)[0].startswith(f"{kinds}:2: kinds.count: is 0")
    kinds.write_text("nodes = 4\n")
    assert problems_of(shell, trace, "--kinds", kinds)[0].startswith(f"{kinds}: expected one key, kinds")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--chunks", "cores"), "--chunks: needs --kinds, which says what the nodes have"),
        (("--placement", "worst-fit"), "--placement: needs --kinds"),
        ((*KINDS, "--nodes", "4"), "--nodes: follows from --kinds; leave it out"),
        ((*KINDS, "--placement", "tight"), "--placement: 'tight' is not known; one of best-fit, worst-fit, first-fit"),
        ((*KINDS, "--chunks", "nodes"), "--chunks: 'nodes' is not known; give cores, or a .csv file"),
        ((*KINDS, "--discipline", "dynp"), "--kinds: need a discipline that reads them"),
        ((*KINDS, "--discipline", "gang"), "--kinds: 'gpu' has gpus, gpu_type, labels, which this discipline does not"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    shell: Shell, trace: Path, options: tuple[str, ...], problem: str
) -> None:
    (line,) = problems_of(shell, trace, *options)
    assert line.startswith(problem)


def test_machines_that_differ_are_kinds(shell: Shell, trace: Path) -> None:
    """Each of the three jobs of one processor runs on the fast machine, as it ends there first."""
    kinds = ("--kinds", "fast:1,speed=4", "--kinds", "slow:1,memory=1GB")
    result = result_of(shell, trace, "--discipline", "heterogeneous", "--option", "algorithm=best-assignment", *kinds)
    assert result["options"]["nodes"] == 2
    assert result["metrics"]["jobs_waited"] == 2
    (line,) = problems_of(shell, trace, "--discipline", "heterogeneous", *KINDS)
    assert "class 'gpu' has gpus, gpu_type, which this discipline does not use; leave it out" in line


def test_kinds_that_are_alike_are_a_number_of_nodes_for_gang_scheduling(shell: Shell, trace: Path) -> None:
    kinds = ("--kinds", "old:3,cores=4", "--kinds", "new:1,cores=4")
    by_kinds = result_of(shell, trace, "--discipline", "gang", *kinds)
    by_nodes = result_of(shell, trace, "--discipline", "gang", "--nodes", "4")
    assert by_kinds["metrics"] == by_nodes["metrics"]
    (line,) = problems_of(shell, trace, "--discipline", "gang", *kinds[:3], "new:1,cores=8")
    assert line.startswith("--kinds: 'old' and 'new' differ in cores or memory; this discipline needs nodes that are")
