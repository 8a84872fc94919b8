"""The hierarchy of errors that gridweave raises on purpose.

An error message says in one line what is wrong, where, and what would be right. The command line prints this message
without a traceback and exits with the error's exit status.

    GridweaveError
    ├── InputError            the input is invalid (exit status 2)
    │   ├── TraceError        ... in a trace or workload file; has file, line and field
    │   ├── OptionError       ... in an argument or option; has its name
    │   ├── ProblemsError     ... in several places, all reported at once
    │   │   └── ScenarioError     ... of a scenario
    │   └── RefusedError      ... according to a grid's gateway
    │       └── NotFoundError     ... the job, site or page does not exist
    ├── UnavailableError      a file, library or service is not available now (exit status 3)
    ├── JobFailedError        a job failed, was cancelled or was refused (exit status 4)
    ├── NotAllowedError       the gateway does not allow this user the request (exit status 5)
    └── RefusalError          the gateway raises this to refuse a request (grid/gateway/problems.py)

An error that only one module raises is defined in that module, as a subclass of one of these. Bugs raise an
AssertionError, which is outside the hierarchy and is shown with a traceback.
"""

from __future__ import annotations

import copyreg
from collections.abc import Collection, Iterable
from pathlib import Path


class GridweaveError(Exception):
    """Base class of all errors that gridweave raises on purpose.

    Attributes
    ----------
    exit_status : int
        Exit status of a command that ends with this error.
    """

    exit_status = 1

    def __reduce__(self) -> tuple[object, ...]:
        """Let `copy` and `pickle` recreate the error without calling its constructor.

        By default, `copy` and `pickle` pass only the message, which fails for constructors with other parameters.
        """
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class InputError(GridweaveError):
    """The input is invalid, e.g. a file, an option or a request."""

    exit_status = 2


class TraceError(InputError):
    """A trace or workload file is invalid or cannot be read.

    Parameters
    ----------
    path : str or pathlib.Path
        The file.
    problem : str
        What is wrong, and what would be right.
    line : int, optional
        Line number in the file, counted from 1.
    field : str, optional
        Name of the invalid field in that line.
    """

    def __init__(self, path: str | Path, problem: str, *, line: int | None = None, field: str | None = None) -> None:
        self.path = Path(path)
        self.problem = problem
        self.line = line
        self.field = field
        where = f"{path}" + (f":{line}" if line is not None else "") + (f": {field}" if field is not None else "")
        super().__init__(f"{where}: {problem}")


class OptionError(InputError):
    """An argument or option has an invalid value.

    Parameters
    ----------
    option : str
        Name of the argument, as known to the user.
    problem : str
        What is wrong, and what would be right.
    """

    def __init__(self, option: str, problem: str) -> None:
        self.option = option
        self.problem = problem
        super().__init__(f"{option}: {problem}")


def not_known(name: str, valid_names: Iterable[str]) -> str:
    """Return the error message for an unknown name; the message lists the valid names."""
    return f"{name!r} is not known; one of {', '.join(valid_names)}"


def check_known(option: str, name: str, valid_names: Collection[str]) -> None:
    """Raise OptionError if `name`, the value of `option`, is not a valid name."""
    if name not in valid_names:
        raise OptionError(option, not_known(name, valid_names))


class ProblemsError(InputError):
    """The input has several problems, which are all reported at once.

    Parameters
    ----------
    problems : iterable
        The problems, at least one. The text of a problem says where it is, what is wrong, and what would be right. The
        message has one line per problem.
    """

    def __init__(self, problems: Iterable[object]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class ScenarioError(ProblemsError):
    """A scenario is invalid; the error lists all of the scenario's problems."""


class UnavailableError(GridweaveError):
    """A resource is not available now, e.g. a trace file is missing or a network does not respond."""

    exit_status = 3


def not_installed(module: str | None, part: str = "live") -> UnavailableError:
    """Return the error for a library that is not installed; gridweave's extra `part` installs it."""
    return UnavailableError(f"{module} is not installed; in a checkout of gridweave run: pip install '.[{part}]'")


class SiteAwayError(UnavailableError):
    """A site does not respond although the rest of the grid does, so retrying at once would not help."""


class _GatewayError(GridweaveError):
    """An error reported by a grid's gateway, with the fields of the gateway's problem document."""

    def __init__(self, detail: str, *, status: int = 0, kind: str = "", instance: str = "") -> None:
        self.detail, self.status, self.kind, self.instance = detail, status, kind, instance
        super().__init__(detail)


class RefusedError(_GatewayError, InputError):
    """A grid's gateway refused a request.

    Parameters
    ----------
    detail : str
        What is wrong, and what would be right.
    status : int
        HTTP status code; 0 if unknown.
    kind : str
        Type of the problem document (docs/gateway.md), or empty.
    instance : str
        Id of the request in the gateway's log, or empty.
    """


class NotFoundError(RefusedError):
    """The requested job, site or page does not exist, or is hidden from this user."""


class NotAllowedError(_GatewayError):
    """A grid's gateway does not know this user, or does not allow this user to make the request.

    Parameters
    ----------
    detail : str
        The permission or credentials that the request needs.
    status, kind, instance
        As for `RefusedError`.
    """

    exit_status = 5


class JobFailedError(GridweaveError):
    """A job ended without success.

    Parameters
    ----------
    outcome : str
        ``failed``, ``limit``, ``cancelled``, or ``refused`` if no site could run the job.
    reason : str
        One-line reason.
    exit_code : int, optional
        Exit code of the first rank that failed; as in a shell, 128 plus the signal number if a signal killed the rank.
    stderr_tail : str
        The end of that rank's standard error.
    """

    exit_status: int = 4

    def __init__(
        self, job_id: int, outcome: str, reason: str = "", *, exit_code: int | None = None, stderr_tail: str = ""
    ) -> None:
        self.job_id, self.outcome, self.reason = job_id, outcome, reason
        self.exit_code, self.stderr_tail = exit_code, stderr_tail
        how = {"failed": "has failed", "limit": "ran to its limit", "cancelled": "was cancelled"}
        message = f"job {job_id} {how.get(outcome, 'was refused')}"
        super().__init__(f"{message}: {reason}" if reason else message)
