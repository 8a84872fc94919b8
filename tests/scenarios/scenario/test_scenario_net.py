"""Scenarios with a network between sites: reading, and problems with file, line and field."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridweave.errors import InputError, ScenarioError
from gridweave.grid.config import networks as topology_files
from gridweave.grid.config.networks import FOLDER_VARIABLE, find_topology, shipped_topologies
from gridweave.scenarios.scenario.build import build_scenario
from gridweave.scenarios.scenario.read import read_draft, read_scenario
from gridweave.scenarios.scenario.tables import json_schema
from gridweave.scenarios.sweep.identity import resolve_files, run_key, workload_key

GOOD = """\
[[sites]]
name = "alpha"
nodes = 64
at = "a"
[[sites]]
name = "beta"
nodes = 32
[workload]
generator = "ctc-sp2"
jobs = 20
nodes = 60
[workload.communication]
pattern = "ring"
fraction = 0.1
message_bytes = 1e6
[grid]
contention = "static"
[net]
nodes = [{name = "a"}, {name = "b"}]
links = [{from = "a", to = "b", latency_ms = 5, bandwidth = "10 Gbps"}]
[net.attach]
beta = "b"
"""

GML = """\
graph [
  node [ id 0 label "a" Latitude 50.0 Longitude 0.0 ]
  node [ id 1 label "b" Latitude 52.0 Longitude 4.0 ]
  edge [ source 0 target 1 LinkSpeedRaw 1000000000.0 ]
]
"""


def line_of(text: str, piece: str) -> int:
    """Return the number of the line that contains a text."""
    return next(number for number, line in enumerate(text.splitlines(), start=1) if piece in line)


def problems(folder: Path, text: str, *overrides: str) -> list[str]:
    """Write a scenario, check it, and return its problems without the name of its file."""
    path = folder / "x.toml"
    path.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        build_scenario(path, overrides)
    return [str(problem).removeprefix(f"{path}:") for problem in caught.value.problems]


def changed(*pairs: tuple[str, str]) -> str:
    """Return the valid scenario with replaced texts, each of which must occur."""
    text = GOOD
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


# -- what is read


def test_network_tables_are_read(tmp_path: Path) -> None:
    """The network, its keys in [grid], and the communication of jobs are typed."""
    path = tmp_path / "x.toml"
    path.write_text(GOOD)
    scenario = read_scenario(path)
    assert scenario.net is not None
    assert scenario.workload.communication is not None
    assert [link.origin for link in scenario.net.links] == ["a"]
    assert scenario.net.attach == {"beta": "b"}
    assert (scenario.grid.contention, scenario.grid.split, scenario.grid.data) == ("static", "earliest-end", "none")
    assert scenario.workload.communication.fraction == 0.1


def test_the_number_of_placements_can_be_set(tmp_path: Path) -> None:
    """The default is 2,000 placements."""
    path = tmp_path / "x.toml"
    for text, exact_up_to in ((GOOD, 2_000), (changed(('"static"', '"static"\nexact_up_to = 50')), 50)):
        path.write_text(text)
        net = build_scenario(path).net
        assert net is not None
        assert net.exact_up_to == exact_up_to


def test_a_scenario_object_is_read_like_its_file(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(GOOD)
    scenario = read_scenario(path)
    assert read_scenario(scenario) == scenario


def test_the_schema_has_the_keys_of_networks() -> None:
    """The schema lists the network's keys and the known names."""
    tables = json_schema()["$defs"]
    assert set(tables["CommunicationTable"]["properties"]) == {"pattern", "fraction", "message_bytes"}
    assert tables["GridTable"]["properties"]["split"]["enum"] == ["fewest", "earliest-end"]
    exact_up_to = tables["GridTable"]["properties"]["exact_up_to"]
    assert (exact_up_to["minimum"], exact_up_to["default"]) == (0, 2_000)
    assert "from" in tables["LinkTable"]["properties"]
    assert "at" in tables["Site"]["properties"]
    assert all("description" in table for table in tables.values())


# -- what is wrong


@pytest.mark.parametrize(
    ("pairs", "at", "told"),
    [
        (
            [('at = "a"\n', "")],
            "[net]",
            "net: site alpha is not attached to a node; add it to [net.attach], with one of a, b",
        ),
        ([('at = "a"', 'at = "x"')], 'at = "x"', "sites.at: site alpha is attached to 'x', which is not a node"),
        (
            [('beta = "b"', 'beta = "x"')],
            "beta = ",
            "net.attach.beta: site beta is attached to 'x', which is not a node",
        ),
        (
            [('beta = "b"', 'beta = "b"\nalpha = "a"')],
            "at =",
            "sites.at: is given together with net.attach.alpha; leave one of them out",
        ),
        ([('beta = "b"', 'beta = "b"\ngamma = "b"')], "gamma", "net.attach.gamma: there is no site 'gamma'"),
        ([(', bandwidth = "10 Gbps"', "")], "links = ", "net.links: link a - b: has no bandwidth; give bandwidth_bps"),
        ([('"10 Gbps"', '"-1 Gbps"')], "links = ", "net.links.bandwidth: link a - b: '-1 Gbps' is not a bandwidth"),
        ([('bandwidth = "10 Gbps"', "bandwidth_bps = -1")], "links = ", "net.links: link a - b: bandwidth_bps is -1;"),
        ([('"10 Gbps"', '"10 GB"')], "links = ", "net.links.bandwidth: link a - b: '10 GB' is not a bandwidth"),
        ([('{name = "b"}]', '{name = "b"}, {name = "c"}]')], "[net]", "net: has 2 parts with no link between them"),
        ([('links = [{from = "a"', 'links = [{form = "a"')], "links = ", "net.links"),
        ([("[net]\n", '[net]\nfile = "nowhere.gml"\n')], "[net]", "net: has file and nodes; expected exactly one of"),
        ([("[net]\n", '[net]\nroutes = "fast"\n')], "routes", "net.routes: 'fast' is not known; one of latency"),
        (
            [('"ring"', '"gossip"')],
            "pattern",
            "workload.communication.pattern: 'gossip' is not known; one of none, all",
        ),
        (
            [("fraction = 0.1", "fraction = 2")],
            "fraction",
            "workload.communication.fraction: is 2; expected a fraction of the run",
        ),
        ([("fraction = 0.1", "fraction = [0.2, 0.1]")], "fraction", "workload.communication.fraction: is [0.2, 0.1];"),
        ([("fraction = 0.1\n", "")], "[workload.communication]", "workload.communication.fraction: is missing"),
        (
            [("message_bytes = 1e6", "message_bytes = -1")],
            "message",
            "workload.communication.message_bytes: is -1; byte",
        ),
        ([('"static"', '"some"')], "contention", "grid.contention: 'some' is not known; one of none, static, dynamic"),
        (
            [('"static"', '"static"\nsplit = "best"')],
            "split",
            "grid.split: 'best' is not known; one of fewest, earliest",
        ),
        (
            [('"static"', '"static"\nexact_up_to = -1')],
            "exact_up_to",
            "grid.exact_up_to: is -1; a whole number >= 0 is needed",
        ),
        (
            [('"static"', '"static"\nexact_up_to = "all"')],
            "exact_up_to",
            "grid.exact_up_to: is 'all'; a whole number is",
        ),
        ([('"static"', '"static"\ndata = "now"')], "data = ", "grid.data: 'now' is not known; one of none, blocking"),
        ([('"static"', '"static"\ndata = "prefetch"')], "data = ", "grid.data: is 'prefetch', but jobs have no data;"),
        ([('"static"', '"static"\noverhead = 0.3')], "overhead", "grid.overhead: is given together with [net], which"),
        (
            [('"static"', '"static"\nmode = "sharing"')],
            "[net]",
            "net: has no effect under mode sharing, which splits no",
        ),
        (
            [("[net]\n", '[net]\ncontention = "dynamic"\n')],
            'contention = "s',
            "grid.contention: is 'static', but net.contention",
        ),
        (
            [('"static"', '"static"\nat = "x"')],
            'at = "x"',
            "grid.at: 'x' is neither a node of the network nor a site; expected one of a, b",
        ),
        (
            [
                ("[grid]", "[workload.data]\ninput_bytes = 1e9\n[grid]"),
                ('"static"', '"static"\ndata = "blocking"\ncontrol = "none"'),
            ],
            "data = ",
            "grid.data: is 'blocking', but control 'none' ignores links; write 'none'",
        ),
        (
            [
                ('"static"', '"static"\nat = "a"'),
                ("[net]\n", '[net]\nchanges = [{at_ms = 5000, action = "fail", link = ["a", "b"]}]\n'),
            ],
            "changes",
            "net.changes: site beta has no path to or from the grid, at node a, from 5000 ms on",
        ),
        (
            [("[grid]", "[workload.data]\ninput_site = 'x'\n[grid]")],
            "input_site",
            "workload.data.input_site: there is no",
        ),
        (
            [("[grid]", "[workload.data]\noutput_bytes = [5, 1]\n[grid]")],
            "output_b",
            "workload.data.output_bytes: is [5",
        ),
    ],
)
def test_each_problem_has_its_line_and_field(tmp_path: Path, pairs: list[tuple[str, str]], at: str, told: str) -> None:
    """Each problem has its line and field, and what would be right."""
    text = changed(*pairs)
    found = problems(tmp_path, text)
    assert len(found) == 1, found
    assert found[0].startswith(f"{line_of(text, at)}: {told}"), found


@pytest.mark.parametrize(
    "pair",
    [
        ('"static"', '"static"\ncontrol = "limited"'),
        ('"static"', '"static"\ncontrol = "none"'),
        ('"static"', '"static"\ncontrol = "limited"\nmode = "sharing"'),
        ("[grid]", "[network]\nloss = 0.1\n[grid]"),
        ("[grid]", "[faults]\ncut_every_ms = 1e6\n[grid]"),
        ("jobs = 20", "jobs = 20\nto_grid = 0.5"),
        ("nodes = 32", "nodes = 32\ngrid_share = 0.5"),
        ('"static"', '"static"\nat = "beta"'),
    ],
)
def test_a_network_works_with_all_features_of_the_world(tmp_path: Path, pair: tuple[str, str]) -> None:
    """Less control, messages, faults, own users and owners run with a network, whose links messages cross."""
    path = tmp_path / "x.toml"
    path.write_text(changed(pair).replace("nodes = 60", "nodes = 30\ndrop_wide = true"))
    built = build_scenario(path)
    assert built.net is not None
    assert built.needs_world
    assert built.grid_node == (1 if "at" in pair[1].split() else 0)


def test_batch_scenarios_have_no_node_of_the_grid(tmp_path: Path) -> None:
    """A scenario for the batch driver has no node of the grid."""
    path = tmp_path / "x.toml"
    path.write_text(GOOD)
    built = build_scenario(path)
    assert not built.needs_world
    assert built.grid_node is None


def test_grid_at_needs_a_network_and_a_grid(tmp_path: Path) -> None:
    text = changed(('at = "a"\n', "")).partition("[workload.communication]")[0] + '[grid]\nat = "a"\n'
    found = problems(tmp_path, text)
    assert len(found) == 1
    assert "grid.at: is 'a', and there is no network; add the table [net], or leave this out" in found[0]
    found = problems(tmp_path, changed(('"static"', '"static"\nat = "a"\nmode = "local"')))
    assert any("grid.at: is 'a', but mode local has no grid" in problem for problem in found)


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    """Problems of links, sites, patterns and keys of the grid are reported together, in the order of their lines."""
    text = changed(
        ('at = "a"', 'at = "x"'),
        ('"ring"', '"gossip"'),
        ('"static"', '"static"\noverhead = 0.2'),
        ("latency_ms = 5", "latency_ms = -5"),
        ('beta = "b"', 'beta = "y"'),
    )
    fields = [problem.split(": ")[1] for problem in problems(tmp_path, text)]
    assert fields == ["sites.at", "workload.communication.pattern", "grid.overhead", "net.links", "net.attach.beta"]


@pytest.mark.parametrize(
    ("piece", "told"),
    [
        (
            '[grid]\ncontention = "dynamic"',
            "grid.contention: is 'dynamic', and there is no network; add the table [net]",
        ),
        ('[grid]\nsplit = "fewest"', "grid.split: is 'fewest', and there is no network"),
        ("[grid]\nmax_split_factor = 3.0", "grid.max_split_factor: is 3.0, and there is no network"),
        ("[grid]\nexact_up_to = 50", "grid.exact_up_to: is 50, and there is no network"),
        ('[grid]\ndata = "blocking"', "grid.data: is 'blocking', and there is no network"),
        (
            '[workload.communication]\npattern = "ring"\nfraction = 0.1\nmessage_bytes = 1',
            "workload.communication: needs a network",
        ),
        ("[workload.data]\ninput_bytes = 1", "workload.data: needs a network"),
    ],
)
def test_network_keys_need_a_network(tmp_path: Path, piece: str, told: str) -> None:
    text = changed(('at = "a"\n', "")).partition("[workload.communication]")[0] + piece + "\n"
    found = problems(tmp_path, text)
    assert len(found) == 1, found
    assert told in found[0]
    with_at = text.replace("nodes = 32", 'nodes = 32\nat = "b"')
    assert any("sites.at: is given, but there is no network" in problem for problem in problems(tmp_path, with_at))


def test_an_overridden_mode_drops_an_idle_network(tmp_path: Path) -> None:
    """So one file can compare modes: an overridden mode drops a network that nothing uses."""
    path = tmp_path / "x.toml"
    path.write_text(GOOD)
    for mode in ("sharing", "local"):
        draft = read_draft(path, [f"grid.mode={mode}"])
        assert not draft.report.problems
        assert draft.remarks == (f"the network is left out: mode {mode} splits no jobs and moves no data",)
        scenario = draft.scenario
        assert (scenario.net, scenario.workload.communication, scenario.grid.contention) == (None, None, None)
        assert all(site.at is None for site in scenario.sites if not isinstance(site, str))
    assert read_draft(path, ["grid.mode=multi-site"]).scenario.net is not None


def test_a_network_with_a_tuned_queue_is_in_use(tmp_path: Path) -> None:
    """A tuned queue runs in the simulated world, where messages cross the links, so the network is in use."""
    path = tmp_path / "x.toml"
    path.write_text(GOOD)
    draft = read_draft(path, ["grid.mode=sharing", "grid.tuning={policies='fcfs+sjf'}"])
    assert not draft.report.problems
    assert draft.scenario.net is not None
    assert build_scenario(draft.scenario).grid_node == 0


def test_data_keeps_the_network_under_sharing(tmp_path: Path) -> None:
    """If data is moved the network is kept although no job is split; mode local refuses data."""
    text = changed(("[grid]", "[workload.data]\ninput_bytes = 1e9\ninput_site = 'beta'\n[grid]\ndata = 'blocking'"))
    (tmp_path / "data.toml").write_text(text)
    draft = read_draft(tmp_path / "data.toml", ["grid.mode=sharing"])
    assert not draft.report.problems
    assert draft.scenario.net is not None
    told = problems(tmp_path, text, "grid.mode=local")
    assert any("grid.data: is 'blocking', but mode local moves no data" in problem for problem in told)
    told = problems(tmp_path, text, "grid.backfill=conservative")
    assert any("grid.data: is 'blocking', which does not support reserved starts" in problem for problem in told)


def test_an_invalid_network_is_reported_in_every_mode(tmp_path: Path) -> None:
    found = problems(tmp_path, changed(('from = "a"', 'form = "a"')), "grid.mode=sharing")
    assert any("net.links" in problem for problem in found)


# -- files


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a temporary folder as the only folder of topologies; return it."""
    folder = tmp_path / "topologies"
    folder.mkdir()
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    monkeypatch.setattr(topology_files.platformdirs, "user_cache_path", lambda _: tmp_path / "no-cache")
    monkeypatch.chdir(tmp_path)
    return folder


FROM_FILE = changed(
    ('nodes = [{name = "a"}, {name = "b"}]\n', 'file = "small.gml"\n'),
    ('links = [{from = "a", to = "b", latency_ms = 5, bandwidth = "10 Gbps"}]\n', ""),
)


def test_topologies_are_searched_for_in_order(folders: Path, tmp_path: Path) -> None:
    """The scenario's folder precedes the folder of topologies, which precedes shipped files."""
    (folders / "small.gml").write_text(GML)
    assert find_topology("small.gml", tmp_path) == folders / "small.gml"
    (tmp_path / "small.gml").write_text(GML)
    assert find_topology("small.gml", tmp_path) == tmp_path / "small.gml"
    assert find_topology("europe.toml").name == "europe.toml"
    (folders / "europe.toml").write_text("")
    assert find_topology("europe.toml") == folders / "europe.toml"
    assert shipped_topologies() == ["europe.toml"]


def test_a_missing_topology_is_reported_with_its_source(folders: Path, tmp_path: Path) -> None:
    """A known topology is reported with its source, other names with the folders and shipped files."""
    with pytest.raises(
        InputError, match=r"not installed; download it from http://www.topology-zoo.org/files/Geant2012.gml"
    ):
        find_topology("Geant2012.gml")
    with pytest.raises(InputError, match=r"nowhere.gml: there is no such file .*gridweave ships europe.toml"):
        find_topology("nowhere.gml")
    with pytest.raises(InputError, match="there is no such file"):
        find_topology("sub/europe.toml")
    with pytest.raises(InputError, match="is not a file"):
        find_topology(str(folders))
    with pytest.raises(InputError, match="is not the name of a file"):
        find_topology("a" * 5000)
    found = problems(tmp_path, FROM_FILE)
    assert found == [f"{line_of(FROM_FILE, 'file =')}: net.file: {found[0].partition('net.file: ')[2]}"]
    assert "small.gml: there is no such file" in found[0]


def test_topologies_in_toml_are_checked(folders: Path, tmp_path: Path) -> None:
    """Problems of the file are reported at the key that names it, with the file's name."""
    text = FROM_FILE.replace("small.gml", "small.toml")
    file = tmp_path / "small.toml"
    for content, told in (
        ("nodes = [", "net.file: small.toml: is not TOML"),
        ("x = 1", "net.file: small.toml: has no table [net]"),
        ("[net]\nroutes = 'latency'\n", "net.file: small.toml: has routes; a file of a topology has nodes, links"),
        ("[net]\nnodes = [{nam = 'a'}]\n", "net.file: small.toml: nodes: 'nam' is not known"),
        (
            "[net]\nnodes = [{name='a'}, {name='b'}]\nlinks = [{from='a', to='b', latency_ms=1}]\n",
            "net.file: small.toml: link a - b: has no bandwidth",
        ),
    ):
        file.write_text(content)
        found = problems(tmp_path, text)
        assert len(found) == 1, found
        assert told in found[0], found


def test_an_overridden_source_replaces_the_other(folders: Path, tmp_path: Path) -> None:
    """--set net.file replaces links in the scenario."""
    (folders / "small.gml").write_text(GML)
    (tmp_path / "x.toml").write_text(GOOD)
    scenario = read_scenario(tmp_path / "x.toml", ["net.file=small.gml"])
    assert scenario.net is not None
    assert (scenario.net.file, scenario.net.nodes, scenario.net.links) == ("small.gml", [], [])


def test_runs_on_different_files_have_different_keys(folders: Path, tmp_path: Path) -> None:
    """The key of a run depends on the file's content, not on its name or path."""
    path = tmp_path / "x.toml"
    path.write_text(FROM_FILE)
    keys = []
    for place, content in ((folders, GML), (tmp_path, GML), (tmp_path, GML.replace("1000000000.0", "2000000000.0"))):
        (place / "small.gml").write_text(content)
        scenario, files = resolve_files(read_scenario(path), tmp_path)
        assert [(file.field, file.path) for file in files] == [("net.file", str(place / "small.gml"))]
        assert scenario.net is not None
        assert scenario.net.file == str(place / "small.gml")
        keys.append((run_key(scenario, files, "stamp"), workload_key(scenario, files)))
    assert keys[0] == keys[1]
    assert keys[1][0] != keys[2][0]
    assert keys[1][1] != keys[2][1]
