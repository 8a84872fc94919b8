"""`gridweave run --on ray`: which options go with it, and what bad ones say."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

Shell = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--on", "slurm"), "--on: 'slurm' is not known"),
        (("--on", "ray", "--speed", "0"), "--speed: is 0;"),
        (("--on", "ray", "--speed", "nan"), "--speed: is nan;"),
        (("--on", "ray", "--jobs", "0"), "--jobs: is 0;"),
        (("--on", "ray", "--address", " "), "--address: is empty"),
        (("--speed", "10"), "--speed: works only with --on ray, --on grid or --on URL"),
        (("--jobs", "10"), "--jobs: works only with --on ray, --on grid or --on URL"),
        (("--address", "auto"), "--address: works only with --on ray"),
    ],
)
def test_bad_options_are_one_line(shell: Shell, arguments: tuple[str, ...], says: str) -> None:
    """An option that makes no sense, or does not go with the others, ends with status 2 and one line."""
    status, out, err = shell("run", "two-sites", "--set", "workload.jobs=5", *arguments)
    assert status == 2
    assert out == ""
    assert says in err
    assert len(err.splitlines()) == 1


def test_a_cluster_that_is_not_there(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address at which nothing listens is told within seconds, in one line, with status 3."""
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        status, out, err = shell("run", "two-sites", "--set", "workload.jobs=5", "--on", "ray", "--address", address)
    assert (status, out) == (3, "")
    assert err.splitlines()[-1].endswith(f"no Ray cluster answers at {address}: Connection refused")


def test_without_ray(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Ray is not installed, the command says what to install."""
    monkeypatch.setitem(sys.modules, "ray", None)
    status, out, err = shell("run", "two-sites", "--set", "workload.jobs=5", "--on", "ray")
    assert (status, out) == (3, "")
    assert "pip install '.[live]'" in err.splitlines()[-1]


def test_what_cannot_be_played(shell: Shell) -> None:
    """All that a live run cannot play is told at once, a line each."""
    status, out, err = shell("run", "link-cut", "--set", "workload.jobs=5", "--on", "ray")
    assert (status, out) == (2, "")
    assert [line.split(": ")[3] for line in err.splitlines()] == ["grid.contention", "net.changes, net.failures"]


def test_help_imports_no_ray() -> None:
    """Asking for the options of a live run does not load Ray."""
    code = (
        "import sys\n"
        "from gridweave.cli.main import app\n"
        "app(['run', '--help'], standalone_mode=False)\n"
        "print('HEAVY', sorted({'numba', 'ray', 'sqlalchemy', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--on" in done.stdout
    assert done.stdout.splitlines()[-1] == "HEAVY []"
