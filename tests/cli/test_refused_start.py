"""A start that is refused or fails changes nothing: what ran before it runs on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gridweave.errors import InputError, UnavailableError
from gridweave.grid.config.journals import check_journals
from gridweave.grid.config.local_state import read_grid_state
from gridweave.grid.config.reading import ReadGrid, grid_of_text
from gridweave.grid.service import actors, local, serve
from gridweave.grid.service.actors import RunningActors
from gridweave.grid.service.cluster import GridPlan, plan_of
from gridweave.grid.service.local import bring_up, grid_spec
from gridweave.site.journal.journal import Journal
from gridweave.site.launch import NodeTaskState
from gridweave.site.machine.folders import task_folder, write_state
from gridweave.site.quotas import NO_QUOTAS, QuotasChanged

Shell = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what is written down in a folder of the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def a_grid(tmp_path: Path, nodes: int = 3) -> ReadGrid:
    """Return a grid with the site north of so many nodes, whose folder is that of the test."""
    text = f'folder = "{tmp_path / "live"}"\n[[sites]]\nname = "north"\nnodes = {nodes}\n'
    return grid_of_text(text, "GRID.toml", str(tmp_path))


def a_plan(tmp_path: Path, nodes: int = 3) -> GridPlan:
    """Return the plan of that grid."""
    folder = str(tmp_path / "live")
    return plan_of(a_grid(tmp_path, nodes), folder=folder, namespace="", labelled=False, first_port=20_000, secret=b"")


def write_journals(plan: GridPlan, *, is_used: bool = True) -> None:
    """Write the journals of a grid, with one input each if they are used."""
    for journal in plan.journals():
        Path(journal.place).parent.mkdir(parents=True, exist_ok=True)
        with Journal(journal.place, event_type=QuotasChanged, identity=journal.identity) as written:
            if is_used:
                with written.step() as step:
                    step.input(0, [QuotasChanged(NO_QUOTAS)])
            written.flush()


def keep_a_job(folder: Path) -> None:
    """Leave the folder of a part of a job that runs on the machine m0 of the site north."""
    piece = task_folder(folder / "north" / "m0", (1, 0))
    piece.mkdir(parents=True)
    write_state(piece, NodeTaskState(job_id=1, attempt=0, phase="running", boot_id=""))


def test_journals_of_these_settings_are_accepted(tmp_path: Path) -> None:
    """No journal, one without inputs, and one of the same settings are fine."""
    check_journals(a_plan(tmp_path).journals())
    write_journals(a_plan(tmp_path), is_used=False)
    check_journals(a_plan(tmp_path, nodes=4).journals())
    write_journals(a_plan(tmp_path))
    check_journals(a_plan(tmp_path).journals())


def test_all_journals_of_other_settings_are_named(tmp_path: Path) -> None:
    """Each journal that was written with other settings is named, with the settings; so is one that is none."""
    write_journals(a_plan(tmp_path))
    with pytest.raises(InputError) as caught:
        check_journals(a_plan(tmp_path, nodes=4).journals())
    said = str(caught.value)
    assert "grid.journal was written with other settings: sites[0][1] is 4, and was 3; " in said
    assert "site.journal was written with other settings: machines[0].nodes is 4, and was 3" in said
    (tmp_path / "live" / "grid.journal").write_text("no journal")
    with pytest.raises(InputError, match=r"grid\.journal"):
        check_journals(a_plan(tmp_path).journals())


def test_another_grid_is_refused_before_anything_starts(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`up` and `up --check` name the journals; nothing was started or written down, and no job was ended."""
    write_journals(a_plan(tmp_path))
    keep_a_job(tmp_path / "live")
    ended: list[Any] = []
    monkeypatch.setattr(local, "end_jobs", lambda *arguments: ended.append(arguments))
    (tmp_path / "GRID.toml").write_text(a_grid(tmp_path, nodes=4).text)
    for more in ((), ("--check",)):
        status, out, err = shell("up", tmp_path / "GRID.toml", *more)
        assert (status, out) == (2, "")
        assert "restore it, or drop its jobs: gridweave up --fresh --name default; " in err
        assert "sites[0][1] is 4, and was 3" in err
    assert (ended, read_grid_state("default")) == ([], None)
    status, out, _ = shell("up", tmp_path / "GRID.toml", "--check", "--fresh")
    assert (status, out.split(": ")[1]) == (0, "1 site with 4 nodes\n")


@pytest.mark.parametrize("had_jobs", [True, False])
def test_a_start_that_fails_ends_no_job_that_ran_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, had_jobs: bool
) -> None:
    """Whatever fails, and however early, jobs that `down --keep-jobs` has kept go on."""
    if had_jobs:
        keep_a_job(tmp_path / "live")
    ended: list[Any] = []
    monkeypatch.setattr(local, "end_jobs", lambda *arguments: ended.append(arguments))
    monkeypatch.setattr(local, "check_ray", lambda: None)

    def fail(*arguments: object, **options: object) -> None:
        raise UnavailableError("no folder can be made")

    monkeypatch.setattr(local, "make_private", fail)
    with pytest.raises(UnavailableError, match="no folder can be made"):
        bring_up(grid_spec(a_grid(tmp_path), name="test"), lambda what: None)
    assert bool(ended) is not had_jobs


def test_actors_that_were_made_in_vain_end_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """If one actor does not work, those that were made are ended, and the jobs that they have found are not."""
    ray = pytest.importorskip("ray")
    stopped: list[tuple[list[str], bool]] = []

    def stop(made: dict[str, Any], *, end_jobs: bool, timeout_s: float) -> None:
        stopped.append((sorted(made), end_jobs))

    def refuse(*arguments: object, **options: object) -> None:
        raise ray.exceptions.RayError("other settings")

    monkeypatch.setattr(actors, "stop_actors", stop)
    monkeypatch.setattr(ray, "get", refuse)
    running = RunningActors("gridweave-test")
    running.actors = {"grid": AnActor(), "site:north": AnActor()}
    running.created = {"grid"}
    with pytest.raises(UnavailableError, match="grid is not ready: other settings"):
        running.wait_for(["grid"], 1.0)
    assert stopped == [(["grid"], False)]


class AnActor:
    """An actor that can be asked whether it works."""

    @property
    def ready(self) -> AnActor:
        """The method itself."""
        return self

    def remote(self) -> object:
        """Return a reference to its answer."""
        return object()


def test_serve_names_a_journal_of_other_settings(shell: Shell, tmp_path: Path) -> None:
    """`serve` and `serve --check` refuse it before Ray starts."""
    site = '[site]\nname = "north"\nnumber = 0\nnodes = {}\n'
    folder = json.dumps(str(tmp_path / "live"))
    write_journals(a_plan(tmp_path))
    (tmp_path / "north.toml").write_text(f"folder = {folder}\n{site.format(4)}")
    for more in ((), ("--check",)):
        status, _, err = shell("serve", tmp_path / "north.toml", *more)
        assert status == 2
        assert "machines[0].nodes is 4, and was 3; go back to those settings, or name another folder" in err


def test_serve_starts_over_when_asked(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`serve --fresh` removes journals, jobs and output, keeps tokens, and asks for --yes if jobs are open."""
    started: list[Any] = []
    monkeypatch.setattr(serve, "serve_site", lambda service, say, *, keep_jobs: started.append(service))
    folder = tmp_path / "live"
    write_journals(a_plan(tmp_path))
    (folder / "north" / "m0").mkdir()
    (folder / "tokens.db").write_text("kept")
    (tmp_path / "north.toml").write_text(
        f'folder = {json.dumps(str(folder))}\n[site]\nname = "north"\nnumber = 0\nnodes = 4\n'
    )
    (folder / "grid.journal").unlink()
    with Journal(folder / "north" / "site.journal", event_type=QuotasChanged, identity=None) as journal:
        with journal.step() as step:
            step.note(1, 0, "submitted")
        journal.flush()
    status, _, err = shell("serve", tmp_path / "north.toml", "--fresh")
    assert (status, "--fresh: would forget 1 open job; add --yes" in err) == (2, True)
    assert (folder / "north" / "site.journal").exists()
    assert shell("serve", tmp_path / "north.toml", "--fresh", "--yes")[0] == 0
    assert (len(started), (folder / "north").exists(), (folder / "tokens.db").exists()) == (1, False, True)


def test_up_says_which_settings_change(shell: Shell, tmp_path: Path) -> None:
    """`up --check` and `serve --check` say what the next start changes, and that the file is fine."""
    write_journals(a_plan(tmp_path))
    text = (
        a_grid(tmp_path).text + "[grid]\nmargin_ms = 2000\nalone_ms = 4000\norder = 'sjf'\n[ray]\nfirst_port = 30000\n"
    )
    (tmp_path / "GRID.toml").write_text(text)
    status, out, err = shell("up", tmp_path / "GRID.toml", "--check")
    assert (status, "is valid" in out) == (0, True)
    lines = err.splitlines()
    assert "grid.journal: policy.order is 'sjf', and was 'fcfs'; margin_ms is 2000, and was 500; alone_ms" in lines[0]
    assert "site.journal: machines[0].ports[0] is 30000, and was 20000; " in lines[1]
    assert all(line.startswith("settings change at the next start, ") for line in lines)
    folder = json.dumps(str(tmp_path / "live"))
    site = '[site]\nname = "north"\nnumber = 0\nnodes = 3\nrendezvous_ms = 9000\n'
    (tmp_path / "north.toml").write_text(f"folder = {folder}\n{site}")
    status, _, err = shell("serve", tmp_path / "north.toml", "--check")
    assert (status, "rendezvous_ms is 9000, and was 30000" in err) == (0, True)


def test_the_status_of_a_service_that_does_not_run_says_how_to_start_it(shell: Shell, tmp_path: Path) -> None:
    """`serve --status` starts nothing and makes no folder, and exits with 3."""
    file = tmp_path / "north.toml"
    file.write_text(f'folder = {json.dumps(str(tmp_path / "live"))}\n[site]\nname = "north"\nnumber = 0\nnodes = 4\n')
    status, _, err = shell("serve", file, "--status")
    assert (status, "start it with: gridweave serve FILE.toml" in err) == (3, True)
    assert not (tmp_path / "live").exists()
    status, _, err = shell("serve", file, "--status", "--fresh")
    assert (status, "starts nothing" in err) == (2, True)
