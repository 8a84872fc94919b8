"""The error tree: every error that gridweave raises on purpose, in one file.

An error says what was wrong, where, and what would be right, in one line. The command prints that line and ends with
the error's exit status; it never shows a traceback for one of these.

    GridweaveError
    ├── InputError            what was given cannot be used (exit status 2)
    │   ├── TraceError        ... a trace or workload file, with file, line and field
    │   ├── OptionError       ... an argument or option, by its name
    │   ├── ProblemsError     ... with all that is wrong with it at once: a script, or
    │   │   └── ScenarioError     ... a scenario
    │   └── RefusedError      ... a request, says the gateway of a grid
    │       └── NotFoundError     ... it names a job, a site or a page that does not exist
    ├── UnavailableError      what was asked for is not to be had now (exit status 3)
    ├── JobFailedError        a job has ended, and not well (exit status 4)
    ├── NotAllowedError       the gateway of a grid does not let this user do that (exit status 5)
    └── RefusalError          ... and what the gateway itself raises to say so (grid/gateway/problems.py)

Errors of a single module stand there, below one of these. Outside the tree is only what must never happen, an
AssertionError, which is shown with its traceback.
"""

from __future__ import annotations

import copyreg
from collections.abc import Collection, Iterable
from pathlib import Path


class GridweaveError(Exception):
    """Base of all errors that gridweave raises on purpose.

    Attributes
    ----------
    exit_status : int
        What the command ends with when this error reaches it.
    """

    exit_status = 1

    def __reduce__(self) -> tuple[object, ...]:
        """Return how `copy` and `pickle` make this error again: without calling the constructor of its class.

        By default they call it with the message alone, which is none of its arguments where there are several.
        """
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class InputError(GridweaveError):
    """What was given cannot be used; the fault is with the input, not with gridweave."""

    exit_status = 2


class TraceError(InputError):
    """A trace or workload file that cannot be read.

    Parameters
    ----------
    path : str or pathlib.Path
        The file.
    problem : str
        What was wrong, and what would be right.
    line : int, optional
        Line number in the file, from 1.
    field : str, optional
        The field of that line.
    """

    def __init__(self, path: str | Path, problem: str, *, line: int | None = None, field: str | None = None) -> None:
        self.path = Path(path)
        self.problem = problem
        self.line = line
        self.field = field
        where = f"{path}" + (f":{line}" if line is not None else "") + (f": {field}" if field is not None else "")
        super().__init__(f"{where}: {problem}")


class OptionError(InputError):
    """An argument or option with a value that cannot be used.

    Parameters
    ----------
    option : str
        Name of the argument, as the user knows it.
    problem : str
        What was wrong, and what would be right.
    """

    def __init__(self, option: str, problem: str) -> None:
        self.option = option
        self.problem = problem
        super().__init__(f"{option}: {problem}")


def not_known(name: str, known: Iterable[str]) -> str:
    """Return what is wrong with a name that is none of those that are known."""
    return f"{name!r} is not known; one of {', '.join(known)}"


def check_known(option: str, name: str, known: Collection[str]) -> None:
    """Raise OptionError if an option names none of what is known."""
    if name not in known:
        raise OptionError(option, not_known(name, known))


class ProblemsError(InputError):
    """Input with several problems, told all at once.

    Parameters
    ----------
    problems : iterable
        At least one; as text each says where, what was wrong, and what would be right. The message has a line for each.
    """

    def __init__(self, problems: Iterable[object]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class ScenarioError(ProblemsError):
    """A scenario that cannot be used, with all that is wrong with it."""


class UnavailableError(GridweaveError):
    """What was asked for is not to be had now: a trace that is not there, a network that does not answer."""

    exit_status = 3


def not_installed(module: str | None, part: str = "live") -> UnavailableError:
    """Return the error for a library that is missing, which a part of gridweave needs."""
    return UnavailableError(f"{module} is not installed; in a checkout of gridweave run: pip install '.[{part}]'")


class SiteAwayError(UnavailableError):
    """A site does not answer; the rest of the grid does, and to ask again at once would not help."""


class _GatewayError(GridweaveError):
    """An error with what the gateway of a grid says of it."""

    def __init__(self, detail: str, *, status: int = 0, kind: str = "", instance: str = "") -> None:
        self.detail, self.status, self.kind, self.instance = detail, status, kind, instance
        super().__init__(detail)


class RefusedError(_GatewayError, InputError):
    """The gateway of a grid refused a request.

    Parameters
    ----------
    detail : str
        What was wrong, and what would be right.
    status : int
        Of HTTP.
    kind : str
        The type of the gateway's problem document (docs/gateway.md), or empty.
    instance : str
        The id of the request in the gateway's log, or empty.
    """


class NotFoundError(RefusedError):
    """What a request names does not exist, or is not to be seen by this user."""


class NotAllowedError(_GatewayError):
    """The gateway of a grid does not know this user, or does not let them do that.

    Parameters
    ----------
    detail : str
        What would be needed.
    status, kind, instance
        As for `RefusedError`.
    """

    exit_status = 5


class JobFailedError(GridweaveError):
    """A job has ended, and not well.

    Parameters
    ----------
    outcome : str
        ``failed``, ``limit``, ``cancelled``, or ``refused`` where no site could run it.
    reason : str
        Why, in one line.
    exit_code : int, optional
        Of the first rank that did not end well; a signal as a shell has it (128 and its number).
    stderr_tail : str
        The end of what that rank wrote to standard error.
    """

    exit_status: int = 4

    def __init__(
        self, job_id: int, outcome: str, reason: str = "", *, exit_code: int | None = None, stderr_tail: str = ""
    ) -> None:
        self.job_id, self.outcome, self.reason = job_id, outcome, reason
        self.exit_code, self.stderr_tail = exit_code, stderr_tail
        how = {"failed": "has failed", "limit": "ran to its limit", "cancelled": "was cancelled"}
        said = f"job {job_id} {how.get(outcome, 'was refused')}"
        super().__init__(f"{said}: {reason}" if reason else said)
