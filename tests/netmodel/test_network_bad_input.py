"""Invalid networks: all problems are reported at once."""

from __future__ import annotations

import networkx as nx
import pytest

from gridweave.errors import InputError, ScenarioError
from gridweave.netmodel.reading import parse_network, topology_of_graph
from gridweave.netmodel.topology import Topology
from support.builders import ZOO, no_file


def read(text: str, name: str = "net.toml", sites: list[str] | None = None) -> Topology:
    """Parse a network."""
    return parse_network(text, name, no_file, sites)[1]


def problems(text: str, name: str = "net.toml", sites: list[str] | None = None) -> list[str]:
    """Return the lines of all problems of a network."""
    with pytest.raises(ScenarioError) as caught:
        read(text, name, sites=sites)
    lines = str(caught.value).splitlines()
    assert lines == [str(problem) for problem in caught.value.problems]
    return [line.removeprefix(f"{name}: ") for line in lines]


def generated(**entries: object) -> str:
    """Return a table with a generator."""
    rows = "\n".join(f"{key} = {value}" for key, value in entries.items())
    return f"[net.generator]\n{rows}\n"


NODES = """
[net]
nodes = [{name = "a", latitude = 50, longitude = 8}, {name = "b"}, {name = "c", latitude = 51, longitude = 9}]
"""


def linked(*links: str, more: str = "") -> str:
    """Return a table of three nodes with these links."""
    return f"{NODES}{more}\nlinks = [{', '.join(links)}]\n"


AB = '{from = "a", to = "b", latency_ms = 1, bandwidth_bps = 1e9}'
BC = '{from = "b", to = "c", latency_ms = 1, bandwidth_bps = 1e9}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (linked(AB), "has 2 parts with no link between them: a, b; c"),
        (linked(AB, BC.replace("}", ", one_way = true}")), "has one-way links: c cannot reach every node"),
        (
            linked(AB, BC.replace("1e9", "-1e9")),
            "links: link b - c: bandwidth_bps is -1e+09; expected a finite number above 0",
        ),
        (linked(AB, BC.replace("1e9", "inf")), "links: link b - c: bandwidth_bps is inf"),
        (linked(AB, '{from = "a", to = "c"}'), "links: link a - c: has no bandwidth; give bandwidth_bps"),
        (linked(AB, '{from = "b", to = "c", bandwidth_bps = 1e9}'), "the position of b is unknown; give latency_ms"),
        (
            linked(AB, BC.replace("bandwidth_bps = 1e9", 'bandwidth = "3 parsecs"')),
            "link b - c: '3 parsecs' is not a bandwidth",
        ),
        (
            linked(AB, BC.replace("1e9", '1e9, bandwidth = "1 Gbps"')),
            "link b - c: conflicts with bandwidth_bps",
        ),
        (linked(AB, BC, AB), "links: link a - b: appears twice; name parallel links"),
        (linked(AB, BC, AB.replace('"a", to = "b"', '"b", to = "a"')), "links: link b - a: appears twice"),
        (linked(AB, BC, AB.replace('to = "b"', 'to = "a"')), "links: link a - a: connects a node to itself"),
        (linked(AB, BC, AB.replace('to = "b"', 'to = "q"')), "link a - q: there is no node 'q'; there are a, b, c"),
        (linked(AB, BC.replace("latency_ms = 1", "latency_ms = -1")), "link b - c: latency_ms is -1"),
        (linked(AB, BC.replace("latency_ms = 1", "latency_ms = nan")), "link b - c: latency_ms is nan"),
        (
            linked(AB, BC.replace("}", ", loss = 1.0}")),
            "link b - c: loss is 1; expected a probability from 0 to below 1",
        ),
        (linked(AB, BC.replace("}", ", jitter_ms = -0.5}")), "link b - c: jitter_ms is -0.5"),
        (linked(AB, BC.replace("}", ", back = {loss = -1.0}}")), "links.back: link b - c (back): loss is -1"),
        (linked(AB, BC.replace("}", ", one_way = true, back = {}}")), "link b - c: is one way but has back"),
        (linked(AB, BC.replace("}", ", latency = 3}")), "'latency' is not known (perhaps latency_ms was meant)"),
        (linked(AB, '{to = "c"}'), "link ? - c: from is missing"),
        (
            linked(AB, BC.replace("latency_ms = 1", 'latency_ms = "1"')),
            "links.latency_ms: link b - c: is a text; a number",
        ),
        (linked(AB, BC, more='attach = {s = "q"}'), "attach.s: site s is attached to 'q', which is not a node"),
        (linked(AB, BC, more='attach = {s = {node = "a"}}'), "the access line of site s has no bandwidth"),
        (linked(AB, BC, more="attach = {s = 3}"), "attach.s: is a whole number; a table is needed"),
        (
            linked(AB, BC, more='routes = "scenic"'),
            "routes: 'scenic' is not known; one of latency, bandwidth, k-shortest",
        ),
        (linked(AB, BC, more='exchange = "lazy"'), "exchange: 'lazy' is not known"),
        (linked(AB, BC, more='contention = "some"'), "contention: 'some' is not known; one of none, static, dynamic"),
        (linked(AB, BC, more="detour = 0.9"), "detour: is 0.9; expected a factor of at least 1"),
        (linked(AB, BC, more="k = 0"), "k: is 0; expected at least 1 route"),
        (linked(AB, BC, more=f"k = {10**400}"), "k: has more than 64 bits; expected at least 1 route"),
        (linked(AB, BC, more="segment_bytes = 0"), "segment_bytes: is 0"),
        (linked(AB, BC, more="local_latency_ms = -1"), "local_latency_ms: is -1"),
        (linked(AB, BC, more="local_bandwidth_bps = 0"), "local_bandwidth_bps: is 0"),
        (linked(AB, BC, more="failures = {mean_up_ms = 0, mean_down_ms = 1, factor = 2}"), "failures.mean_up_ms: is 0"),
        (linked(AB, BC, more='changes = [{at_ms = 1, action = "fail", link = ["a", "c"]}]'), "no link between a and c"),
        (linked(AB, BC, more='changes = [{at_ms = "x", action = "fail"}]'), "changes.at_ms: is a text; a whole number"),
        (linked(AB, BC, more="detours = 2"), "detours: is not known (perhaps detour was meant)"),
        (
            linked(AB, BC, more='file = "x.gml"'),
            "has file and nodes; expected exactly one of file, generator, and nodes",
        ),
        ("[net]\n", "has no source; expected exactly one of"),
        (f"[net]\nlinks = [{AB}]\n", "links: are given without nodes"),
        ('[net]\nfile = "x.gml"\n', "file: x.gml: there is no such file"),
        ("[net]\nnodes = 3\n", "nodes: is 3; expected a list of tables"),
        (
            '[net]\nnodes = [{name = "a", latitude = 91, longitude = 0}]\n',
            "node a: latitude is 91.0; expected -90 to 90 degrees",
        ),
        ('[net]\nnodes = [{name = "a", latitude = 9}]\n', "node a: has only one of latitude and longitude"),
        ('[net]\nnodes = [{name = "a"}, {name = "a"}]\n', "'a' is also the name of another node"),
        ('[net]\nnodes = [{name = ""}]\n', "a node has no name"),
    ],
)
def test_invalid_tables_are_refused(text: str, message: str) -> None:
    """Messages name the link, site or key, and say what is expected."""
    assert any(message in line for line in problems(text))


def test_all_problems_are_reported_once() -> None:
    lines = problems(
        linked(
            AB.replace("1e9", "-5"),
            AB.replace("to", "too"),
            BC.replace("latency_ms = 1", "latency_ms = -1"),
            more="k = 0",
        )
    )
    assert len(lines) == len(set(lines)) == 4


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (
            '{from = "a", to = "b", latency_ms = "long", bandwidth_bps = 1e9}',
            "link a - b: is a text; a number is needed",
        ),
        ('{from = "a", to = "b", bandwidth = 5, latency_ms = 1}', "link a - b: is a whole number; a text is needed"),
        ('{from = "a", to = "b", bandwith = "1 Gbps", latency_ms = 1}', "link a - b: 'bandwith' is not known"),
    ],
)
def test_an_invalid_link_causes_no_report_about_connectivity(wrong: str, told: str) -> None:
    (line,) = problems(linked(wrong, BC))
    assert told in line


def test_an_invalid_node_causes_no_report_about_its_links() -> None:
    (line,) = problems(linked(AB, BC).replace("latitude = 50,", 'latitude = "north",'))
    assert "nodes.latitude: is a text; a number is needed" in line


def test_unattached_and_unknown_sites_are_reported() -> None:
    lines = problems(linked(AB, BC, more='attach = {alpha = "a", ghost = "b"}'), sites=["alpha", "b", "omega"])
    assert lines == [
        "attach.ghost: there is no site 'ghost'; there are alpha, b, omega",
        "site omega is not attached to a node; add it to [net.attach], with one of a, b, c",
    ]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            ('LinkSpeedUnits "G" ]', 'LinkSpeedUnits "furlongs" ]'),
            "link BRU - FRA (2): LinkSpeedUnits is 'furlongs'; expected K",
        ),
        (('LinkSpeed "2.5"', 'LinkSpeed "fast"'), "link BRU - FRA (2): LinkSpeed is 'fast'; expected a number"),
        (("latency_ms 0.25", "latency_ms -1"), "latency_ms is -1"),
        (("Longitude 4.88969", "Longitude 400"), "node AMS: longitude is 400.0; expected -180 to 180 degrees"),
        (("Longitude 4.88969", 'Longitude "west"'), "node AMS: longitude is 'west'; expected a number"),
        (("edge [ source 2 target 4", "edge [ source 2 target 2"), "connects a node to itself"),
        (("edge [ source 2 target 4", "edge [ source 2 target 0"), "has 2 parts"),
    ],
)
def test_invalid_graph_files_are_refused(edit: tuple[str, str], message: str) -> None:
    text = ZOO.replace(*edit)
    assert text != ZOO
    assert any(message in line for line in problems(text, "zoo.gml"))


def test_a_graph_without_any_bandwidth_is_refused() -> None:
    graph = nx.path_graph(["a", "b"])
    nx.set_edge_attributes(graph, 1.0, "latency_ms")
    with pytest.raises(ScenarioError, match="link a - b: has no bandwidth"):
        topology_of_graph(graph)


def test_a_graph_without_positions_or_latencies_is_refused() -> None:
    with pytest.raises(ScenarioError) as caught:
        topology_of_graph(nx.path_graph(["a", "b", "c"]), bandwidth_bps=1e9)
    assert [str(problem).partition(": has no latency")[0] for problem in caught.value.problems] == [
        "graph: links: link a - b",
        "graph: links: link b - c",
    ]


Attributes = dict[str, object]
GIVE_LATENCY = "give latency_ms, or latitude and longitude"


def graph_problems(*edges: tuple[str, str, Attributes], nodes: dict[str, Attributes] | None = None) -> list[str]:
    """Return the lines of all problems of a user's graph."""
    graph: nx.MultiGraph[str] = nx.MultiGraph()
    graph.add_nodes_from((nodes or {}).items())
    for one, other, changed in edges:
        right: Attributes = {"latency_ms": 1.0, "bandwidth_bps": 1e9}
        graph.add_edge(one, other, **{key: value for key, value in (right | changed).items() if value is not None})
    with pytest.raises(ScenarioError) as caught:
        topology_of_graph(graph)
    return [str(problem).removeprefix("graph: ").removeprefix("links: ") for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (
            {"latency_ms": None},
            f"link b - c: has no latency, and the position of b and c is unknown; {GIVE_LATENCY}",
        ),
        ({"bandwidth_bps": None}, "link b - c: has no bandwidth; give bandwidth_bps, or bandwidth = '10 Gbps'"),
        ({"latency_ms": -1}, "link b - c: latency_ms is -1; expected 0 to 1e9 ms"),
        ({"latency_ms": float("nan")}, "link b - c: latency_ms is nan; expected 0 to 1e9 ms"),
        ({"latency_ms": "slow"}, "link b - c: latency_ms is 'slow'; expected a number"),
        ({"bandwidth_bps": 0}, "link b - c: bandwidth_bps is 0; expected a finite number above 0"),
        ({"bandwidth_bps": float("inf")}, "link b - c: bandwidth_bps is inf; expected a finite number above 0"),
        ({"loss": 1.5}, "link b - c: loss is 1.5; expected a probability from 0 to below 1"),
        ({"jitter_ms": -3.0}, "link b - c: jitter_ms is -3; expected 0 to 1e9 ms"),
        ({"up": "yes"}, "link b - c: up is 'yes'; expected true or false"),
    ],
)
def test_an_invalid_edge_is_reported_in_one_line(changed: Attributes, line: str) -> None:
    """Values of other edges do not fill the gap."""
    assert graph_problems(("a", "b", {}), ("b", "c", changed), ("c", "a", {})) == [line]


def test_an_integer_beyond_the_range_of_a_float_is_refused() -> None:
    (line,) = graph_problems(("a", "b", {"latency_ms": 10**400}))
    assert line.startswith("link a - b: latency_ms is 1000")
    assert line.endswith("; expected a number")
    assert len(line) < 200


def test_an_unconnected_graph_is_refused_in_one_line() -> None:
    lines = graph_problems(("a", "b", {}), ("c", "d", {}))
    assert lines == ["has 2 parts with no link between them: a, b; c, d"]


def test_invalid_sites_attributes_are_refused() -> None:
    nodes: dict[str, Attributes] = {
        "a": {"sites": "alpha"},
        "b": {"sites": ("alpha", "beta")},
        "c": {"sites": 3},
    }
    assert graph_problems(("a", "b", {}), ("b", "c", {}), nodes=nodes) == [
        "site alpha is at two nodes, a and b; expected one",
        "node c: sites is 3; expected the name of a site, or a list of names",
    ]


@pytest.mark.parametrize("given", [None, [("a", "b")], "geant.gml"])
def test_other_types_than_graphs_are_refused(given: object) -> None:
    with pytest.raises(InputError, match=f"is a {type(given).__name__}; expected a networkx graph"):
        topology_of_graph(given)


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("", "x.gml", "x.gml: cannot be read as GML: input contains no graph"),
        ("hello", "x.gml", "x.gml: cannot be read as GML"),
        ("graph [ node [ id 0 ] edge [ source 0 target 7 ] ]", "x.gml", "edge #0 has undefined target 7"),
        ("hello", "x.graphml", "x.graphml: cannot be read as GraphML"),
        ("<a/>", "x.graphml", "x.graphml: cannot be read as GraphML"),
        (
            """<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="directed">
            <node id="a"/><edge source="a" target="b"/></graph></graphml>""",
            "x.graphml",
            "link a - b: there is no node 'b'",
        ),
        ("[net", "x.toml", "x.toml: is not TOML"),
        ("[grid]", "x.toml", "x.toml: has no table [net]"),
        ("", "x.csv", "x.csv: the suffix names no network format; use .toml, .gml or .graphml"),
        ("", "x", "x: the suffix names no network format"),
    ],
)
def test_files_of_other_formats_are_refused(text: str, name: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text, name)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"name": '"magic"', "latency_ms": 1}, "generator.name: 'magic' is not known; one of balanced_tree"),
        (
            {"name": '"cycle_graph"', "arguments": "{m = 3}", "latency_ms": 1},
            "generator.arguments: cycle_graph rejects these arguments",
        ),
        ({"name": '"cycle_graph"', "arguments": "{n = 3}"}, "generator.latency_ms: is missing; give latency_ms"),
        ({"name": '"cycle_graph"', "arguments": "{n = 3}", "side_km": 9}, "cycle_graph generates no positions"),
        ({"name": '"cycle_graph"', "arguments": "{n = 3}", "side_km": -9}, "generator.latency_ms: is -9"),
        (
            {"name": '"cycle_graph"', "arguments": "{n = 3}", "side_km": 9, "latency_ms": 1},
            "generator.side_km: conflicts with",
        ),
        ({"name": '"gnp_random_graph"', "arguments": "{n = 9, p = 0.0}", "latency_ms": 1}, "has 9 parts"),
        ({"arguments": "{n = 3}"}, "generator: name is missing"),
    ],
)
def test_invalid_generators_are_refused(entries: dict[str, object], message: str) -> None:
    assert any(message in line for line in problems(generated(bandwidth_bps=1e9, **entries)))
