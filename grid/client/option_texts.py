"""Parse the values of job options from the command line and from option lines in scripts.

Each function takes the text to parse, and the option's name as the user wrote it for error messages.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from datetime import timedelta
from signal import Signals
from typing import Literal, NamedTuple, cast, get_args

from gridweave.errors import OptionError
from gridweave.site.job import JobForm, SignalName, TaskGroup
from gridweave.site.resources.text import parse_gpus, parse_memory
from gridweave.site.times import parse_time_ms
from gridweave.values import Kinds, named_values, parse_bytes

MOST_IN_ARRAY = 100_000
"""Maximum number of jobs in one array."""

Has = Literal["started", "ended", "finished", "failed"]
"""The state that a job must have reached before its dependent jobs can start."""

_NO_LIMIT = ("UNLIMITED", "INFINITE")
_ARRAY = re.compile(r"([\d,:-]+)(?:%(\d{1,9}))?", re.ASCII)
_SPAN = re.compile(r"(\d{1,18})(?:-(\d{1,18})(?::(\d{1,18}))?)?", re.ASCII)
_SIGNAL_MARKS = re.compile(r"([RB]+):(.*)", re.IGNORECASE | re.DOTALL)


# -- limits and counts


def parse_limit(name: str, text: str, *, bare: Literal["s", "m"] = "s") -> timedelta:
    """Parse a wall time limit; every job needs one, so 0 and words for "no limit" are errors.

    Examples
    --------
    >>> parse_limit("--time", "1h30m")
    datetime.timedelta(seconds=5400)
    """
    limit_ms = 0 if text.strip().upper() in _NO_LIMIT else parse_time_ms(name, text, bare=bare)
    if not limit_ms:
        right = "give for example 10m or 1-00:00:00"
        raise OptionError(name, f"{text!r} means no limit, but every job needs one; {right}")
    return timedelta(milliseconds=limit_ms)


def parse_limit_of_slurm(name: str, text: str) -> timedelta:
    """Parse a wall time limit in Slurm's format: a plain number is in minutes."""
    return parse_limit(name, text, bare="m")


def parse_count(name: str, text: str) -> int:
    """Parse a whole number of at least 1 with at most nine digits.

    Examples
    --------
    >>> parse_count("--nodes", "16")
    16
    """
    if not (text.isascii() and text.isdecimal() and len(text) <= 9 and int(text)):
        raise OptionError(name, f"{text!r} is not a number from 1 up; ranges and suffixes are not supported")
    return int(text)


# -- forms and task groups


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split("+"))


_FORM: Kinds = {"width": int, "on": _names, "speed": float, "cores": int, "memory": int}
_TASK_GROUP: Kinds = {"tasks": int, "cpu": float, "memory": float}


def parse_form(name: str, text: str) -> JobForm:
    """Parse one form of a job: its width and, optionally, other properties and a command.

    Examples
    --------
    >>> parse_form("--form", "width=4,on=sparc+x86,speed=2.5") == JobForm(width=4, on=("sparc", "x86"), speed=2.5)
    True
    >>> parse_form("--form", "width=4: ./parallel 'a b'").argv
    ('./parallel', 'a b')
    """
    right = "write for example width=4,on=sparc+x86,speed=2.5,cores=2,memory=512 (MB), each at most once"
    values, has_command, command = text.partition(":")
    fields = named_values(name, values, _FORM, right)
    try:
        fields["argv"] = tuple(shlex.split(command))
    except ValueError as error:
        raise OptionError(name, f"{text!r}: the command cannot be read: {error}") from None
    if has_command and not fields["argv"]:
        raise OptionError(name, f"{text!r}: no command after the colon; write for example width=4: ./solver")
    if "memory" in fields:
        fields["memory_mb"] = fields.pop("memory")
    return JobForm(**fields)


def parse_task_group(name: str, text: str) -> TaskGroup:
    """Parse a group of identical tasks.

    Examples
    --------
    >>> parse_task_group("--task-group", "tasks=4,cpu=0.25,memory=0.1")
    TaskGroup(tasks=4, cpu_need=0.25, memory=0.1)
    """
    right = "write for example tasks=4,cpu=0.25,memory=0.1 (parts of a node), each at most once"
    fields = named_values(name, text, _TASK_GROUP, right)
    if fields.get("tasks", 0) < 1:
        raise OptionError(name, f"{text!r}: has no number of tasks (at least 1); {right}")
    return TaskGroup(tasks=fields["tasks"], cpu_need=fields.get("cpu", 1.0), memory=fields.get("memory", 1.0))


# -- chunks


def checked_memory(name: str, text: str) -> str:
    """Check that a text is a size of memory, and return the text unchanged."""
    parse_memory(name, text)
    return text


def checked_gpus(name: str, text: str) -> str:
    """Check that a text is a number of GPUs, and return the text unchanged."""
    parse_gpus(name, text)
    return text


# -- data


def parse_data(name: str, text: str) -> tuple[str, int]:
    """Parse the site that holds a job's data, and the size of the data in bytes.

    Examples
    --------
    >>> parse_data("--input-data", "alpha:20GB")
    ('alpha', 20000000000)
    """
    site, _, size = text.rpartition(":")
    if not site:
        raise OptionError(name, f"{text!r} is not a site and a size; write for example alpha:20GB")
    return site, round(parse_bytes(name, size))


def checked_data(name: str, text: str) -> str:
    """Check that a text names a site and a size, and return the text unchanged."""
    parse_data(name, text)
    return text


# -- signals


class CheckpointSignal(NamedTuple):
    """The signal on which a job saves its work, and the seconds until it must have exited (None: the default)."""

    signal: SignalName
    seconds: int | None


class SignalAhead(NamedTuple):
    """A signal to send to a job some time before its wall time limit.

    Attributes
    ----------
    to_script : bool
        Whether the batch script gets the signal; otherwise the script's steps do.
    seconds : int, optional
        How long before the limit to send the signal; 60 if None.
    text : str
        The option's value as written, including any letters before the colon.
    """

    to_script: bool
    signal: SignalName
    seconds: int | None
    text: str


def parse_signal(name: str, text: str) -> SignalName:
    """Parse a signal's name, with or without ``SIG``, or its number.

    Examples
    --------
    >>> parse_signal("--signal", "SIGUSR1"), parse_signal("--signal", "10")
    ('USR1', 'USR1')
    """
    valid_names = get_args(SignalName)
    signal = text.strip().upper().removeprefix("SIG")
    if signal.isascii() and signal.isdecimal() and len(signal) <= 3:
        signal = next(
            (candidate for candidate in valid_names if int(Signals[f"SIG{candidate}"]) == int(signal)), signal
        )
    if signal not in valid_names:
        raise OptionError(name, f"{text!r} is not a signal that jobs can be sent; one of {', '.join(valid_names)}")
    return cast("SignalName", signal)


def parse_checkpoint_signal(name: str, text: str) -> CheckpointSignal:
    """Parse a signal with an optional number of seconds.

    Examples
    --------
    >>> parse_checkpoint_signal("--checkpoint-signal", "USR1@60")
    CheckpointSignal(signal='USR1', seconds=60)
    """
    signal, has_seconds, seconds = text.partition("@")
    if has_seconds and not (seconds.isascii() and seconds.isdecimal() and len(seconds) <= 9):
        right = "write SIGNAL@SECONDS, for example USR1@60"
        raise OptionError(name, f"{text!r}: {seconds!r} is not a number of seconds; {right}")
    return CheckpointSignal(parse_signal(name, signal), int(seconds) if has_seconds else None)


def parse_signal_ahead(name: str, text: str) -> SignalAhead:
    """Parse Slurm's notation for the signal to send to a job before its wall time limit.

    ``B:`` sends the signal only to the batch script. ``R:``, for jobs that a reservation ends, has no effect.

    Examples
    --------
    >>> parse_signal_ahead("--signal", "B:USR1@90")
    SignalAhead(to_script=True, signal='USR1', seconds=90, text='B:USR1@90')
    """
    marked = _SIGNAL_MARKS.fullmatch(text)
    marks, rest = (marked[1].upper(), marked[2]) if marked else ("", text)
    return SignalAhead("B" in marks, *parse_checkpoint_signal(name, rest), text)


# -- environment


class Exported(NamedTuple):
    """The value of Slurm's ``--export``: whether to send the whole local environment, and individual variables."""

    whole_environment: bool
    variables: dict[str, str]


def parse_variable(name: str, text: str) -> tuple[str, str]:
    """Parse a variable and its value; a name alone copies the variable's local value."""
    variable, has_value, value = text.partition("=")
    if not variable:
        raise OptionError(name, f"{text!r} has no name; write NAME=VALUE, or NAME to copy its value from here")
    if not has_value:
        if variable not in os.environ:
            raise OptionError(name, f"there is no variable {variable} here; write {variable}=VALUE")
        value = os.environ[variable]
    return variable, value


def parse_export(name: str, text: str) -> Exported:
    """Parse the value of Slurm's ``--export``."""
    words = [word for word in text.split(",") if word]
    if not words:
        raise OptionError(name, "has no value; write ALL, NONE, or NAME=VALUE, several with commas")
    variables = [parse_variable(name, word) for word in words if word not in ("ALL", "NONE", "NIL")]
    return Exported("ALL" in words, dict(variables))


# -- arrays and dependencies


class ArrayIndexes(NamedTuple):
    """The indexes of an array's jobs in ascending order, and how many jobs may run at once (0: all of them)."""

    indexes: list[int]
    at_once: int


class AfterJobs(NamedTuple):
    """The jobs to wait for, as the user wrote them (numbers, a range or an array), and their required state."""

    jobs: str
    has: Has


def _indexes(part: str) -> range:
    """Parse indexes in the form ``1-9:4``; empty if the text does not have this form."""
    span = _SPAN.fullmatch(part)
    if span is None or (span[3] and int(span[3]) < 1):
        return range(0)
    return range(int(span[1]), int(span[2] or span[1]) + 1, int(span[3] or 1))


def parse_array(name: str, text: str) -> ArrayIndexes:
    """Parse the indexes of an array.

    Examples
    --------
    >>> parse_array("--array", "1-9:4")
    ArrayIndexes(indexes=[1, 5, 9], at_once=0)
    >>> parse_array("--array", "1,3,5-6%2")
    ArrayIndexes(indexes=[1, 3, 5, 6], at_once=2)
    """
    right = "write 1-10, 1,3,5, 1-9:2 or 1-100%10"
    match = _ARRAY.fullmatch(text.strip())
    if match is None:
        raise OptionError(name, f"{text!r} is not an array; {right}")
    selected: set[int] = set()
    for part in match[1].split(","):
        indexes = _indexes(part)
        if not indexes:
            raise OptionError(name, f"{part!r} of {text!r} are not indexes; {right}")
        if len(selected) + len(indexes) > MOST_IN_ARRAY:
            raise OptionError(name, f"{text!r} has too many jobs; at most {MOST_IN_ARRAY:,}")
        selected.update(indexes)
    if match[2] is not None and int(match[2]) < 1:
        raise OptionError(name, f"{text!r} would let no job run; give at least %1, or leave it out")
    return ArrayIndexes(sorted(selected), int(match[2] or 0))


def parse_after(name: str, text: str) -> AfterJobs:
    """Parse the jobs to wait for, and the state that they must reach.

    Examples
    --------
    >>> parse_after("--after", "17"), parse_after("--after", "3-9:ended")
    (AfterJobs(jobs='17', has='finished'), AfterJobs(jobs='3-9', has='ended'))
    """
    jobs, _, has = text.strip().partition(":")
    has = has or "finished"
    if not jobs or has not in get_args(Has):
        raise OptionError(name, f"{text!r}: write JOB or JOB:STATE, with STATE one of {', '.join(get_args(Has))}")
    return AfterJobs(jobs, cast("Has", has))


_HAS_OF_SLURM: dict[str, Has] = {
    "after": "started",
    "afterany": "ended",
    "afterok": "finished",
    "afternotok": "failed",
}


def parse_dependency(name: str, text: str) -> tuple[AfterJobs, ...]:
    """Parse the value of Slurm's ``--dependency``.

    Examples
    --------
    >>> parse_dependency("--dependency", "afterok:1:2,afterany:3")[1:]
    (AfterJobs(jobs='2', has='finished'), AfterJobs(jobs='3', has='ended'))
    """
    return tuple(_dependencies(name, text))


def _dependencies(name: str, text: str) -> Iterator[AfterJobs]:
    for part in text.split(","):
        kind, *jobs = part.split(":")
        if "?" in part or "+" in part or kind not in _HAS_OF_SLURM or not jobs:
            supported = ", ".join(f"{condition}:JOB" for condition in _HAS_OF_SLURM)
            raise OptionError(name, f"{part!r} is not supported; there are {supported}, several with commas")
        yield from (parse_after(name, f"{job}:{_HAS_OF_SLURM[kind]}") for job in jobs)
