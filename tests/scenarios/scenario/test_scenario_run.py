"""Runs of scenarios: homes, transformations, random streams, modes, and equality with the simulators."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import TracePath
from gridweave.errors import InputError, ScenarioError
from gridweave.grid.config.tables import Site
from gridweave.grid.policy import LIMITED_FRAGMENTS, GridPolicy
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.generators.registry import generate, load_model
from gridweave.scenarios.results.schedule import NEVER
from gridweave.scenarios.scenario.build import build_scenario
from gridweave.scenarios.scenario.run import run_scenario
from gridweave.scenarios.scenario.tables import GridTable, Scenario, WorkloadTable
from gridweave.scenarios.traces.load import save_workload
from gridweave.scenarios.workload.homes import assign_homes, home_of
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.workload.transform import split

SMALL = ["workload.jobs=300"]


def workload_of(widths: Sequence[int], **columns: Sequence[int]) -> Workload:
    """Return jobs of these widths, one per second, with ids from 1."""
    n = len(widths)
    times = np.full(n, 5000)
    return Workload(
        np.arange(1, n + 1),
        np.arange(n) * 1000,
        np.array(widths, np.int64),
        times,
        times,
        columns={name: np.array(values) for name, values in columns.items()},
    )


def scenario_of(widths: Sequence[int], folder: Path, sites: dict[str, int], **table: object) -> Scenario:
    """Return a scenario on a trace with jobs of these widths."""
    path = folder / "jobs.swf"
    save_workload(workload_of(widths).replace(nodes=1000), path)
    return Scenario(
        sites=[Site(name=name, nodes=nodes) for name, nodes in sites.items()],
        workload=WorkloadTable(trace=str(path), **table),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("after_s", [0, 300])
def test_a_job_wider_than_every_site_waits_no_longer_than_its_bound(tmp_path: Path, after_s: int) -> None:
    """Single nodes become free all the time; after the bound only running jobs have to end."""
    submit_s = np.array([*range(0, 3000, 50), 120])
    width = np.where(submit_s == 120, 12, 1)
    run_ms = np.where(width == 12, 300_000, 100_000)
    order = np.argsort(submit_s, kind="stable")
    jobs = Workload(np.arange(1, 62), submit_s[order] * 1000, width[order], run_ms[order], run_ms[order])
    save_workload(jobs.replace(nodes=12), tmp_path / "starve.swf")
    scenario = Scenario(
        sites=[Site(name="north", nodes=8), Site(name="south", nodes=4)],
        workload=WorkloadTable(trace=str(tmp_path / "starve.swf")),
        grid=GridTable(control="limited", reserve_after_s=after_s),
    )
    result = run_scenario(scenario)
    row = result.workload.width.tolist().index(12)
    waited_s = (result.start_ms[row] - result.workload.submit_ms[row]) / 1000
    assert after_s <= waited_s <= after_s + 100


def test_the_same_seed_gives_the_same_run() -> None:
    """Another seed gives another run."""
    first, again, other = (run_scenario("two-sites", overrides=[*SMALL, f"scenario.seed={seed}"]) for seed in (1, 1, 2))
    assert first.start_ms.tolist() == again.start_ms.tolist()
    assert first.sites_of_jobs() == again.sites_of_jobs()
    assert first.workload.width.tolist() != other.workload.width.tolist()


def test_random_streams_do_not_shift_each_other() -> None:
    """Random estimates change neither the jobs nor their homes."""
    kept, drawn = (build_scenario("two-sites", [*SMALL, f"workload.estimates={name}"]) for name in ("keep", "omega:3"))
    for name in ("submit_ms", "width", "run_ms"):
        assert getattr(kept.workload, name).tolist() == getattr(drawn.workload, name).tolist()
    assert kept.home.tolist() == drawn.home.tolist()
    assert kept.workload.estimate_ms.tolist() != drawn.workload.estimate_ms.tolist()


def test_run_times_have_their_own_random_stream() -> None:
    """They change neither estimates nor homes, and the same seed gives the same run times."""
    overrides = [*SMALL, "workload.run_times=lognormal:0.5"]
    kept, drawn, again = (build_scenario("two-sites", each) for each in (SMALL, overrides, overrides))
    for name in ("submit_ms", "width", "estimate_ms"):
        assert getattr(kept.workload, name).tolist() == getattr(drawn.workload, name).tolist()
    assert kept.home.tolist() == drawn.home.tolist()
    assert kept.workload.run_ms.tolist() != drawn.workload.run_ms.tolist() == again.workload.run_ms.tolist()
    with pytest.raises(ScenarioError, match=r"workload\.run_times: 'normal:1' is not known; one of keep"):
        build_scenario("two-sites", [*SMALL, "workload.run_times=normal:1"])


def test_jobs_of_a_scenario_get_priorities() -> None:
    """Priorities have their own random stream; invalid texts and unknown columns are reported at the key."""
    overrides = [*SMALL, "workload.priorities=shares:5=1,0=1"]
    kept, drawn = (build_scenario("two-sites", each) for each in (SMALL, overrides))
    assert kept.home.tolist() == drawn.home.tolist()
    assert set(drawn.workload.columns["priority"].tolist()) == {0, 5}
    for wrong, problem in (
        ("colour:1=2", "is not known; one of keep"),
        ("partition:1=2", "has no column partition"),
    ):
        with pytest.raises(ScenarioError, match=rf"workload\.priorities: .*{problem}"):
            build_scenario("two-sites", [*SMALL, f"workload.priorities={wrong}"])


def test_the_generator_uses_the_first_random_stream() -> None:
    """The jobs are the model's for default_rng([seed, 1]), by default on all nodes."""
    built = build_scenario("two-sites", {"workload.jobs": 100, "workload.transform": []})
    rng = np.random.default_rng([1, 1])
    expected = generate(load_model("ctc-sp2"), 100, rng, nodes=384, load=0.8)
    assert built.workload.submit_ms.tolist() == expected.submit_ms.tolist()
    assert built.workload.width.tolist() == expected.width.tolist()


@pytest.mark.parametrize("mode", ["sharing", "multi-site", "adaptive"])
@pytest.mark.parametrize("selection", ["best-fit", "random"])
def test_a_run_equals_the_grid_simulator(mode: str, selection: str) -> None:
    """A scenario gives the result of `simulate` for the same jobs, nodes and policy."""
    changes = [*SMALL, f"grid.mode={mode}", f"grid.selection={selection}", "grid.max_fragments=limited"]
    run = run_scenario("two-sites", overrides=changes)
    policy = GridPolicy(mode=mode, selection=selection, overhead=0.25, max_fragments=LIMITED_FRAGMENTS)
    rng = np.random.default_rng([1, 4])
    expected = simulate(run.workload, [256, 128], policy, rng=rng)
    assert run.start_ms.tolist() == expected.start_ms.tolist()
    assert run.fragments.tolist() == expected.fragments.tolist()


def test_local_runs_equal_the_grid_simulator() -> None:
    """The sites use the discipline of the grid."""
    run = run_scenario("two-sites", overrides=[*SMALL, "grid.mode=local", "grid.order=sjf"])
    policy = GridPolicy(mode="local", order="sjf")
    expected = simulate(run.workload, [256, 128], policy, home=run.home)
    assert run.start_ms.tolist() == expected.start_ms.tolist()
    assert run.end_ms.tolist() == expected.end_ms.tolist()
    assert [run.fragments_of(row) for row in range(20)] == [expected.fragments_of(row) for row in range(20)]


def test_local_sites_have_their_own_disciplines() -> None:
    """The discipline of the grid is the default."""
    changes = ["grid.mode=local", "grid.backfill=none", "sites.north.discipline=planning", "sites.north.order=sjf"]
    run = run_scenario("two-sites", overrides=[*SMALL, "sites.south.backfill=conservative", *changes])
    for site, nodes, options in (
        (0, 256, {"discipline": "planning", "order": "sjf", "backfill": "none"}),
        (1, 128, {"discipline": "queue", "order": "fcfs", "backfill": "conservative"}),
    ):
        rows = np.flatnonzero(run.home == site)
        expected = simulate(run.workload.take(rows), nodes, **options)  # type: ignore[arg-type]
        assert run.start_ms[rows].tolist() == expected.start_ms.tolist()


def test_round_robin_homes() -> None:
    """Job i, in order of submission, belongs to site i mod S."""
    jobs = assign_homes(workload_of([1] * 7), "round-robin", ["a", "b", "c"], np.random.default_rng(0))
    assert home_of(jobs).tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_homes_by_partition() -> None:
    """The partitions of a trace, by number, are the sites in order."""
    jobs = workload_of([1] * 5, partition=[9, 2, 5, 2, 9])
    homed = assign_homes(jobs, "partition", ["a", "b", "c"], np.random.default_rng(0))
    assert home_of(homed).tolist() == [2, 0, 1, 0, 2]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "has no partitions"),
        ({"partition": [1, -1, 2]}, "1 of the jobs have none"),
        ({"partition": [1, 2, 3]}, "there are 2 sites"),
    ],
)
def test_partitions_must_match_the_sites(columns: dict[str, list[int]], message: str) -> None:
    """Workloads without partitions, jobs without one, and more partitions than sites are refused."""
    with pytest.raises(InputError, match=message):
        assign_homes(workload_of([1, 1, 1], **columns), "partition", ["a", "b"], np.random.default_rng(0))


@given(st.lists(st.floats(0, 10), min_size=1, max_size=5).filter(lambda shares: sum(shares) > 0.1), st.integers(0, 99))
def test_homes_by_share(shares: list[float], seed: int) -> None:
    """Jobs follow the shares, and a site with share zero gets none."""
    names = [f"s{number}" for number in range(len(shares))]
    home = dict(zip(names, shares, strict=True))
    homes = home_of(assign_homes(workload_of([1] * 4000), home, names, np.random.default_rng(seed)))
    parts = np.bincount(homes, minlength=len(shares)) / 4000
    assert np.abs(parts - np.array(shares) / sum(shares)).max() < 0.05
    assert all(part == 0 for part, share in zip(parts, shares, strict=True) if share == 0)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=12),
    st.lists(st.integers(1, 20), min_size=1, max_size=4),
)
def test_splitting_at_home(widths: list[int], nodes: list[int]) -> None:
    """No part is wider than its home; the parts of a job have its home, its times and together its width."""
    jobs = assign_homes(workload_of(widths), "round-robin", [str(n) for n in nodes], np.random.default_rng(0))
    parts = split(jobs, np.array(nodes, np.int64)[home_of(jobs)])
    home = home_of(parts)
    assert (parts.width <= np.array(nodes)[home]).all()
    stride = int(parts.job_id[0])  # of job 1, whose first part has the number 0
    owner = parts.job_id // stride - 1
    assert home.tolist() == (owner % len(nodes)).tolist()
    assert np.bincount(owner, parts.width).tolist() == widths
    assert parts.submit_ms.tolist() == (owner * 1000).tolist()
    fewest = [-(-width // nodes[row % len(nodes)]) for row, width in enumerate(widths)]
    assert np.bincount(owner).tolist() == fewest


def test_homes_are_assigned_before_the_first_split(tmp_path: Path) -> None:
    """Round robin counts the jobs after a cut and before a split; parts stay together."""
    transform = [{"cut": {"first": 2}}, {"split": 3}, {"shrink": 0.5}]
    scenario = scenario_of([9, 5, 1, 7], tmp_path, {"a": 8, "b": 8})
    built = build_scenario(scenario, {"workload.transform": transform})
    assert built.workload.width.tolist() == [3, 2, 1, 3, 3, 1]
    assert built.home.tolist() == [0, 0, 1, 0, 0, 0]
    assert built.workload.submit_ms.tolist() == [0, 0, 500, 1000, 1000, 1000]


@pytest.mark.parametrize(("split", "expected"), [("site", [8, 1, 4, 3]), ("largest", [8, 1, 7]), (5, [5, 4, 5, 2])])
def test_modifications_of_the_thesis(tmp_path: Path, split: str | int, expected: list[int]) -> None:
    """Wide jobs become parts for their home, for the largest site, or of a fixed width (Streit, section 7.2)."""
    scenario = scenario_of([9, 7], tmp_path, {"a": 8, "b": 4})
    built = build_scenario(scenario, {"workload.transform": [{"split": split}], "grid.mode": "sharing"})
    assert built.workload.width.tolist() == expected


def test_jobs_that_are_too_wide(tmp_path: Path) -> None:
    """The limit is the home, the largest site, the grid, or the bounds, depending on the mode."""
    scenario = scenario_of([3, 7, 12, 13], tmp_path, {"a": 8, "b": 4})
    kept = {"local": [3], "sharing": [3, 7], "multi-site": [3, 7, 12], "adaptive": [3, 7, 12]}
    for mode, widths in kept.items():
        with pytest.raises(ScenarioError, match="can never run"):
            build_scenario(scenario, {"grid.mode": mode})
        built = build_scenario(scenario, {"grid.mode": mode, "workload.drop_wide": True})
        assert built.workload.width.tolist() == widths
        assert len(built.home) == len(widths)
        assert any("can never run" in remark for remark in built.remarks)
    bounded = build_scenario(scenario, {"grid.max_fragments": [[12, 1]], "workload.drop_wide": True})
    assert bounded.workload.width.tolist() == [3, 7]


def test_a_scenario_without_jobs_is_refused(tmp_path: Path) -> None:
    scenario = scenario_of([9, 9], tmp_path, {"a": 8})
    with pytest.raises(ScenarioError, match="no job is left"):
        build_scenario(scenario, {"workload.drop_wide": True})


def test_traces_are_found_in_the_folder_of_the_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths start from the scenario's folder, not from the working directory."""
    save_workload(workload_of([1, 2]).replace(nodes=4), tmp_path / "jobs.swf")
    (tmp_path / "s.toml").write_text('sites = "m512"\n[workload]\ntrace = "jobs.swf"\n')
    monkeypatch.chdir("/")
    assert build_scenario(tmp_path / "s.toml").workload.width.tolist() == [1, 2]


@pytest.mark.parametrize("name", ["two-sites", "national-grid", "one-big-many-small"])
@pytest.mark.parametrize("mode", ["local", "sharing", "multi-site", "adaptive"])
def test_shipped_scenarios_run_offline_in_every_mode(name: str, mode: str) -> None:
    """They need no trace, have the same jobs in every mode, and every job ends."""
    run = run_scenario(name, overrides=["workload.jobs=200", f"grid.mode={mode}"])
    adaptive = build_scenario(name, ["workload.jobs=200"])
    assert run.workload.job_id.tolist() == adaptive.workload.job_id.tolist()
    assert (run.end_ms > run.start_ms).all()
    assert (run.start_ms >= run.workload.submit_ms).all()


def test_refusals_of_own_users_are_reported(tmp_path: Path) -> None:
    """In mode local, jobs of a level that their users may not use do not run, and the result has the reason."""
    levels = "levels = { levels = [{ name = 'high', priority = 2, users = [4] }, { name = 'low', priority = 0 }] }"
    text = f"[[sites]]\nname = 'a'\nnodes = 64\ndiscipline = 'levels'\n{levels}\n[[sites]]\nname = 'b'\nnodes = 64\n"
    text += "[workload]\ngenerator = 'ctc-sp2'\njobs = 30\nnodes = 64\npriorities = 'shares:2=1,0=1'\n"
    (tmp_path / "s.toml").write_text(text)
    run = run_scenario(tmp_path / "s.toml", overrides=["grid.mode=local"])
    priority = run.workload.columns["priority"]
    wrong = (priority == 2) & (run.home == 0)
    assert run.workload.job_id[wrong].tolist() == [job_id for job_id, _ in run.refused] != []
    assert all("high" in reason for _, reason in run.refused)
    assert ((run.start_ms == NEVER) == wrong).all()


@pytest.mark.parametrize("discipline", ["gang", "fractional"])
def test_a_split_over_sites_that_pause_jobs_can_never_run(discipline: str) -> None:
    """Sites that pause jobs accept no fragments, so a job too wide for the others is reported or left out."""
    changes = {"sites.alpha.discipline": discipline}
    if discipline == "fractional":
        changes["workload.needs"] = "whole"
    with pytest.raises(ScenarioError, match=r"3 jobs can never run; .* all sites together have 10 \(sites that"):
        build_scenario("three-sites", changes)
    run = run_scenario("three-sites", overrides={**changes, "workload.drop_wide": True})
    assert (run.end_ms > run.start_ms).all()


@settings(max_examples=15)
@given(st.sampled_from(["m64", "m128", "m384"]), st.sampled_from(["local", "sharing"]), st.integers(0, 9))
def test_chapter_7_local_and_sharing(machines: str, mode: str, seed: int) -> None:
    """Modification 1 makes the generated workload of chapter 7 fit every configuration, even in mode local."""
    split = "workload.transform.split=site"
    changes = [f"sites={machines}", f"grid.mode={mode}", split, "workload.jobs=100", f"scenario.seed={seed}"]
    run = run_scenario("streit-7-syn", overrides=changes)
    assert not run.multi_site.any()
    assert run.n_fragments.tolist() == [1] * len(run.workload)


@pytest.mark.trace
def test_extracts_of_chapter_7(trace_path: TracePath) -> None:
    """Each extract has 10,000 jobs, and more of them run multi-site the higher the overhead (Streit, Table 7.3)."""
    trace_path("CTC-SP2-1996-3.1-cln")
    for name in ("streit-7-10-20k", "streit-7-30-40k", "streit-7-60-70k"):
        none, much = (run_scenario(name, overrides={"grid.overhead": p}) for p in (0.0, 0.6))
        assert len(none.workload) == 10_000
        assert 0 < none.multi_site.sum() < much.multi_site.sum() < 1500
        assert none.multi_site_area() < much.multi_site_area()


@pytest.mark.parametrize("mode", ["local", "sharing", "adaptive"])
@pytest.mark.parametrize("place", ["sites.0.discipline", "sites.0.order", "sites.0.backfill", "sites.0.grid_share"])
def test_an_invalid_site_is_reported(tmp_path: Path, place: str, mode: str) -> None:
    """The problem has its line, although the workload can be built."""
    key = place.rpartition(".")[2]
    value = "7.5" if key == "grid_share" else '"nonsense"'
    text = f'[[sites]]\nname = "north"\nnodes = 300\n{key} = {value}\n[workload]\ngenerator = "ctc-sp2"\njobs = 5\n'
    (tmp_path / "s.toml").write_text(f'{text}[grid]\nmode = "{mode}"\n')
    for use in (build_scenario, run_scenario):
        with pytest.raises(ScenarioError, match=rf"s.toml:[14]: sites.{key}\b.*: "):
            use(tmp_path / "s.toml")
