"""Runs a Python callable as a rank: ``python -m gridweave.site.machine.call FILE FOLDER RANK``.

What is to be called is in the file. What it returns goes into ``result-RANK.json`` of the folder. If it raises, the
traceback goes into ``error-RANK.txt`` and to standard error, and the exit code is 1. Where it is called with each of
many items, the result has a line for each that has ended, and ``error-RANK.txt`` names the first that raised.
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
"""Exit code of a callable that cannot be found, as a shell has it for a command."""

_MOST_DEPTH = 200
"""So deep lists and objects may be within one another that a callable returns."""

_MOST_ERROR = 500
_MOST_TRACE = 4_000
"""Characters that are kept of the error of an item, and of its traceback, from the end."""


def find_callable(name: str) -> Callable[..., Any]:
    """Import a callable by its name, ``module:function``."""
    module_name, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(
            f"callable {name!r}: module {module_name!r} cannot be imported ({why}); "
            "it must be in the working directory, on PYTHONPATH, or installed"
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise InputError(f"callable {name!r}: module {module_name!r} has no {path!r}; give a function of it")
        found = getattr(found, part)
    if not callable(found):
        raise InputError(f"callable {name!r}: is of type {type(found).__name__}; give a function")
    return found  # type: ignore[no-any-return]


def run_call(folder: Path, rank: int, call: Call, limit_bytes: int, *, size: int = 1) -> int:
    """Call a callable, keep what came of it, and return the exit code: `UNUSABLE` if there is none such.

    Parameters
    ----------
    limit_bytes : int
        Of what is kept, as JSON.
    size : int
        How many ranks the job has.
    """
    try:
        function = find_callable(call.function)
    except InputError as error:
        return _fail(folder, rank, str(error), UNUSABLE)
    try:
        if call.each:
            return _call_with_each(folder, rank, function, call, limit_bytes, size)
        end = _called(function, call.args, call, limit_bytes, Exception)
        if end.error:
            return _fail(folder, rank, end.trace, 1)
        write_whole(result_path(folder, rank), end.value, mode=0o640)
    except OSError as error:
        problem = f"what it returned cannot be written: {os.strerror(error.errno or 0)}"
        return _fail(folder, rank, f"callable {call.function!r}: {problem}", 1)
    return 0


def _call_with_each(
    folder: Path, rank: int, function: Callable[..., Any], call: Call, limit_bytes: int, size: int
) -> int:
    """Call a callable with one item after the other, and write down what became of each before it goes on.

    An item that raises ends no other. But where there are other ranks they may wait for this one, and go on no more.
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
    """Call a callable once; return what it has returned, as JSON, or what is wrong."""
    try:
        result = function(*args, **call.kwargs)
    except caught as error:
        line = " ".join("".join(traceback.format_exception_only(error)).split())
        return ItemEnd(error=line[:_MOST_ERROR], trace=traceback.format_exc())
    try:
        held = json_problem(result, most_depth=_MOST_DEPTH)
        data = b"" if held else msgspec.json.encode(result, enc_hook=python_scalar)
    except Exception as error:
        held = str(error)
    if held:
        problem = f"returned what JSON cannot say ({held})"
    else:
        if len(data) <= limit_bytes:
            return ItemEnd(msgspec.Raw(data))
        problem = f"returned {len(data)} bytes of JSON; {max(limit_bytes, 0)} more are kept by output_limit_bytes"
    problem = f"callable {call.function!r}: {problem}"
    return ItemEnd(error=problem, trace=problem)


def _fail(folder: Path, rank: int, text: str, code: int) -> int:
    print(text.rstrip(), file=sys.stderr, flush=True)
    with contextlib.suppress(OSError):  # it is in standard error as well
        write_whole(error_path(folder, rank), text.encode(errors="replace"), mode=0o640)
    return code


def main(arguments: list[str]) -> int:
    """Run the callable of a rank as its file says."""
    file, folder, rank = Path(arguments[0]), Path(arguments[1]), int(arguments[2])
    try:
        call, limit_bytes = msgspec.msgpack.decode(file.read_bytes(), type=tuple[Call, int])
    except (OSError, msgspec.DecodeError):
        return _fail(folder, rank, f"{file} names no callable", UNUSABLE)
    return run_call(folder, rank, call, limit_bytes, size=int(os.environ.get("GRIDWEAVE_SIZE", "1")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
