"""The command ``gridweave``: where all sub-commands hang, and how every error ends."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

from gridweave.cli.coschedule import coschedule
from gridweave.cli.demo import demo
from gridweave.cli.experience import experience
from gridweave.cli.grid_commands import drain, queue, quote, resume, sites, whoami
from gridweave.cli.job_commands import cancel, explain, hold, jobs, logs, release, show
from gridweave.cli.net import app as net_app
from gridweave.cli.optimum import optimum
from gridweave.cli.reproduce import reproduce
from gridweave.cli.run import run_scenario
from gridweave.cli.scenario import app as scenario_app
from gridweave.cli.serve import gateway, serve
from gridweave.cli.simulate import bound, simulate
from gridweave.cli.submit import SubmitCommand, submit
from gridweave.cli.sweep import sweep
from gridweave.cli.token import app as token_app
from gridweave.cli.trace import app as trace_app
from gridweave.cli.up import down, status, up
from gridweave.cli.watch import watch
from gridweave.errors import GridweaveError, InputError
from gridweave.version import __version__

INTERRUPTED_STATUS = 130

# Base of typer's errors about how the command was called; it has no public name that all versions know.
_PLAIN_WORDS = {
    "Input should be a valid integer, unable to parse string as an integer": "must be a whole number",
    "Input should be a valid number, unable to parse string as a number": "must be a number",
    "Input should be greater than or equal to": "must be at least",
}
"""How typer words what is wrong with a number, and how we do; other words of its are printed as they are."""
_UsageError: type[Any] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="gridweave",
    help="Schedules parallel jobs over several sites as if they were one machine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_JOBS, _GRID, _SIMULATION = "Jobs", "The grid", "Simulation"
"""Under which headings the help has the commands."""

app.command("submit", cls=SubmitCommand, context_settings={"allow_interspersed_args": False}, rich_help_panel=_JOBS)(
    submit
)
_COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    _JOBS: (jobs, show, explain, cancel, hold, release, logs),
    _GRID: (up, down, status, demo, serve, watch, sites, queue, quote, drain, resume, whoami, gateway, experience),
    _SIMULATION: (simulate, coschedule, bound, sweep, optimum, reproduce),
}
for heading, commands in _COMMANDS.items():
    for command in commands:
        app.command(command.__name__, rich_help_panel=heading)(command)
app.add_typer(token_app, name="token", rich_help_panel=_GRID)
app.command("run", rich_help_panel=_SIMULATION)(run_scenario)
app.add_typer(trace_app, name="trace", rich_help_panel=_SIMULATION)
app.add_typer(scenario_app, name="scenario", rich_help_panel=_SIMULATION)
app.add_typer(net_app, name="net", rich_help_panel=_SIMULATION)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gridweave {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Schedules parallel jobs over several sites as if they were one machine."""


def run() -> None:
    """Run the command; end with 0, or the status of the error (README.md), or 130 when interrupted.

    What the system fails at, such as writing to a full disk, ends with 1.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that has not all letters still gets the figures
    try:
        status = app(standalone_mode=False, prog_name="gridweave")
    except GridweaveError as error:
        _end(str(error), error.exit_status)
    except _UsageError as error:
        _end(_usage_line(error), InputError.exit_status)
    except OSError as error:
        _end(f"{error.filename or 'standard output'}: {error.strerror or error}", GridweaveError.exit_status)
    except KeyboardInterrupt:
        _end_interrupted()
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        # Whoever read the output has gone (`gridweave ... | head`): nothing is wrong, and nobody is there to be told.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    if status == INTERRUPTED_STATUS:  # typer makes this of Ctrl-C
        _end_interrupted()
    sys.exit(status)


def _usage_line(error: Any) -> str:
    """Return in one line what typer has to say of a call that it does not understand."""
    problem = " ".join(error.format_message().split())
    if not problem:  # the help has been printed in place of an error
        return ""
    for words, plain in _PLAIN_WORDS.items():
        problem = problem.replace(words, plain)
    see = f"{error.ctx.command_path if error.ctx else 'gridweave'} --help"
    return f"{problem} See: {see}" if problem.endswith("?") else f"{problem.rstrip('.')}; see: {see}"


def _end(message: str, status: int) -> NoReturn:
    if message:
        typer.echo(f"gridweave: {' '.join(message.splitlines())}", err=True)  # the name of a file may have many
    sys.exit(status)


def _end_interrupted() -> NoReturn:
    typer.echo("gridweave: interrupted", err=True)
    # Compiled code may still run in a thread (see `interruptible`), and its ground is not to be taken from under it.
    os._exit(INTERRUPTED_STATUS)
