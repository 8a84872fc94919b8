"""Every error survives pickle and copy, so that it reaches whoever waits for another process."""

from __future__ import annotations

import copy
import importlib
import os
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

import gridweave
from gridweave.errors import (
    GridweaveError,
    JobFailedError,
    NotAllowedError,
    NotFoundError,
    OptionError,
    RefusedError,
    ScenarioError,
    TraceError,
    UnavailableError,
)
from gridweave.grid.api import FieldProblem
from gridweave.grid.client.transport import TryAgain
from gridweave.grid.gateway.problems import RefusalError
from gridweave.scenarios.world.history import ViolationError
from gridweave.site.lifecycle import TransitionError

# One error of each class that is not made of a message alone.
EXAMPLES: dict[type[BaseException], GridweaveError] = {
    TraceError: TraceError("log.swf", "has 19 fields", line=7, field="width"),
    OptionError: OptionError("nodes", "is 0"),
    ScenarioError: ScenarioError(["grid.toml: nodes is 0", "grid.toml: name is missing"]),
    JobFailedError: JobFailedError(7, "failed", "rank 0 ended", exit_code=3, stderr_tail="no such file"),
    RefusedError: RefusedError("too wide", status=422, kind="urn:declined", instance="r1"),
    NotFoundError: NotFoundError("no job 7", status=404, kind="urn:unknown-job", instance="r2"),
    NotAllowedError: NotAllowedError("no token", status=401),
    RefusalError: RefusalError(
        "busy",
        "too many requests",
        errors=[FieldProblem(where="nodes", detail="is 0")],
        retry_after_s=1.0,
        headers={"Allow": "GET"},
    ),
    TransitionError: TransitionError(
        "job", 7, "ended", "run", ("starting",), (("submit", "waiting"), ("end", "ended"))
    ),
    TryAgain: TryAgain(UnavailableError("cut off"), after_s=2.0, was_reached=False),
}


def _modules() -> list[str]:
    """Return all modules by their files: folders without `__init__.py` count, which pkgutil passes over."""
    (root,) = gridweave.__path__
    files = [
        Path(folder, name).relative_to(root).with_suffix("")
        for folder, _, names in os.walk(root, followlinks=True)
        for name in names
        if name.endswith(".py") and name not in ("__init__.py", "__main__.py")
    ]
    return [".".join(("gridweave", *file.parts)) for file in sorted(files)]


def _exceptions() -> list[type[BaseException]]:
    """Return all classes of exceptions that the package defines."""
    modules = [importlib.import_module(name) for name in _modules()]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, type)]
    return list(
        dict.fromkeys(one for one in found if issubclass(one, BaseException) and one.__module__.startswith("gridweave"))
    )


def test_every_error_is_in_the_tree() -> None:
    """But for what must never happen: an AssertionError, which is shown with its traceback."""
    outside = [one for one in _exceptions() if not issubclass(one, GridweaveError)]
    assert outside == [ViolationError]
    assert issubclass(ViolationError, AssertionError)


def _same(error: BaseException, other: BaseException) -> None:
    assert type(other) is type(error)
    assert str(other) == str(error)
    assert other.args == error.args
    assert vars(other).keys() == vars(error).keys()
    for name, value in vars(error).items():
        if isinstance(value, BaseException):
            _same(value, vars(other)[name])
        else:
            assert vars(other)[name] == value


def test_every_error_survives_pickle_and_copy() -> None:
    """In every protocol, with all its attributes and notes."""
    kinds = [kind for kind in _exceptions() if issubclass(kind, GridweaveError)]
    assert len(kinds) > 20
    for kind in kinds:
        error = EXAMPLES.get(kind) or kind("what was wrong")
        error.add_note("seen in a worker")
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            _same(error, pickle.loads(pickle.dumps(error, protocol)))
        _same(error, copy.copy(error))
        _same(error, copy.deepcopy(error))
        assert copy.copy(error) is not error


def _fail(kind: type[GridweaveError]) -> None:
    raise EXAMPLES[kind]


@pytest.mark.parametrize("kind", EXAMPLES)
def test_an_error_comes_out_of_another_process(kind: type[GridweaveError]) -> None:
    """A process pool raises what its worker raised, and can be used afterwards."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        with pytest.raises(kind) as caught:
            pool.submit(_fail, kind).result()
        assert pool.submit(abs, -1).result() == 1
    assert str(caught.value) == str(EXAMPLES[kind])
