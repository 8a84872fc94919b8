"""Send a script with its job, as an argument of a short shell program that runs it on the machines.

The machines need not share a file system with the user's computer. So a few shell lines write the script into the
rank's folder and run it with the interpreter in its first line (``#!``). The same lines open the output and input
files, whose names can contain the job's number, which is not known at submission.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from gridweave.errors import InputError
from gridweave.grid.client.options import flag

MOST_BYTES = 100_000
"""Maximum size of a script: Linux accepts 131,072 bytes in one argument."""

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
    """Return shell lines that set the Slurm variables whose values are known only once the job is running.

    Inside a real allocation, the variables that identify the job keep Slurm's values: with gridweave's number,
    ``scancel "$SLURM_JOB_ID"`` would cancel an unrelated job.
    """
    return _SLURM_LINES.format(name=shlex.quote(name))


RESTART_LINES = """\
if [ "${GRIDWEAVE_ATTEMPT:-1}" -gt 1 ]; then
  export SLURM_RESTART_COUNT="$((GRIDWEAVE_ATTEMPT - 1))"
fi
"""
"""Shell lines that set the variable with the number of a job's restarts, as Slurm does."""

_REFUSE = """\
gridweave_refuse() {
  printf '%s\\n' "$1" >&2
  printf '%s' "$1" > "$GRIDWEAVE_FOLDER/error-$GRIDWEAVE_RANK.txt"
  exit 126
}
"""
"""Shell function that ends the rank and writes the reason to a file that the machine reads."""

_OPEN_OUTPUT = """\
file={file}
case $file in */*) mkdir -p -- "${{file%/*}}" 2> /dev/null ;; esac
gridweave_why=$( (exec {how} "$file") 2>&1 ) \\
  || gridweave_refuse "{option} $file: cannot be written: ${{gridweave_why##*: }}"
exec {stream}{how} "$file"
"""

_OPEN_INPUT = """\
file={file}
gridweave_why=$( (exec < "$file") 2>&1 ) || gridweave_refuse "{option} $file: cannot be read: ${{gridweave_why##*: }}"
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
    """Return the argv of a job: a command, or a shell program that runs a script with its arguments.

    Parameters
    ----------
    argv : tuple of str
        The command and its arguments; with a script, only the arguments.
    script : str, optional
        The text of the script.
    preamble : str
        Shell lines to run first.
    output, error : str, optional
        File names on the machines, with patterns as in Slurm. Without `error`, standard error goes to `output`.
    name : str
        Name of the job or script, to replace patterns in file names.
    read, text : str, optional
        Standard input: a file on the machines, or a text that is sent with the job.
    open_mode : str, optional
        ``append`` or ``truncate``; by default a job that runs again appends.
    odd : mapping, optional
        Environment variables with names that a plain shell does not pass on, such as functions exported by bash.
    """
    before = _redirection(output, error, name, open_mode)
    if read is not None:
        before += _OPEN_INPUT.format(option=flag("input"), file=_file(read, name))
    before = preamble + (_REFUSE + before if before else "")
    saved: tuple[str, ...] = ()
    if text is not None:
        before, saved = before + _READ_INPUT, (text,)
    if script is None:
        if not before:
            return argv
        return (_SHELL, "-c", before + f'exec {_env(odd)}"$@"\n', _MARK, *saved, *argv)
    check_script(script, name)
    # A script whose first line names no interpreter is a shell script.
    run = f'exec {_env(odd)}{"" if script.startswith("#!") else _SHELL + " "}"$script" "$@"\n'
    return (_SHELL, "-c", before + _RUN_SCRIPT + run, f"{_MARK}: {name}", *saved, script, *argv)


def shipped_name(argv: tuple[str, ...]) -> str | None:
    """Return the name of the script that was sent with a job, or None for a command."""
    if len(argv) > 4 and argv[:2] == (_SHELL, "-c") and argv[3].startswith(f"{_MARK}: "):
        return argv[3].removeprefix(f"{_MARK}: ") + " (a script)"
    return None


def check_script(text: str, name: str) -> None:
    """Raise InputError if a script cannot run because it is too long, has NUL characters, or has DOS line endings."""
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
    """Return an ``env`` command, with a trailing space, that sets variables which the shell does not pass on."""
    if not odd:
        return ""
    return " ".join(["env", *(shlex.quote(f"{name}={value}") for name, value in odd.items())]) + " "


def _redirection(output: str | None, error: str | None, name: str, open_mode: str | None) -> str:
    """Return shell lines that open the output and error files, and create their folders.

    By default a job that runs again appends to its files, so that the output of each attempt can be read.
    """
    first, again = (_opened(output, error, name, how) for how in (">", ">>"))
    if not first or open_mode is not None:
        return again if open_mode == "append" else first
    return _FIRST_TIME.format(first=first, again=again)


def _opened(output: str | None, error: str | None, name: str, how: str) -> str:
    lines = ""
    if output is not None:
        lines += _OPEN_OUTPUT.format(option=flag("output"), file=_file(output, name), stream="", how=how)
        lines += "exec 2>&1\n" if error is None else ""
    if error is not None:
        lines += _OPEN_OUTPUT.format(option=flag("error"), file=_file(error, name), stream="2", how=how)
    return lines


def _file(pattern: str, name: str) -> str:
    """Return a file name as a shell word, with patterns replaced by shell variables or by values."""
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
            valid_patterns = ", ".join(f"%{code}" for code in sorted({*_AT_RUN_TIME, "x", "%"}))
            raise InputError(f"{pattern!r}: the pattern {match[0]!r} is not known; there are {valid_patterns}")
    return word + _quoted(pattern[end:])


def _quoted(text: str) -> str:
    return shlex.quote(text) if text else ""


def writes_one_file(pattern: str) -> bool:
    """Whether all ranks of a job would write the same file.

    Examples
    --------
    >>> writes_one_file("out-%j.txt"), writes_one_file("out-%t.txt")
    (True, False)
    """
    return not {match[2] for match in _PATTERN.finditer(pattern)} & {"t"}
