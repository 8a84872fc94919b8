"""Commands of other packages, found by the entry point group `gridweave.commands`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gridweave.cli.main import make_app
from support.commands import PAPERS_SOURCES, write_metadata

Shell = Callable[..., tuple[int, str, str]]

HELLO = '''\
import typer

def hello(name: str = "you") -> None:
    """Greet somebody."""
    typer.echo(f"hello {name}")

tools = typer.Typer(help="Keep tools.")

@tools.command()
def count() -> None:
    """Count the tools."""
    typer.echo("3 tools")

@tools.command()
def clean() -> None:
    """Clean the tools."""
'''
ENTRY_POINTS = """\
[gridweave.commands]
hello = hello_commands:hello
tools = hello_commands:tools
submit = hello_commands:hello
broken = hello_broken:run
"""


@pytest.fixture
def hello(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package with two commands, one that cannot be imported, and one named as ours is."""
    (tmp_path / "hello_commands.py").write_text(HELLO, encoding="utf-8")
    (tmp_path / "hello_broken.py").write_text("raise RuntimeError('no licence found')", encoding="utf-8")
    write_metadata(tmp_path, "hello", ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)


def test_a_package_adds_commands(hello: None, shell: Shell) -> None:
    assert shell("hello", "--name", "anna") == (0, "hello anna\n", "")
    assert shell("tools", "count") == (0, "3 tools\n", "")


def test_help_lists_added_commands_under_a_heading_of_their_own(hello: None, shell: Shell) -> None:
    status, out, err = shell("--help")
    assert (status, err) == (0, "")
    added = out.partition("Added by other packages")[2]
    assert "Greet somebody." in added
    assert "Keep tools." in added


def test_a_command_that_cannot_be_imported_leaves_the_others_usable(hello: None, shell: Shell) -> None:
    reason = "cannot import hello_broken:run: no licence found"
    assert shell("broken") == (3, "", f"gridweave: broken: {reason}\n")
    assert "Not available: broken" in shell("--help")[1]
    result = CliRunner().invoke(make_app(), ["broken"])
    assert reason in str(result.exception)


def test_built_in_commands_cannot_be_replaced(hello: None, shell: Shell) -> None:
    assert "Greet" not in shell("submit", "--help")[1]
    assert shell("--help")[1].count("Greet somebody.") == 1


def test_a_missing_package_of_ours_is_named_in_one_line(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("gridweave.plugins.all_entry_points", lambda group: {})
    line = "gridweave: reproduce is not installed; install gridweave-papers (in a checkout: pip install ./papers)\n"
    assert shell("reproduce", "streit-5.1", "--json") == (3, "", line)


def test_an_unknown_command_is_still_a_usage_error(shell: Shell) -> None:
    status, out, err = shell("reprduce")
    assert (status, out) == (2, "")
    assert "No such command 'reprduce'" in err


@pytest.mark.parametrize("arguments", [["--help"], ["reproduce", "--help"]])
def test_help_of_added_commands_imports_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    """With gridweave-papers installed, help loads neither the compiler nor Ray nor plotting."""
    write_metadata(tmp_path, "gridweave-papers")
    code = (
        "import sys\n"
        f"sys.path[:0] = {[str(tmp_path), str(PAPERS_SOURCES)]!r}\n"
        "from gridweave.cli.main import make_app\n"
        f"make_app({arguments[0]!r})({arguments!r}, standalone_mode=False)\n"
        "heavy = {'numba', 'ray', 'matplotlib', 'networkx', 'scipy', 'pandas', 'aiohttp', 'sqlalchemy'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "HEAVY []"
    assert "reproduce" in done.stdout
