"""Kinds of nodes in GRID.toml, in files of gridweave serve and in scenarios."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gridweave.errors import ScenarioError
from gridweave.grid.config.reading import example_text, grid_of_text, service_of_text
from gridweave.grid.config.tables import Site
from gridweave.grid.service.cluster import site_plan
from gridweave.scenarios.scenario.build import build_scenario
from gridweave.scenarios.scenario.read import read_scenario
from gridweave.scenarios.scenario.tables import Scenario, json_schema
from gridweave.site.disciplines.levels.policy import LevelsPolicy
from gridweave.site.policy import SitePolicy
from gridweave.site.resources.chunks import NodeKind

LAB = """
[[sites]]
name = "lab"
kinds = [
  { name = "cpu", count = 6, cores = 64, memory = "256GB", labels = ["ib", "fast-disk"] },
  { name = "gpu", count = 2, cores = 32, memory = "512GiB", gpus = "a100:4", gres = { fpga = 2 }, speed = 2 },
]
placement = "worst-fit"
"""
KINDS = (
    NodeKind(name="cpu", count=6, cores=64, memory_mb=256_000, labels=("fast-disk", "ib")),
    NodeKind(
        name="gpu", count=2, cores=32, memory_mb=549_756, gpus=4, gpu_type="a100", others=(("fpga", 2),), speed=2.0
    ),
)
WORKLOAD = '[workload]\ngenerator = "ctc-sp2"\njobs = 5\nnodes = 4\n'


def problems(text: str) -> list[str]:
    with pytest.raises(ScenarioError) as refused:
        grid_of_text(text, "GRID.toml", "")
    return [str(problem).removeprefix("GRID.toml:") for problem in refused.value.problems]


@pytest.mark.parametrize("discipline", ["queue", "planning"])
def test_kinds_reach_the_policy_of_a_live_site(discipline: str) -> None:
    read = grid_of_text(LAB + f'discipline = "{discipline}"\n', "GRID.toml", "")
    plan = site_plan(read.sites[0], read.grid)
    assert plan.nodes == 8
    assert isinstance(plan.policy, SitePolicy)
    assert (plan.policy.kinds, plan.policy.placement) == (KINDS, "worst-fit")


def test_kinds_reach_the_policy_below_levels() -> None:
    levels = 'discipline = "levels"\nlevels.levels = [{ name = "all", priority = 0 }]\n'
    read = grid_of_text(LAB + levels, "GRID.toml", "")
    policy = site_plan(read.sites[0], read.grid).policy
    assert isinstance(policy, LevelsPolicy)
    assert (policy.under.kinds, policy.under.placement) == (KINDS, "worst-fit")


def test_sites_without_kinds_have_the_policy_of_before() -> None:
    read = grid_of_text('[[sites]]\nname = "x"\nnodes = 4\n', "GRID.toml", "")
    assert site_plan(read.sites[0], read.grid).policy == SitePolicy()


def test_serve_files_of_both_sides_name_the_kinds() -> None:
    kinds = 'kinds = [{ name = "gpu", count = 3, cores = 8, gpus = 2 }]'
    for kind in ("site", "grid"):
        text, nodes = example_text(kind), "\nnodes = 8 "
        assert nodes in text
        read = service_of_text(text.replace(nodes, f'\n{kinds}\nplacement = "first-fit" ', 1), "s.toml", "")
        plan = site_plan(read.sites[0], read.grid)
        assert isinstance(plan.policy, SitePolicy)
        assert (plan.nodes, plan.policy.kinds[0].gpus, plan.policy.placement) == (3, 2, "first-fit")


def test_a_scenario_has_kinds_and_survives_a_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(LAB.replace(", speed = 2", "") + WORKLOAD)
    scenario = read_scenario(path)
    assert read_scenario(scenario) == scenario
    assert msgspec.convert(msgspec.to_builtins(scenario), Scenario) == scenario
    built = build_scenario(path)
    assert built.nodes.tolist() == [8]
    assert isinstance(built.site_policies[0], SitePolicy)
    assert [kind.count for kind in built.site_policies[0].kinds] == [6, 2]


def test_setting_nodes_replaces_the_kinds_of_a_scenario(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(LAB + WORKLOAD)
    (site,) = read_scenario(path, ["sites.lab.nodes=4"]).sites
    assert isinstance(site, Site)
    assert (site.node_count, site.kinds, site.placement) == (4, None, None)
    (site,) = read_scenario("two-sites", ['sites.north.kinds=[{name="a", count=2}]']).sites[:1]
    assert isinstance(site, Site)
    assert (site.node_count, site.nodes) == (2, None)


def test_the_schema_of_scenarios_wants_nodes_or_kinds() -> None:
    tables = json_schema()["$defs"]
    assert tables["Site"]["oneOf"] == [{"required": ["nodes"]}, {"required": ["kinds"]}]
    assert tables["KindTable"]["required"] == ["name", "count"]
    assert tables["KindTable"]["properties"]["count"]["minimum"] == 1


def test_all_wrong_values_of_kinds_are_reported_at_once() -> None:
    text = """[[sites]]
name = "b"
order = "what"
kinds = [
  { name = "cpu", count = 0, cores = -1, memory = "-3GB", labels = ["fast disk"] },
  { name = "cpu", count = 2, gpus = 0.5 },
  { name = "gpu", count = 2, memory = "4096", gpus = "a100:0.5", gres = { gpu = 4, fpga = -1 }, speed = 0 },
  { count = 2, core = 4 },
  7,
]
placement = "best"
"""
    assert sorted(line.partition(";")[0] for line in problems(text)) == sorted(
        [
            "3: sites.order: 'what' is not known",
            "5: sites.kinds.count: is 0",
            "5: sites.kinds.cores: is -1",
            "5: sites.kinds.memory: '-3GB' is not an amount of data",
            "5: sites.kinds.labels: 'fast disk' is not a name",
            "6: sites.kinds.name: 'cpu' is also the name of another kind",
            "6: sites.kinds.gpus: is 0.5",
            "7: sites.kinds.memory: '4096' has no unit",
            "7: sites.kinds.gpus: 'a100:0.5' is not a number of GPUs",
            "7: sites.kinds.gres: 'gpu' has an option of its own",
            "7: sites.kinds.gres: 'fpga' is -1",
            "7: sites.kinds.speed: is 0.0",
            "8: sites.kinds.core: is not known (perhaps cores was meant)",
            "8: sites.kinds.name: is missing",
            "9: sites.kinds: is 7",
            "11: sites.placement: 'best' is not known",
        ]
    )


DIFFERENT = 'discipline = "heterogeneous"\n'


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ('nodes = 3\nkinds = [{ name = "a", count = 6 }]', "3: sites.nodes: is given together with kinds"),
        ("kinds = []", "3: sites.kinds: is empty; expected at least one kind"),
        ("", "1: sites.nodes: is missing; give the number of nodes, or kinds"),
        ("nodes = 0", "3: sites.nodes: is 0; a whole number >= 1 is needed"),
        ('kinds = "fund"', "3: sites.kinds: is 'fund'; expected a list of kinds, or 'found'"),
        ("kinds = 3", "3: sites.kinds: is 3; a text or a list is needed"),
        ('nodes = 3\nplacement = "first-fit"', "4: sites.placement: is for a site with kinds"),
        (
            'discipline = "dynp"\nkinds = [{ name = "a", count = 6 }]',
            "4: sites.kinds: need a discipline that reads them (fractional, gang, heterogeneous, levels, planning,",
        ),
        (
            'discipline = "gang"\nkinds = [{ name = "a", count = 6, speed = 2.0 }]',
            "4: sites.kinds: 'a' has speed, which this discipline does not use",
        ),
        (
            'discipline = "fractional"\nkinds = [{ name = "a", count = 6 }, { name = "b", count = 1, cores = 2 }]',
            "4: sites.kinds: 'a' and 'b' differ in cores or memory; this discipline needs nodes that are alike",
        ),
        (
            f'{DIFFERENT}kinds = [{{ name = "a", count = 6, gpus = 2, gres = {{ fpga = 1 }} }}]',
            "1: sites.heterogeneous: class 'a' has gpus, others, which this discipline does not use; leave it out",
        ),
        (
            f'{DIFFERENT}kinds = [{{ name = "a", count = 6 }}]\nplacement = "first-fit"',
            "5: sites.placement: 'first-fit' is not for a site with the discipline heterogeneous",
        ),
        (
            f"{DIFFERENT}kinds = [{{ name = 'a', count = 1 }}]\nheterogeneous.classes = [{{ name = 'b', count = 1 }}]",
            "5: sites.heterogeneous: names classes of machines, and the site has kinds of nodes; leave one of them out",
        ),
        (
            f'{DIFFERENT}kinds = [{{ name = "a", count = 6, memory = "4096" }}]',
            "4: sites.kinds.memory: '4096' has no unit",
        ),
        ('machines = 3\nkinds = [{ name = "a", count = 2 }]', "3: sites.machines: is 3; from 1 to its 2 nodes"),
        ('kinds = [{ name = "a", count = 20_000_000 }]', "1: sites: have more than 10000000 nodes together"),
    ],
)
def test_a_site_has_either_nodes_or_kinds(keys: str, problem: str) -> None:
    (line,) = problems(f'[[sites]]\nname = "a"\n{keys}\n')
    assert line.startswith(problem)


def test_more_than_62_kinds_are_refused() -> None:
    kinds = ", ".join(f'{{ name = "k{number}", count = 1 }}' for number in range(64))
    lines = problems(f'[[sites]]\nname = "a"\nkinds = [{kinds}]\n')
    assert lines == [
        f"3: sites.kinds.name: 'k{number}' is one kind too many; a site has at most 62" for number in (62, 63)
    ]
