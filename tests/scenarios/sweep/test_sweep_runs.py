"""The runs of a sweep: in this process and on Ray, saved, reused, and failing independently."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest

import gridweave
from gridweave.errors import InputError, OptionError, ScenarioError, UnavailableError
from gridweave.grid.service.ray import probe
from gridweave.scenarios.scenario.build import draws_at_random
from gridweave.scenarios.scenario.read import read_scenario
from gridweave.scenarios.scenario.run import run_scenario
from gridweave.scenarios.sweep import identity, runner, work
from gridweave.scenarios.sweep.identity import code_stamp
from gridweave.scenarios.sweep.plan import PlannedRun, make_plan
from gridweave.scenarios.sweep.runner import carry_out
from gridweave.scenarios.sweep.work import perform
from gridweave.scenarios.traces.load import save_workload
from gridweave.scenarios.workload.table import Workload

VARY = {"p": [0, 0.5], "grid.mode": ["multi-site", "adaptive"]}
SMALL = {"workload.jobs": 60}


def count_runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that receives the key of each run carried out in this process."""
    done: list[str] = []

    def counted(run: PlannedRun, stamp: str) -> work.Outcome:
        done.append(run.key)
        return perform(run, stamp)

    monkeypatch.setattr(runner, "perform", counted)
    return done


def test_results_equal_single_runs() -> None:
    result = gridweave.sweep("two-sites", VARY, seeds=2, overrides=SMALL, workers=1)
    assert len(result.runs) == 8
    for run, values in zip(result.plan.runs, result.values, strict=True):
        settings = result.plan.settings(run.combination)
        changes = {"grid.overhead": settings["p"], "grid.mode": settings["grid.mode"], "scenario.seed": run.seed}
        alone = run_scenario("two-sites", overrides=SMALL | changes).summary()
        several = alone["multi_site"]
        assert values == alone["metrics"] | {
            "multi_site_jobs": several["jobs"],
            "multi_site_share_of_jobs": several["share_of_jobs"],
            "multi_site_share_of_area": several["share_of_squashed_area"],
        }


@pytest.mark.ray
def test_ray_gives_the_same_results(ray_cluster: None, tmp_path: Path) -> None:
    """Rows are in the same order as in this process."""
    there = gridweave.sweep("two-sites", VARY, seeds=2, overrides=SMALL, out=tmp_path)
    here = gridweave.sweep("two-sites", VARY, seeds=2, overrides=SMALL, workers=1)
    assert there.failures == ()
    assert there.values == here.values
    pd.testing.assert_frame_equal(there.runs, here.runs)
    assert len(list((tmp_path / "runs").iterdir())) == 8


@pytest.mark.ray
def test_one_run_that_fails_on_ray(ray_cluster: None, tmp_path: Path) -> None:
    """The failure has its combination and seed, and the other runs are kept."""
    plan = make_plan("two-sites", {"p": [0, 0.5]}, overrides=SMALL, seeds=[1, 2])
    bad = msgspec.structs.replace(plan.runs[2].scenario.workload, generator=None, trace=str(tmp_path / "gone.swf"))
    broken = msgspec.structs.replace(plan.runs[2].scenario, workload=msgspec.structs.replace(bad, jobs=None, load=None))
    runs = [*plan.runs[:2], work_with(plan.runs[2], broken), plan.runs[3]]
    outcomes = {run.number: outcome for run, outcome in carry_out(runs, workers=2)}
    assert [outcomes[number].metrics is not None for number in range(4)] == [True, True, False, True], outcomes
    assert "gone.swf" in outcomes[2].problem
    assert "\n" not in outcomes[2].problem


def work_with(run: object, scenario: object) -> object:
    """Return a planned run with another scenario."""
    import dataclasses

    return dataclasses.replace(run, scenario=scenario)  # type: ignore[type-var]


def test_a_second_sweep_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished runs are not repeated, even if the scenario is renamed; a wider sweep runs only the new ones."""
    done = count_runs(monkeypatch)
    first = gridweave.sweep("two-sites", VARY, overrides=SMALL, out=tmp_path, workers=1)
    assert len(done) == 4
    again = gridweave.sweep("two-sites", VARY, overrides=SMALL | {"scenario.name": "x"}, out=tmp_path, workers=1)
    assert len(done) == 4
    assert (first.n_reused, again.n_reused) == (0, 4)
    assert again.values == first.values
    wider = gridweave.sweep("two-sites", VARY | {"p": [0, 0.5, 1]}, overrides=SMALL, out=tmp_path, workers=1)
    assert len(done) == 6
    assert wider.values[:4] == first.values


@pytest.mark.parametrize("damage", ["", "{", "half", "other", "null"])
def test_a_damaged_file_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    """Empty, truncated or foreign files are ignored and replaced."""
    done = count_runs(monkeypatch)
    gridweave.sweep("two-sites", {"p": [0, 1]}, overrides=SMALL, out=tmp_path, workers=1)
    paths = sorted((tmp_path / "runs").iterdir())
    whole = paths[0].read_bytes()
    other = paths[1].read_bytes()
    paths[0].write_bytes(
        {"half": whole[: len(whole) // 2], "other": other, "null": b"\xff"}.get(damage, damage.encode())
    )
    gridweave.sweep("two-sites", {"p": [0, 1]}, overrides=SMALL, out=tmp_path, workers=1)
    assert len(done) == 3
    assert json.loads(paths[0].read_bytes())["metrics"] == json.loads(whole)["metrics"]
    assert sorted((tmp_path / "runs").iterdir()) == paths


def test_a_changed_scenario_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a change of the scenario, its seed or gridweave, no earlier run is reused."""
    done = count_runs(monkeypatch)
    for overrides in (SMALL, {"workload.jobs": 61}, SMALL | {"scenario.seed": 2}):
        gridweave.sweep("two-sites", overrides=overrides, out=tmp_path, workers=1)
        (tmp_path / "sweep.json").unlink()
    assert len(set(done)) == len(done) == 3
    monkeypatch.setattr("gridweave.scenarios.sweep.plan.code_stamp", lambda: "of another time")
    result = gridweave.sweep("two-sites", overrides=SMALL, out=tmp_path, workers=1)
    assert result.n_reused == 0


def test_a_sweep_does_not_replace_another_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check comes before any run. The same sweep, even with another gridweave, and a wider one may continue."""
    gridweave.sweep("two-sites", {"p": [0, 1]}, overrides=SMALL, out=tmp_path, workers=1)
    before = (tmp_path / "summary.csv").read_bytes()
    done = count_runs(monkeypatch)
    for vary, overrides in (
        ({"grid.order": ["fcfs", "sjf"]}, SMALL),
        ({"p": [0]}, SMALL),
        ({"p": [0, 1]}, {"workload.jobs": 61}),
    ):
        with pytest.raises(InputError, match=r"has the tables of another sweep \(two-sites over p, 2 runs\)"):
            gridweave.sweep("two-sites", vary, overrides=overrides, out=tmp_path, workers=1)
    assert done == []
    assert (tmp_path / "summary.csv").read_bytes() == before
    monkeypatch.setattr("gridweave.scenarios.sweep.plan.code_stamp", lambda: "of another time")
    wider = gridweave.sweep("two-sites", {"p": [0, 0.5, 1]}, overrides=SMALL, out=tmp_path, workers=1)
    assert len(wider.runs) == 3


def test_an_interrupted_sweep_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C the finished runs are kept, and the same call carries out the rest."""
    done = count_runs(monkeypatch)
    counted = runner.perform

    def interrupted(run: PlannedRun, stamp: str) -> work.Outcome:
        if len(done) == 2:
            raise KeyboardInterrupt
        return counted(run, stamp)

    monkeypatch.setattr(runner, "perform", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gridweave.sweep("two-sites", VARY, overrides=SMALL, out=tmp_path, workers=1)
    assert len(list((tmp_path / "runs").iterdir())) == 2
    monkeypatch.setattr(runner, "perform", counted)
    result = gridweave.sweep("two-sites", VARY, overrides=SMALL, out=tmp_path, workers=1)
    assert (result.n_reused, len(done), len(result.runs)) == (2, 4, 4)


def test_a_failing_run_does_not_affect_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any error makes a run a failure, which is repeated the next time."""
    whole = work.run_built

    def failing(built: object) -> object:
        if getattr(built, "policy").overhead == 0.5:  # noqa: B009
            raise ZeroDivisionError("of\ntwo lines")
        return whole(built)  # type: ignore[arg-type]

    monkeypatch.setattr(work, "run_built", failing)
    monkeypatch.setattr(work, "_COMPILED", set())
    result = gridweave.sweep("two-sites", VARY, overrides=SMALL, out=tmp_path, workers=1)
    assert [str(failure) for failure in result.failures] == [
        f"p=0.5, grid.mode={mode}, seed 1: ZeroDivisionError: of two lines" for mode in VARY["grid.mode"]
    ]
    assert len(result.runs) == len(result.summary) == 2
    assert [one["settings"]["p"] for one in json.loads((tmp_path / "sweep.json").read_text())["failed"]] == [0.5, 0.5]
    monkeypatch.undo()
    assert gridweave.sweep("two-sites", VARY, overrides=SMALL, out=tmp_path, workers=1).n_reused == 2


def test_files_equal_the_result(tmp_path: Path) -> None:
    """CSV and Parquet have the tables of the result, and the plots exist."""
    vary = VARY | {"grid.max_fragments": ["limited", [[512, 2]]]}
    result = gridweave.sweep("two-sites", vary, seeds=2, overrides=SMALL | {"workload.drop_wide": True}, workers=1)
    files = {path.name for path in result.write(tmp_path, metrics=["util"])}
    assert files == {"runs.csv", "runs.parquet", "summary.csv", "summary.parquet", "sweep.json", "util.png"}
    for name, frame in (("runs", result.runs), ("summary", result.summary)):
        parquet = pd.read_parquet(tmp_path / f"{name}.parquet")
        csv = pd.read_csv(tmp_path / f"{name}.csv")
        pd.testing.assert_frame_equal(parquet, frame, check_exact=True)
        pd.testing.assert_frame_equal(csv, frame, rtol=1e-14, check_dtype=False)
    plain = json.loads((tmp_path / "sweep.json").read_text())
    assert [row["util"] for row in plain["runs"]] == result.runs["util"].tolist()
    assert len(plain["summary"]) == 8


def test_a_single_seed_has_no_interval() -> None:
    result = gridweave.sweep("two-sites", {"grid.mode": ["local", "adaptive"]}, overrides=SMALL, workers=1)
    assert result.summary["util_low"].isna().all()
    assert result.summary["util_mean"].tolist() == result.runs["util"].tolist()
    assert [row["util_low"] for row in result.to_dict()["summary"]] == [None, None]
    assert result.remarks == ()


def _replayed(folder: Path, more: str = "") -> Path:
    """Write a scenario that replays a trace as it is."""
    numbers = np.arange(1, 30)
    ones = np.ones(29, np.int64)
    save_workload(Workload(numbers, numbers * 10, ones * 3, ones * 100, ones * 90, nodes=4), folder / "jobs.swf")
    (folder / "s.toml").write_text(f'sites = "m512"\n[workload]\ntrace = "jobs.swf"\n{more}')
    return folder / "s.toml"


def test_combinations_without_randomness_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = count_runs(monkeypatch)
    scenario = _replayed(tmp_path)
    result = gridweave.sweep(scenario, {"grid.order": ["fcfs", "sjf"]}, seeds=3, workers=1)
    assert result.summary["n"].tolist() == [1, 1]
    assert "nothing is random: only the first of the 3 seeds is run" in result.remarks
    assert len(done) == 2
    some = gridweave.sweep(scenario, {"network.jitter_ms": [0, 5]}, seeds=3, workers=1)
    assert some.summary["n"].tolist() == [1, 3]
    assert some.remarks[0].startswith("nothing is random in 1 of 2 combinations")


def test_seeds_with_equal_results_are_remarked(tmp_path: Path) -> None:
    """Random values may affect no result: all intervals then have no width."""
    scenario = _replayed(tmp_path, 'estimates = "perfect"\n')
    result = gridweave.sweep(scenario, {"grid.order": ["fcfs", "sjf"]}, seeds=3, workers=1)
    assert result.same_for_all_seeds == (0, 1)
    assert "3 seeds gave the same result: " in result.remarks[0]


@pytest.mark.parametrize(
    ("more", "may_differ"),
    [
        ("", False),
        ("nodes = 256\n[grid]\norder = 'sjf'\n[network]\nlatency_ms = 5\n", False),
        ('run_times = "lognormal:0.5"\n', True),
        ('estimates = "omega:0.5"\n', True),
        ("to_grid = 0.5\n", True),
        ("[network]\njitter_ms = 5000\n", True),
        ("[faults]\ncrash_every_ms = 50.0\n", True),
    ],
)
def test_runs_without_randomness_do_not_depend_on_the_seed(tmp_path: Path, more: str, may_differ: bool) -> None:
    """If the plan says that nothing is random, two seeds give the same schedule."""
    path = _replayed(tmp_path, more)
    one, other = (run_scenario(path, overrides={"scenario.seed": seed}) for seed in (1, 2))
    same = np.array_equal(one.start_ms, other.start_ms) and np.array_equal(one.end_ms, other.end_ms)
    assert draws_at_random(read_scenario(path)) == may_differ
    assert same or may_differ


def test_a_key_without_effect_is_remarked(tmp_path: Path) -> None:
    scenario = _replayed(tmp_path)
    result = gridweave.sweep(scenario, {"p": [0, 0.3], "grid.order": ["fcfs", "sjf"]}, workers=1)
    assert "p has no effect here: all of its values gave the same results" in result.remarks
    assert json.loads(json.dumps(result.to_dict()))["remarks"] == list(result.remarks)


def test_problems_come_before_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An invalid combination is reported before any run, and nothing is written."""
    done = count_runs(monkeypatch)
    vary = {"grid.mode": ["adaptive", "local"], "workload.transform": [[]]}
    with pytest.raises(ScenarioError, match="can never run"):
        gridweave.sweep("two-sites", vary, out=tmp_path / "out", workers=1)
    assert done == []
    assert not (tmp_path / "out").exists()


def test_changed_or_missing_files_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker uses its own file if it is the same, or else fetches a copy."""
    ones = np.ones(5, np.int64)
    jobs = Workload(np.arange(1, 6), np.arange(5), ones, ones * 100, ones * 90, nodes=4)
    save_workload(jobs, tmp_path / "jobs.swf")
    (tmp_path / "s.toml").write_text('sites = "m512"\n[workload]\ntrace = "jobs.swf"\n')
    run = make_plan(tmp_path / "s.toml").runs[0]
    stamp = code_stamp()
    expected = perform(run, stamp).metrics
    content = (tmp_path / "jobs.swf").read_bytes()
    save_workload(jobs.replace(run_ms=ones * 50), tmp_path / "jobs.swf")
    assert "has changed" in perform(run, stamp).problem
    (tmp_path / "jobs.swf").unlink()
    monkeypatch.setattr("platformdirs.user_cache_path", lambda *_, **__: tmp_path / "cache")
    monkeypatch.setattr(work, "_BUILT", {})
    sent: list[str] = []
    for _ in range(2):
        assert perform(run, stamp, lambda digest: sent.append(digest) or content).metrics == expected  # type: ignore[func-returns-value]
    assert sent == [identity.digest_of(next((tmp_path / "cache").rglob("jobs.swf")))]


def test_a_worker_with_other_code_refuses() -> None:
    run = make_plan("two-sites", overrides=SMALL).runs[0]
    outcome = perform(run, "0.0.1-other")
    assert outcome.metrics is None
    assert "0.0.1-other" in outcome.problem


def test_invalid_workers_addresses_and_folders_are_refused(tmp_path: Path) -> None:
    """Zero workers, an empty or silent address, and a file as folder are reported in one line each."""
    plan = make_plan("two-sites", overrides=SMALL)
    with pytest.raises(OptionError, match="at least 1"):
        list(carry_out(plan.runs, workers=0))
    with pytest.raises(OptionError, match="empty"):
        list(carry_out(plan.runs, address=" "))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(UnavailableError, match="no Ray cluster answers"):
            probe(f"ray://127.0.0.1:{taken.getsockname()[1]}")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        gridweave.sweep("two-sites", overrides=SMALL, out=tmp_path / "file", workers=1)


@pytest.mark.trace
@pytest.mark.slow
def test_extracts_of_chapter_7(trace_path: object) -> None:
    """The response time of multi-site jobs grows with the overhead (Streit, Figure 7.1)."""
    trace_path("CTC-SP2-1996-3.1-cln")  # type: ignore[operator]
    result = gridweave.sweep("streit-7-10-20k", {"p": [0, 0.3, 0.6], "config": ["m128", "m512"]}, workers=1)
    table = result.runs.set_index(["config", "p"])["awrt_width_ms"]
    assert table["m128", 0] < table["m128", 0.3] < table["m128", 0.6]
    assert table["m512", 0] == table["m512", 0.6]
