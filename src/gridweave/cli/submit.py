"""`gridweave submit`: submit a command or a script."""

from __future__ import annotations

import codecs
import os
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gridweave.cli.arguments import QuickCommand, UsageError
from gridweave.cli.grid_client import (
    Reach,
    at_grid,
    job_options,
    named_jobs,
    places_text,
    plain,
)
from gridweave.cli.output import print_json, say
from gridweave.errors import InputError, JobFailedError, OptionError, ProblemsError
from gridweave.grid.client.job_options import SubmitOptions
from gridweave.grid.client.options import OPTIONS, flag, joined, read_flags
from gridweave.ranges import ranges_text
from gridweave.site.resources.chunks import chunks_on
from gridweave.site.resources.text import size_text
from gridweave.site.times import run_time_ms, span_text

if TYPE_CHECKING:
    from msgspec import UnsetType

    from gridweave.cli.submit_options import NamedProgram
    from gridweave.grid.api import SiteInfo
    from gridweave.grid.client.client import Client, JobHandle
    from gridweave.site.job import JobRecord, JobRequest
    from gridweave.site.resources.chunks import Chunk

_AFTER_DASHES = "gridweave.after_dashes"
_SCRIPT_ENDINGS = (".sh", ".bash", ".sbatch", ".slurm", ".job")


class SubmitCommand(QuickCommand):
    """A command that records whether the job's command was given behind ``--``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments."""
        before = list(args)
        rest = super().parse_args(ctx, args)
        command = ctx.params.get("command") or ()
        place = len(before) - len(command) - 1
        ctx.meta[_AFTER_DASHES] = place >= 0 and before[place] == "--"
        return rest


_Command = Annotated[
    list[str] | None,
    typer.Argument(metavar="[--] COMMAND...", help="A script on this computer, or -- and a command on the machines."),
]
_Wait = Annotated[
    bool,
    typer.Option(
        "--wait", "-W", help="Wait until the job ends; exit with its exit code, or with status 4 if there is none."
    ),
]
_IgnoreUnsupported = Annotated[
    bool,
    typer.Option("--ignore-unsupported", help="Warn about unsupported #SBATCH options instead of refusing them."),
]


@at_grid
@job_options()
def submit(
    reach: Reach,
    ctx: typer.Context,
    options: SubmitOptions,
    command: _Command = None,
    wait: _Wait = False,
    ignore_unsupported: _IgnoreUnsupported = False,
) -> None:
    """Submit a job: a command on the machines, a script from this computer, or several scripts (one job each).

    Prints the job numbers. A script can set these options itself, in #GRIDWEAVE or #SBATCH lines. On a grid that
    `gridweave up` has started, the job runs in your current folder.

    Example: gridweave submit -n 4 -t 10m -- ./solver input

    Example: gridweave submit first.sh second.sh third.sh

    Example: gridweave submit --array 1-100%10 sweep.sh

    Example: gridweave submit --array 1-10000 --pack -- ./step
    """
    from gridweave.cli.submit_options import check

    ignored: list[str] | None = [] if ignore_unsupported else None
    parts: list[tuple[SubmitOptions, NamedProgram]] = []
    unread: list[str] = []
    for words in _each_script(ctx, command or []):
        work, script_options = _work(ctx, words, ignored, unread)
        parts.append((joined(script_options, options), work))
        check(*parts[-1])
    for line in (*unread, *(ignored or ())):
        say(f"warning: {line}")

    async def send(grid: Client) -> None:
        folder = os.getcwd() if grid.connection.shares_folders else None
        jobs, requests, arrays = await _send(grid, await _sized(grid, parts, ignore_unsupported), folder)
        if not (reach.as_json and wait):
            _print_submitted(jobs, requests, arrays, reach.as_json)
        if (
            folder is None
            and not reach.as_json
            and not any("working_directory" in all_options for all_options, _ in parts)
        ):
            what = "the job runs in a folder of its own" if len(jobs) == 1 else "each job runs in a folder of its own"
            say(f"{what}: the machines cannot see this folder; choose one on them with {flag('working_directory')}")
        if wait:
            await _wait(jobs, reach.as_json)

    reach.ask(send, waits=wait)


async def _sized(
    grid: Client, parts: list[tuple[SubmitOptions, NamedProgram]], ignore_unsupported: bool
) -> list[tuple[SubmitOptions, NamedProgram]]:
    """Return jobs in which the sizes of ``#SBATCH`` lines are replaced by what they mean on this grid.

    Raise ProblemsError with all lines that the grid cannot follow.
    """
    from gridweave.cli.submit_options import sized
    from gridweave.grid.client.slurm_sizes import asks_for_parts

    sites = await grid.sites() if any(asks_for_parts(options) for options, _ in parts) else []
    problems: list[object] = []
    ignored: list[str] | None = [] if ignore_unsupported else None
    sized_parts = []
    for options, work in parts:
        counts_resources = any(site.kinds for site in sites if options.get("site", site.name) == site.name)
        try:
            sized_parts.append((sized(options, work, counts_resources=counts_resources, ignored=ignored), work))
        except ProblemsError as error:
            problems += error.problems
    if problems:
        raise ProblemsError(problems)
    for line in ignored or ():
        say(f"warning: {line}")
    return sized_parts


async def _send(
    grid: Client, parts: list[tuple[SubmitOptions, NamedProgram]], folder: str | None
) -> tuple[list[JobHandle], list[JobRequest], list[str]]:
    """Submit jobs; return them with their requests and the names of their arrays."""
    jobs, requests, arrays = [], [], []
    for number, (options, work) in enumerate(parts):
        new, array_name = await _new_jobs(grid, options, work, folder)
        key = options.get("key")
        if key is not None and len(parts) > 1:
            key = f"{key}-{number}"
        keys = None if key is None else [_key(key, request) for request in new]
        jobs += await grid.submit_many(new, site=options.get("site"), keys=keys)
        requests += new
        arrays += [array_name] * bool(array_name)
    return jobs, requests, arrays


def _each_script(ctx: typer.Context, command: list[str]) -> list[list[str]]:
    """Return the command of each job; several words that are all scripts on this computer are one job each.

    Words behind ``--`` after a script are always its arguments.
    """
    if ctx.meta.get(_AFTER_DASHES) or len(command) < 2:
        return [command]
    if command[1] == "--":
        return [[command[0], *command[2:]]]
    if "-" not in command and all(_script(word) is not None for word in command):
        return [[word] for word in command]
    return [command]


async def _new_jobs(
    grid: Client, options: SubmitOptions, work: NamedProgram, folder: str | None
) -> tuple[list[JobRequest], str]:
    """Return the jobs to submit, and the name of their array, or an empty name."""
    from gridweave.cli.submit_options import requests
    from gridweave.site.job import After

    after: list[After] = []
    for number, (named, has) in enumerate(options.get("after_jobs", ()), start=1):
        jobs = await named_jobs(grid, [named])
        group = number if has == "failed" and len(jobs) > 1 else 0
        after += [After(job_id=job_id, has=has, group=group) for job_id in jobs]
    remarks: list[str] = []
    array_name, per_job = "", 0
    if "indexes" in options:
        array_name = f"{options.get('name') or work.name}-{options.get('key') or uuid.uuid4().hex[:8]}"
        per_job = await _per_job(grid, options) if options.get("pack") else 0
    new_requests = requests(options, work, tuple(after), array_name, folder=folder, per_job=per_job, remarks=remarks)
    for remark in remarks:
        say(remark)
    return new_requests, array_name


async def _per_job(grid: Client, options: SubmitOptions) -> int:
    """Return how many array tasks of a packed array go into one job; by default the array has two jobs per node."""
    from gridweave.cli.submit_options import tasks_per_job
    from gridweave.grid.client.chunk_options import requested_chunk

    if "pack_size" in options:
        return options["pack_size"]
    chunk = requested_chunk(options)
    sites = [(site, site.nodes if options.get("site") == site.name else site.for_grid) for site in await grid.sites()]
    chunks = sum(_chunks_at(site, nodes, chunk) for site, nodes in sites)
    return tasks_per_job(len(options["indexes"].indexes), max(chunks // options.get("nodes", 1), 1))


def _chunks_at(site: SiteInfo, nodes: int, chunk: Chunk | UnsetType) -> int:
    """Return how many chunks fit on this many nodes of a site; without chunks or kinds, whole nodes count."""
    if not chunk or not site.kinds:
        return nodes
    return sum(kind.count * chunks_on(chunk, kind) for kind in site.kinds) * nodes // max(site.nodes, 1)


def _key(key: str, request: JobRequest) -> str:
    return key if request.array is None else f"{key}-{request.array.index}"


def _print_submitted(jobs: list[JobHandle], requests: list[JobRequest], arrays: list[str], as_json: bool) -> None:
    array_name = arrays[0] if len(arrays) == 1 else ""
    numbers = ranges_text(job.id for job in jobs)
    if as_json:
        indexes = [None if request.array is None else request.array.index for request in requests]
        entries = [{"job_id": job.id, "key": job.key, "index": index} for job, index in zip(jobs, indexes, strict=True)]
        print_json({"array": array_name or None, "jobs": entries})
        return
    typer.echo(numbers)
    request = requests[0]
    size = f"{size_text(request.nodes, request.chunk)} for at most {span_text(request.limit_ms)}"
    if array_name and request.array is not None and request.array.array_tasks:
        from gridweave.site.array_tasks import count_of

        per_job = count_of(request.array.array_tasks)
        say(f"array {array_name}: {len(jobs):,} jobs of {per_job:,} tasks, each job {size}; see: gridweave show JOB")
    elif array_name:
        say(f"array {array_name}: {len(jobs):,} jobs of {size}; see: gridweave jobs --array {array_name}")
    elif len(jobs) > 1:
        named = f", arrays {', '.join(arrays)}" if arrays else ""
        say(f"submitted: {len(jobs):,} jobs{named}; see: gridweave jobs")
    else:
        say(f"submitted: {size}; see: gridweave explain {numbers}")


async def _wait(jobs: list[JobHandle], as_json: bool) -> None:
    """Wait for all jobs; JobFailedError if one of them did not finish successfully."""
    import asyncio

    try:
        records: list[JobRecord] = await asyncio.gather(*(job.done() for job in jobs))
    except asyncio.CancelledError:  # Ctrl-C
        say(f"the jobs keep running; cancel them with: gridweave cancel {ranges_text(job.id for job in jobs)}")
        raise
    if as_json:
        print_json([plain(record) for record in records])
    bad = [job for job, record in zip(jobs, records, strict=True) if record.outcome != "finished"]
    if not bad:
        say(_ended_text(records))
        return
    try:
        await bad[0].check()
    except JobFailedError as error:
        if len(jobs) == 1 and error.exit_code:
            error.exit_status = error.exit_code
        if error.stderr_tail:
            say(error.stderr_tail.rstrip())
        if len(bad) > 1:
            say(f"{len(bad):,} of {len(jobs):,} jobs failed: {ranges_text(job.id for job in bad)}")
        raise


def _ended_text(records: list[JobRecord]) -> str:
    """Return the message that jobs have finished; for a single job, with its run time and its sites."""
    if len(records) > 1:
        return f"{len(records):,} jobs have finished"
    (record,) = records
    run_ms = run_time_ms(record)
    ran = "" if run_ms is None else f" after {span_text(run_ms)}"
    where = f" on {places_text(record.places)}" if record.places else ""
    return f"job {record.job_id} has finished{ran}{where}"


# -- the command or script


def _work(
    ctx: typer.Context, command: list[str], ignored: list[str] | None, unread: list[str]
) -> tuple[NamedProgram, SubmitOptions]:
    """Return the program of a job and the options in its script; add warnings about unread lines to `unread`."""
    from gridweave.cli.batch_script import script_options, unread_lines
    from gridweave.cli.submit_options import NamedProgram

    if not command:
        raise OptionError("COMMAND", "is missing; write for example: gridweave submit -n 4 -t 10m -- ./solver input")
    name = Path(command[0]).name or command[0]
    text = None if ctx.meta.get(_AFTER_DASHES) else _script(command[0])
    if text is None:
        return NamedProgram(name=name, argv=tuple(command)), SubmitOptions()
    parsed = script_options(text, command[0], lambda words: _parsed(ctx, words), ignored=ignored)
    unread += unread_lines(text, command[0])
    name = "stdin" if name == "-" else name
    argv = tuple(command[1:])
    work = NamedProgram(name=name, argv=argv, script=text, of_slurm=parsed.of_slurm, lines=parsed.lines)
    return work, parsed.options


def _script(name: str) -> str | None:
    """Return the text of a script on this computer, or None if the name is a command on the machines."""
    if name == "-":
        return _begun(_decoded(sys.stdin.buffer.read(), "standard input"), "standard input")
    path = Path(name)
    try:
        data = path.read_bytes() if path.is_file() else None
    except OSError as error:
        raise InputError(f"{name}: {error.strerror}; for a command on the machines write: -- {name}") from None
    if data is None:
        if path.suffix in _SCRIPT_ENDINGS:
            raise InputError(f"{name}: there is no such file here; for a command on the machines write: -- {name}")
        return None
    # A file with a byte order mark or a blank before its #! is a script that an editor damaged.
    begins = data.removeprefix(codecs.BOM_UTF8).lstrip()
    if begins.startswith(b"#!") or path.suffix in _SCRIPT_ENDINGS:
        return _begun(_decoded(data, name), name)
    return None


def _begun(text: str, name: str) -> str:
    """Return the text of a script; InputError if its first lines keep it from running."""
    from gridweave.cli.batch_script import beginning_problem

    problem = beginning_problem(text)
    if problem is not None:
        raise InputError(f"{name}:{problem}")
    return text


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: byte {error.start} is not UTF-8; write the script as UTF-8") from None


def _parsed(ctx: typer.Context, words: list[str]) -> SubmitOptions:
    """Parse the words of a ``#GRIDWEAVE`` line like options of the command."""
    try:
        inner = ctx.command.make_context("#GRIDWEAVE", [*words], resilient_parsing=False)
    except UsageError as error:
        raise InputError(f"#GRIDWEAVE: {' '.join(error.format_message().split())}") from None
    except typer.Exit:  # --help has been printed
        raise InputError("#GRIDWEAVE: help is not an option of a job") from None
    for param in ctx.command.params:
        if param.name not in OPTIONS and inner.params.get(param.name) not in (None, False, (), []):
            option = param.opts[0] if param.param_type_name == "option" else "a command"
            raise InputError(f"#GRIDWEAVE: {option} is only for the command line")
    return read_flags(inner.params)
