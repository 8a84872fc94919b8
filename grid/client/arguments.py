"""Convert client arguments to the types of the grid's API.

Numbers may be numpy numbers, text may be a path, and jobs may be numbers or handles. Any other type raises an
OptionError that names the argument.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from gridweave.errors import InputError, OptionError
from gridweave.site.job import After, JobRequest
from gridweave.site.launch import json_problem, python_scalar

T = TypeVar("T")


class HasId(Protocol):
    """A handle of a job."""

    @property
    def id(self) -> int:
        """The job's number."""


AnyJob = int | HasId
"""A job, given by its number or its handle."""

AnyJobs = AnyJob | Iterable[AnyJob]

Afters = AnyJob | After | Iterable[AnyJob | After]
"""Jobs to wait for: numbers or handles of jobs that must have finished successfully, or instances of `After`."""

_REQUEST = msgspec.msgpack.Decoder(JobRequest, strict=False)


def whole(name: str, value: Any) -> int:
    """Return an int, a numpy integer or a string as an int.

    Examples
    --------
    >>> whole("nodes", "2")
    2
    """
    if not isinstance(value, bool):
        with suppress(TypeError, ValueError):
            return int(value) if isinstance(value, str) else operator.index(value)
    raise OptionError(name, f"{value!r:.100} is not a whole number; give for example 2")


def real(name: str, value: Any) -> float:
    """Return an int, a float or a numpy number as a float."""
    value = python_scalar(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise OptionError(name, f"{value!r:.100} is not a number; give for example 2.5")


def text(name: str, value: Any) -> str:
    """Return a str or a path as a str."""
    value = os.fspath(value) if isinstance(value, os.PathLike) else python_scalar(value)
    if isinstance(value, str):
        return value
    raise OptionError(name, f"{value!r:.100} is not text; give a str")


def signal_name(name: str, value: Any) -> str:
    """Return the name of a signal, without ``SIG``.

    Examples
    --------
    >>> import signal
    >>> signal_name("name", signal.SIGUSR1), signal_name("name", "usr1")
    ('USR1', 'USR1')
    """
    return text(name, getattr(value, "name", value)).upper().removeprefix("SIG")


def many(name: str, value: Any, kind: type[T], what: str) -> tuple[T, ...]:
    """Return one or several objects of the type `kind` as a tuple; `what` describes the objects in an error."""
    items = (value,) if isinstance(value, kind) else tuple(value) if _is_iterable(value) else None
    if items is None or not all(isinstance(item, kind) for item in items):
        raise OptionError(name, f"{value!r:.100} is not {what}")
    return items


def _is_iterable(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)


def job_number(name: str, value: Any) -> int:
    """Return a job's number, given the number itself, a handle or a record."""
    return whole(name, getattr(value, "id", getattr(value, "job_id", value)))


def job_numbers(name: str, value: Any) -> list[int]:
    """Return the numbers of one or several jobs."""
    return [job_number(name, job) for job in (value if _is_iterable(value) else (value,))]


def afters(value: Any) -> tuple[After, ...]:
    """Return the conditions that a job waits for; a number or a handle means that this job must have finished."""
    conditions = value if _is_iterable(value) else () if value is None else (value,)
    return tuple(
        condition if isinstance(condition, After) else After(job_id=job_number("after", condition))
        for condition in conditions
    )


def environment_of(value: Any) -> dict[str, str]:
    """Return environment variables as text; values may also be numbers or paths."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise OptionError("environment", f"{value!r:.100} is not a mapping; give for example {{'THREADS': 4}}")
    return {text("environment", name): _variable(name, variable) for name, variable in value.items()}


def _variable(name: str, value: Any) -> str:
    plain = python_scalar(value)
    if isinstance(plain, int | float) and not isinstance(plain, bool):
        return str(plain)
    return text(f"environment[{name!r}]", plain)


def typed_request(request: Any) -> JobRequest:
    """Return a request with all fields converted to their types, as the gateway would read it."""
    if not isinstance(request, JobRequest):
        raise OptionError("requests", f"{request!r:.100} is not a gridweave.JobRequest")
    call = request.program.call
    if call is not None and (held := json_problem([call.args, call.kwargs])):
        raise InputError(f"the arguments of the callable hold {held}")
    try:
        return _REQUEST.decode(encoded(request))
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$.")
        name = place.rstrip("`").removeprefix("program.") or "request"
        raise OptionError(name, problem[:1].lower() + problem[1:]) from None


def encoded(what: object) -> bytes:
    """Encode an object as MessagePack; raise InputError if it contains a value that cannot be sent."""
    try:
        return msgspec.msgpack.encode(what, enc_hook=_sent)
    except UnicodeEncodeError as error:
        raise InputError(f"{error.object!r:.100} is not UTF-8, and cannot be sent; write it as UTF-8") from None
    except OverflowError:
        raise InputError("a number is too large to be sent; at most 64 bits") from None
    except TypeError as error:
        raise InputError(str(error)) from None


def _sent(value: Any) -> Any:
    """Convert an object that MessagePack cannot encode, such as a path or a numpy number, to a plain value."""
    plain = os.fspath(value) if isinstance(value, os.PathLike) else python_scalar(value)
    if plain is value:
        raise TypeError(f"{value!r:.100} cannot be sent: a {type(value).__name__} is not allowed there")
    return plain


def in_path(name: Any, argument: str = "site") -> str:
    """Return a name quoted for the path of a URL."""
    name = text(argument, name)
    encoded(name)  # raises InputError for a text that no URL can contain
    return quote(name, safe="")


def job_path(job: AnyJob, part: str = "") -> str:
    """Return the URL path of a job, followed by `part`, such as ``/history``."""
    return f"/v1/jobs/{job_number('job_id', job)}{part}"
