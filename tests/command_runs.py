"""Run commands in this process, each through its own application."""

from __future__ import annotations

import typer
from typer.testing import CliRunner, Result

from gridweave.errors import GridweaveError


def run_well(app: typer.Typer, *arguments: object) -> Result:
    """Run a command; assert that it succeeds."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None, result.output
    assert result.exit_code == 0
    return result


def failure_of(app: typer.Typer, *arguments: object) -> GridweaveError:
    """Run a command; assert that it raises a one-line GridweaveError and prints no result; return the error."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert isinstance(result.exception, GridweaveError), result.output
    assert len(str(result.exception).splitlines()) == 1
    assert result.stdout == ""
    return result.exception
