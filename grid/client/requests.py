"""Jobs as people name them in Python, made into what the grid takes."""

from __future__ import annotations

import datetime
import getpass
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from gridweave.errors import InputError, OptionError, check_known
from gridweave.grid.api import NewJob
from gridweave.grid.client.arguments import Afters, afters, encoded, environment_of, many, typed_request, whole
from gridweave.grid.client.arguments import text as as_text
from gridweave.site.job import ArrayPlace, JobForm, JobRequest, Program, Resources, Traffic, Where, request_problem
from gridweave.site.launch import Call
from gridweave.site.needs.text import parse_resources
from gridweave.site.times import parse_time_ms
from gridweave.values import parse_bytes

IfLost = Literal["requeue", "fail"]
"""What becomes of a job when a machine failed under it."""

Runnable = JobRequest | Program | Call | Sequence[str | Path]
"""What can be handed in: a whole request, a program, a callable of Python, or a command and its arguments."""

Limit = str | datetime.timedelta
"""How long a job may run: as people write it (``10m``), or a span of time."""

Needs = Resources | str
"""What a job needs of the nodes that it may share, in full or as people write it; an empty text: it does not say."""

MOST_AT_ONCE = 500
"""So many jobs are in one request."""

MOST_BYTES = 4 << 20
"""... and so many bytes, unless one job alone is larger."""


class EncodedJobs(msgspec.Struct, frozen=True):
    """`gridweave.grid.api.SubmitJobs`, of jobs that are MessagePack already."""

    jobs: list[msgspec.Raw]
    site: str | None = None


def limit_ms(limit: Limit) -> int:
    """Return how long a job may run.

    Examples
    --------
    >>> limit_ms("1h30m"), limit_ms(datetime.timedelta(minutes=2))
    (5400000, 120000)
    """
    if isinstance(limit, datetime.timedelta):
        return round(limit / datetime.timedelta(milliseconds=1))
    if not isinstance(limit, str):
        raise OptionError("limit", f"{limit!r} says no unit; write '10m' or give a datetime.timedelta")
    return parse_time_ms("limit", limit)


def job_request(
    what: Runnable,
    *,
    nodes: int,
    limit: Limit,
    name: str = "",
    user: str = "",
    job_class: str = "",
    priority: float = 0.0,
    environment: Mapping[str, object] | None = None,
    working_directory: str | Path | None = None,
    ranks: Where = "each-node",
    if_lost: IfLost = "requeue",
    hold: bool = False,
    after: Afters = (),
    array: ArrayPlace | None = None,
    account: str = "",
    forms: JobForm | Iterable[JobForm] = (),
    resources: Needs = "",
    communication: str = "", input_data: str = "", output_data: str = "",
) -> JobRequest:  # fmt: skip
    """Return what is to be asked of the grid (see `Client.submit`); a request that is whole stays as it is."""
    if isinstance(what, JobRequest):
        return what
    forms = many("forms", forms, JobForm, "a JobForm or several")
    return JobRequest(
        program=_program(what, environment, working_directory, ranks, if_lost),
        nodes=max((whole("nodes", nodes), *(form.width for form in forms))),
        limit_ms=limit_ms(limit),
        name=name,
        user=user,
        job_class=job_class,
        priority=priority,
        hold=hold,
        after=afters(after),
        array=array,
        account=account,
        forms=forms,
        resources=_resources(resources),
        traffic=traffic_of(communication, input_data, output_data),
    )


def _resources(needs: Needs) -> Resources | None:
    if isinstance(needs, str):
        return parse_resources("resources", needs) if needs else None
    return needs


def traffic_of(
    communication: str | None, input_data: str | None, output_data: str | None, *, option: str = "{}_data"
) -> Traffic | None:
    """Return what a job sends, from what is said of it; None if nothing is.

    `option` is how errors name the two of data. What the communication means, the grid knows.

    Examples
    --------
    >>> traffic_of("light", "alpha:20GB", None).input_bytes
    20000000000
    """
    if not (communication or input_data or output_data):
        return None
    data: dict[str, Any] = {}
    for what, text in (("input", input_data), ("output", output_data)):
        if text:
            name = option.format(what)
            site, _, size = as_text(name, text).rpartition(":")
            if not site:
                raise OptionError(name, f"{text!r} is not a site and a size; write for example alpha:20GB")
            data |= {f"{what}_site": site, f"{what}_bytes": round(parse_bytes(name, size))}
    return Traffic(communication=communication or "", **data)


def checked(request: JobRequest, *, has_token: bool) -> JobRequest:
    """Return a request, with the name of who asks unless a token says that.

    InputError if no site could run it, or a value has not the right type.
    """
    request = typed_request(request)
    if problem := request_problem(request):
        raise InputError(problem)
    return request if request.user or has_token else msgspec.structs.replace(request, user=login_name())


def login_name() -> str:
    """Return the name of the user of this process, or nothing where there is none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container, perhaps
        return ""


def chunks(jobs: Iterable[NewJob]) -> list[list[msgspec.Raw]]:
    """Return jobs as MessagePack, in parts that a gateway takes in one request each, in their order."""
    parts: list[list[msgspec.Raw]] = []
    room = 0
    for job in jobs:
        data = encoded(job)
        if not parts or len(parts[-1]) == MOST_AT_ONCE or len(data) > room:
            parts.append([])
            room = MOST_BYTES
        parts[-1].append(msgspec.Raw(data))
        room -= len(data)
    return parts


def _found(module: str, path: str) -> Any:
    """Return what a module that is loaded has at a path of names, or None."""
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def callable_name(function: Callable[..., Any] | str) -> str:
    """Return ``module:function`` of a function that the machines can import as well.

    InputError if they could not: a lambda, a function within a function, one of a script or a notebook.

    Examples
    --------
    >>> import statistics
    >>> callable_name(statistics.fmean), callable_name("statistics:fmean")
    ('statistics:fmean', 'statistics:fmean')
    """
    if isinstance(function, str):
        return function
    module, path = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    right = "put it into a module that is installed on the machines, or name one as 'module:function'"
    if not isinstance(module, str) or not isinstance(path, str):
        raise InputError(f"{function!r} has no name by which a machine could import it; {right}")
    if "<" in path:
        kind = "a lambda" if path.endswith("<lambda>") else "a function within a function"
        raise InputError(f"{path}: {kind} cannot be imported on a machine; {right}")
    if module == "__main__":
        raise InputError(f"{path}: what a script or notebook defines cannot be imported on a machine; {right}")
    found = _found(module, path)
    if found is not function and getattr(found, "__func__", found) is not function:
        raise InputError(f"{module}:{path} is another object now (decorated, or defined again); {right}")
    return f"{module}:{path}"


def _program(
    what: Program | Call | Sequence[str | Path],
    environment: Mapping[str, object] | None,
    working_directory: str | Path | None,
    ranks: Where,
    if_lost: IfLost,
) -> Program:
    if isinstance(what, Program):
        return what
    check_known("ranks", ranks, get_args(Where))
    check_known("if_lost", if_lost, get_args(IfLost))
    return Program(
        argv=() if isinstance(what, Call) else _command(what),
        call=what if isinstance(what, Call) else None,
        environment=environment_of(environment),
        working_directory=None if working_directory is None else as_text("working_directory", working_directory),
        ranks=ranks,
        if_lost=if_lost,
    )


def _command(what: Any) -> tuple[str, ...]:
    """Return a command and its arguments, of which each may be a path."""
    if callable(what):
        raise InputError(f"{what!r:.200} is not a command; write gridweave.Call('module:function') to run a function")
    if isinstance(what, Iterable) and not isinstance(what, str | bytes):
        parts = tuple(what)
        if all(isinstance(part, str | Path) for part in parts):
            return tuple(as_text("command", part) for part in parts)
        what = list(parts)
    raise InputError(f"{what!r:.200} is not a command; give a list of strings: its name, then its arguments")
