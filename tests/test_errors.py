"""Every error survives pickle and copy, so that it reaches whoever waits for another process."""

from __future__ import annotations

import copy
import importlib
import pickle
import pkgutil
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

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
)

# One error of each class that is not made of a message alone.
EXAMPLES: dict[type[BaseException], GridweaveError] = {
    TraceError: TraceError("log.swf", "has 19 fields", line=7, field="width"),
    OptionError: OptionError("nodes", "is 0"),
    ScenarioError: ScenarioError(["grid.toml: nodes is 0", "grid.toml: name is missing"]),
    JobFailedError: JobFailedError(7, "failed", "rank 0 ended", exit_code=3, stderr_tail="no such file"),
    RefusedError: RefusedError("too wide", status=422, kind="urn:declined", instance="r1"),
    NotFoundError: NotFoundError("no job 7", status=404, kind="urn:unknown-job", instance="r2"),
    NotAllowedError: NotAllowedError("no token", status=401),
}


def _subclasses(kind: type[GridweaveError]) -> list[type[GridweaveError]]:
    return [kind, *(found for one in kind.__subclasses__() for found in _subclasses(one))]


def _every_kind() -> list[type[GridweaveError]]:
    for module in pkgutil.walk_packages(gridweave.__path__, "gridweave.", onerror=lambda _: None):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return list(dict.fromkeys(_subclasses(GridweaveError)))


def _same(error: BaseException, other: BaseException) -> None:
    assert type(other) is type(error)
    assert other is not error
    assert str(other) == str(error)
    assert other.args == error.args
    assert vars(other) == vars(error)


def test_every_error_survives_pickle_and_copy() -> None:
    """In every protocol, with all its attributes and notes."""
    kinds = _every_kind()
    assert len(kinds) > 10
    for kind in kinds:
        error = EXAMPLES.get(kind) or kind("what was wrong")
        error.add_note("seen in a worker")
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            _same(error, pickle.loads(pickle.dumps(error, protocol)))
        _same(error, copy.copy(error))
        _same(error, copy.deepcopy(error))


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
