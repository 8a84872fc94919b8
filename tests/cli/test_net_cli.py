"""The command `gridweave net`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Shell = Callable[..., tuple[int, str, str]]

GML = """\
graph [
  node [ id 0 label "NL" Longitude 4.88969 Latitude 52.37403 ]
  node [ id 1 label "BE" Longitude 4.34878 Latitude 50.85045 ]
  node [ id 2 label "DE" Longitude 8.68333 Latitude 50.11667 ]
  node [ id 3 label "UA" ]
  edge [ source 0 target 1 LinkSpeedRaw 1000000000.0 ]
  edge [ source 0 target 2 LinkSpeedRaw 10000000000.0 ]
  edge [ source 1 target 2 LinkSpeedRaw 10000000000.0 ]
  edge [ source 2 target 3 LinkSpeedRaw 155000000.0 ]
]
"""
TOML = """
[net]
nodes = [{name = "x"}, {name = "y"}]
attach = {alpha = "x", beta = "y"}
[[net.links]]
from = "x"
to = "y"
name = "first"
latency_ms = 2
bandwidth = "10 Gbps"
loss = 0.001
jitter_ms = 0.5
back = {latency_ms = 3}
"""


@pytest.fixture
def gml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a small network, on a wide terminal."""
    monkeypatch.setenv("COLUMNS", "160")
    path = tmp_path / "zoo.gml"
    path.write_text(GML)
    return path


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a network as a table."""
    monkeypatch.setenv("COLUMNS", "160")
    path = tmp_path / "net.toml"
    path.write_text(TOML)
    return path


def squeezed(text: str) -> list[str]:
    """Return lines with single blanks."""
    return [" ".join(line.split()) for line in text.splitlines()]


def test_show_prints_links_and_sites(shell: Shell, gml: Path) -> None:
    """A cable has one row where both directions are alike; what was filled in is a remark on standard error."""
    status, out, err = shell("net", "show", gml)
    lines = squeezed(out)
    assert status == 0
    assert lines[0].endswith("zoo.gml: 4 nodes, 4 links, 4 sites")
    assert "NL BE 1.302 1 Gbps" in lines
    assert "DE UA 2.381 155 Mbps" in lines
    assert "NL NL 52.37° N 4.89° E" in lines
    assert "UA UA" in lines
    assert "no latency given, and an end has no position; using the median of the other links" in err


def test_show_prints_both_directions_where_they_differ(shell: Shell, table: Path) -> None:
    """A cable whose directions differ has a row for each, with its loss and jitter."""
    lines = squeezed(shell("net", "show", table)[1])
    assert "x y first 2.000 10 Gbps 0.10% 0.500" in lines
    assert "y x first 3.000 10 Gbps 0.10% 0.500" in lines
    assert "alpha x" in lines


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_show_draws(shell: Shell, gml: Path, tmp_path: Path, kind: str) -> None:
    """The picture is of the kind that its suffix says."""
    out = tmp_path / f"map.{kind}"
    status, _, err = shell("net", "show", gml, "--out", out)
    assert status == 0
    assert f"picture written to {out}" in err
    assert out.read_bytes().startswith(b"\x89PNG" if kind == "png" else b"<?xml")


def test_show_for_machines(shell: Shell, gml: Path) -> None:
    """All of the network is there as JSON, each link in its direction."""
    figures = json.loads(shell("net", "show", gml, "--json")[1])
    assert [node["name"] for node in figures["nodes"]] == ["NL", "BE", "DE", "UA"]
    assert figures["nodes"][3]["position"] is None
    assert len(figures["links"]) == 8
    assert figures["links"][1]["from"] == "BE"
    assert figures["sites"] == {"NL": "NL", "BE": "BE", "DE": "DE", "UA": "UA"}


def test_path_by_latency_and_by_bandwidth(shell: Shell, gml: Path) -> None:
    """The shortest way is the direct one, the widest goes around."""
    assert "1 NL - BE 1.302 1 Gbps" in squeezed(shell("net", "path", gml, "NL", "BE")[1])
    status, out, _ = shell("net", "path", gml, "NL", "BE", "--by", "bandwidth", "-k", 5)
    lines = squeezed(out)
    assert status == 0
    assert [line[:17] for line in lines if line[:2] in ("1 ", "2 ", "3 ")] == ["1 NL - DE - BE 5.", "2 NL - BE 1.302 1"]


def test_path_between_sites(shell: Shell, table: Path) -> None:
    """Sites and nodes can be named; each direction has its own latency, with half of the jitter."""
    routes = json.loads(shell("net", "path", table, "beta", "x", "--json")[1])
    assert routes == [
        {
            "nodes": ["y", "x"],
            "links": [1],
            "latency_ms": 3.25,
            "bandwidth_bps": 1e10,
            "loss": pytest.approx(0.001),
        }
    ]
    assert json.loads(shell("net", "path", table, "alpha", "x", "--json")[1])[0]["bandwidth_bps"] is None


def test_a_table_names_a_file_beside_it(shell: Shell, gml: Path) -> None:
    """The file of a table is looked for in the table's own folder."""
    table = gml.parent / "named.toml"
    table.write_text('[net]\nfile = "zoo.gml"\n')
    assert "4 nodes" in shell("net", "show", table)[1]


@pytest.fixture
def elsewhere(gml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder; the network is in the one that the environment names."""
    monkeypatch.setenv("GRIDWEAVE_TOPOLOGIES", str(gml.parent))
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_a_network_is_found_in_the_folder_of_the_environment(shell: Shell, elsewhere: Path) -> None:
    """What is not at hand is looked for by its name in $GRIDWEAVE_TOPOLOGIES; so is the file of a table."""
    assert "4 nodes" in shell("net", "show", "zoo.gml")[1]
    table = elsewhere / "named.toml"
    table.write_text('[net]\nfile = "zoo.gml"\n')
    assert "4 nodes" in shell("net", "show", table)[1]


def test_sites_of_a_scenario_are_where_they_say(shell: Shell, elsewhere: Path) -> None:
    """Sites stand at their node, and are ends of a way by their own names."""
    (elsewhere / "three.toml").write_text(
        'sites = [{name = "one", nodes = 4, at = "NL"}, {name = "two", nodes = 4, at = "BE"}]\n'
        '[workload]\ngenerator = "ctc-sp2"\njobs = 5\n[grid]\nmode = "adaptive"\n[net]\nfile = "zoo.gml"\n'
    )
    status, out, err = shell("net", "show", "three.toml", "--json")
    assert status == 0, err
    assert json.loads(out)["sites"] == {"one": "NL", "two": "BE"}
    assert json.loads(shell("net", "path", "three.toml", "one", "two", "--json")[1])[0]["nodes"] == ["NL", "BE"]


def test_a_table_names_a_file_of_toml(shell: Shell, table: Path) -> None:
    """The network of a table can be in another file of TOML."""
    named = table.parent / "named.toml"
    named.write_text('[net]\nfile = "plain.toml"\nattach = {alpha = "x"}\n')
    assert "file: plain.toml: there is no such file" in shell("net", "show", named)[2]
    (table.parent / "plain.toml").write_text(TOML.replace('attach = {alpha = "x", beta = "y"}\n', ""))
    assert json.loads(shell("net", "show", named, "--json")[1])["sites"] == {"alpha": "x"}


def test_a_network_of_the_catalogue(shell: Shell) -> None:
    """Scenarios and topologies that ship are shown by their names; a scenario without a network is refused."""
    assert json.loads(shell("net", "show", "european-grid", "--json")[1])["sites"]["lisbon"] == "Lisbon"
    assert len(json.loads(shell("net", "show", "europe.toml", "--json")[1])["nodes"]) == 21
    assert shell("net", "show", "two-sites")[2] == "gridweave: two-sites: has no table [net]\n"


def test_all_problems_have_a_line(shell: Shell, table: Path) -> None:
    """A network that cannot be used ends with status 2 and a line for each problem, with the link."""
    table.write_text(
        TOML.replace('"10 Gbps"', '"10 Gb"').replace("loss = 0.001", "loss = 1.5").replace('"y"}\n[[', '"q"}\n[[')
    )
    status, out, err = shell("net", "show", table)
    assert status == 2
    assert out == ""
    told = [line.removeprefix(f"gridweave: {table}: ") for line in err.splitlines()]
    assert told == [
        (
            "links.bandwidth: link x - y: '10 Gb' is not a bandwidth; "
            "write a number and bps, kbps, Mbps, Gbps or Tbps, such as '10 Gbps'"
        ),
        "links: link x - y (first): loss is 1.5; expected a probability from 0 to below 1",
        "attach.beta: site beta is attached to 'q', which is not a node; there are x, y",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "{folder}/nowhere.gml"], "nowhere.gml: there is no such file"),
        (["show", "{folder}"], "is not a file"),
        (["show", "{folder}/binary.gml"], "binary.gml: is not text in UTF-8"),
        (["show", "{folder}/words.gml"], "words.gml: cannot be read as GML"),
        (
            ["show", "{gml}", "--out", "map.doc"],
            "--out: map.doc is not the name of a picture; end it in .png, .svg or .pdf",
        ),
        (["show", "{gml}", "--out", "{folder}/no/map.png"], "cannot be written"),
        (["path", "{gml}", "NL", "ZZ"], "there is no site or node 'ZZ'; expected one of NL, BE, DE, UA"),
        (["path", "{gml}", "NL", "BE", "--by", "hops"], "--by: 'hops' is not known; one of latency, bandwidth"),
        (["path", "{gml}", "NL", "BE", "-k", "0"], "-k: is 0; expected at least 1 route"),
        (["path", "{gml}", "NL"], "Missing argument"),
    ],
)
def test_bad_calls_end_with_one_line(shell: Shell, gml: Path, arguments: list[str], message: str) -> None:
    """What cannot be read, found or written ends with status 2 and says so in one line."""
    (gml.parent / "binary.gml").write_bytes(b"\x89PNG\xff")
    (gml.parent / "words.gml").write_text("this is no graph")
    status, out, err = shell("net", *(argument.format(folder=gml.parent, gml=gml) for argument in arguments))
    assert status == 2
    assert out == ""
    assert message in err
    assert len(err.splitlines()) == 1 or "no latency given" in err
