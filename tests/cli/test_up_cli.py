"""`gridweave up`, `down`, `status` and `demo`, as far as nothing is started."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gridweave.cli.up import print_shared
from gridweave.errors import InputError, UnavailableError
from gridweave.grid.config.reading import grid_of_text
from gridweave.grid.service.actors import RunningActors
from gridweave.grid.service.cluster import Place, add_site, plan_of
from gridweave.scenarios.live.demo import JOBS, PAIR, Shown
from gridweave.site.job import JobRecord, JobRequest, Program
from gridweave.site.launch import NodeSharing
from gridweave.slurm.service.dictionary import SYSTEMS
from support.slurm import FakeBatch

Shell = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what is written down in a folder of the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_the_example_is_checked(shell: Shell, tmp_path: Path) -> None:
    """What `--example` prints is a file that `--check` finds fine; nothing is started, and nothing written down."""
    status, out, _ = shell("up", "--example")
    assert status == 0
    (tmp_path / "GRID.toml").write_text(out)
    status, out, err = shell("up", tmp_path / "GRID.toml", "--check")
    assert (status, err) == (0, "")
    assert out.endswith("GRID.toml is valid: 3 sites with 18 nodes\n")
    assert not (tmp_path / "state").exists()


def test_limits_of_memory_that_the_machine_does_not_have_are_told(shell: Shell, tmp_path: Path) -> None:
    """Together the nodes of all sites may use more than there is: the file is fine, and people should know."""
    site = "[[sites]]\nname = '{}'\nnodes = 1000\nlauncher = {{ memory_mb = 1000000 }}\n"
    (tmp_path / "GRID.toml").write_text(site.format("north") + site.format("south"))
    status, _, err = shell("up", tmp_path / "GRID.toml", "--check")
    assert status == 0
    assert "the limits of north, south allow jobs 2,000,000,000 MiB, but this machine has " in err


SLURM_SITE = "nodes = 16\ndiscipline = 'slurm'\nslurm = {{ partition = 'main', folder = '{}' }}\n"
TOO_FEW = (
    "site cluster: nodes is 16, and the batch system has 4 nodes for it that are up; a job of more waits until there "
    "are as many"
)


@pytest.mark.parametrize(
    ("command", "head", "more"),
    [
        ("up", "[[sites]]\n", "[grid]\ncontrol = 'limited'\n"),
        ("serve", "folder = '{folder}'\n[site]\nnumber = 0\n", ""),
    ],
)
def test_more_nodes_than_slurm_has_are_told_when_a_file_is_checked(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, head: str, more: str
) -> None:
    """In one line; the file is fine, since more nodes may come up. What Slurm can never give is an error."""
    slurm = FakeBatch()
    monkeypatch.setitem(SYSTEMS, "slurm", lambda settings: slurm)
    file = tmp_path / "FILE.toml"
    file.write_text(f"{head.format(folder=tmp_path)}name = 'cluster'\n{SLURM_SITE.format(tmp_path)}{more}")
    status, out, err = shell(command, file, "--check")
    assert (status, err.splitlines()) == (0, [TOO_FEW])
    assert "is valid" in out
    slurm.fails["view"] = UnavailableError("sinfo does not answer")
    assert shell(command, file, "--check")[::2] == (0, "site cluster: sinfo does not answer\n")
    slurm.fails["view"] = InputError("there is no partition main")
    assert shell(command, file, "--check") == (2, "", "gridweave: site cluster: there is no partition main\n")


def test_more_nodes_than_slurm_has_are_told_when_a_site_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`up` and `serve` start sites by the same call, which says so before the site looks at Slurm itself."""
    monkeypatch.setitem(SYSTEMS, "slurm", lambda settings: FakeBatch())
    file = grid_of_text(
        f"[[sites]]\nname = 'cluster'\n{SLURM_SITE.format(tmp_path)}[grid]\ncontrol = 'limited'\n", "GRID.toml", ""
    )
    plan = plan_of(file, folder=str(tmp_path), namespace="", labelled=False, first_port=20_000, secret=b"")
    found = RunningActors("")
    monkeypatch.setattr(found, "add", lambda *made, **options: None)
    add_site(found, plan.sites[0], plan.site_settings(0), Place(folder=str(tmp_path)))
    assert caplog.messages == [TOO_FEW]


def test_a_grid_comes_up_without_the_simulator() -> None:
    """What reads a GRID.toml, plans a grid and starts it, and what runs of it, imports nothing of simulations."""
    code = (
        "import sys\n"
        "from gridweave.cli.main import app\n"
        "app(['up', '--check'], standalone_mode=False)\n"
        "import gridweave.grid.service.cluster, gridweave.grid.service.serve\n"
        "print([name for name in sys.modules if name.startswith('gridweave.scenarios')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_bad_file_is_told_line_by_line(shell: Shell, tmp_path: Path) -> None:
    """All that is wrong is told, a line each, with status 2; an `up` of it starts nothing either."""
    (tmp_path / "GRID.toml").write_text('nam = "x"\n[[sites]]\nname = "a"\nnodes = "many"\n')
    status, out, err = shell("up", tmp_path / "GRID.toml", "--check")
    assert (status, out) == (2, "")
    assert [line.split(": ")[2] for line in err.splitlines()] == ["nam", "sites.nodes"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("up", "--yes"), "--yes: works only with --fresh"),
        (("up", "--address", " "), "--address: is empty"),
        (("up", "--name", "a/b"), "--grid: 'a/b' is not a valid name of a grid"),
        (("up", "missing.toml"), "missing.toml: there is no such file"),
        (("down", "--name", "a b"), "--grid: 'a b' is not a valid name"),
        (("status", "--grid", ".."), "--grid: '..' is not a valid name"),
        (("up", "--grid", "grid.toml"), "--grid: is the name of the grid; give the file without it: gridweave up grid"),
        (("demo", " "), "is not the name of a folder"),
    ],
)
def test_bad_options_are_one_line(shell: Shell, arguments: tuple[str, ...], says: str) -> None:
    """What makes no sense ends with status 2 and one line."""
    status, out, err = shell(*arguments)
    assert (status, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1


def test_a_cluster_that_is_not_there(shell: Shell, tmp_path: Path) -> None:
    """An address at which nothing listens is told within seconds, with status 3, and nothing is left of the try."""
    status, out, err = shell("up", "--address", "127.0.0.1:1")
    assert (status, out) == (3, "")
    assert "no Ray cluster answers at 127.0.0.1:1" in err
    assert shell("status")[0] == 3


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        ("", "folder: users of jobs at north cannot reach"),
        ("closed/grid", "closed is closed to other users, but their jobs run below it; name another folder"),
    ],
)
def test_a_folder_that_users_of_jobs_cannot_reach(shell: Shell, tmp_path: Path, folder: str, says: str) -> None:
    """Where jobs run as their users, a folder that is not named or is closed to them is told before Ray is started."""
    pytest.importorskip("ray")
    (tmp_path / "closed").mkdir(mode=0o700)
    named = f"folder = '{tmp_path / folder}'\n" if folder else ""
    launcher = '{ kind = "user", socket = "/run/none.sock" }'
    text = f'{named}[[sites]]\nname = "north"\nnodes = 2\nlauncher = {launcher}\n'
    (tmp_path / "GRID.toml").write_text(text)
    status, out, err = shell("up", tmp_path / "GRID.toml")
    assert (status, out) == (2, "")
    assert says in err
    assert shell("status")[0] == 3


def test_nothing_runs(shell: Shell) -> None:
    """Where nothing runs, `down` has nothing to do and says so, and `status` ends with 3."""
    assert shell("down")[:2] == (0, "the grid default is not running\n")
    status, out, err = shell("status", "--name", "mine")
    assert (status, out) == (3, "")
    assert "start it with: gridweave up --grid mine" in err
    status, out, _ = shell("status", "--json")
    assert status == 3
    assert json.loads(out)["up"] is False


def test_all_commands_mean_the_grid_of_the_environment(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What GRIDWEAVE_GRID names is what is started, looked at and stopped, unless another one is typed."""
    monkeypatch.setenv("GRIDWEAVE_GRID", "campus")
    assert shell("down")[:2] == (0, "the grid campus is not running\n")
    assert "the grid campus is not running" in shell("status")[2]
    assert "the grid 'campus' does not run here" in shell("jobs")[2]
    for option in ("--grid", "--name"):
        assert shell("down", option, "default")[1] == "the grid default is not running\n"
        assert "the grid default is not running" in shell("status", option, "default")[2]
    file = tmp_path / "GRID.toml"
    file.write_text('name = "other"\n[[sites]]\nname = "a"\nnodes = 2\n')
    status, out, err = shell("up", file, "--check")
    assert (status, out) == (2, "")
    assert f"--grid: is not given: GRIDWEAVE_GRID is 'campus', and {file} says name = 'other'" in err
    assert shell("up", file, "--check", "--grid", "campus")[0] == 0
    monkeypatch.setenv("GRIDWEAVE_GRID", "other")
    assert shell("up", file, "--check")[0] == 0
    monkeypatch.setenv("GRIDWEAVE_GRID", "a/b")
    assert shell("down")[0] == 2


def test_help_imports_nothing_heavy() -> None:
    """Asking for the options of these commands loads neither Ray nor a compiler nor a client."""
    for command in ("up", "down", "status", "demo"):
        code = (
            "import sys\n"
            "from gridweave.cli.main import app\n"
            f"app(['{command}', '--help'], standalone_mode=False)\n"
            "print('HEAVY', sorted({'numba', 'ray', 'sqlalchemy', 'aiohttp', 'matplotlib'} & set(sys.modules)))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "HEAVY []"


def test_ray_prints_no_dead_workers_into_commands() -> None:
    """A driver prints what a raylet reports, but not that an actor has died: `gridweave status` says so."""
    pytest.importorskip("ray")
    code = (
        "from gridweave.grid.service.ray import quietly\n"
        "with quietly():\n    import ray\n"
        "from ray._private.worker import print_to_stdstream\n"
        "for line in ('A worker died or was killed while executing a task', 'the disk is full'):\n"
        "    print_to_stdstream({'lines': [line], 'pid': 'raylet', 'is_err': False}, ignore_prefix=False)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ("worker died" in done.stdout, "the disk is full" in done.stdout) == (False, True)


def test_operators_hear_that_rays_ports_are_open() -> None:
    """What `up` and `serve` print about a Ray of their own names a rule that closes its ports, as security.md says."""
    from gridweave.grid.service.ray import EXPOSURE

    assert 'nft add rule inet filter input iifname != "lo" ct state new tcp dport != { 22, 8765 } drop' in EXPOSURE
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    assert "its ports are open on all interfaces" in page


def test_the_demo_prints_what_sharing_was_expected_to_cost_and_what_it_cost(capsys: pytest.CaptureFixture[str]) -> None:
    """It names the job on the same nodes, the slowdown by the site's table, and the real one."""
    records = [
        JobRecord(
            job_id=number,
            request=JobRequest(program=Program(argv=("true",)), nodes=job.nodes, limit_ms=61_000),
            submit_ms=0,
            places=(("gamma", job.nodes),),
            ran_ms=(2_000, 2_000 + round(1_250 * job.run_s)),
            sharing=NodeSharing(beside=(9,), slowdown=1.19, text="beside job 9: factor 1.19"),
        )
        for number, job in enumerate(JOBS, 1)
    ]
    print_shared(Shown(records=records), PAIR[1])
    assert capsys.readouterr().out.splitlines() == [
        "sends (job 4, 4 nodes) ran on gamma 4: beside job 9: factor 1.19",
        "  12 s of work really took 15 s (factor 1.25)",
    ]
