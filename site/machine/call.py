"""Runs a Python callable as a rank: ``python -m gridweave.site.machine.call FILE FOLDER RANK``.

What is to be called is in the file. What it returns goes into ``result-RANK.json`` of the folder. If it raises, the
traceback goes into ``error-RANK.txt`` and to standard error, and the exit code is 1.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from gridweave.errors import InputError
from gridweave.site.launch import Call
from gridweave.site.machine.folders import error_path, result_path, write_whole

UNUSABLE = 126
"""Exit code of a callable that cannot be found, as a shell has it for a command."""


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


def run_call(folder: Path, rank: int, call: Call, limit_bytes: int) -> int:
    """Call a callable, keep what came of it, and return the exit code: `UNUSABLE` if there is none such."""
    try:
        function = find_callable(call.function)
    except InputError as error:
        return _fail(folder, rank, str(error), UNUSABLE)
    try:
        result = _called(function, call)
    except Exception:
        return _fail(folder, rank, traceback.format_exc(), 1)
    try:
        data = msgspec.json.encode(result)
    except Exception as error:
        return _fail(folder, rank, f"callable {call.function!r}: returned what JSON cannot say ({error})", 1)
    if len(data) > limit_bytes:
        problem = f"returned {len(data)} bytes of JSON; at most output_limit_bytes = {limit_bytes} are kept"
        return _fail(folder, rank, f"callable {call.function!r}: {problem}", 1)
    try:
        write_whole(result_path(folder, rank), data, mode=0o640)
    except OSError as error:
        problem = f"what it returned cannot be written: {os.strerror(error.errno or 0)}"
        return _fail(folder, rank, f"callable {call.function!r}: {problem}", 1)
    return 0


def _called(function: Callable[..., Any], call: Call) -> Any:
    if not call.each:
        return function(*call.args, **call.kwargs)
    results = []
    for number, item in enumerate(call.args):
        try:
            results.append(function(item, **call.kwargs))
        except Exception as error:
            error.add_note(f"item {number} of the {len(call.args)} of this job, counted from 0")
            raise
    return results


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
    return run_call(folder, rank, call, limit_bytes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
