"""Scenario files: reading, lines of keys, and reports of all problems at once."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave.errors import InputError, ScenarioError
from gridweave.grid.config.tables import Site
from gridweave.grid.config.toml import locate_keys
from gridweave.scenarios.scenario.build import build_scenario
from gridweave.scenarios.scenario.read import machine_configurations, read_scenario, scenario_names, scenario_text
from gridweave.scenarios.scenario.tables import Scenario, json_schema

GOOD = """\
[scenario]
seed = 7
[[sites]]
name = "alpha"
nodes = 64
[[sites]]
name = "beta"
nodes = 32
[workload]
generator = "ctc-sp2"
jobs = 50
nodes = 60
[grid]
overhead = 0.2
"""


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """Write a valid scenario."""
    path = tmp_path / "good.toml"
    path.write_text(GOOD)
    return path


def problems(path: Path, text: str, *overrides: str) -> list[tuple[int | None, str]]:
    """Write a file, check it, and return line and field of each problem."""
    path.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        build_scenario(path, overrides)
    assert len(str(caught.value).splitlines()) == len(caught.value.problems)
    return [(problem.line, problem.field) for problem in caught.value.problems]


# -- where keys stand


def paths_of(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return the paths of all keys and elements of a document."""
    found = [path] if path else []
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        found += paths_of(one, (*path, key))
    return found


SCALARS = st.sampled_from(["1", "-2.5e3", "true", "1979-05-27 07:32:00", '"a # [b] = {"', "'it\"s]'", '"\\""', '""'])
TEXTS = st.sampled_from(['"""\nx = 1\n[t]\n\\"""\n"""', "'''\n[[y]]\n'' '''", '"""a""""'])
GAPS = st.sampled_from(["", " ", "\n", " # ], } = [t]\n", "\n\n  "])


@st.composite
def documents(draw: st.DrawFn) -> str:
    """Draw a TOML document with distinct keys: k0, k1, ..."""
    count = 0

    def key() -> str:
        nonlocal count
        count += 1
        return draw(st.sampled_from([f"k{count}", f'"k{count}"', f"'k{count}'", f"k{count}x . k{count}"]))

    def value(depth: int) -> str:
        kind = draw(st.integers(0, 3)) if depth < 3 else 0
        if kind == 1:
            return draw(TEXTS)
        if kind == 2:
            inside = [f"{draw(GAPS)}{value(depth + 1)}{draw(GAPS)}" for _ in range(draw(st.integers(0, 3)))]
            return f"[{','.join(inside)}{draw(GAPS)}]"
        if kind == 3:
            return "{" + ", ".join(f"{key()} = {value(depth + 1)}" for _ in range(draw(st.integers(0, 2)))) + "}"
        return draw(SCALARS)

    ends = st.sampled_from(["", " # = [", "  "])
    lines = [f"{key()} = {value(0)}{draw(ends)}" for _ in range(draw(st.integers(0, 3)))]
    for _ in range(draw(st.integers(0, 4))):
        name, twice = key(), draw(st.booleans())
        for _ in range(2 if twice else 1):
            lines.append(f"[[{name}]]" if twice else f" [ {name} ] # c")
            lines += [f"{key()} = {value(0)}" for _ in range(draw(st.integers(0, 2)))]
    return "\n".join(lines) + draw(st.sampled_from(["", "\n", "\n# end"]))


@given(documents())
def test_every_key_is_located(text: str) -> None:
    """Every key of a valid document is found on a line where it is written, in any layout."""
    located = locate_keys(text)
    paths = paths_of(tomllib.loads(text))
    assert set(located) == set(paths)
    lines = text.split("\n")
    for path in paths:
        if isinstance(path[-1], str):
            assert path[-1] in lines[located[path] - 1], (path, text)


def test_elements_of_arrays_are_located() -> None:
    """An array element is on the line where it begins, an element of an array of tables at its header."""
    located = locate_keys("a = [\n 1,\n [2,\n  3]]\n[[b]]\nx=1\n[b.c]\ny=2\n[[b]]\nx=3\n")
    assert [located["a", n] for n in (0, 1)] == [2, 3]
    assert located["a", 1, 1] == 4
    assert [located[path] for path in (("b", 0), ("b", 0, "c", "y"), ("b", 1), ("b", 1, "x"))] == [5, 8, 9, 10]


# -- reading


def test_a_valid_file_is_read(good: Path) -> None:
    """Values are typed, missing keys have defaults, and the name is the file's."""
    scenario = read_scenario(good)
    assert (scenario.header.name, scenario.header.seed) == ("good", 7)
    assert [(site.name, site.nodes, site.discipline) for site in scenario.sites] == [
        ("alpha", 64, "queue"),
        ("beta", 32, "queue"),
    ]
    assert (scenario.grid.mode, scenario.grid.overhead, scenario.grid.max_fragments) == ("adaptive", 0.2, "unlimited")


def test_a_scenario_object_is_read_like_its_file(good: Path) -> None:
    """Overrides apply to it too."""
    scenario = read_scenario(good)
    assert read_scenario(scenario) == scenario
    assert read_scenario(scenario, {"grid.overhead": 1.5}).grid.overhead == 1.5


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    """Problems of every kind and table are reported together, each with its line and field."""
    text = """\
[scenario]
seeds = 3
[[sites]]
name = "alpha"
nodes = 64
[[sites]]
name = "alpha"
nodes = 32
order = "best"
[[sites]]
name = "b c"
nodes = 0.5
[workload]
trace = "nowhere/at/all.swf"
estimates = "omega:-1"
transform = [{ split = "big" },
  { shrink = 0.5, stretch = 2 }]
home = { alpha = 0.5 }
drop_wide = "no"
[grid]
mode = "best"
overhead = -0.1
lower_bound = "many"
[output]
metrics = ["util", "joy"]
"""
    assert problems(tmp_path / "bad.toml", text) == [
        (2, "scenario.seeds"),
        (7, "sites.name"),
        (9, "sites.order"),
        (11, "sites.name"),
        (12, "sites.nodes"),
        (14, "workload.trace"),
        (15, "workload.estimates"),
        (16, "workload.transform.split"),
        (17, "workload.transform"),
        (19, "workload.drop_wide"),
        (21, "grid.mode"),
        (22, "grid.overhead"),
        (23, "grid.lower_bound"),
        (25, "output.metrics"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('name = "beta"', 'name = "alpha"', [(7, "sites.name")]),
        ("overhead = 0.2", "overhead = -0.2", [(14, "grid.overhead")]),
        ("overhead = 0.2", "overhead = nan", [(14, "grid.overhead")]),
        ("overhead = 0.2", "overhead = []", [(14, "grid.overhead")]),
        ("overhead = 0.2", "overhead = [0.2, -0.2]", [(14, "grid.overhead")]),
        ("overhead = 0.2", "max_fragments = [[64, 1], [32, 2]]", [(14, "grid.max_fragments")]),
        ("overhead = 0.2", "max_fragments = [[64]]", [(14, "grid.max_fragments")]),
        ("overhead = 0.2", 'max_fragments = "some"', [(14, "grid.max_fragments")]),
        ("jobs = 50\n", "", [(9, "workload.jobs")]),
        ("jobs = 50", "jobs = 50\nload = 0", [(12, "workload.load")]),
        ("jobs = 50", "jobs = 50\nload = inf", [(12, "workload.load")]),
        ("jobs = 50", 'trace = "x.swf"', [(10, "workload.generator"), (11, "workload.trace")]),
        ('"ctc-sp2"', '"no-model"', [(10, "workload.generator")]),
        ("jobs = 50", "jobs = 50\nhome = { alpha = 1, gamma = 1 }", [(12, "workload.home.gamma")]),
        ("jobs = 50", "jobs = 50\nhome = { alpha = -1 }", [(12, "workload.home")]),
        ("jobs = 50", "jobs = 50\nhome = { alpha = 0 }", [(12, "workload.home")]),
        ("jobs = 50", 'jobs = 50\nhome = "partition"', [(12, "workload.home")]),
        ("jobs = 50", 'jobs = 50\nhome = "here"', [(12, "workload.home")]),
        ("jobs = 50", "jobs = 50\ntransform = [{ cut = { first = 99 } }]", [(12, "workload.transform.cut")]),
        ("jobs = 50", "jobs = 50\ntransform = [{ cut = { frist = 2 } }]", [(12, "workload.transform.cut.frist")]),
        ("nodes = 60", "nodes = 430", [(9, "workload")]),
        ("[workload]", "[workload]\nnote = 1979-05-27", [(10, "workload.note")]),
    ],
)
def test_each_problem_has_its_line_and_field(
    tmp_path: Path, old: str, new: str, expected: list[tuple[int, str]]
) -> None:
    """One mistake in a valid file is one problem, with its line and field."""
    text = GOOD.replace(old, new, 1).replace("overhead", "mode = 'sharing'\noverhead") if "430" in new else ""
    assert problems(tmp_path / "bad.toml", text or GOOD.replace(old, new, 1)) == expected


def test_no_sites_and_no_workload(tmp_path: Path) -> None:
    """Missing, empty or mistyped sites are reported, and the rest is checked."""
    bad = tmp_path / "bad.toml"
    assert problems(bad, "") == [(None, "sites"), (None, "workload")]
    text = "sites = []\n" + GOOD[GOOD.index("[workload]") :].replace("0.2", "-1")
    assert problems(bad, text) == [(1, "sites"), (7, "grid.overhead")]
    assert problems(bad, text.replace("[]", "3", 1)) == [(1, "sites"), (7, "grid.overhead")]
    assert problems(bad, text.replace("[]", '"m3"', 1)) == [(1, "sites"), (7, "grid.overhead")]


def test_jobs_that_can_never_run_are_reported(good: Path) -> None:
    """The problem has their number, the widest job, and the remedies, next to other problems."""
    with pytest.raises(ScenarioError) as caught:
        build_scenario(good, ["workload.nodes=430", "workload.jobs=1000", "grid.mode=sharing", "grid.overhead=-1"])
    first, second = map(str, caught.value.problems)
    assert "jobs can never run; the widest, job " in first
    assert "split them (transform), or leave them out (drop_wide = true)" in first
    assert second.startswith("--set grid.overhead: ")


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    """A syntax error has its line; text that is not UTF-8, folders and missing files give one line."""
    bad = tmp_path / "bad.toml"
    assert problems(bad, "a = 1\nb = = 2\n") == [(2, "")]
    assert problems(bad, "a = 1\nb = '''x\n") == [(2, "")]
    assert problems(bad, f"a = {'[' * 100_000}") == [(1, "")]
    bad.write_bytes(b"a = 1\nb = '\xff'\n")
    with pytest.raises(ScenarioError, match=r"bad\.toml:2: is not text in UTF-8"):
        read_scenario(bad)
    for path in (tmp_path, tmp_path / "none.toml", "no\0name"):
        with pytest.raises(InputError) as caught:
            read_scenario(path)
        assert len(str(caught.value).splitlines()) == 1


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode) | st.integers(0, len(GOOD)).map(
    lambda size: GOOD[:size].encode()
))  # fmt: skip
def test_garbage_is_refused_and_never_crashes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """Any bytes give either a scenario or an error of gridweave."""
    path = tmp_path_factory.getbasetemp() / "garbage.toml"
    path.write_bytes(data)
    try:
        scenario = read_scenario(path)
    except InputError:
        return
    assert isinstance(scenario, Scenario)
    assert read_scenario(scenario) == scenario


# -- overrides


def test_overrides_reach_every_key(good: Path) -> None:
    """Dotted keys address tables, sites and transformations by name; bare words are texts; the last override wins."""
    scenario = read_scenario(
        good,
        [
            "grid.overhead=0.5",
            "grid.overhead = 0.75",
            "grid.mode=sharing",
            "sites.beta.nodes=48",
            "workload.transform.shrink=0.5",
            "workload.transform.split=64",
            'workload.transform.split="site"',
            "output.metrics=['util']",
            "workload.home={alpha=1,beta=2}",
        ],
    )
    assert (scenario.grid.overhead, scenario.grid.mode, scenario.sites[1].nodes) == (0.75, "sharing", 48)  # type: ignore[union-attr]
    assert [(step.shrink, step.split) for step in scenario.workload.transform] == [(0.5, None), (None, "site")]
    assert (scenario.output.metrics, scenario.workload.home) == (["util"], {"alpha": 1.0, "beta": 2.0})


def test_an_overridden_source_replaces_the_other(good: Path) -> None:
    """Overriding the trace removes the file's generator, and the other way round."""
    table = read_scenario(good, {"workload.trace": __file__}).workload
    assert (table.trace, table.generator, table.jobs) == (__file__, None, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grid", "is not key=value"),
        ("=3", "is not key=value"),
        ("grid.mode=[1", "is not a value"),
        (
            "grid.overhaed=0.3",
            "known are mode, control, order, backfill, head_reservation, selection, overhead, lower_bound",
        ),
        ("nothing=1", "known are sites, workload, scenario, grid, network, faults, live, output"),
        ("sites.west.nodes=3", "there is no site 'west'; expected one of alpha, beta"),
        ("sites.alpha=3", "is a site; set one of its keys"),
        ("sites.alpha.nodes=many", "is 'many'; a whole number is needed"),
        ("workload.jobs.x=1", "workload.jobs is a value"),
        ("workload.transform.slit=1", "perhaps split was meant"),
        ("grid.overhead=-1", "is -1; a number from 0 to 10,000"),
        ("sites=m3", "use one of m64, m64-8, m128, m256, m256-5, m384, m512"),
    ],
)
def test_wrong_overrides(good: Path, text: str, message: str) -> None:
    """A wrong override is reported under the typed key, with what would be right."""
    with pytest.raises(ScenarioError) as caught:
        read_scenario(good, [text])
    (problem,) = caught.value.problems
    assert str(problem).startswith("--set ")
    assert message in str(problem)


# -- schema and catalogue


def test_the_schema_names_every_key() -> None:
    """The schema has the tables and keys of the structs, and allows no others."""
    schema = json_schema()
    tables = schema["$defs"]
    names = {"scenario", "sites", "workload", "grid", "network", "faults", "live", "output", "net"}
    assert set(tables["Scenario"]["properties"]) == names
    assert tables["GridTable"]["properties"]["mode"]["enum"] == ["local", "sharing", "multi-site", "adaptive"]
    assert all(table["additionalProperties"] is False for table in tables.values())
    assert json.loads(json.dumps(schema)) == schema


def test_the_machines_are_those_of_table_7_1() -> None:
    """Every configuration has 512 nodes, and the largest machine is the one in its name."""
    machines = machine_configurations()
    assert list(machines) == ["m64", "m64-8", "m128", "m256", "m256-5", "m384", "m512"]
    for name, one in machines.items():
        nodes = [site.nodes for site in one.sites()]
        assert (sum(nodes), max(nodes)) == (512, int(name[1:].partition("-")[0]))
    assert [len(one.sites()) for one in machines.values()] == [18, 8, 4, 2, 5, 6, 1]


@pytest.mark.parametrize("name", scenario_names())
def test_shipped_scenarios_are_valid(name: str) -> None:
    """Each has the name of its file and a description."""
    scenario = read_scenario(name)
    assert scenario.header.name == name
    assert scenario.header.description.endswith(".")
    text = tomllib.loads(scenario_text(name))
    assert msgspec.convert(text | {"sites": msgspec.to_builtins(scenario.sites)}, Scenario) == scenario


def test_an_unknown_name_lists_the_catalogue() -> None:
    with pytest.raises(InputError, match="the catalogue has control-levels, data-grid, european-grid"):
        read_scenario("no-such-scenario")
    with pytest.raises(InputError, match="two-sites"):
        scenario_text("no-such-scenario")


def test_the_file_in_the_documentation_is_valid(tmp_path: Path) -> None:
    """The example in docs/scenarios.md can be run."""
    page = (Path(__file__).parents[3] / "docs" / "scenarios.md").read_text(encoding="utf-8")
    path = tmp_path / "page.toml"
    path.write_text(page.partition("```toml\n")[2].partition("```")[0])
    built = build_scenario(path)
    assert built.scenario.header.name == "two-sites"
    assert len(built.workload) >= 4000


def test_an_unknown_discipline_is_reported() -> None:
    """The misspelt name is a problem of the site, and other problems are reported too."""
    changes = {"workload.jobs": 20, "workload.transform": [], "sites.north.discipline": "gangs"}
    with pytest.raises(ScenarioError, match=r"sites\.north\.discipline: 'gangs' is not known; one of dynp, fractional"):
        build_scenario("two-sites", changes)


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    """The lines of problems are those of the file."""
    text = '[[sites]]\nname = "north"\nnodes = 8\n[workload]\ngenerator = "ctc-sp2"\njobs = 5\n'
    path = tmp_path / "s.toml"
    path.write_text(text, encoding="utf-8-sig")
    assert [site.name for site in read_scenario(path).sites if isinstance(site, Site)] == ["north"]
    path.write_text(text.replace("nodes = 8", "nodes = 0"), encoding="utf-8-sig")
    with pytest.raises(ScenarioError, match=r"s\.toml:3: "):
        read_scenario(path)
