"""The plan of a sweep: varied keys, seeds, keys of runs, and reports of all problems at once."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave.errors import InputError, ScenarioError
from gridweave.scenarios.scenario.read import read_scenario
from gridweave.scenarios.sweep.identity import workload_key
from gridweave.scenarios.sweep.plan import check_workloads, derive_seeds, make_plan, parse_seeds, read_axes, toml_text
from gridweave.scenarios.traces.load import save_workload
from gridweave.scenarios.workload.table import Workload

PLAIN = st.recursive(
    st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)


def problems_of(*arguments: object, **options: object) -> list[str]:
    """Return the problems of a plan."""
    with pytest.raises(ScenarioError) as error:
        make_plan(*arguments, **options)  # type: ignore[arg-type]
    return [str(problem) for problem in error.value.problems]


@given(PLAIN)
def test_values_are_written_as_toml(value: object) -> None:
    """A TOML parser reads the text of a plain value as the same value."""
    read = tomllib.loads(f"value = {toml_text(value)}\n")["value"]
    assert read == value
    assert type(read) is type(value)


def test_typed_values() -> None:
    """Commas in brackets and quotes separate no values; values that are not TOML are texts; aliases work."""
    problems: list[str] = []
    typed = ["p=0, 0.3", "config=m128,m256", "grid.max_fragments=limited,[[64, 1], [512, 8]]", 'a="x,y",{n = 1, s = 2}']
    axes = read_axes(typed, problems)
    assert problems == []
    assert [axis.key for axis in axes] == ["grid.overhead", "sites", "grid.max_fragments", "a"]
    assert axes[0].values == (0, 0.3)
    assert axes[2].values == ("limited", [[64, 1], [512, 8]])
    assert axes[2].column == ("limited", "[[64, 1], [512, 8]]")
    assert axes[3].values == ("x,y", {"n": 1, "s": 2})


@pytest.mark.parametrize(
    "typed", ["p", "=1", "p=", "p=1,,2", "p=[1", "p=1,1", "p=1,1.0", "scenario.seed=1,2", "workload.trace='a"]
)
def test_invalid_varied_keys_are_refused(typed: str) -> None:
    """The error is one line that names the option."""
    problems: list[str] = []
    assert read_axes([typed], problems) == ()
    assert len(problems) == 1
    assert problems[0].startswith("--vary")


def test_values_from_python_equal_typed_values() -> None:
    """NumPy numbers, single values and texts give the same runs as typed values."""
    vary = {"grid.overhead": np.array([0.0, 0.25]), "config": ("m128", "m256"), "grid.mode": "adaptive"}
    from_python = make_plan("streit-7-syn", vary, overrides={"workload.jobs": 50, "workload.transform": []})
    sets = ["workload.jobs=50", "workload.transform=[]"]
    typed = make_plan("streit-7-syn", ["p=0,0.25", "config=m128,m256", "grid.mode=adaptive"], overrides=sets)
    assert [run.key for run in from_python.runs] == [run.key for run in typed.runs]


def test_every_combination_with_every_seed() -> None:
    """The last key varies fastest, and each run's scenario is the one that `run` would read."""
    plan = make_plan(
        "two-sites", ["p=0,0.3", "grid.mode=sharing,adaptive"], seeds=[5, 7], overrides=["workload.jobs=9"]
    )
    assert [plan.label(number) for number in range(4)] == [
        "p=0, grid.mode=sharing",
        "p=0, grid.mode=adaptive",
        "p=0.3, grid.mode=sharing",
        "p=0.3, grid.mode=adaptive",
    ]
    assert [(run.combination, run.seed) for run in plan.runs] == [(c, s) for c in range(4) for s in (5, 7)]
    changes = ["workload.jobs=9", "grid.overhead=0.3", "grid.mode=sharing", "scenario.seed=7"]
    assert plan.runs[5].scenario == read_scenario("two-sites", changes)
    assert len({run.key for run in plan.runs}) == 8


def test_a_configuration_is_applied_before_keys_of_its_sites() -> None:
    """A configuration and the nodes of one of its sites can be varied together, in either order."""
    vary = {"sites.n128-1.nodes": [128, 64], "config": ["m128"]}
    plan = make_plan("streit-7-syn", vary)
    assert [run.scenario.sites[0].nodes for run in plan.runs] == [128, 64]  # type: ignore[union-attr]


@given(st.integers(0, 2**63 - 1), st.integers(1, 20), st.integers(0, 20))
def test_derived_seeds(seed: int, count: int, more: int) -> None:
    """Derived seeds are distinct and exact in a float, and a longer list starts with the same seeds."""
    seeds = derive_seeds(seed, count)
    assert len(set(seeds)) == count
    assert all(0 <= one < 2**53 for one in seeds)
    assert derive_seeds(seed, count + more)[:count] == seeds


def test_seeds_of_a_plan() -> None:
    """The scenario's seed is the default, and the base of derived seeds unless another one is set."""
    assert make_plan("two-sites").seeds == (read_scenario("two-sites").header.seed,)
    assert make_plan("two-sites", seeds=3, overrides=["scenario.seed=9"]).seeds == derive_seeds(9, 3)
    assert make_plan("two-sites", seeds=(4, 2)).seeds == (4, 2)


@pytest.mark.parametrize(("typed", "seeds"), [("3", 3), ("1,2,3", (1, 2, 3)), ("7,", (7,)), (" 1 , 2", (1, 2))])
def test_typed_seeds(typed: str, seeds: object) -> None:
    """A number is a count, a list gives the seeds, and a comma makes a list of one."""
    problems: list[str] = []
    assert parse_seeds(typed, problems) == seeds
    assert problems == []


@pytest.mark.parametrize("typed", ["", "0", "x", "1,x", "-1", "1,1", "1.5", "9" * 19 + ",", "100001", ","])
def test_invalid_seeds_are_refused(typed: str) -> None:
    problems: list[str] = []
    assert parse_seeds(typed, problems) is None
    assert len(problems) == 1
    assert problems[0].startswith("--seeds:")


def test_all_problems_at_once() -> None:
    """Problems of options, combinations and values are reported once each, with the combinations that have them."""
    told = problems_of(
        "streit-7-syn",
        ["grid.modd=1", "p=0,-1,x", "config=m128,m3", "grid.mode="],
        overrides=["workload.jobz=3"],
        seeds=[1, 1],
    )
    assert [line.split(": ")[0] for line in told] == [
        *("--vary grid.mode", "--seeds", "--set workload.jobz", "--vary grid.modd"),
        *("--vary config", "--vary p", "--vary p"),
    ]
    assert any(line.endswith("(with config=m3)") for line in told)
    assert any(line.endswith("(with p=-1)") for line in told)
    assert all("\n" not in line for line in told)


def test_too_many_runs_are_refused() -> None:
    """The limit is checked before combinations are enumerated."""
    many = list(range(1, 1001))
    assert "100,000" in problems_of("two-sites", {"workload.jobs": many, "grid.lower_bound": many})[0]
    assert "100,000" in problems_of("two-sites", {"workload.jobs": many}, seeds=1000)[0]


def test_a_key_is_varied_or_set() -> None:
    """A key that is both varied and set is refused, and so is a set seed with a list of seeds."""
    assert len(problems_of("two-sites", ["p=0,1"], overrides={"grid.overhead": 0.3})) == 1
    assert len(problems_of("two-sites", ["p=0,1", "grid.overhead=2"])) == 1
    assert len(problems_of("two-sites", seeds=[1], overrides=["scenario.seed=3"])) == 1


def test_unknown_scenarios_are_refused() -> None:
    """The error lists the known scenarios."""
    with pytest.raises(InputError, match="two-sites"):
        make_plan("nothing", ["p=0"])


def test_workloads_are_checked_before_any_run() -> None:
    """The error names the values for which the workload cannot run."""
    plan = make_plan(
        "streit-7-syn", ["grid.mode=local,adaptive", "config=m64,m512"], overrides=["workload.transform=[]"]
    )
    with pytest.raises(ScenarioError, match=r"can never run.*\(with grid\.mode=local, config=m64\)") as error:
        check_workloads(plan, plan.runs)
    assert len(error.value.problems) == 1


def test_keys_of_runs(tmp_path: Path) -> None:
    """The key of a run depends only on what affects its result, not on names and paths."""
    numbers = np.arange(1, 9)
    jobs = Workload(numbers, numbers * 10, np.ones(8, np.int64), numbers * 100, numbers * 100, nodes=4)
    text = 'sites = "m512"\n[scenario]\nname = "{}"\n[workload]\ntrace = "{}"\n[grid]\noverhead = {}\n'
    keys = {}
    for name, overhead in (("a", 0.0), ("b", 0.0), ("c", 0.5)):
        (tmp_path / name).mkdir()
        save_workload(jobs, tmp_path / name / "jobs.swf")
        (tmp_path / name / "s.toml").write_text(text.format(name, "jobs.swf", overhead))
        keys[name] = make_plan(tmp_path / name / "s.toml").runs[0]
    assert keys["a"].key == keys["b"].key != keys["c"].key
    assert Path(keys["a"].files[0].path) == tmp_path / "a" / "jobs.swf"
    assert workload_key(keys["a"].scenario, keys["a"].files) == workload_key(keys["c"].scenario, keys["c"].files)
    save_workload(jobs.take(numbers[:5] - 1), tmp_path / "b" / "jobs.swf")
    assert make_plan(tmp_path / "b" / "s.toml").runs[0].key != keys["a"].key
    for change in ("scenario.seed=2", "sites=m256", "grid.lower_bound=4", "workload.estimates=perfect"):
        assert make_plan(tmp_path / "a" / "s.toml", overrides=[change]).runs[0].key != keys["a"].key


@pytest.mark.parametrize("field", ["needs", "resources", "chunks"])
def test_a_changed_file_of_needs_or_chunks_changes_the_key(tmp_path: Path, field: str) -> None:
    """The path of the file does not matter."""
    site = '[[sites]]\nname = "a"\nkinds = [{ name = "k", count = 9 }]\n'
    keys = []
    for name, content in (("a.csv", "1"), ("b.csv", "1"), ("c.csv", "2")):
        (tmp_path / name).write_text(content)
        (tmp_path / "s.toml").write_text(f'{site}[workload]\ngenerator = "ctc-sp2"\njobs = 5\n{field} = "{name}"\n')
        keys.append(make_plan(tmp_path / "s.toml").runs[0].key)
    assert keys[0] == keys[1] != keys[2]
