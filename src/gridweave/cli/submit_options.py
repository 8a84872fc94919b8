"""The options of a job, from the command line and from the lines of a script, made into requests.

Machines need share no file system with whoever submits. So a script travels as an argument of its job: a few lines of
shell put it into the folder of the rank, which goes with the job, and run it by its own first line (``#!``). The same
lines send output to files, whose names contain the job's number, which is not known before.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import Signals
from typing import Any, Literal, Self, cast, get_args

import msgspec

from gridweave.cli.grid_client import job_numbers
from gridweave.errors import InputError, OptionError, not_known
from gridweave.grid.client.arguments import encoded
from gridweave.grid.client.requests import traffic_of
from gridweave.ranges import ranges_of
from gridweave.site.elements import MOST_ELEMENTS
from gridweave.site.job import (
    MOST_GRACE_MS,
    After,
    ArrayPlace,
    JobForm,
    JobRequest,
    Program,
    Resources,
    SignalName,
    TaskGroup,
    Where,
    forms_problem,
    needs_of_groups,
    request_problem,
    why_impossible_needs,
)
from gridweave.site.launch import DEFAULT_GRACE_MS, LimitSignal
from gridweave.site.needs.text import parse_resources
from gridweave.site.times import parse_time_ms
from gridweave.values import Kinds, named_values

MOST_BYTES = 100_000
"""So long a script may be: Linux takes 131,072 bytes in one argument."""

_SHELL = "/bin/sh"
_MARK = "gridweave"
_PATTERN = re.compile(r"%(\d*)(.)", re.DOTALL)

_AT_RUN_TIME = {
    "j": "$GRIDWEAVE_JOB_ID",
    "J": "$GRIDWEAVE_JOB_ID",
    "A": "$GRIDWEAVE_ARRAY",
    "a": "$GRIDWEAVE_ARRAY_INDEX",
    "t": "$GRIDWEAVE_RANK",
    "n": "$GRIDWEAVE_NODE",
    "N": "$(hostname)",
}

_SLURM_LINES = """\
if [ -n "${{SLURM_JOB_ID:-}}" ]; then
  gridweave_array=$SLURM_JOB_ID
else
  export SLURM_JOB_ID="$GRIDWEAVE_JOB_ID" SLURM_JOBID="$GRIDWEAVE_JOB_ID" SLURM_JOB_NAME={name}
  gridweave_array=${{GRIDWEAVE_ARRAY:-}}
fi
export SLURM_PROCID="$GRIDWEAVE_RANK" SLURM_NODEID="$GRIDWEAVE_NODE"
if [ -n "${{GRIDWEAVE_ARRAY_INDEX:-}}" ]; then
  export SLURM_ARRAY_JOB_ID="$gridweave_array" SLURM_ARRAY_TASK_ID="$GRIDWEAVE_ARRAY_INDEX"
fi
unset gridweave_array
"""


def slurm_lines(name: str) -> str:
    """Return shell lines that set the variables of Slurm that are only known when a job of this name runs.

    Inside a real allocation the variables by which Slurm finds a job keep Slurm's values: with gridweave's number
    ``scancel "$SLURM_JOB_ID"`` would end an unrelated job.
    """
    return _SLURM_LINES.format(name=shlex.quote(name))


_RESTARTS = """\
if [ "${GRIDWEAVE_ATTEMPT:-1}" -gt 1 ]; then
  export SLURM_RESTART_COUNT="$((GRIDWEAVE_ATTEMPT - 1))"
fi
"""

_REFUSE = """\
gridweave_refuse() {
  printf '%s\\n' "$1" >&2
  printf '%s' "$1" > "$GRIDWEAVE_FOLDER/error-$GRIDWEAVE_RANK.txt"
  exit 126
}
"""
"""Ends the rank with a reason, which the machine reads from this file."""

_OPEN_OUTPUT = """\
file={file}
case $file in */*) mkdir -p -- "${{file%/*}}" 2> /dev/null ;; esac
gridweave_why=$( (exec {how} "$file") 2>&1 ) \\
  || gridweave_refuse "{option} $file: cannot be written: ${{gridweave_why##*: }}"
exec {stream}{how} "$file"
"""

_OPEN_INPUT = """\
file={file}
gridweave_why=$( (exec < "$file") 2>&1 ) || gridweave_refuse "--input $file: cannot be read: ${{gridweave_why##*: }}"
exec < "$file"
"""

_FIRST_TIME = """\
if [ "${{GRIDWEAVE_ATTEMPT:-1}}" -gt 1 ]; then
{again}else
{first}fi
"""

_READ_INPUT = """\
input=$GRIDWEAVE_FOLDER/input-$GRIDWEAVE_RANK
printf %s "$1" > "$input" && exec < "$input" || exit 126
shift
"""

_RUN_SCRIPT = """\
script=$GRIDWEAVE_FOLDER/script-$GRIDWEAVE_RANK
printf %s "$1" > "$script" && chmod 700 "$script" || exit 126
shift
"""


def shipped(
    argv: tuple[str, ...],
    script: str | None,
    *,
    preamble: str = "",
    output: str | None,
    error: str | None,
    name: str,
    read: str | None = None,
    text: str | None = None,
    open_mode: str | None = None,
    odd: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """Return what a job is to run: a command, or a script and its arguments, after a preamble in shell.

    Output and error go to files on the machines, whose names have patterns as in Slurm; standard error goes where
    output does if only that is said. Standard input is a file there (`read`), or a `text` that is sent along. The
    variables `odd` have names that a plain shell does not pass on, as exported functions of bash do.
    """
    before = _redirection(output, error, name, open_mode)
    if read is not None:
        before += _OPEN_INPUT.format(file=_file(read, name))
    before = preamble + (_REFUSE + before if before else "")
    brought: tuple[str, ...] = ()
    if text is not None:
        before, brought = before + _READ_INPUT, (text,)
    if script is None:
        if not before:
            return argv
        return (_SHELL, "-c", before + f'exec {_env(odd)}"$@"\n', _MARK, *brought, *argv)
    check_script(script, name)
    # A script without a first line that names its interpreter is one of the shell.
    run = f'exec {_env(odd)}{"" if script.startswith("#!") else _SHELL + " "}"$script" "$@"\n'
    return (_SHELL, "-c", before + _RUN_SCRIPT + run, f"{_MARK}: {name}", *brought, script, *argv)


def shipped_name(argv: tuple[str, ...]) -> str | None:
    """Return the name of the script that a job has brought with it, or None if it has none."""
    if len(argv) > 4 and argv[:2] == (_SHELL, "-c") and argv[3].startswith(f"{_MARK}: "):
        return argv[3].removeprefix(f"{_MARK}: ") + " (a script)"
    return None


def check_script(text: str, name: str) -> None:
    """Refuse a script that no machine could run: too long, with a NUL, or with lines that end as those of DOS."""
    size = len(text.encode())
    if size > MOST_BYTES:
        raise InputError(
            f"{name}: has {size:,} bytes; a script is sent with its job and may have at most {MOST_BYTES:,}: put "
            "large files on the machines, and call them from there"
        )
    if "\0" in text:
        raise InputError(f"{name}: contains NUL characters, so it is not a script; for a program write: -- {name}")
    first = text.partition("\n")[0]
    if first.startswith("#!") and first.endswith("\r"):
        raise InputError(f"{name}:1: its lines end as in DOS, so the interpreter would not be found; run: dos2unix")


def _env(odd: Mapping[str, str] | None) -> str:
    """Return the words of shell, ending in a blank, that give a program variables which the shell does not pass on."""
    if not odd:
        return ""
    return " ".join(["env", *(shlex.quote(f"{name}={value}") for name, value in odd.items())]) + " "


def _redirection(output: str | None, error: str | None, name: str, open_mode: str | None) -> str:
    """Return lines that open the files of output and error, with their folders.

    A job that runs again adds to its files, so that the output of each attempt can be read; the mode may say otherwise.
    """
    first, again = (_opened(output, error, name, how) for how in (">", ">>"))
    if not first or open_mode is not None:
        return again if open_mode == "append" else first
    return _FIRST_TIME.format(first=first, again=again)


def _opened(output: str | None, error: str | None, name: str, how: str) -> str:
    lines = ""
    if output is not None:
        lines += _OPEN_OUTPUT.format(option="--output", file=_file(output, name), stream="", how=how)
        lines += "exec 2>&1\n" if error is None else ""
    if error is not None:
        lines += _OPEN_OUTPUT.format(option="--error", file=_file(error, name), stream="2", how=how)
    return lines


def _file(pattern: str, name: str) -> str:
    """Return the name of a file as a word of shell, with what is known at run time as variables."""
    word, end = "", 0
    for match in _PATTERN.finditer(pattern):
        word += _quoted(pattern[end : match.start()])
        end = match.end()
        width, letter = match.groups()
        if letter in ("%", "x"):
            word += _quoted("%" if letter == "%" else name.replace("/", "_"))
        elif letter in _AT_RUN_TIME and not width:
            word += f'"{_AT_RUN_TIME[letter]}"'
        else:
            known = ", ".join(f"%{one}" for one in sorted({*_AT_RUN_TIME, "x", "%"}))
            raise InputError(f"{pattern!r}: the pattern {match[0]!r} is not known; there are {known}")
    return word + _quoted(pattern[end:])


def _quoted(text: str) -> str:
    return shlex.quote(text) if text else ""


def writes_one_file(pattern: str) -> bool:
    """Return whether all ranks of a job would write the same file.

    Examples
    --------
    >>> writes_one_file("out-%j.txt"), writes_one_file("out-%t.txt")
    (True, False)
    """
    return not {match[2] for match in _PATTERN.finditer(pattern)} & {"t"}


DEFAULT_TIME = "1h"
MOST_IN_ARRAY = 100_000

OPEN_MODES = ("append", "truncate")
RANKS: tuple[Where, ...] = ("each-node", "first-node")
HAS = ("started", "ended", "finished", "failed")

_ARRAY = re.compile(r"([\d,:-]+)(?:%(\d{1,9}))?", re.ASCII)
_LISTS = ("env", "after", "batch_option", "form", "task_group")
_SPAN = re.compile(r"(\d{1,18})(?:-(\d{1,18})(?::(\d{1,18}))?)?", re.ASCII)


class SubmitOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of a job; None: nothing is."""

    # Nodes, and how many tasks the script itself starts on them (Slurm).
    nodes: int | None = None
    tasks: int | None = None
    time: str | None = None
    name: str | None = None
    site: str | None = None
    env: tuple[str, ...] = ()  # ``NAME=VALUE``, or ``NAME`` for the value that it has here
    # Whether the environment of this process goes with the job, as far as it makes sense elsewhere.
    export_all: bool = False
    chdir: str | None = None
    hold: bool | None = None
    after: tuple[str, ...] = ()  # ``JOB`` or ``JOB:STATE``
    array: str | None = None
    pack: bool = False  # whether many elements of the array run in one job
    pack_size: int | None = None
    user: str | None = None
    account: str | None = None
    job_class: str | None = None
    priority: float | None = None
    ranks: str | None = None
    requeue: bool | None = None
    checkpoint_signal: str | None = None  # ``SIGNAL`` or ``SIGNAL@SECONDS``
    signal: str | None = None  # ahead of the limit: ``[B:]SIGNAL[@SECONDS]``
    open_mode: str | None = None  # ``append`` or ``truncate``
    # Parts of a node's CPU and memory that each of its tasks needs.
    cpu_need: float | None = None
    memory_need: float | None = None
    task_group: tuple[str, ...] = ()  # ``tasks=4,cpu=0.25,memory=0.1``
    # Fractions of the job's run time and of a node's memory: ``cpu=0.6,network=0.3,disk=0.1,memory=0.5``.
    resources: str | None = None
    # What it sends between its nodes: a profile, or ``fraction=0.2,pattern=ring,message=1MB``.
    communication: str | None = None
    input_data: str | None = None  # ``SITE:SIZE``
    output_data: str | None = None
    input: str | None = None
    output: str | None = None
    error: str | None = None
    key: str | None = None
    folder: str | None = None  # the folder here, if the machines know it, too
    batch_option: tuple[str, ...] = ()  # ``NAME=VALUE`` for the batch system of a site
    form: tuple[str, ...] = ()  # ``width=4,on=sparc+x86,speed=2.5,cores=2,memory=512``
    slurm: bool = False  # whether the script is one of Slurm, and looks for its variables

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return what the values of a command's options say; what is no option of a job is passed over."""
        given: dict[str, Any] = {name: values[name] for name in cls.__struct_fields__ if values.get(name) is not None}
        given |= {name: tuple(given[name]) for name in _LISTS if name in given}
        return cls(**given)

    def over(self, below: SubmitOptions) -> SubmitOptions:
        """Return both: what is said here wins; of what there may be several of, all counts."""
        nothing = type(self)()
        said = msgspec.structs.asdict(self)
        changes = {name: value for name, value in said.items() if value != getattr(nothing, name)}
        changes |= {name: getattr(below, name) + said[name] for name in _LISTS}
        return msgspec.structs.replace(below, **changes)


class NamedProgram(msgspec.Struct, frozen=True, kw_only=True):
    """What a job is to run, as it was named."""

    name: str  # of the program or the script
    argv: tuple[str, ...]  # the command and its arguments; with a script, its arguments
    script: str | None = None  # what the script says


_OPTION_OF = {
    "limit_ms": "--time",
    "nodes": "--nodes",
    "priority": "--priority",
    "batch_options": "--batch-option",
    "grace_ms": "--checkpoint-signal",
}
"""What a user has typed for a field of a job."""


def check(options: SubmitOptions, work: NamedProgram) -> None:
    """Refuse what is wrong with a job whichever grid it is for: it is told before a grid is looked for."""
    name = options.name or work.name
    if not name.isprintable() or len(name) > 100:
        raise InputError(f"--name: {name!r:.120} is not a name; give at most 100 printable characters")
    for text in options.after:
        job_numbers(parse_after(text)[0])
    if options.array is not None:
        parse_array(options.array)
    elif options.pack or options.pack_size is not None:
        raise OptionError("--pack", "goes with --array; write for example: --array 1-1000 --pack")
    # As for a grid whose machines know the folder here: of what depends on that nothing is wrong then.
    job = _job(msgspec.structs.replace(options, folder="/"), work, (), [])
    encoded(job)  # what cannot be sent is told, too
    if problem := request_problem(job):
        field = re.match(r"[a-z_]+", problem)
        option = _OPTION_OF.get(field[0]) if field else None
        raise InputError(problem if field is None or option is None else option + problem[field.end() :])


def check_alone(options: SubmitOptions) -> None:
    """Refuse what is wrong with the options of one line of a script, whatever the others say."""
    alone = msgspec.structs.replace(options, pack=False, pack_size=None, after=(), input=None)
    check(alone, NamedProgram(name="job", argv=("true",)))


def requests(
    options: SubmitOptions,
    work: NamedProgram,
    after: tuple[After, ...],
    array_name: str,
    *,
    per_job: int = 0,
    remarks: list[str],
) -> list[JobRequest]:
    """Return the jobs that are to be handed in, one or all of an array, and remark what the user should know."""
    request = _job(options, work, after, remarks)
    if options.array is None:
        return [request]
    indexes, at_once = parse_array(options.array)
    if options.slurm:
        request = _of_slurm_array(request, indexes)
    places = _places(array_name, indexes, at_once, per_job)
    return [msgspec.structs.replace(request, array=place) for place in places]


def _job(options: SubmitOptions, work: NamedProgram, after: tuple[After, ...], remarks: list[str]) -> JobRequest:
    """Return a job as it is asked for, without its place in an array."""
    nodes, forms = _shape(options)
    return JobRequest(
        program=_program(options, work, nodes, remarks),
        nodes=nodes,
        limit_ms=_limit_ms(options.time or DEFAULT_TIME),
        name=options.name or work.name,
        user=options.user or "",
        account=options.account or "",
        job_class=options.job_class or "",
        priority=options.priority or 0.0,
        hold=bool(options.hold),
        after=after,
        batch_options=options.batch_option,
        forms=forms,
        resources=_resources(options),
        traffic=traffic_of(options.communication, options.input_data, options.output_data, option="--{}-data"),
    )


def _limit_ms(text: str) -> int:
    """Return the limit of a job: each needs one, so 0 and words that mean none are refused."""
    none = text.strip().upper() in ("UNLIMITED", "INFINITE")
    limit_ms = 0 if none else parse_time_ms("--time", text)
    if not limit_ms:
        raise OptionError(
            "--time", f"{text!r} means no limit, and every job needs one; give for example 10m or 1-00:00:00"
        )
    return limit_ms


def _places(name: str, indexes: Sequence[int], at_once: int, per_job: int) -> list[ArrayPlace]:
    """Return the places of the jobs of an array: one for each element, or for so many if they are packed."""
    if not per_job:
        return [ArrayPlace(name=name, index=index, at_once=at_once) for index in indexes]
    parts = [ranges_of(indexes[start : start + per_job]) for start in range(0, len(indexes), per_job)]
    return [ArrayPlace(name=name, index=part[0][0], at_once=at_once, elements=part) for part in parts]


def _program(options: SubmitOptions, work: NamedProgram, nodes: int, remarks: list[str]) -> Program:
    name = options.name or work.name
    # Each node of a packed job runs elements of its own.
    ranks = options.ranks or ("each-node" if work.script is None or options.pack else "first-node")
    if ranks not in RANKS:
        raise OptionError("--ranks", not_known(ranks, RANKS))
    chdir = _directory(options)
    kept: dict[str, Any] = {}
    for stream in ("output", "error"):
        kept[stream] = pattern = _file_of(getattr(options, stream), f"--{stream}", chdir, remarks)
        if pattern is not None and ranks == "each-node" and nodes > 1 and writes_one_file(pattern):
            raise OptionError(f"--{stream}", f"{pattern!r}: {nodes} ranks would write this one file; put %t into it")
    environment = _environment(options)
    odd = {key: value for key, value in environment.items() if not key.isidentifier()}
    if options.open_mode not in (None, *OPEN_MODES):
        raise OptionError("--open-mode", not_known(str(options.open_mode), OPEN_MODES))
    kept |= {"open_mode": options.open_mode, "odd": odd, **_input_of(options, chdir)}
    if options.slurm:
        counts = {"SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes, "SLURM_NTASKS": options.tasks or nodes}
        environment = {key: str(value) for key, value in counts.items()} | environment
    preamble = slurm_lines(name) + _RESTARTS if options.slurm else ""
    return Program(
        argv=shipped(work.argv, work.script, preamble=preamble, name=name, **kept),
        environment=environment,
        working_directory=chdir,
        ranks=ranks,
        if_lost="fail" if options.requeue is False else "requeue",
        **_checkpoint(options),
        limit_signal=_limit_signal(options, work, remarks),
    )


def _of_slurm_array(request: JobRequest, indexes: Sequence[int]) -> JobRequest:
    """Return a job with the variables that scripts of Slurm look for in arrays."""
    static = ("COUNT", len(indexes)), ("MIN", min(indexes)), ("MAX", max(indexes))
    environment = {f"SLURM_ARRAY_TASK_{key}": str(value) for key, value in static}
    program = msgspec.structs.replace(request.program, environment=request.program.environment | environment)
    return msgspec.structs.replace(request, program=program)


def _shape(options: SubmitOptions) -> tuple[int, tuple[JobForm, ...]]:
    """Return how many nodes a job asks for, and in which forms it can run."""
    forms = tuple(parse_form(text) for text in options.form)
    in_groups = sum(parse_task_group(text).tasks for text in options.task_group)
    usual = max((form.width for form in forms), default=in_groups or options.tasks or 1)
    nodes = options.nodes if options.nodes is not None else usual
    if in_groups and nodes != in_groups:
        differ = f"the groups have {in_groups} tasks, and the job {nodes}"
        raise OptionError("--task-group", f"{differ}; say the same, or leave --nodes out")
    if problem := forms_problem(nodes, forms):
        raise OptionError("--form", problem)
    return nodes, forms


def _resources(options: SubmitOptions) -> Resources | None:
    """Return what a job and each of its tasks need of a node, if anything is said of that."""
    if options.task_group:
        return _groups(options)
    cpu_need, memory = options.cpu_need, options.memory_need
    if options.resources is None and cpu_need is None and memory is None:
        return None
    usual = Resources() if options.resources is None else parse_resources("--resources", options.resources)
    if options.resources is not None and memory is not None:
        raise OptionError("--memory-need", "is given together with --resources; write memory=... there")
    found = msgspec.structs.replace(
        usual,
        cpu_need=usual.cpu_need if cpu_need is None else cpu_need,
        memory=usual.memory if memory is None else memory,
    )
    if problem := why_impossible_needs(found):
        raise OptionError("--cpu-need and --memory-need", problem)
    return found


def _groups(options: SubmitOptions) -> Resources:
    """Return what the tasks of a job need that differ."""
    if not (options.cpu_need is None and options.memory_need is None and options.resources is None):
        leave_out = "leave out --cpu-need, --memory-need and --resources"
        raise OptionError("--task-group", f"says what its tasks need; {leave_out}")
    found = needs_of_groups([parse_task_group(text) for text in options.task_group])
    if problem := why_impossible_needs(found):
        raise OptionError("--task-group", problem)
    return found


def _checkpoint(options: SubmitOptions) -> dict[str, Any]:
    """Return at which signal a job saves what it has done, and how long it may take to save and end."""
    text = options.checkpoint_signal
    if text is not None:
        if options.requeue is False:
            raise OptionError("--checkpoint-signal", "is for jobs that may run again; leave out --no-requeue")
        name, seconds = _signal_and_seconds("--checkpoint-signal", text)
        grace_ms = DEFAULT_GRACE_MS if seconds is None else seconds * 1000
        return {"checkpoint_signal": name, "grace_ms": grace_ms}
    if options.signal is None or options.requeue is False:
        return {}
    # What asks for a signal ahead of its limit saves what it has done at that signal, also when it has to make room.
    name, seconds = _signal_and_seconds("--signal", _without_marks(options.signal))
    grace_ms = DEFAULT_GRACE_MS if seconds is None else min(seconds * 1000, MOST_GRACE_MS)
    return {"checkpoint_signal": name, "grace_ms": grace_ms}


def _without_marks(text: str) -> str:
    """Return a signal without what Slurm writes before it: R (jobs that a reservation ends), B (the script alone)."""
    return re.sub(r"^[RB]+:", "", text, flags=re.IGNORECASE)


def _limit_signal(options: SubmitOptions, work: NamedProgram, remarks: list[str]) -> LimitSignal | None:
    """Return what a job is sent ahead of its limit; of a script only the steps get it without ``B:``, as in Slurm."""
    if options.signal is None:
        return None
    marks = options.signal.partition(":")[0].upper() if ":" in options.signal else ""
    name, seconds = _signal_and_seconds("--signal", _without_marks(options.signal))
    to: Literal["all", "rank", "steps"] = "rank" if "B" in marks else "all" if work.script is None else "steps"
    if to == "steps" and work.script is not None and not re.search(r"\bsrun\b", work.script):
        remarks.append(
            f"--signal {options.signal}: as in Slurm it goes to the steps that srun starts, and the script has no "
            f"srun; give B:{_without_marks(options.signal)} to send it to the script"
        )
    return LimitSignal(name, 60_000 if seconds is None else seconds * 1000, to)


def _signal_and_seconds(option: str, text: str) -> tuple[SignalName, int | None]:
    """Return a signal, and how many seconds are said with it."""
    name, is_given, seconds = text.partition("@")
    if is_given and not (seconds.isascii() and seconds.isdecimal() and len(seconds) <= 9):
        right = "write SIGNAL@SECONDS, for example USR1@60"
        raise OptionError(option, f"{text!r}: {seconds!r} is not a number of seconds; {right}")
    return signal_named(option, name), int(seconds) if is_given else None


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split("+"))


_FORM: Kinds = {"width": int, "on": _names, "speed": float, "cores": int, "memory": int}
_TASK_GROUP: Kinds = {"tasks": int, "cpu": float, "memory": float}


def parse_form(text: str) -> JobForm:
    """Return a form of a job, as it is written on the command line.

    Examples
    --------
    >>> parse_form("width=4,on=sparc+x86,speed=2.5") == JobForm(width=4, on=("sparc", "x86"), speed=2.5)
    True
    >>> parse_form("width=4: ./parallel 'a b'").argv
    ('./parallel', 'a b')
    """
    right = "write for example width=4,on=sparc+x86,speed=2.5,cores=2,memory=512 (MB), each at most once"
    ways, has_command, command = text.partition(":")
    found = named_values("--form", ways, _FORM, right)
    try:
        found["argv"] = tuple(shlex.split(command))
    except ValueError as error:
        raise OptionError("--form", f"{text!r}: the command cannot be read: {error}") from None
    if has_command and not found["argv"]:
        raise OptionError("--form", f"{text!r}: no command after the colon; write for example width=4: ./solver")
    if "memory" in found:
        found["memory_mb"] = found.pop("memory")
    return JobForm(**found)


def parse_task_group(text: str) -> TaskGroup:
    """Return tasks of a job that are alike, as they are written on the command line.

    Examples
    --------
    >>> parse_task_group("tasks=4,cpu=0.25,memory=0.1")
    TaskGroup(tasks=4, cpu_need=0.25, memory=0.1)
    """
    right = "write for example tasks=4,cpu=0.25,memory=0.1 (parts of a node), each at most once"
    found = named_values("--task-group", text, _TASK_GROUP, right)
    if found.get("tasks", 0) < 1:
        raise OptionError("--task-group", f"{text!r}: does not say how many tasks that are, from 1; {right}")
    return TaskGroup(tasks=found["tasks"], cpu_need=found.get("cpu", 1.0), memory=found.get("memory", 1.0))


def signal_named(option: str, text: str) -> SignalName:
    """Return a signal by its name, with or without ``SIG``, or its number.

    Examples
    --------
    >>> signal_named("--signal", "SIGUSR1"), signal_named("--signal", "10")
    ('USR1', 'USR1')
    """
    known = get_args(SignalName)
    name = text.strip().upper().removeprefix("SIG")
    if name.isascii() and name.isdecimal() and len(name) <= 3:
        name = next((one for one in known if int(Signals[f"SIG{one}"]) == int(name)), name)
    if name not in known:
        raise OptionError(option, f"{text!r} is not a signal that jobs can be sent; one of {', '.join(known)}")
    return cast("SignalName", name)


def _directory(options: SubmitOptions) -> str | None:
    """Return where a job is to work: by default in the folder here, if the machines know it."""
    chdir, folder = options.chdir, options.folder
    if folder is not None:
        return os.path.normpath(os.path.join(folder, chdir or ""))
    if chdir is not None and not chdir.startswith("/"):
        raise OptionError("--chdir", f"{chdir!r} is not an absolute path; the machines cannot see this folder")
    return chdir


def _input_of(options: SubmitOptions, chdir: str | None) -> dict[str, str | None]:
    """Return the file that a job reads: one of the machines, or what a file here says, which is sent along."""
    name = options.input
    if not name:
        return {}
    if name.startswith("/") or chdir is not None:
        return {"read": name}
    right = "put it on the machines, and write its whole path"
    try:
        data = Path(name).read_bytes()
        text = data.decode()
    except OSError as error:
        raise OptionError("--input", f"{name}: {error.strerror}; {right}") from None
    except UnicodeDecodeError:
        raise OptionError("--input", f"{name}: is not UTF-8; {right}") from None
    if len(data) > MOST_BYTES or "\0" in text:
        raise OptionError("--input", f"{name}: at most {MOST_BYTES:,} bytes without NUL are sent along; {right}")
    return {"text": text}


def _file_of(pattern: str | None, option: str, chdir: str | None, remarks: list[str]) -> str | None:
    """Return the file on the machines that output goes to, or None if the grid keeps it."""
    if not pattern:
        return None
    if "\0" in pattern or "\n" in pattern:
        raise OptionError(option, f"{pattern!r} cannot be the name of a file")
    if pattern.startswith("/") or chdir is not None:
        return pattern
    # The folder in which a job runs if nothing else is said goes with it, and so would the file.
    remarks.append(
        f"{option} {pattern}: the grid keeps it, as no --chdir is given; read it with: gridweave logs JOB > FILE"
    )
    return None


# -- environment

_OF_THIS_MACHINE = frozenset(
    {
        *("_", "HOME", "HOSTNAME", "LANGUAGE", "LOGNAME", "LS_COLORS", "MAIL", "OLDPWD", "PATH", "PS1", "PWD", "SHELL"),
        *("SHLVL", "TERM", "TMP", "TEMP", "TMPDIR", "USER", "DISPLAY", "WAYLAND_DISPLAY", "COLUMNS", "LINES", "EDITOR"),
        *("PAGER",),
    }
)
_FAMILIES_OF_THIS_MACHINE = ("GRIDWEAVE_", "SLURM_", "SSH_", "XDG_", "LD_", "DBUS_", "GPG_")


def _environment(options: SubmitOptions) -> dict[str, str]:
    found: dict[str, str] = {}
    if options.export_all:
        found |= {
            name: value
            for name, value in os.environ.items()
            if name not in _OF_THIS_MACHINE and not name.startswith(_FAMILIES_OF_THIS_MACHINE)
        }
    for text in options.env:
        name, is_given, value = text.partition("=")
        if not name:
            raise OptionError(
                "--env", f"{text!r} has no name; write NAME=VALUE, or NAME for the value that it has here"
            )
        if not is_given:
            if name not in os.environ:
                raise OptionError("--env", f"there is no variable {name} here; write {name}=VALUE")
            value = os.environ[name]
        found[name] = value
    return found


# -- arrays, and what comes before


def _indexes(part: str) -> range:
    """Return what ``1-9:4`` stands for; nothing if it is no such text."""
    span = _SPAN.fullmatch(part)
    if span is None or (span[3] and int(span[3]) < 1):
        return range(0)
    return range(int(span[1]), int(span[2] or span[1]) + 1, int(span[3] or 1))


def parse_array(text: str) -> tuple[list[int], int]:
    """Return the indexes of an array, ascending, and how many of its jobs may be under way at once (0: all).

    Examples
    --------
    >>> parse_array("1-9:4"), parse_array("1,3,5-6%2")
    (([1, 5, 9], 0), ([1, 3, 5, 6], 2))
    """
    right = "write 1-10, 1,3,5, 1-9:2 or 1-100%10"
    match = _ARRAY.fullmatch(text.strip())
    if match is None:
        raise OptionError("--array", f"{text!r} is not an array; {right}")
    found: set[int] = set()
    for part in match[1].split(","):
        indexes = _indexes(part)
        if not indexes:
            raise OptionError("--array", f"{part!r} of {text!r} are not indexes; {right}")
        if len(found) + len(indexes) > MOST_IN_ARRAY:
            raise OptionError("--array", f"{text!r} has too many jobs; at most {MOST_IN_ARRAY:,}")
        found.update(indexes)
    if match[2] is not None and int(match[2]) < 1:
        raise OptionError("--array", f"{text!r} lets no job run; give at least %1, or leave it out")
    return sorted(found), int(match[2] or 0)


JOBS_PER_NODE = 2
"""So many jobs of a packed array there are for each node: one that is slow keeps the others waiting for less long."""


def elements_per_job(text: str, nodes: int) -> int:
    """Return how many elements of a packed array go into one job, if so many jobs can run at one time.

    Examples
    --------
    >>> elements_per_job("1-10000", 18), elements_per_job("1-5", 18)
    (278, 1)
    """
    count = len(parse_array(text)[0])
    return min(-(-count // (JOBS_PER_NODE * nodes)), MOST_ELEMENTS)


def parse_after(text: str) -> tuple[str, Literal["started", "ended", "finished", "failed"]]:
    """Return the jobs that must be over first, as they are named, and how.

    Examples
    --------
    >>> parse_after("17"), parse_after("3-9:ended")
    (('17', 'finished'), ('3-9', 'ended'))
    """
    jobs, _, has = text.strip().partition(":")
    has = has or "finished"
    if not jobs or has not in HAS:
        raise OptionError("--after", f"{text!r}: write JOB or JOB:STATE, with STATE one of {', '.join(HAS)}")
    return jobs, has  # type: ignore[return-value]
