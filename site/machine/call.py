"""Run a Python callable as a rank: ``python -m gridweave.site.machine.call FILE FOLDER RANK``.

FILE contains the call. The return value goes into ``result-RANK.json`` in FOLDER. If the callable raises an exception,
the traceback goes into ``error-RANK.txt`` and to standard error, and the exit code is 1. If the callable is mapped over
items, the result file has one line per finished item, and ``error-RANK.txt`` names the first item that failed.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from gridweave.errors import InputError
from gridweave.site.launch import Call, ItemEnd, json_problem, python_scalar
from gridweave.site.machine.folders import error_path, result_path, write_whole

UNUSABLE = 126
"""Exit code if the callable cannot be used; a shell uses the same code for a command that it cannot execute."""

_MOST_DEPTH = 200
"""Largest nesting depth of lists and objects in a return value."""

_MOST_ERROR = 500
_MOST_TRACE = 4_000
"""Maximum lengths of an item's error (truncated at the end) and traceback (truncated at the start) [characters]."""


def find_callable(name: str) -> Callable[..., Any]:
    """Import a callable by its name, ``module:function``; raise InputError if that is impossible."""
    module_name, _, path = name.partition(":")
    try:
        target: Any = importlib.import_module(module_name)
    except Exception as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(
            f"callable {name!r}: module {module_name!r} cannot be imported ({why}); "
            "expected it in the working directory, on PYTHONPATH, or installed"
        ) from error
    for part in path.split("."):
        if not hasattr(target, part):
            raise InputError(f"callable {name!r}: module {module_name!r} has no {path!r}; name one of its functions")
        target = getattr(target, part)
    if not callable(target):
        raise InputError(f"callable {name!r}: is of type {type(target).__name__}; expected a function")
    return target  # type: ignore[no-any-return]


def run_call(folder: Path, rank: int, call: Call, limit_bytes: int, *, size: int = 1) -> int:
    """Call a callable, write its result, and return the exit code, or `UNUSABLE` if the callable cannot be found.

    Parameters
    ----------
    limit_bytes : int
        Largest size of the result as JSON.
    size : int
        Number of ranks of the job.
    """
    try:
        function = find_callable(call.function)
    except InputError as error:
        return _fail(folder, rank, str(error), UNUSABLE)
    try:
        if call.per_item:
            return _call_with_each(folder, rank, function, call, limit_bytes, size)
        end = _called(function, call.args, call, limit_bytes, Exception)
        if end.error:
            return _fail(folder, rank, end.trace, 1)
        write_whole(result_path(folder, rank), end.value, mode=0o640)
    except OSError as error:
        problem = f"its result cannot be written: {os.strerror(error.errno or 0)}"
        return _fail(folder, rank, f"callable {call.function!r}: {problem}", 1)
    return 0


def _call_with_each(
    folder: Path, rank: int, function: Callable[..., Any], call: Call, limit_bytes: int, size: int
) -> int:
    """Call a callable with one item after another, and write each result before the next call.

    If an item raises an exception, the rank continues with the next item only if it is the job's only rank, because
    other ranks may be waiting for it.
    """
    raised: list[str] = []
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(result_path(folder, rank), flags, 0o640), "wb", buffering=0) as file:
        for number, item in enumerate(call.args):
            end = _called(function, (item,), call, limit_bytes, (Exception, SystemExit))
            if end.error:
                print(f"item {number}:\n{end.trace.rstrip()}", file=sys.stderr, flush=True)
                raised.append(f"item {number}: {end.error}")
                end = ItemEnd(error=end.error, trace=end.trace[-_MOST_TRACE:])
            line = msgspec.json.encode(end) + b"\n"
            if file.write(line) != len(line):
                raise OSError(errno.ENOSPC, "")
            limit_bytes -= 0 if end.error else len(line)
            if raised and size > 1:
                break
    if not raised:
        return 0
    problem = f"{len(raised)} of {len(call.args)} items raised, first {raised[0]}"
    return _fail(folder, rank, problem, 1)


def _called(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    call: Call,
    limit_bytes: int,
    caught: type[Exception] | tuple[type[BaseException], ...],
) -> ItemEnd:
    """Call a callable once; return its result as JSON, or the error."""
    try:
        result = function(*args, **call.kwargs)
    except caught as error:
        line = " ".join("".join(traceback.format_exception_only(error)).split())
        return ItemEnd(error=line[:_MOST_ERROR], trace=traceback.format_exc())
    try:
        defect = json_problem(result, most_depth=_MOST_DEPTH)
        data = b"" if defect else msgspec.json.encode(result, enc_hook=python_scalar)
    except Exception as error:
        defect = str(error)
    if defect:
        problem = f"returned a value that JSON cannot represent ({defect})"
    elif len(data) <= limit_bytes:
        return ItemEnd(msgspec.Raw(data))
    else:
        problem = f"returned {len(data)} bytes of JSON; output_limit_bytes allows {max(limit_bytes, 0)} more"
    problem = f"callable {call.function!r}: {problem}"
    return ItemEnd(error=problem, trace=problem)


def _fail(folder: Path, rank: int, text: str, code: int) -> int:
    print(text.rstrip(), file=sys.stderr, flush=True)
    with contextlib.suppress(OSError):  # the text is also on standard error
        write_whole(error_path(folder, rank), text.encode(errors="replace"), mode=0o640)
    return code


def main(arguments: list[str]) -> int:
    """Run the call in a file as a rank; return the exit code."""
    file, folder, rank = Path(arguments[0]), Path(arguments[1]), int(arguments[2])
    try:
        call, limit_bytes = msgspec.msgpack.decode(file.read_bytes(), type=tuple[Call, int])
    except (OSError, msgspec.DecodeError):
        return _fail(folder, rank, f"{file} cannot be read as a call", UNUSABLE)
    return run_call(folder, rank, call, limit_bytes, size=int(os.environ.get("GRIDWEAVE_SIZE", "1")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
