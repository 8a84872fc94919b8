"""The command ``gridweave``: its subcommands, loaded when they are used, and the handling of errors."""

from __future__ import annotations

import gc
import importlib
import io
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Annotated, Any, NoReturn

import typer

from gridweave.cli import extensions
from gridweave.cli.arguments import QuickCommand, UsageError
from gridweave.errors import GridweaveError, InputError, ProblemsError, UnavailableError
from gridweave.version import __version__

INTERRUPTED_STATUS = 130

_COLLECT_AT = 100_000
"""New objects before Python's garbage collector runs: imports create many objects, and none of them is garbage."""

_PLAIN_WORDS = {
    "Input should be a valid integer, unable to parse string as an integer": "must be a whole number",
    "Input should be a valid number, unable to parse string as a number": "must be a number",
    "Input should be greater than or equal to": "must be at least",
    "Input should be less than or equal to": "must be at most",
}
"""Typer's words for invalid numbers, and ours; its other messages are printed unchanged."""

_JOBS, _GRID, _SIMULATION, _ADDED = "Jobs", "The grid", "Simulation", "Added by other packages"
"""The headings of the commands in the help."""

_FILES: dict[str, tuple[tuple[str, str], ...]] = {
    _JOBS: (
        ("submit", "submit"),
        ("job_commands", "jobs show explain cancel requeue hold release logs usage"),
    ),
    _GRID: (
        ("up", "up down status demo"),
        ("serve", "serve"),
        ("watch", "watch"),
        ("grid_commands", "sites queue quote what-if drain resume give-up whoami open"),
        ("serve", "gateway"),
        ("experience", "experience"),
        ("token", "token"),
    ),
    _SIMULATION: (
        ("simulate", "simulate bound"),
        ("sweep", "sweep"),
        ("optimum", "optimum"),
        ("check", "check view"),
        ("run", "run"),
        ("trace", "trace"),
        ("scenario", "scenario"),
        ("net", "net"),
    ),
}
"""The file of each command in this folder, by heading, in the order of the help."""

_GROUPS = ("token", "trace", "scenario", "net")
"""Commands that have subcommands."""

_NAMED_OTHERWISE = {"run": "run_scenario", "open": "open_pages", "what-if": "what_if", "give-up": "give_up"}


def make_app(only: str | None = None) -> typer.Typer:
    """Return the command with all its subcommands, or with only one, so that no other file is loaded.

    Raises
    ------
    UnavailableError
        If ``only`` is the command of a package that is not installed.
    """
    commands = [
        (heading, file, name) for heading, files in _FILES.items() for file, names in files for name in names.split()
    ]
    is_built_in = only in {name for _, _, name in commands}
    added = None if only is None or is_built_in or only.startswith("-") else extensions.find(only)
    is_one = is_built_in or added is not None
    app = typer.Typer(
        name="gridweave",
        help="Schedules parallel jobs over several sites as if they were one machine.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        # A callback for options before the command; some versions of typer load pydantic even without such options.
        add_help_option=not is_one,
        add_completion=not is_one,
    )
    app.callback()(_main)
    for heading, file, name in commands:
        if name == only or not is_one:
            _add(app, heading, name, importlib.import_module(f"gridweave.cli.{file}"))
    if only is not None and added is not None:
        _add_loaded(app, only, extensions.load(only, added))
    elif not is_one:
        _add_extensions(app, {name for _, _, name in commands})
    return app


def __getattr__(name: str) -> typer.Typer:
    """Return the command with all its subcommands as ``app``, for documentation and tests."""
    if name != "app":
        raise AttributeError(name)
    return make_app()


def _add(app: typer.Typer, heading: str, name: str, module: ModuleType) -> None:
    if name in _GROUPS:
        app.add_typer(module.app, name=name, rich_help_panel=heading)
    elif name == "submit":
        settings = {"allow_interspersed_args": False}
        app.command(name, cls=module.SubmitCommand, context_settings=settings, rich_help_panel=heading)(module.submit)
    else:
        app.command(name, cls=QuickCommand, rich_help_panel=heading)(getattr(module, _NAMED_OTHERWISE.get(name, name)))


def _add_extensions(app: typer.Typer, taken: set[str]) -> None:
    """Add the commands of other packages; if one cannot be imported, its help gives the reason."""
    for name, place in extensions.installed().items():
        if name in taken:
            continue
        try:
            _add_loaded(app, name, extensions.load(name, place))
        except UnavailableError as error:
            _add_loaded(app, name, _failing(error), help=f"Not available: {error}")


def _add_loaded(app: typer.Typer, name: str, command: Any, **settings: Any) -> None:
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name, rich_help_panel=_ADDED)
    else:
        app.command(name, cls=QuickCommand, rich_help_panel=_ADDED, **settings)(command)


def _failing(error: UnavailableError) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"gridweave {__version__}")
        raise typer.Exit


def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Schedules parallel jobs over several sites as if they were one machine."""


def run() -> None:
    """Run the command; exit with 0, the status of the error (README.md), or 130 when interrupted.

    An error of the operating system, such as a full disk, exits with 1.
    """
    gc.set_threshold(_COLLECT_AT)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without all characters still gets the numbers
    try:
        status = make_app(_asked())(standalone_mode=False, prog_name="gridweave")
    except ProblemsError as error:
        for problem in error.problems[:-1]:
            _print_error(str(problem))
        _end(str(error.problems[-1]), error.exit_status)
    except GridweaveError as error:
        _end(str(error), error.exit_status)
    except UsageError as error:
        _end(_usage_line(error), InputError.exit_status)
    except OSError as error:
        _end(f"{error.filename or 'standard output'}: {error.strerror or error}", GridweaveError.exit_status)
    except KeyboardInterrupt:
        _end_interrupted()
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        # The reader of the output has closed it (`gridweave ... | head`), which is no error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    if status == INTERRUPTED_STATUS:  # typer's exit code for Ctrl-C
        _end_interrupted()
    sys.exit(status)


def _asked() -> str | None:
    """Return the subcommand that is called, or None to load all of them."""
    is_plain = len(sys.argv) > 1 and "_GRIDWEAVE_COMPLETE" not in os.environ
    return sys.argv[1] if is_plain else None


def _usage_line(error: Any) -> str:
    """Return typer's message about invalid arguments in one line."""
    problem = " ".join(error.format_message().split())
    if not problem:  # the help has been printed instead of an error
        return ""
    for words, plain in _PLAIN_WORDS.items():
        problem = problem.replace(words, plain)
    see = f"{error.ctx.command_path if error.ctx else 'gridweave'} --help"
    return f"{problem} See: {see}" if problem.endswith("?") else f"{problem.rstrip('.')}; see: {see}"


def _end(message: str, status: int) -> NoReturn:
    if message:
        _print_error(message)
    sys.exit(status)


def _print_error(message: str) -> None:
    from gridweave.cli.terminal import visible

    line = " ".join(message.splitlines())  # a file name may contain line ends
    typer.echo(visible(f"gridweave: {line}"), err=True)


def _end_interrupted() -> NoReturn:
    typer.echo("gridweave: interrupted", err=True)
    # Compiled code may still run in a thread (see `interruptible`); a regular exit would free its memory.
    os._exit(INTERRUPTED_STATUS)
