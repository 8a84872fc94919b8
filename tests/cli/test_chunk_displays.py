"""What the command shows of jobs that ask for parts of nodes, and of sites that count resources."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from rich.console import Console

from gridweave.cli.watch_screen import GridSnapshot, screen
from gridweave.site.query_messages import ResourceAmount, SiteInfo
from gridweave.site.resources.chunks import NodeKind
from support.gateway import Elsewhere

Shell = Callable[..., tuple[int, str, str]]

KINDS = (
    NodeKind(name="cpu", count=2, cores=16, memory_mb=64_000),
    NodeKind(name="gpu", count=2, cores=8, memory_mb=128_000, gpus=4, others=(("fpga", 1),)),
)


def rows(text: str) -> list[list[str]]:
    return [re.split(r"\s{2,}", line.strip()) for line in text.splitlines() if line.strip() and "───" not in line]


@pytest.fixture
def counting(here: Elsewhere, shell: Shell) -> Elsewhere:
    """Return a grid with one site that counts resources, and with a running job of chunks and one of whole nodes."""
    here.grid.kinds["north"] = KINDS
    shell("submit", "-n", 3, "--cores", 4, "--gpus", 1, "--memory", "16GB", "--name", "parts", "--", "true")
    shell("submit", "-n", 2, "--name", "whole", "--", "true")
    here.call(here.grid.start, 1)
    here.call(here.grid.start, 2, (("south", 2),))
    return here


def test_sites_show_what_is_free_of_each_resource(counting: Elsewhere, shell: Shell) -> None:
    heading, north, south = rows(shell("sites")[1])
    assert heading[-4:] == ["free cores", "free memory", "free GPUs", "free fpga"]
    assert north[-4:] == ["36 of 48", "336 GB of 384 GB", "5 of 8", "2 of 2"]
    assert south[-4:] == ["-"] * 4
    (site, _) = json.loads(shell("sites", "--json")[1])
    assert site["amounts"][0] == {"name": "cores", "total": 48, "used": 12}
    assert site["kinds"][1]["others"] == [["fpga", 1]]


def test_sites_of_whole_nodes_have_no_columns_of_resources(here: Elsewhere, shell: Shell) -> None:
    assert rows(shell("sites")[1])[0][-1] == "waiting"


def test_jobs_show_their_cores_and_gpus(counting: Elsewhere, shell: Shell) -> None:
    heading, whole, parts = rows(shell("jobs")[1])
    assert heading[5:9] == ["nodes", "cores", "GPUs", "limit"]
    assert whole[5:8] == ["2", "-", "-"]
    assert parts[5:8] == ["3 chunks", "12", "3"]
    lines = shell("jobs", "--csv")[1].splitlines()
    assert [line.split(",")[-3:] for line in lines] == [["cores", "memory_mb", "gpus"], ["0"] * 3, ["12", "48000", "3"]]


def test_a_job_shows_what_it_asks_for(counting: Elsewhere, shell: Shell) -> None:
    assert ["asks for", "3 chunks of 4 cores, 16 GB, 1 GPU; a rank on each chunk"] in rows(shell("show", 1)[1])
    assert ["nodes", "2, a rank on each node"] in rows(shell("show", 2)[1])


def test_usage_adds_up_cores_and_gpus(counting: Elsewhere, shell: Shell) -> None:
    for job_id in (1, 2):
        counting.call(counting.grid.end, job_id)
        record = counting.grid.records_by_id[job_id]
        record.start_ms, record.end_ms = 1_700_000_000_000 - 7_200_000, 1_700_000_000_000
    heading, *sums = rows(shell("usage", "--by", "name", "--since", "2023-11-01")[1])
    assert heading == ["name", "jobs", "node-hours", "CPU hours", "core-hours", "GPU-hours"]
    assert [row[:3] + row[4:] for row in sums] == [
        ["parts", "1", "6.00", "24.00", "6.00"],
        ["whole", "1", "4.00", "0.00", "0.00"],
    ]


def test_the_screen_shows_what_is_in_use_at_a_site() -> None:
    amounts = (
        ResourceAmount("cores", 48, 12),
        ResourceAmount("memory_mb", 384_000, 48_000),
        ResourceAmount("gpus", 8, 3),
    )
    seen = GridSnapshot(url="http://here", now_ms=0)
    seen.sites = [SiteInfo(name="north", nodes=4, for_grid=4, free=1, kinds=KINDS, amounts=amounts)]
    console = Console(width=160, height=40, color_system=None, legacy_windows=False)
    with console.capture() as captured:
        console.print(screen(seen, 160, 40))
    assert "cores 12 of 48, memory 48 GB of 384 GB, GPUs 3 of 8" in captured.get()
