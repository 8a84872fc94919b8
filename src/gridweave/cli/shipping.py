"""Scripts that go with their jobs, and output that goes to files of the machines.

Machines share no file system with whoever hands in. So a script travels as an argument of its job: a few lines of shell
put it into the folder of the rank, which goes with the job, and run it, by its own first line (``#!``). The same lines
send output to files, whose names hold the number of the job, which is not known before.
"""

from __future__ import annotations

import re
import shlex

from gridweave.errors import InputError

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

SLURM_LINES = """\
export SLURM_JOB_ID="$GRIDWEAVE_JOB_ID" SLURM_JOBID="$GRIDWEAVE_JOB_ID"
export SLURM_PROCID="$GRIDWEAVE_RANK" SLURM_NODEID="$GRIDWEAVE_NODE"
if [ -n "${GRIDWEAVE_ARRAY_INDEX:-}" ]; then
  export SLURM_ARRAY_JOB_ID="$GRIDWEAVE_ARRAY" SLURM_ARRAY_TASK_ID="$GRIDWEAVE_ARRAY_INDEX"
fi
"""
"""What scripts of Slurm look for, and is not known before a job runs."""

_RUN_SCRIPT = """\
script=$GRIDWEAVE_FOLDER/script-$GRIDWEAVE_RANK
printf %s "$1" > "$script" && chmod 700 "$script" || exit 126
shift
"""


def shipped(
    argv: tuple[str, ...], script: str | None, *, preamble: str = "", output: str | None, error: str | None, name: str
) -> tuple[str, ...]:
    """Return what a job is to run.

    Parameters
    ----------
    argv : tuple of str
        The command and its arguments; with a script, its arguments alone.
    script : str, optional
        What the script says.
    preamble : str
        Lines of shell that are run before.
    output, error : str, optional
        Files on the machines, with patterns as Slurm has them; standard error goes where output does if only that is
        said.
    name : str
        Of the job.

    Raises
    ------
    InputError
        If the script is too long, or a pattern is not known.
    """
    redirection = _redirection(output, error, name)
    if script is None:
        if not preamble and not redirection:
            return argv
        return (_SHELL, "-c", preamble + redirection + 'exec "$@"\n', _MARK, *argv)
    check_script(script, name)
    # A script without a first line that names its interpreter is one of the shell.
    run = 'exec "$script" "$@"\n' if script.startswith("#!") else f'exec {_SHELL} "$script" "$@"\n'
    return (_SHELL, "-c", preamble + redirection + _RUN_SCRIPT + run, f"{_MARK}: {name}", script, *argv)


def shipped_name(argv: tuple[str, ...]) -> str | None:
    """Return the name of the script that a job has brought with it, or None if it has none."""
    if len(argv) > 4 and argv[:2] == (_SHELL, "-c") and argv[3].startswith(f"{_MARK}: "):
        return argv[3].removeprefix(f"{_MARK}: ") + " (a script)"
    return None


def check_script(text: str, name: str) -> None:
    """Say what is wrong with a script that no machine could run.

    Raises
    ------
    InputError
        If it is too long, holds what no argument may hold, or has lines that end as those of DOS.
    """
    size = len(text.encode())
    if size > MOST_BYTES:
        raise InputError(
            f"{name}: has {size:,} bytes; a script travels with its job and may have {MOST_BYTES:,}: put what is large "
            "on the machines, and call it from there"
        )
    if "\0" in text:
        raise InputError(f"{name}: holds NUL characters, so it is no script; for a program write: -- {name}")
    first = text.partition("\n")[0]
    if first.startswith("#!") and first.endswith("\r"):
        raise InputError(f"{name}:1: its lines end as those of DOS, and no interpreter has such a name; run: dos2unix")


def _redirection(output: str | None, error: str | None, name: str) -> str:
    """Return the line of shell that sends output to files."""
    lines = ""
    if output is not None:
        lines += f"exec > {_file(output, name)}" + (" 2>&1\n" if error is None else "\n")
    if error is not None:
        lines += f"exec 2> {_file(error, name)}\n"
    return lines


def _file(pattern: str, name: str) -> str:
    """Return the name of a file as a word of shell, with what is known at run time as variables."""
    word, end = "", 0
    for match in _PATTERN.finditer(pattern):
        word += _quoted(pattern[end : match.start()])
        end = match.end()
        width, letter = match.groups()
        if letter in ("%", "x"):
            word += _quoted("%" if letter == "%" else name)
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
