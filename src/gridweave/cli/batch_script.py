"""Read the options in a script: ``#GRIDWEAVE`` lines, with the command's own options, and ``#SBATCH`` lines."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from gridweave.cli.submit_options import check_alone
from gridweave.errors import InputError, OptionError, ProblemsError
from gridweave.grid.client.job_options import SubmitOptions
from gridweave.grid.client.options import SBATCH, joined, read_sbatch
from gridweave.slurm.cluster.settings import ALLOWED

_DIRECTIVE = re.compile(r"#(GRIDWEAVE|SBATCH)(?=\s|-|$)(.*)")
"""A line with options. As in Slurm, it starts at the first character, and options may follow without a space."""

_MEANT = re.compile(r"\s*#(GRIDWEAVE|SBATCH)", re.IGNORECASE)

_OF_OTHERS = re.compile(r"\s*#(PBS|BSUB|COBALT|MSUB|OAR|PJM|\$)(?=\s+-|\s*$)")
"""Lines for PBS, LSF, Cobalt, Moab, OAR, Fujitsu TCS and Grid Engine."""

Parse = Callable[[list[str]], SubmitOptions]
"""Parses words like the options of the command."""

_PASSED_ON = {"L": "licenses", "q": "qos", "w": "nodelist", "x": "exclude"}
"""Letters of options that only Slurm knows, and that a Slurm site passes on."""


class _Place(msgspec.Struct, frozen=True):
    """The file and the number of a line."""

    file: str
    line: int

    def problem_of(self, error: object) -> str:
        """Return an error's text with the place in front, unless it is there already."""
        here = f"{self.file}:{self.line}: "
        return str(error) if str(error).startswith(here) else here + str(error)

    def error(self, option: str, problem: str) -> InputError:
        """Return the error for an option in this line."""
        return InputError(f"{self.file}:{self.line}: {option}: {problem}")


class ScriptOptions(NamedTuple):
    """The options in the lines of a script.

    Attributes
    ----------
    options : SubmitOptions
        The options of the job.
    of_slurm : bool
        Whether there are ``#SBATCH`` lines.
    lines : dict of str to str
        The last ``#SBATCH`` line that sets an option, such as ``job.sh:3: #SBATCH --mem``, by the option's key.
    """

    options: SubmitOptions
    of_slurm: bool
    lines: dict[str, str]


def script_options(text: str, file: str, parse: Parse, *, ignored: list[str] | None = None) -> ScriptOptions:
    """Return the options in a script; ``#GRIDWEAVE`` wins over ``#SBATCH``, later lines over earlier ones.

    Parameters
    ----------
    parse : callable
        Reads the words of a ``#GRIDWEAVE`` line.
    ignored : list of str, optional
        Gets a warning for each unsupported ``#SBATCH`` option; without this list they are errors. Options that only
        Slurm knows are passed on to sites that accept them, but count as unsupported with this list.

    Raises
    ------
    ProblemsError
        If lines are invalid; the message lists all problems, line by line.
    """
    own, slurm = SubmitOptions(), SubmitOptions()
    of_slurm = False
    lines: dict[str, str] = {}
    problems: list[str] = []
    for place, kind, words in _directives(text, file):
        try:
            if kind == "GRIDWEAVE":
                options = parse(words)
                check_alone(options)
                own = joined(own, options)
                continue
            of_slurm = True
            for option, value in _pairs(place, words, ignored):
                slurm = joined(slurm, _slurm_option(place, option, value))
                if option in SBATCH:
                    lines[SBATCH[option].key] = place.problem_of(f"#SBATCH --{option}")
        except ProblemsError as error:
            problems += [place.problem_of(problem) for problem in error.problems]
        except InputError as error:
            problems.append(place.problem_of(error))
    if problems:
        raise ProblemsError(problems)
    return ScriptOptions(joined(slurm, own), of_slurm, lines)


def beginning_problem(text: str) -> str | None:
    r"""Return the problem with the beginning of a script, with its line as ``1: ...``, or None.

    Linux, like Slurm, recognizes an interpreter only if ``#!`` are the file's first two bytes.

    Examples
    --------
    >>> beginning_problem("\n#!/bin/bash\n")
    '2: #!/bin/bash is not at the beginning of the file, so it names no interpreter; move it there'
    """
    if text.startswith("\ufeff"):
        return "1: begins with a byte order mark, so its #! line has no effect; save it as UTF-8 without one"
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
    r"""Return a warning for each line that looks like options of the job but is not read (Slurm does not, either).

    Examples
    --------
    >>> unread_lines("#!/bin/sh\n  #SBATCH -N 3\n", "job.sh")
    ['job.sh:2: #SBATCH -N 3: is ignored: it does not begin with exactly #SBATCH or #GRIDWEAVE']
    """
    warnings = []
    is_head = True
    for number, line in enumerate(text.split("\n"), start=1):
        is_head = is_head and not _is_command(line)
        if _OF_OTHERS.match(line):
            why = "it is for another batch system; write #SBATCH or #GRIDWEAVE"
        elif _DIRECTIVE.match(line):
            why = "" if is_head else "it comes after the script's first command"
        else:
            why = "it does not begin with exactly #SBATCH or #GRIDWEAVE" if _MEANT.match(line) else ""
        if why:
            warnings.append(f"{file}:{number}: {line.strip()}: is ignored: {why}")
    return warnings


def _is_command(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _directives(text: str, file: str) -> Iterator[tuple[_Place, str, list[str]]]:
    """Yield the lines with options, as place, kind and words, up to the script's first command."""
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
    """Yield the options of an ``#SBATCH`` line by their long names, with their values."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--"):
            name, is_given, value = word[2:].partition("=")
            shown = f"--{name}"
        elif word.startswith("-") and len(word) > 1:
            name, value = _long_name(word[1]), word[2:].removeprefix("=")
            is_given, shown = "=" if value else "", word[:2]
        else:
            raise place.error(f"#SBATCH {word}", "is not an option")
        option = SBATCH.get(name) if len(name) > 1 else None
        if option is None and (ignored is not None or name not in ALLOWED):
            if not is_given and rest and not rest[0].startswith("-"):
                rest.pop(0)
            _unsupported(place, shown, ignored)
            continue
        if not is_given and (option is None or option.how.value is None):
            if not rest:
                raise place.error(f"#SBATCH {shown}", "has no value")
            value = rest.pop(0)
        yield name, value


def _long_name(letter: str) -> str:
    option = SBATCH.get(letter)
    return _PASSED_ON.get(letter, letter) if option is None else option.how.names[0]


def _unsupported(place: _Place, shown: str, ignored: list[str] | None) -> None:
    supported = ", ".join(f"--{name}" for name in sorted({option.how.names[0] for option in SBATCH.values()}))
    error = place.error(
        f"#SBATCH {shown}",
        f"is not supported; use one of {supported}, or submit without it: --ignore-unsupported",
    )
    if ignored is None:
        raise error
    ignored.append(f"{place.file}:{place.line}: #SBATCH {shown}: is not supported, and ignored")


def _slurm_option(place: _Place, name: str, value: str) -> SubmitOptions:
    """Return the value of an option in an ``#SBATCH`` line; InputError, with the place, if the value is invalid."""
    shown = f"#SBATCH --{name}"
    try:
        options = read_sbatch(name, value) if name in SBATCH else SubmitOptions(batch_options=(f"{name}={value}",))
        check_alone(options)
    except OptionError as error:
        raise place.error(shown, error.problem) from None
    except InputError as error:
        raise place.error(shown, str(error)) from None
    return options
