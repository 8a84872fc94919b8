"""Convert jobs described in Python to requests for the grid."""

from __future__ import annotations

import datetime
import getpass
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec

from gridweave.errors import InputError, OptionError, check_known
from gridweave.grid.api import NewJob
from gridweave.grid.client.arguments import afters, encoded, environment_of, many, typed_request, whole
from gridweave.grid.client.arguments import text as as_text
from gridweave.grid.client.chunk_options import requested_chunk
from gridweave.grid.client.job_options import DEFAULT_LIMIT, IfLost, JobOptions, Limit, Needs
from gridweave.grid.client.option_texts import parse_data, parse_limit
from gridweave.grid.client.options import JOB_OPTIONS
from gridweave.site.job import JobForm, JobRequest, Program, Resources, Traffic, Where, request_problem
from gridweave.site.launch import Call
from gridweave.site.needs.text import parse_resources

Runnable = JobRequest | Program | Call | Sequence[str | Path]
"""A job to submit: a complete request, a program, a Python callable, or a command and its arguments."""

MOST_AT_ONCE = 500
"""Maximum number of jobs in one request."""

MOST_BYTES = 4 << 20
"""Maximum size of one request in bytes; a single larger job is sent in a request of its own."""


class EncodedJobs(msgspec.Struct, frozen=True):
    """A `gridweave.grid.api.SubmitJobs` whose jobs are already encoded as MessagePack."""

    jobs: list[msgspec.Raw]
    site: str | None = None


def limit_ms(limit: Limit) -> int:
    """Convert a wall time limit to ms.

    Examples
    --------
    >>> limit_ms("1h30m"), limit_ms(datetime.timedelta(minutes=2))
    (5400000, 120000)
    """
    if isinstance(limit, str):
        limit = parse_limit("limit", limit)
    if not isinstance(limit, datetime.timedelta):
        raise OptionError("limit", f"{limit!r} has no unit; write '10m' or give a datetime.timedelta")
    return round(limit / datetime.timedelta(milliseconds=1))


def job_request(what: Runnable, options: JobOptions) -> JobRequest:
    """Return the request for a job with these options; a complete request is returned unchanged.

    Raises
    ------
    TypeError
        If an option is unknown.
    OptionError
        If a value is invalid.
    """
    if unknown := options.keys() - JOB_OPTIONS.keys():
        valid_options = ", ".join(JOB_OPTIONS)
        raise TypeError(f"unexpected keyword argument {min(unknown)!r}; the options of a job are {valid_options}")
    if isinstance(what, JobRequest):
        return what
    forms = many("forms", options.get("forms", ()), JobForm, "a JobForm or several")
    return JobRequest(
        program=_program(what, options),
        nodes=max((whole("nodes", options.get("nodes", 1)), *(form.width for form in forms))),
        limit_ms=limit_ms(options.get("limit", DEFAULT_LIMIT)),
        name=options.get("name", ""),
        user=options.get("user", ""),
        job_class=options.get("job_class", ""),
        priority=options.get("priority", 0.0),
        hold=options.get("hold", False),
        after=afters(options.get("after")),
        array=options.get("array"),
        account=options.get("account", ""),
        forms=forms,
        resources=_resources(options.get("resources", "")),
        traffic=_traffic(options),
        chunk=requested_chunk(options),
    )


def _resources(needs: Needs) -> Resources | None:
    if isinstance(needs, str):
        return parse_resources("resources", needs) if needs else None
    return needs


def _traffic(options: JobOptions) -> Traffic | None:
    """Return a job's communication and data, or None if no option sets them; the grid parses the communication."""
    communication = options.get("communication", "")
    data: dict[str, Any] = {}
    for what, written in (("input", options.get("input_data")), ("output", options.get("output_data"))):
        if written:
            name = f"{what}_data"
            data[f"{what}_site"], data[f"{what}_bytes"] = parse_data(name, as_text(name, written))
    return Traffic(communication=communication, **data) if communication or data else None


def checked(request: JobRequest, *, has_token: bool) -> JobRequest:
    """Check a request, and add the user's name unless the token identifies the user.

    Raise InputError if no site could run the job, or if a value has the wrong type.
    """
    request = typed_request(request)
    if problem := request_problem(request):
        raise InputError(problem)
    return request if request.user or has_token else msgspec.structs.replace(request, user=login_name())


def login_name() -> str:
    """Return the user name of this process, or an empty string if it has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return ""


def chunks(jobs: Iterable[NewJob]) -> list[list[msgspec.Raw]]:
    """Encode jobs as MessagePack and split them, in order, into parts that each fit into one request."""
    parts: list[list[msgspec.Raw]] = []
    free_bytes = 0
    for job in jobs:
        data = encoded(job)
        if not parts or len(parts[-1]) == MOST_AT_ONCE or len(data) > free_bytes:
            parts.append([])
            free_bytes = MOST_BYTES
        parts[-1].append(msgspec.Raw(data))
        free_bytes -= len(data)
    return parts


def _found(module: str, path: str) -> Any:
    """Return the object at a dotted path in a loaded module, or None."""
    resolved: Any = sys.modules.get(module)
    for part in path.split("."):
        resolved = getattr(resolved, part, None)
    return resolved


def callable_name(function: Callable[..., Any] | str) -> str:
    """Return ``module:function`` for a function that the machines can import; raise InputError for any other.

    Examples
    --------
    >>> import statistics
    >>> callable_name(statistics.fmean), callable_name("statistics:fmean")
    ('statistics:fmean', 'statistics:fmean')
    """
    if isinstance(function, str):
        return function
    module, path = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    right = "move it to a module installed on the machines, or give a name like 'module:function'"
    if not isinstance(module, str) or not isinstance(path, str):
        raise InputError(f"{function!r} has no name that a machine could import; {right}")
    if "<" in path:
        kind = "a lambda" if path.endswith("<lambda>") else "a function within a function"
        raise InputError(f"{path}: {kind} cannot be imported on a machine; {right}")
    if module == "__main__":
        raise InputError(f"{path}: what a script or notebook defines cannot be imported on a machine; {right}")
    resolved = _found(module, path)
    if resolved is not function and getattr(resolved, "__func__", resolved) is not function:
        raise InputError(f"{module}:{path} is a different object now (decorated, or defined again); {right}")
    return f"{module}:{path}"


def _program(what: Program | Call | Sequence[str | Path], options: JobOptions) -> Program:
    if isinstance(what, Program):
        return what
    ranks, if_lost = options.get("ranks", "each-node"), options.get("if_lost", "requeue")
    check_known("ranks", ranks, get_args(Where))
    check_known("if_lost", if_lost, get_args(IfLost))
    directory = options.get("working_directory")
    return Program(
        argv=() if isinstance(what, Call) else _command(what),
        call=what if isinstance(what, Call) else None,
        environment=environment_of(options.get("environment")),
        working_directory=None if directory is None else as_text("working_directory", directory),
        ranks=ranks,
        if_lost=if_lost,
    )


def _command(what: Any) -> tuple[str, ...]:
    """Return a command and its arguments as text, converting paths."""
    if callable(what):
        raise InputError(f"{what!r:.200} is not a command; write gridweave.Call('module:function') to run a function")
    if isinstance(what, Iterable) and not isinstance(what, str | bytes):
        parts = tuple(what)
        if all(isinstance(part, str | Path) for part in parts):
            return tuple(as_text("command", part) for part in parts)
        what = list(parts)
    raise InputError(f"{what!r:.200} is not a command; give a list of strings: its name, then its arguments")
