"""Commands about jobs that were handed in: show, explain, cancel, hold, release, logs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args

import typer

from gridweave.cli.grid_client import (
    Here,
    Jobs,
    Profile,
    Reach,
    States,
    Url,
    at_grid,
    checked_values,
    clock,
    named_jobs,
    places_text,
    plain,
    print_forecast,
    ranges_text,
    rounded,
    shortened,
    state_text,
)
from gridweave.cli.output import counted, print_json, print_table, say
from gridweave.errors import InputError, OptionError
from gridweave.site.times import span_text

if TYPE_CHECKING:
    from gridweave.grid.api import Story
    from gridweave.grid.client.client import Client
    from gridweave.site.elements import Element
    from gridweave.site.job import JobRecord, SignalName, WishKind

OneJob = Annotated[int, typer.Argument(metavar="JOB", help="Job number.", min=1)]
All = Annotated[bool, typer.Option("--all", help="All jobs that have not ended.")]


@at_grid
def show(
    reach: Reach,
    job: OneJob,
    elements: Annotated[
        bool, typer.Option("--elements", help="Of a packed array: how each of its elements ended, and what it used.")
    ] = False,
) -> None:
    """Show everything about a job, and what has happened to it so far.

    Example: gridweave show 17
    """

    async def work(grid: Client) -> tuple[JobRecord, Story]:
        return await grid.record(job), await grid.story(job)

    record, story = reach.ask(work)
    if reach.as_json:
        print_json(plain(record) | {"story": plain(story)["entries"]})
        return
    if elements:
        _print_elements(record)
        return
    print_table(list(_shown(record)), title=f"Job {job}: {state_text(record)}", left=2)
    begin_ms = story.entries[0].at_ms if story.entries else 0
    rows = [(clock(one.at_ms), f"+{rounded(one.at_ms - begin_ms)}", one.kind, one.detail) for one in story.entries]
    print_table(rows, headings=("at", "", "what happened", ""), left=4)


def _print_elements(record: JobRecord) -> None:
    """Print what became of the elements of a packed array."""
    again = Counter(record.interrupted)
    rows = [
        (
            f"{one.index}",
            f"{one.exit_code}" if one.signal is None else f"signal {one.signal}",
            f"{1 + again[one.index]}",
            clock(one.start_ms),
            rounded(one.wall_ms),
            f"{one.cpu_ms / 1000:.2f} s",
            f"{one.peak_memory_bytes / 1e6:,.0f} MB",
            f"{one.out[1] + one.err[1]:,}",
        )
        for one in sorted(record.elements, key=lambda one: one.index)
    ]
    if not rows:
        say("none of its elements is known to have ended; they are told when the job ends, or an attempt of it")
        return
    headings = ("element", "exit code", "starts", "started", "ran for", "CPU", "memory", "bytes written")
    print_table(rows, headings=headings, left=0)


def _elements_text(record: JobRecord) -> str:
    """Return how it stands with the elements of a packed array, empty if it is none."""
    from gridweave.site.elements import count_of

    left = record.left()
    if left is None:
        return ""
    failed = sum(one.failed for one in record.elements)
    told = [f"{len(record.elements) + count_of(left):,}", f"{len(record.elements):,} have ended"]
    told += [f"{failed:,} of them failed"] * bool(failed)
    told += [f"{len(record.interrupted):,} interrupted"] * bool(record.interrupted)
    return ", ".join(told)


def _shown(record: JobRecord) -> Iterable[tuple[str, str]]:
    """Yield what is known of a job, by name; what is not said is left out."""
    request, program, used = record.request, record.request.program, record.used
    call = program.call
    values: dict[str, Any] = {
        "runs": _command(record) if call is None else f"{call.function} with {shortened(repr(call.args)[1:-1], 60)}",
        "name": request.name,
        "user": request.user,
        "class": request.job_class,
        "array": f"{request.array.name}, number {request.array.index}" if request.array else "",
        "elements": _elements_text(record),
        "nodes": f"{request.nodes:,}, a rank on {program.ranks.replace('-', ' ')}",
        "limit": span_text(request.limit_ms),
        "directory": program.working_directory,
        "after": ", ".join(f"{one.job_id} has {one.has}" for one in request.after),
        "submitted": clock(record.submit_ms),
        "started": clock(record.start_ms) if record.start_ms is not None else "",
        "ended": clock(record.end_ms) if record.end_ms is not None else "",
        "ran for": rounded(record.end_ms - record.start_ms) if record.end_ms and record.start_ms else "",
        "starts": f"{record.starts}" if record.starts > 1 else "",
        "where": places_text(record.places),
        "reason": record.reason,
        "exit codes": ", ".join(_exit_text(*one) for one in record.exit_codes),
        "used": f"{used.cpu_s:.1f} s of CPU, {used.peak_memory_bytes / 1e6:,.0f} MB at most" if used.wall_s else "",
    }
    yield from ((name, str(value)) for name, value in values.items() if value)


def _command(record: JobRecord) -> str:
    """Return the command as a shell would read it; of a script that was shipped its name alone."""
    import shlex

    from gridweave.cli.submit_options import shipped_name

    argv = record.request.program.argv
    return shipped_name(argv) or shortened(shlex.join(argv).replace("\n", "\\n"), 100)


def _exit_text(rank: int, code: int | None, signal: int | None) -> str:
    return f"rank {rank}: {code}" if signal is None else f"rank {rank}: signal {signal}"


@at_grid
def explain(reach: Reach, job: OneJob) -> None:
    """Say when and where a job will start, and why not sooner: the reason of each site, and what a split would gain.

    Example: gridweave explain 17
    """
    reach.show(reach.ask(lambda grid: grid.explain(job)), print_forecast)


@at_grid
def cancel(
    reach: Reach,
    job: Annotated[
        list[str] | None, typer.Argument(metavar="JOB...", help="Job numbers (17), ranges (3-9) and array names.")
    ] = None,
    all_jobs: All = False,
    user: Annotated[str | None, typer.Option("--user", "-u", metavar="NAME", help="All jobs of this user.")] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="All jobs with this name.")] = None,
    state: States = None,
    now: Annotated[
        bool, typer.Option("--now", help="End running jobs at once, without the time that they have to end otherwise.")
    ] = False,
    signal: Annotated[
        str | None,
        typer.Option("--signal", "-s", metavar="SIGNAL", help="Do not end running jobs: send them this signal (USR1)."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --all: do not ask.")] = False,
) -> None:
    """Cancel jobs, whether they wait or run: those named, or all that the options say, of those that have not ended.

    A running job is told to end (TERM), and killed after a while; with --now it is killed at once.

    Example: gridweave cancel 17 20-29 sweep-1f0c9a77

    Example: gridweave cancel --name solver --state waiting

    Example: gridweave cancel 17 --signal USR1
    """
    from gridweave.site.job import OPEN

    if now and signal is not None:
        raise OptionError("--now", "ends jobs, and --signal does not; give only one of them")
    states = checked_values("--state", state, OPEN)
    query: dict[str, Any] = {"user": user, "name": name, "state": states or OPEN}
    wanted = all_jobs or bool(user or name or states)
    kind: WishKind = "signal" if signal is not None else "kill" if now else "cancel"
    sent = None if signal is None else _signal_named(signal)
    _wish(kind, job, reach, query=query if wanted else None, ask=all_jobs and not yes, signal=sent)


def _signal_named(text: str) -> SignalName:
    """Return a signal by its name, with or without ``SIG``, or its number."""
    from signal import Signals

    from gridweave.site.job import SignalName

    known = get_args(SignalName)
    name = text.strip().upper().removeprefix("SIG")
    if name.isdecimal():
        name = next((one for one in known if Signals[f"SIG{one}"] == int(name)), name)
    if name not in known:
        raise OptionError("--signal", f"{text!r} is not a signal that jobs can be sent; one of {', '.join(known)}")
    return cast("SignalName", name)


@at_grid
def hold(reach: Reach, job: Jobs) -> None:
    """Hold waiting jobs, so that they do not start.

    Example: gridweave hold 17
    """
    _wish("hold", job, reach)


@at_grid
def release(reach: Reach, job: Jobs) -> None:
    """Release held jobs back into the queue.

    Example: gridweave release 17
    """
    _wish("release", job, reach)


_DONE = {
    "cancel": "cancelled",
    "kill": "cancelled at once",
    "signal": "sent the signal",
    "hold": "held",
    "release": "released",
}
_NOT_DONE = {
    "cancel": "had ended, or there is",
    "kill": "had ended, or there is",
    "signal": "did not run, or there is",
    "hold": "did not wait, or there is",
    "release": "was not held, or there is",
}


def _wish(
    kind: WishKind,
    texts: Sequence[str] | None,
    reach: Reach,
    *,
    query: Mapping[str, Any] | None = None,
    ask: bool = False,
    signal: SignalName | None = None,
) -> None:
    """Do what is wanted of jobs that are named, or of all that a query finds, once the user has agreed."""
    if bool(texts) == (query is not None):
        raise OptionError(
            "JOB", "name the jobs, or give --all" if not texts else "are named, and options that choose jobs as well"
        )

    async def work(grid: Client) -> tuple[list[int], list[int]]:
        if query is not None:
            wanted = [record.job_id async for record in grid.jobs(**query)]
            if ask and wanted:
                _agreed(wanted)
        else:
            wanted = await named_jobs(grid, texts or (), open_only=True)
        if signal is not None:
            return wanted, await grid.signal(wanted, signal)
        return wanted, await grid.wish(kind, wanted) if wanted else []

    wanted, done = reach.ask(work)
    if reach.as_json:
        print_json({"job_ids": done})
    elif done:
        typer.echo(f"{_DONE[kind]}: {ranges_text(done)}")
    left = sorted(set(wanted) - set(done))
    if left and query is None:
        raise InputError(f"{ranges_text(left)}: {_NOT_DONE[kind]} no such job of yours")
    if not wanted and not reach.as_json:
        say("there are no such jobs")


def _agreed(job_ids: Sequence[int]) -> None:
    """Have the user agree that all these jobs are cancelled; a script says so with --yes."""
    if not sys.stdin.isatty():
        raise OptionError("--all", f"would cancel {counted(len(job_ids), 'job')}; if that is meant, add --yes")
    if not typer.confirm(f"Cancel {counted(len(job_ids), 'job')} ({ranges_text(job_ids)})?", err=True):
        raise InputError("nothing was cancelled")


def logs(
    job: OneJob,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing until the job ends.")] = False,
    rank: Annotated[int, typer.Option(metavar="N", min=0, help="Which rank's output.")] = 0,
    stderr: Annotated[bool, typer.Option("--stderr", help="Print standard error instead of standard output.")] = False,
    element: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Of a packed array: only what this element has written.")
    ] = None,
    url: Url = None,
    here: Here = None,
    profile: Profile = None,
) -> None:
    """Print the output of a job.

    Example: gridweave logs 17 -f --rank 2
    """
    from gridweave.grid.client.streams import output

    async def work(grid: Client) -> None:
        stream: Literal["out", "err"] = "err" if stderr else "out"
        place, part = rank, None
        if element is not None:
            ended = _element(await grid.record(job), element)
            place, part = ended.rank, (ended.err if stderr else ended.out)
        async for data in output(grid.transport, job, rank=place, stream=stream, follow=follow, part=part):
            # Bytes as they are: output need not be text.
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    if element is not None and (follow or rank):
        raise OptionError("--element", "goes with neither --follow nor --rank")
    Reach(url, here, profile).ask(work)


def _element(record: JobRecord, index: int) -> Element:
    """Return what became of one element of a packed array."""
    found = next((one for one in record.elements if one.index == index), None)
    if found is None:
        raise OptionError("--element", f"job {record.job_id} has no element {index} that has ended, as far as is known")
    return found
