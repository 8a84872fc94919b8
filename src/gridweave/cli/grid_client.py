"""Helpers shared by the commands that talk to a grid.

They find the grid's address and client, add the options of a job, look up jobs by number or name, format times and
forecasts, and complete states, outcomes and sites in the shell (sites only if the grid answers within a second).
"""

from __future__ import annotations

import datetime
import inspect
import re
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from gridweave.cli.arguments import Command, Json, options_of, with_parameters
from gridweave.cli.output import print_json, print_table, say
from gridweave.cli.terminal import visible
from gridweave.errors import GridweaveError, InputError, OptionError, UnavailableError, check_known
from gridweave.grid.client.option import Option
from gridweave.grid.client.options import OPTIONS, read_flags
from gridweave.ranges import ranges_of, ranges_text
from gridweave.site.lifecycle import BEGUN, OPEN, OVER, PLACED
from gridweave.site.times import span_text, when_text
from gridweave.values import counted

if TYPE_CHECKING:
    from gridweave.grid.api import Forecast, SplitReason, TokenInfo
    from gridweave.grid.client.client import Client
    from gridweave.site.job import JobRecord


T = TypeVar("T")

Url = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Address of the gateway. \\[default: see docs/cli.md]"),
]
Here = Annotated[str | None, typer.Option("--grid", metavar="NAME", help="Use the grid of this name on this machine.")]
Profile = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Use the address and token of this profile in the configuration file."),
]
Jobs = Annotated[list[str], typer.Argument(metavar="JOB...", help="Job numbers (17), ranges (3-9) and array names.")]

MOST_JOBS = 100_000
"""Largest number of jobs in one range."""

COMPLETION_S = 1.0
"""Longest time that a shell completion waits for the grid."""

_TRY_S, _CONNECT_S = 30.0, 2.0
_LAST_NUMBER = 2**62  # no job has a higher one
_RANGE = re.compile(r"(\d{1,19})(?:-(\d{1,19}))?", re.ASCII)


@dataclass(frozen=True)
class Reach:
    """How a command reaches the grid and prints its answer: the options that `at_grid` adds."""

    url: Url = None
    here: Here = None
    profile: Profile = None
    as_json: Json = False

    def ask(self, work: Callable[[Client], Awaitable[T]], *, waits: bool = False) -> T:
        """Run a coroutine with an open client, and return its result.

        With `waits` the coroutine gets an event loop, which it needs to wait for jobs and to read streams.
        """
        from gridweave.cli.options import named_as_typed
        from gridweave.grid.client.client import Client
        from gridweave.grid.client.transport import BriefTransport, Patience, brief_sleep, run_brief

        async def run() -> T:
            async with client:
                return await work(client)

        typed = {"url": "--url", "grid": "--grid", "profile": "--profile"}
        with named_as_typed(**typed, token="GRIDWEAVE_TOKEN", ca="GRIDWEAVE_CA"):
            patience = Patience(total_s=_TRY_S, connect_s=_CONNECT_S)
            how: dict[str, Any] = {} if waits else {"transport": BriefTransport, "sleep": brief_sleep}
            client = Client(self.url, grid=self.here, profile=self.profile, patience=patience, **how)
            for warning in client.connection.warnings:
                say(f"warning: {warning}")
            if not waits:
                return run_brief(run())
            import asyncio

            return asyncio.run(run())

    def show(self, result: T, for_people: Callable[[T], None]) -> None:
        """Print a result as JSON with --json, or else with `for_people`."""
        if self.as_json:
            print_json(plain(result))
        else:
            for_people(result)


at_grid = options_of(Reach)
"""Decorator that replaces the first parameter of a command, ``reach``, by the options of `Reach`."""


def may(info: TokenInfo) -> str:
    """Return the permissions of a token in words.

    Examples
    --------
    >>> from gridweave.grid.api import TokenInfo, TokenLimits
    >>> may(TokenInfo(token_id="", user="", scopes=("read", "submit"), limits=TokenLimits(max_nodes=8), made_ms=0))
    'read, submit; at most 8 nodes'
    """
    limits = info.limits
    words = [f"{', '.join(info.scopes)}{' (login of a browser)' if info.is_login else ''}"]
    words += [f"sites {', '.join(limits.sites)}"] if limits.sites else []
    words += [f"accounts {', '.join(limits.accounts)}"] if limits.accounts else []
    words += [f"at most {limits.max_nodes} nodes"] if limits.max_nodes is not None else []
    words += [f"arrays of at most {limits.max_array} jobs"] if limits.max_array is not None else []
    words += [f"at most {span_text(limits.max_limit_ms)} each"] if limits.max_limit_ms is not None else []
    words += [f"priority of at most {limits.max_priority:g}"] if limits.max_priority is not None else []
    words += [f"weight of at most {limits.max_weight:g}"] if limits.max_weight is not None else []
    return "; ".join(words)


# -- jobs


async def named_jobs(grid: Client, texts: Iterable[str], *, open_only: bool = False) -> list[int]:
    """Return the numbers of the jobs that a user names, each once, in the user's order.

    With `open_only`, the name of an array stands for its jobs that have not ended.
    """
    job_ids: dict[int, None] = {}
    for text in texts:
        numbers = job_numbers(text)
        if numbers is None:
            records = [record async for record in grid.jobs(array=text)]
            if not records:
                raise InputError(f"there is no array {text!r}; name jobs as 17, 3-9, or by the name of an array")
            numbers = sorted(job.job_id for job in records if not (open_only and job.state in OVER))
        job_ids |= dict.fromkeys(numbers)
    return list(job_ids)


async def listed_jobs(grid: Client, own: str, query: Mapping[str, Any], most: int | None = None) -> list[JobRecord]:
    """Return the jobs of the grid and of all sites' own users, newest first; with `own`, of one site's users only."""
    if own:
        return [record async for record in grid.jobs(own=own, **query, limit=most)]
    records = {record.job_id: record async for record in grid.jobs(**query, limit=most)}
    for site in await grid.sites():
        try:
            records |= {record.job_id: record async for record in grid.jobs(own=site.name, **query, limit=most)}
        except UnavailableError as error:
            say(f"jobs of {site.name}'s own users are left out: {error}")
    return sorted(records.values(), key=lambda record: (record.submit_ms, record.job_id), reverse=True)[:most]


def job_numbers(text: str) -> Sequence[int] | None:
    """Return the job numbers in a text, or None if the text is a name.

    Examples
    --------
    >>> job_numbers("17"), list(job_numbers("3-5")), job_numbers("sweep-1")
    ([17], [3, 4, 5], None)
    """
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        return None
    first = int(match[1])
    last = int(match[2]) if match[2] else first
    if first < 1 or last < first or last - first >= MOST_JOBS or last > _LAST_NUMBER:
        raise OptionError("JOB", f"{text!r} is not a range of jobs; write 17 or 3-9, at most {MOST_JOBS:,} jobs")
    return [first] if match[2] is None else range(first, last + 1)


def agreed(option: str, would: str, question: str, otherwise: str) -> None:
    """Ask the user to confirm an action that cannot be undone; without a terminal, OptionError asks for --yes."""
    if not sys.stdin.isatty():
        raise OptionError(option, f"{would}; add --yes to confirm")
    if not typer.confirm(question, err=True):
        raise InputError(otherwise)


# -- words


def plain(value: Any) -> Any:
    """Convert a struct to types that JSON has."""
    import msgspec

    return msgspec.to_builtins(value, builtin_types=(), str_keys=True)


def checked_values(option: str, texts: Sequence[str] | None, valid_names: Sequence[str]) -> list[str]:
    """Return the values of an option that may be repeated or contain commas; OptionError for an unknown value."""
    values = [value.strip().lower() for text in texts or () for value in text.split(",")]
    for value in values:
        check_known(option, value, valid_names)
    return list(dict.fromkeys(values))


def state_text(record: JobRecord) -> str:
    """Return the state of a job, or how it ended."""
    return record.outcome or record.state


_MOST_RANGES = 20


def jobs_text(job_ids: Iterable[int]) -> str:
    """Return job numbers as ranges; after the first 20 ranges, only how many more jobs there are.

    Examples
    --------
    >>> jobs_text([3, 4, 5, 17]), jobs_text(range(10, 110, 2))[-22:]
    ('3-5 17', '46 48 and 30 more jobs')
    """
    ranges = ranges_of(job_ids)
    shown, more = ranges[:_MOST_RANGES], sum(end - first for first, end in ranges[_MOST_RANGES:])
    text = ranges_text(number for first, end in shown for number in range(first, end))
    return f"{text} and {counted(more, 'more job')}" if more else text


def shortened(text: str, most: int) -> str:
    """Cut a text to at most `most` characters; an ellipsis marks the cut."""
    return text if len(text) <= most else text[: most - 1] + "…"


def places_text(placement: Iterable[tuple[str, int]]) -> str:
    """Return a job's sites and its nodes at each.

    Examples
    --------
    >>> places_text((("north", 3), ("south", 1)))
    'north 3 + south 1'
    """
    return " + ".join(f"{name} {nodes:,}" for name, nodes in placement)


def now_ms() -> int:
    """Return the current time, since 1970."""
    return time.time_ns() // 1_000_000


def relative(time_at_ms: int | None, from_ms: int) -> str:
    """Return an instant as its distance from now.

    Examples
    --------
    >>> relative(90_000, 0), relative(0, 90_000), relative(5, 5), relative(None, 0)
    ('in 1 min 30 s', '1 min 30 s ago', 'now', '-')
    """
    if time_at_ms is None:
        return "-"
    return "now" if abs(time_at_ms - from_ms) < 500 else when_text(time_at_ms, from_ms)


def clock(time_at_ms: int) -> str:
    """Return an instant in local time, with the date unless it is today."""
    at, now = (datetime.datetime.fromtimestamp(ms / 1000).astimezone() for ms in (time_at_ms, now_ms()))
    return at.strftime("%H:%M:%S" if at.date() == now.date() else "%Y-%m-%d %H:%M")


# -- completion


def complete_states(incomplete: str) -> list[str]:
    """Return the job states that begin with a text."""
    return [state for state in (*OPEN, *OVER) if state.startswith(incomplete)]


States = Annotated[
    list[str] | None,
    typer.Option(metavar="STATE", help="Only jobs in this state. Repeatable.", autocompletion=complete_states),
]


def complete_outcomes(incomplete: str) -> list[str]:
    """Return the job outcomes that begin with a text."""
    from gridweave.site.job import OUTCOMES

    return [outcome for outcome in OUTCOMES if outcome.startswith(incomplete)]


def complete_sites(incomplete: str) -> list[str]:
    """Return the grid's sites whose names begin with a text; none if no grid answers at once."""
    import asyncio

    from gridweave.grid.client.client import Client
    from gridweave.grid.client.transport import Patience

    async def names() -> list[str]:
        patience = Patience(total_s=COMPLETION_S, connect_s=0.0, try_s=COMPLETION_S)
        async with asyncio.timeout(COMPLETION_S), Client(patience=patience) as grid:
            return [site.name for site in await grid.sites()]

    try:
        return [name for name in asyncio.run(names()) if name.startswith(incomplete)]
    except (GridweaveError, OSError, TimeoutError):
        return []


# -- options of a job


def job_options(*, quoted: bool = False) -> Callable[[Command], Command]:
    """Return a decorator that replaces the parameter ``options`` of a command by the options of a job.

    The parameter gets the values that are given, by their keys in `SubmitOptions`. With `quoted` there are only the
    options on which a quote depends.
    """
    hints = {
        key: Annotated[_typed(option), _typer_option(option)]
        for key, option in OPTIONS.items()
        if option.flags and (option.quoted or not quoted)
    }

    def give(command: Command) -> Command:
        parameters = list(inspect.signature(command, eval_str=True).parameters.values())
        place = [parameter.name for parameter in parameters].index("options")
        parameters[place : place + 1] = [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)
            for key, hint in hints.items()
        ]
        return with_parameters(command, parameters, "options", read_flags, hints)

    return give


def _typed(option: Option) -> Any:
    """Return the type by which typer reads an option's value; None stands for an option that is not given."""
    return list[option.value] | None if option.many is not None else option.value | None  # type: ignore[name-defined]


def _typer_option(option: Option) -> Any:
    """Return an option for typer; brackets in its help are escaped, so that rich does not read them as markup."""
    default = f" \\[default: {option.default}]" if option.default else ""
    return typer.Option(
        *option.flags,
        metavar=option.metavar,
        help=option.help + default,
        min=option.least,
        max=option.most,
        autocompletion=complete_sites if option.is_site else None,
    )


# -- forecasts


def print_forecast(forecast: Forecast) -> None:
    """Print when and where a job starts, each site's reason, and the cost and the gain of a split."""
    for line in _lines(forecast):
        typer.echo(visible(line))
    if forecast.sites:
        rows = [
            (site.site, f"{site.nodes:,}", f"{site.free:,}", _start(site.start_ms, forecast), site.reason)
            for site in forecast.sites
        ]
        print_table(rows, headings=("site", "nodes", "free", "alone there", "why"), right=(1, 2), wrap=True)
    if forecast.split is not None and (text := _split_text(forecast.split, forecast)):
        typer.echo(text)


_STATES = {
    "waiting": "waits",
    "starting": "is starting",
    "running": "runs",
    "held": "is held",
    "ending": "is ending",
    "ended": "has ended",
    "refused": "was refused",
}


def _lines(forecast: Forecast) -> list[str]:
    from gridweave.site.explain import STARTS_AT_ONCE

    if forecast.job_id is None:
        lines = [f"such a job: {forecast.reason}"] if forecast.reason else []
    else:
        text = f"job {forecast.job_id} {_STATES.get(forecast.state, f'is {forecast.state}')}"
        lines = [f"{text}: {forecast.reason}" if forecast.reason else text]
    if forecast.reason.startswith(STARTS_AT_ONCE):
        lines[0] += "" if _names_split(forecast) else _length(forecast)
    else:
        lines += _start_lines(forecast)
    if forecast.ahead:
        lines.append(f"{counted(forecast.ahead, 'job')} ahead of it in the queue")
    return lines


def _start_lines(forecast: Forecast) -> list[str]:
    """Return the lines with the start, the sites and the run time of a job, without facts in the reason."""
    is_in_reason = _names_split(forecast)
    length = "" if is_in_reason else _length(forecast)
    if forecast.start_ms is not None:
        begins = "started" if forecast.state in (*BEGUN, "ended") else "starts"
        where = f" on {places_text(forecast.places)}" if forecast.places and not is_in_reason else ""
        return [f"it {begins} {_start(forecast.start_ms, forecast)}{where}{length}"]
    if forecast.state == "waiting":
        return ["its start is unknown" + length]
    if forecast.places and forecast.state in PLACED:
        return [f"it is on {places_text(forecast.places)}{length}"]
    return []


def _names_split(forecast: Forecast) -> bool:
    """Whether the reason already names the sites, the run time and the cost of a split."""
    split = forecast.split
    return split is not None and split.cost is not None and split.cost.text in forecast.reason


def _length(forecast: Forecast) -> str:
    return f", for at most {span_text(forecast.length_ms)}" if forecast.length_ms else ""


def _start(start_ms: int | None, forecast: Forecast) -> str:
    if start_ms is None:
        return "never"
    if start_ms - forecast.now_ms < 500 and forecast.state not in (*BEGUN, "ended"):
        return "now"
    return f"{relative(start_ms, forecast.now_ms)} ({clock(start_ms)})"


def _split_text(split: SplitReason, forecast: Forecast) -> str:
    """Return the line about a split, without facts that other lines have already; may be empty."""
    if not split.places:
        return f"a split: {split.reason or 'not possible'}"
    if split.cost is not None:
        if not _names_split(forecast):
            return f"a split: {split.reason}"
        rest = split.reason.partition(split.cost.text)[2].removeprefix(", and ").removeprefix("; ")
        return f"the split {rest}" if rest else ""
    text = f"a split: {places_text(split.places)}, {_start(split.start_ms, forecast)}"
    if split.length_ms and split.whole_ms and not split.reason:
        text += f", takes {span_text(split.length_ms)} instead of {span_text(split.whole_ms)}"
    if split.gain_ms is not None:
        end = "sooner" if split.gain_ms > 0 else "later"
        text += f", ends {span_text(abs(split.gain_ms))} {end}" if split.gain_ms else ", ends at the same time"
    return f"{text}: {split.reason}" if split.reason else text
