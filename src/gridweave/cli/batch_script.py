"""What a script says of its job: lines ``#GRIDWEAVE``, with the options of the command, and the common ``#SBATCH``."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence

import msgspec

from gridweave.cli.submit_options import SubmitOptions, check_alone
from gridweave.errors import InputError, OptionError, ProblemsError
from gridweave.site.batch.slurm.settings import ALLOWED
from gridweave.site.times import parse_time_ms, typed_time

_DIRECTIVE = re.compile(r"#(GRIDWEAVE|SBATCH)(?=\s|-|$)(.*)")
"""As Slurm has it: at the very beginning of the line, and the options may follow without a space."""

_MEANT = re.compile(r"\s*#(GRIDWEAVE|SBATCH)", re.IGNORECASE)

_OF_OTHERS = re.compile(r"\s*#(PBS|BSUB|COBALT|MSUB|OAR|PJM|\$)(?=\s+-|\s*$)")
"""Lines for PBS, LSF, Cobalt, Moab, OAR, Fujitsu TCS and Grid Engine."""

Parse = Callable[[list[str]], SubmitOptions]
"""Reads words as the command reads its own options."""

_LONG = {
    "N": "nodes", "n": "ntasks", "t": "time", "J": "job-name", "o": "output", "e": "error", "a": "array",
    "d": "dependency", "D": "chdir", "H": "hold", "i": "input", "A": "account",
    "C": "constraint", "L": "licenses", "q": "qos", "w": "nodelist", "x": "exclude",
}  # fmt: skip
_FLAGS = ("hold", "requeue", "no-requeue")
_SUPPORTED = (
    *(name for name in _LONG.values() if name not in ("hold", *ALLOWED)),
    "export",
    "open-mode",
    "signal",
    *_FLAGS,
)

_HAS = {"after": "started", "afterany": "ended", "afterok": "finished", "afternotok": "failed"}


class _Place(msgspec.Struct, frozen=True):
    """Where a line stands."""

    file: str
    line: int

    def told(self, error: InputError) -> str:
        """Return what is wrong, with the place if the error does not have it."""
        here = f"{self.file}:{self.line}: "
        return str(error) if str(error).startswith(here) else here + str(error)

    def error(self, option: str, problem: str) -> InputError:
        """Return the error of an option there."""
        return InputError(f"{self.file}:{self.line}: {option}: {problem}")


def script_options(text: str, file: str, parse: Parse, *, ignored: list[str] | None = None) -> SubmitOptions:
    """Return what the lines of a script say of its job; ``#GRIDWEAVE`` wins over ``#SBATCH``, later lines over earlier.

    What is not supported is an error, unless there is a list of what is ``ignored`` to put it into. Options that only
    Slurm knows go with the job, to a site that passes them on; they are ignored, too, if there is that list.
    """
    own, slurm = SubmitOptions(), SubmitOptions()
    problems: list[str] = []
    for place, kind, words in _directives(text, file):
        try:
            if kind == "GRIDWEAVE":
                said = parse(words)
                check_alone(said)
                own = said.over(own)
                continue
            slurm = msgspec.structs.replace(slurm, slurm=True)
            for option, value in _pairs(place, words, ignored):
                slurm = _slurm_option(place, option, value).over(slurm)
        except InputError as error:
            problems.append(place.told(error))
    if problems:
        raise ProblemsError(problems)
    return own.over(slurm)


def beginning_problem(text: str) -> str | None:
    r"""Return the line of a script, and what is wrong with how it begins, as ``1: ...``; None if nothing is.

    The system looks for the interpreter in the first two bytes alone, and so do Slurm's commands.

    Examples
    --------
    >>> beginning_problem("\n#!/bin/bash\n")
    '2: #!/bin/bash is not at the beginning of the file, so it names no interpreter; move it there'
    """
    if text.startswith("\ufeff"):
        return "1: begins with a byte order mark, so its first line counts for nothing; save it as UTF-8 without one"
    if text.startswith("#!"):
        return None
    for number, line in enumerate(text.split("\n"), start=1):
        shown = line.strip()
        if re.match(r"#!\s*/", shown):
            return f"{number}: {shown} is not at the beginning of the file, so it names no interpreter; move it there"
        if shown and not shown.startswith("#"):
            return None
    return None


def unread_lines(text: str, file: str) -> list[str]:
    r"""Return a warning for each line that looks like options of the job, and is not read, as Slurm does not read it.

    Examples
    --------
    >>> unread_lines("#!/bin/sh\n  #SBATCH -N 3\n", "job.sh")
    ['job.sh:2: #SBATCH -N 3: is not read, as it does not begin with exactly #SBATCH or #GRIDWEAVE']
    """
    found = []
    is_head = True
    for number, line in enumerate(text.split("\n"), start=1):
        is_head = is_head and not _is_command(line)
        if _OF_OTHERS.match(line):
            why = "it is for another batch system; write #SBATCH or #GRIDWEAVE"
        elif _DIRECTIVE.match(line):
            why = "" if is_head else "it stands after the first command of the script"
        else:
            why = "it does not begin with exactly #SBATCH or #GRIDWEAVE" if _MEANT.match(line) else ""
        if why:
            found.append(f"{file}:{number}: {line.strip()}: is not read, as {why}")
    return found


def _is_command(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _directives(text: str, file: str) -> Iterator[tuple[_Place, str, list[str]]]:
    """Yield the lines that speak of the job, up to the first command of the script."""
    for number, line in enumerate(text.split("\n"), start=1):
        if _is_command(line):
            return
        match = _DIRECTIVE.match(line)
        if match is None:
            continue
        try:
            yield _Place(file, number), match[1], shlex.split(match[2], comments=True)
        except ValueError as error:
            raise InputError(f"{file}:{number}: #{match[1]}: {str(error).lower()}") from None


def _pairs(place: _Place, words: Sequence[str], ignored: list[str] | None) -> Iterator[tuple[str, str]]:
    """Yield the options of a line of Slurm by their long names, with their values."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--"):
            name, is_given, value = word[2:].partition("=")
            shown = f"--{name}"
        elif word.startswith("-") and len(word) > 1:
            name, value = _LONG.get(word[1], word[1]), word[2:].removeprefix("=")
            is_given, shown = "=" if value else "", word[:2]
        else:
            raise place.error(f"#SBATCH {word}", "is not an option")
        if name not in _SUPPORTED and (ignored is not None or name not in ALLOWED):
            if not is_given and rest and not rest[0].startswith("-"):
                rest.pop(0)
            _unsupported(place, shown, ignored)
            continue
        if name not in _FLAGS and not is_given:
            if not rest:
                raise place.error(f"#SBATCH {shown}", "has no value")
            value = rest.pop(0)
        yield name, value


def _unsupported(place: _Place, shown: str, ignored: list[str] | None) -> None:
    known = ", ".join(f"--{name}" for name in _SUPPORTED)
    error = place.error(
        f"#SBATCH {shown}",
        f"is not supported; there are {known}; to go on without it give --ignore-unsupported",
    )
    if ignored is None:
        raise error
    ignored.append(f"{place.file}:{place.line}: #SBATCH {shown}: is not supported, and ignored")


def _time(place: _Place, shown: str, value: str) -> str:
    try:
        limit_ms = parse_time_ms("time", value, bare="m") if value.upper() not in ("UNLIMITED", "INFINITE") else 0
        return typed_time(limit_ms) if limit_ms else value
    except OptionError as error:
        raise place.error(shown, error.problem) from None


def _slurm_option(place: _Place, option: str, value: str) -> SubmitOptions:
    """Return what an option of Slurm says; InputError, with the place, if that is wrong by itself."""
    said = _meaning(place, option, value)
    try:
        check_alone(said)
    except OptionError as error:
        raise place.error(f"#SBATCH --{option}", error.problem) from None
    except InputError as error:
        raise place.error(f"#SBATCH --{option}", str(error)) from None
    return said


def _meaning(place: _Place, option: str, value: str) -> SubmitOptions:
    shown = f"#SBATCH --{option}"
    match option:
        case "nodes" | "ntasks":
            if not (value.isascii() and value.isdecimal() and 1 <= len(value) <= 9 and int(value)):
                raise place.error(shown, f"{value!r} is not a number from 1 up; ranges and suffixes are not supported")
            return SubmitOptions(nodes=int(value)) if option == "nodes" else SubmitOptions(tasks=int(value))
        case "time":
            return SubmitOptions(time=_time(place, shown, value))
        case "hold" | "requeue" | "no-requeue":
            return SubmitOptions(hold=True) if option == "hold" else SubmitOptions(requeue=option == "requeue")
        case "dependency":
            return SubmitOptions(after=tuple(_dependencies(place, shown, value)))
        case "export":
            return _export(place, shown, value)
        case "job-name":
            return SubmitOptions(name=value)
    if option in ALLOWED:
        return SubmitOptions(batch_option=(f"{option}={value}",))
    return SubmitOptions.of({option.replace("-", "_"): value})


def _dependencies(place: _Place, shown: str, value: str) -> Iterator[str]:
    for part in value.split(","):
        kind, *jobs = part.split(":")
        if "?" in part or "+" in part or kind not in _HAS or not jobs:
            known = ", ".join(f"{name}:JOB" for name in _HAS)
            raise place.error(shown, f"{part!r} is not supported; there are {known}, several with commas")
        yield from (f"{job}:{_HAS[kind]}" for job in jobs)


def _export(place: _Place, shown: str, value: str) -> SubmitOptions:
    names = [name for name in value.split(",") if name]
    if not names:
        raise place.error(shown, "has no value; write ALL, NONE, or NAME=VALUE, several with commas")
    is_all = "ALL" in names
    return SubmitOptions(export_all=is_all, env=tuple(name for name in names if name not in ("ALL", "NONE", "NIL")))
