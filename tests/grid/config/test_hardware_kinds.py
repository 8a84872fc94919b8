"""Machines as nodes of a site, if the grid finds out what they have."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridweave.errors import InputError, ScenarioError
from gridweave.grid.config import hardware_kinds
from gridweave.grid.config.checks import site_policy
from gridweave.grid.config.hardware_kinds import kinds_of_machines, with_found
from gridweave.grid.config.reading import ReadGrid, grid_of_text, service_of_text
from gridweave.grid.service import local
from gridweave.grid.service.local import grid_spec, hardware_notes
from gridweave.scenarios.scenario.read import read_scenario
from gridweave.site.disciplines.dictionary import counted_kinds
from gridweave.site.machine.hardware.find import Gpu, Hardware

GPUS = tuple(Gpu(number=number, type="a100") for number in (0, 1, 3))
MACHINE = Hardware(cores=4, memory_mb=8000, gpus=GPUS)


def test_equal_machines_form_one_kind() -> None:
    plain = Hardware(cores=64, memory_mb=256_789)
    mixed = Hardware(cores=64, memory_mb=256_123, gpus=(Gpu(number=0, type="a100"), Gpu(number=1, type="t4")))
    kinds = kinds_of_machines([plain, plain, MACHINE, mixed, plain])
    assert [(kind.name, kind.count, kind.cores, kind.gpus, kind.gpu_type, kind.labels) for kind in kinds] == [
        ("cpu", 2, 64, 0, "", ("cpu",)),
        ("a100", 1, 4, 3, "a100", ("a100",)),
        ("gpu", 1, 64, 2, "", ("gpu",)),
        ("cpu-2", 1, 64, 0, "", ("cpu",)),
    ]
    assert kinds[0].memory_mb == 256_000


FILE = """
[[sites]]
name = "lab"
kinds = "found"
"""


def read(text: str = FILE) -> ReadGrid:
    return grid_of_text(text, "GRID.toml", "")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[Hardware]:
    """Return a list whose last item is what this machine has."""
    there = [MACHINE]
    for module in (hardware_kinds, local):
        monkeypatch.setattr(module, "find_hardware", lambda: there[-1])
    return there


def test_a_site_gets_the_kinds_that_were_found(machine: list[Hardware]) -> None:
    spec = grid_spec(read())
    site = spec.read.sites[0]
    assert counted_kinds(site_policy(site, spec.read.grid)) == spec.found_kinds["lab"] == kinds_of_machines(machine)
    assert (site.node_count, spec.read.text) == (1, FILE)


def test_a_grid_continues_with_the_kinds_with_which_it_began(machine: list[Hardware]) -> None:
    """One line at the start says that a GPU is missing now."""
    first = grid_spec(read())
    machine.append(Hardware(cores=4, memory_mb=8000, gpus=GPUS[:2], threads=((0,), (1,), (2,), (3,))))
    again = grid_spec(read(), found_kinds=first.found_kinds)
    assert again.found_kinds == first.found_kinds
    assert hardware_notes(again) == [
        "site lab: GPUs are only numbered: the nodes on this machine have 3 GPUs together, and the machine has 2"
    ]
    assert grid_spec(read()).found_kinds["lab"][0].gpus == 2, "a grid that starts anew counts again"


def test_sites_that_only_count_their_nodes_say_nothing(machine: list[Hardware]) -> None:
    listed = 'kinds = [{ name = "big", count = 8, cores = 64, gpus = "a100:8" }]'
    real = grid_spec(read(FILE.replace('kinds = "found"', listed)))
    assert len(hardware_notes(real)) == 2
    assert hardware_notes(grid_spec(read(FILE.replace('kinds = "found"', f"{listed}\nvirtual = true")))) == []
    assert hardware_notes(grid_spec(read(FILE.replace('kinds = "found"', "nodes = 8")))) == []


def test_two_sites_cannot_have_the_same_machine(machine: list[Hardware]) -> None:
    both = read(FILE + FILE.replace("lab", "other"))
    with pytest.raises(InputError, match=r"sites\.other.kinds is 'found', as for lab, but a machine is a node of one"):
        with_found(both, {}, is_local=True)


def test_machines_of_a_ray_cluster_are_not_looked_at() -> None:
    with pytest.raises(InputError, match="works only for a grid on this machine; list the kinds"):
        grid_spec(read(), address="auto")


def test_a_site_that_is_found_has_one_machine() -> None:
    with pytest.raises(ScenarioError, match="machines: is 3; from 1 to its 1 nodes"):
        read(FILE + "machines = 3")


def test_simulations_need_the_kinds_themselves(tmp_path: Path) -> None:
    file = tmp_path / "scenario.toml"
    file.write_text(FILE + '[workload]\ntrace = "x.swf"\n')
    with pytest.raises(ScenarioError, match="'found', which works only on live sites"):
        read_scenario(file)


def test_a_served_site_needs_the_kinds_themselves() -> None:
    text = 'folder = "/x"\n[site]\nname = "lab"\nnumber = 0\nkinds = "found"\n'
    with pytest.raises(ScenarioError, match=r"site\.kinds: is 'found', which is only for GRID.toml; list the kinds"):
        service_of_text(text, "lab.toml", "")
