"""Turn the options and the program of a job into requests to the grid."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from gridweave.cli.grid_client import job_numbers
from gridweave.errors import InputError, OptionError, ProblemsError
from gridweave.grid.client.arguments import encoded
from gridweave.grid.client.job_options import JobOptions, SubmitOptions
from gridweave.grid.client.options import FLAG_OF_FIELD, JOB_OPTIONS, flag, off_flag
from gridweave.grid.client.requests import job_request
from gridweave.grid.client.scripts import MOST_BYTES, RESTART_LINES, shipped, slurm_lines, writes_one_file
from gridweave.grid.client.slurm_sizes import in_chunks, in_whole_nodes
from gridweave.ranges import ranges_of
from gridweave.site.array_tasks import MAX_ARRAY_TASKS
from gridweave.site.job import (
    MOST_GRACE_MS,
    After,
    ArrayPlace,
    JobRequest,
    Program,
    Resources,
    Where,
    forms_problem,
    needs_of_groups,
    request_problem,
    why_impossible_needs,
)
from gridweave.site.launch import DEFAULT_GRACE_MS, LimitSignal
from gridweave.site.resources.problems import chunk_problems


class NamedProgram(msgspec.Struct, frozen=True, kw_only=True):
    """The command or script that a job runs.

    Attributes
    ----------
    name : str
        Name of the program or the script.
    argv : tuple of str
        The command and its arguments; with a script, only the arguments.
    script : str, optional
        The text of the script.
    of_slurm : bool
        Whether the script has ``#SBATCH`` lines, and so expects Slurm's variables.
    lines : dict of str to str
        The last ``#SBATCH`` line that sets an option, by the option's key.
    """

    name: str
    argv: tuple[str, ...]
    script: str | None = None
    of_slurm: bool = False
    lines: dict[str, str] = {}


def check(options: SubmitOptions, work: NamedProgram) -> None:
    """Raise InputError for a job that any grid would refuse; no grid is contacted."""
    name = options.get("name") or work.name
    if not name.isprintable() or len(name) > 100:
        raise InputError(f"{flag('name')}: {name!r:.120} is not a name; give at most 100 printable characters")
    for after in options.get("after_jobs", ()):
        job_numbers(after.jobs)
    if "indexes" not in options and (options.get("pack") or "pack_size" in options):
        right = f"write for example: {flag('indexes')} 1-1000 {flag('pack')}"
        raise OptionError(flag("pack"), f"works only with {flag('indexes')}; {right}")
    # Relative paths are valid on a grid whose machines see the current folder, so assume such a grid. Whether sizes in
    # #SBATCH lines are valid depends on the grid, too (`sized`).
    job = _job(in_whole_nodes(options, []), work, (), folder="/", remarks=[])
    encoded(job)  # raises for text that cannot be encoded
    problems = [] if not job.chunk else chunk_problems(job.chunk, job.nodes)
    errors = [OptionError(FLAG_OF_FIELD.get(field, field), problem) for field, problem in problems]
    if errors:
        raise ProblemsError(errors)
    if problem := request_problem(job):
        field = re.match(r"[a-z_]+", problem)
        typed = FLAG_OF_FIELD.get(field[0]) if field else None
        raise InputError(problem if field is None or typed is None else typed + problem[field.end() :])


def check_alone(options: SubmitOptions) -> None:
    """Raise InputError for options of one line of a script that are invalid regardless of the other lines."""
    alone = SubmitOptions(**options)
    for key in ("pack", "pack_size", "after_jobs", "input"):
        alone.pop(key, None)  # type: ignore[misc]
    check(alone, NamedProgram(name="job", argv=("true",)))


def sized(
    options: SubmitOptions, work: NamedProgram, *, counts_resources: bool, ignored: list[str] | None
) -> SubmitOptions:
    """Return options in which the sizes of ``#SBATCH`` lines are replaced by what they mean on a grid.

    ``ignored`` gets a warning for each line that the grid cannot follow; without this list, such lines raise
    ProblemsError, with file and line of each. `counts_resources`: whether a site of the grid counts cores and GPUs.
    """
    lost: list[str] | None = None if ignored is None else []
    try:
        resolved = in_chunks(options) if counts_resources else in_whole_nodes(options, lost)
    except ProblemsError as error:
        wrong = [problem for problem in error.problems if isinstance(problem, OptionError)]
        wrong.sort(key=lambda problem: list(work.lines).index(problem.option))
        raise ProblemsError(f"{work.lines[problem.option]}: {problem.problem}" for problem in wrong) from None
    if ignored is not None and lost:
        why = "is ignored, because this grid gives out whole nodes"
        ignored += [f"{place}: {why}" for key, place in work.lines.items() if key in lost]
    return resolved


def requests(
    options: SubmitOptions,
    work: NamedProgram,
    after: tuple[After, ...],
    array_name: str,
    *,
    folder: str | None,
    per_job: int = 0,
    remarks: list[str],
) -> list[JobRequest]:
    """Return the jobs to submit, one or all of an array, and add to `remarks` what the user should know.

    `folder` is the current folder, if the machines can see it. `per_job` is the number of array tasks in one job of a
    packed array, or 0 for other jobs.
    """
    request = _job(options, work, after, folder=folder, remarks=remarks)
    if "indexes" not in options:
        return [request]
    indexes, at_once = options["indexes"]
    if work.of_slurm:
        request = _of_slurm_array(request, indexes)
    array_places = _places(array_name, indexes, at_once, per_job)
    return [msgspec.structs.replace(request, array=place) for place in array_places]


def _job(
    options: SubmitOptions, work: NamedProgram, after: tuple[After, ...], *, folder: str | None, remarks: list[str]
) -> JobRequest:
    """Return a job's request without its `ArrayPlace`."""
    nodes = _nodes(options)
    program = _program(options, work, nodes, folder, remarks)
    of_job: dict[str, Any] = {key: value for key, value in options.items() if key in JOB_OPTIONS}
    of_job |= {"nodes": nodes, "name": options.get("name") or work.name, "after": after}
    of_job["resources"] = _resources(options) or ""
    request = job_request(program, JobOptions(**of_job))  # type: ignore[typeddict-item]
    return msgspec.structs.replace(request, batch_options=options.get("batch_options", ()))


def _places(name: str, indexes: Sequence[int], at_once: int, per_job: int) -> list[ArrayPlace]:
    """Return the `ArrayPlace` of each job of an array: one per array task, or one per `per_job` array tasks."""
    if not per_job:
        return [ArrayPlace(name=name, index=index, at_once=at_once) for index in indexes]
    parts = [ranges_of(indexes[start : start + per_job]) for start in range(0, len(indexes), per_job)]
    return [ArrayPlace(name=name, index=part[0][0], at_once=at_once, array_tasks=part) for part in parts]


def _program(options: SubmitOptions, work: NamedProgram, nodes: int, folder: str | None, remarks: list[str]) -> Program:
    name = options.get("name") or work.name
    # Each node of a packed job runs different array tasks.
    on_each = work.script is None or options.get("pack", False)
    ranks: Where = options.get("ranks") or ("each-node" if on_each else "first-node")
    chdir = _directory(options, folder)
    files = {key: _file_of(options, key, chdir, remarks) for key in ("output", "error")}
    for key, pattern in files.items():
        if pattern is not None and ranks == "each-node" and nodes > 1 and writes_one_file(pattern):
            raise OptionError(flag(key), f"{pattern!r}: {nodes} ranks would write this one file; put %t into it")
    environment = _environment(options)
    odd = {key: value for key, value in environment.items() if not key.isidentifier()}
    sent: dict[str, Any] = {"open_mode": options.get("open_mode"), "odd": odd, **files, **_input_of(options, chdir)}
    if work.of_slurm:
        usual = {"SLURM_NNODES": str(nodes), "SLURM_JOB_NUM_NODES": str(nodes), "SLURM_NTASKS": str(nodes)}
        environment = {**options.get("slurm_variables", usual), **environment}
        sent["preamble"] = slurm_lines(name) + RESTART_LINES
    return Program(
        argv=shipped(work.argv, work.script, name=name, **sent),
        environment=environment,
        working_directory=chdir,
        ranks=ranks,
        if_lost=options.get("if_lost", "requeue"),
        **_checkpoint(options),
        limit_signal=_limit_signal(options, work, remarks),
    )


def _of_slurm_array(request: JobRequest, indexes: Sequence[int]) -> JobRequest:
    """Return a job with the variables that Slurm sets in the jobs of an array."""
    static = ("COUNT", len(indexes)), ("MIN", min(indexes)), ("MAX", max(indexes))
    environment = {f"SLURM_ARRAY_TASK_{key}": str(value) for key, value in static}
    program = msgspec.structs.replace(request.program, environment=request.program.environment | environment)
    return msgspec.structs.replace(request, program=program)


def _nodes(options: SubmitOptions) -> int:
    """Return the number of nodes a job requests: its own option, or else what its forms or tasks need."""
    forms = tuple(options.get("forms", ()))  # type: ignore[arg-type]
    in_groups = sum(group.tasks for group in options.get("task_groups", ()))
    usual = max((form.width for form in forms), default=in_groups or 1)
    nodes = options.get("nodes", usual)
    if in_groups and nodes != in_groups:
        differ = f"the groups have {in_groups} tasks, but the job has {nodes} nodes"
        raise OptionError(flag("task_groups"), f"{differ}; make them equal, or leave {flag('nodes')} out")
    if problem := forms_problem(nodes, forms):
        raise OptionError(flag("forms"), problem)
    return nodes


def _resources(options: SubmitOptions) -> Resources | None:
    """Return the resources that a job and each of its tasks need per node, or None if no option sets any."""
    keys = [key for key in ("cpu_need", "memory_need", "resources") if key in options]
    if groups := options.get("task_groups"):
        if keys:
            leave_out = f"leave out {flag('cpu_need')}, {flag('memory_need')} and {flag('resources')}"
            raise OptionError(flag("task_groups"), f"already sets the needs of its tasks; {leave_out}")
        return _possible(needs_of_groups(groups), flag("task_groups"))
    if not keys:
        return None
    if "resources" in options and "memory_need" in options:
        together = f"conflicts with {flag('resources')}; write memory=... there"
        raise OptionError(flag("memory_need"), together)
    usual = options.get("resources", Resources())
    assert isinstance(usual, Resources), "the text of the option has been parsed"
    needs = msgspec.structs.replace(
        usual,
        cpu_need=options.get("cpu_need", usual.cpu_need),
        memory=options.get("memory_need", usual.memory),
    )
    return _possible(needs, f"{flag('cpu_need')} and {flag('memory_need')}")


def _possible(needs: Resources, option: str) -> Resources:
    if problem := why_impossible_needs(needs):
        raise OptionError(option, problem)
    return needs


def _checkpoint(options: SubmitOptions) -> dict[str, Any]:
    """Return the fields for the signal at which a job saves its work, and for the time it then has to exit."""
    runs_once = options.get("if_lost") == "fail"
    if "checkpoint_signal" in options:
        if runs_once:
            raise OptionError(
                flag("checkpoint_signal"), f"is for jobs that may run again; leave out {off_flag('if_lost')}"
            )
        signal, seconds = options["checkpoint_signal"]
        return {"checkpoint_signal": signal, "grace_ms": DEFAULT_GRACE_MS if seconds is None else seconds * 1000}
    if "signal" not in options or runs_once:
        return {}
    # A job that saves its work at a signal ahead of its limit gets the same signal when it is evicted.
    ahead = options["signal"]
    grace_ms = DEFAULT_GRACE_MS if ahead.seconds is None else min(ahead.seconds * 1000, MOST_GRACE_MS)
    return {"checkpoint_signal": ahead.signal, "grace_ms": grace_ms}


def _limit_signal(options: SubmitOptions, work: NamedProgram, remarks: list[str]) -> LimitSignal | None:
    """Return the signal that a job gets ahead of its limit.

    As in Slurm, ``B:`` sends it to the script alone, and otherwise only the steps of the script get it. A script
    without ``srun`` has no steps, so the programs that it starts get it.
    """
    if "signal" not in options:
        return None
    ahead = options["signal"]
    to: Literal["all", "rank", "steps", "below"] = "rank" if ahead.to_script else "all"
    if work.script is not None and not ahead.to_script:
        to = "steps" if re.search(r"^[^#\n]*\bsrun\b", work.script, re.MULTILINE) else "below"
    if to == "below":
        remarks.append(
            f"{flag('signal')} {ahead.text}: the script has no srun, so the programs that it starts get the signal, "
            f"and the script does not; give B:{ahead.text.rpartition(':')[2]} to send it to the script alone"
        )
    return LimitSignal(ahead.signal, 60_000 if ahead.seconds is None else ahead.seconds * 1000, to)


def _directory(options: SubmitOptions, folder: str | None) -> str | None:
    """Return the working directory: by default the current folder, if the machines can see it."""
    written = options.get("working_directory")
    chdir = None if written is None else str(written)
    if folder is not None:
        return os.path.normpath(os.path.join(folder, chdir or ""))
    if chdir is not None and not chdir.startswith("/"):
        raise OptionError(
            flag("working_directory"), f"{chdir!r} is not an absolute path; the machines cannot see this folder"
        )
    return chdir


def _input_of(options: SubmitOptions, chdir: str | None) -> dict[str, str | None]:
    """Return a job's standard input: a file on the machines, or the text of a local file, sent with the job."""
    name = options.get("input")
    if not name:
        return {}
    if name.startswith("/") or chdir is not None:
        return {"read": name}
    right = "put it on the machines, and write its whole path"
    try:
        data = Path(name).read_bytes()
        text = data.decode()
    except OSError as error:
        raise OptionError(flag("input"), f"{name}: {error.strerror}; {right}") from None
    except UnicodeDecodeError:
        raise OptionError(flag("input"), f"{name}: is not UTF-8; {right}") from None
    if len(data) > MOST_BYTES or "\0" in text:
        raise OptionError(flag("input"), f"{name}: at most {MOST_BYTES:,} bytes without NUL are sent along; {right}")
    return {"text": text}


def _file_of(
    options: SubmitOptions, key: Literal["output", "error"], chdir: str | None, remarks: list[str]
) -> str | None:
    """Return the file on the machines that output goes to, or None if the grid keeps the output."""
    pattern, option = options.get(key), flag(key)
    if not pattern:
        return None
    if "\0" in pattern or "\n" in pattern:
        raise OptionError(option, f"{pattern!r} cannot be the name of a file")
    if pattern.startswith("/") or chdir is not None:
        return pattern
    # A job without a working directory runs in a temporary folder, and the file would be removed with the folder.
    remarks.append(
        f"{option} {pattern}: without {flag('working_directory')} the grid keeps this output; read it with: "
        "gridweave logs JOB > FILE"
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
    variables: dict[str, str] = {}
    if "exported" in options:
        exported = options["exported"]
        if exported.whole_environment:
            variables = {
                name: value
                for name, value in os.environ.items()
                if name not in _OF_THIS_MACHINE and not name.startswith(_FAMILIES_OF_THIS_MACHINE)
            }
        variables |= exported.variables
    return variables | {name: str(value) for name, value in (options.get("environment") or {}).items()}


# -- packed arrays

JOBS_PER_NODE = 2
"""Jobs of a packed array per node; with several jobs, a slow one delays the end of the array less."""


def tasks_per_job(count: int, nodes: int) -> int:
    """Return how many of `count` array tasks of a packed array go into one job, if `nodes` jobs can run at once.

    Examples
    --------
    >>> tasks_per_job(10_000, 18), tasks_per_job(5, 18)
    (278, 1)
    """
    return min(-(-count // (JOBS_PER_NODE * nodes)), MAX_ARRAY_TASKS)
