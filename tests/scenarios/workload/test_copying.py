"""Copies and pickles of workloads and results."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridweave import simulate
from gridweave.errors import InputError
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.workload.table import Workload
from support.builders import Case, cases, to_workload

Remake = Callable[[Any], Any]

WAYS: dict[str, Remake] = {
    **{
        f"pickle protocol {number}": lambda thing, number=number: pickle.loads(pickle.dumps(thing, number))
        for number in range(2, pickle.HIGHEST_PROTOCOL + 1)
    },
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}


def assert_same_workload(one: Workload, other: Workload) -> None:
    """Compare everything in two workloads."""
    for name in ("job_id", "submit_ms", "width", "estimate_ms", "run_ms", "overran"):
        first, second = getattr(one, name), getattr(other, name)
        assert first.dtype == second.dtype
        assert first.tolist() == second.tolist()
    assert list(one.columns) == list(other.columns)
    for name, values in one.columns.items():
        assert values.tolist() == other.columns[name].tolist()
    for name in ("nodes", "name", "start_unix_s", "timezone"):
        assert getattr(one, name) == getattr(other, name)


def assert_same_result(one: SimulationResult, other: SimulationResult) -> None:
    """Compare everything in two results."""
    assert_same_workload(one.workload, other.workload)
    for name in ("start_ms", "end_ms", "killed"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist()
    assert one.summary() == other.summary()
    assert dict(one.options) == dict(other.options)


@pytest.mark.parametrize("way", WAYS)
@settings(deadline=None, max_examples=50)
@given(case=cases(max_jobs=6, too_wide=2), dated=st.booleans())
def test_copies_and_pickles_are_equal(way: str, case: Case, *, dated: bool) -> None:
    workload = to_workload(case.jobs, nodes=case.nodes)
    if dated:
        workload = workload.replace(start_unix_s=844120798, timezone="Europe/Stockholm", name="dated")
    assert_same_workload(WAYS[way](workload), workload)
    result = simulate(workload, case.nodes, order="sjf", backfill="slack", slack=0.25)
    assert_same_result(WAYS[way](result), result)


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_is_read_only(way: str) -> None:
    workload = Workload([1, 2], [0, 1], [1, 1], [5, 5], [5, 5], columns={"user": [7, 8]})  # type: ignore[arg-type]
    result = WAYS[way](simulate(workload, 1))
    for array in (
        result.start_ms,
        result.end_ms,
        result.killed,
        result.workload.width,
        result.workload.columns["user"],
    ):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(TypeError, match="item assignment"):
        result.options["order"] = "sjf"
    with pytest.raises(TypeError, match="item assignment"):
        result.workload.columns["user"] = np.zeros(2, np.int64)


def test_a_deep_copy_shares_no_arrays() -> None:
    workload = Workload([1], [0], [1], [5], [5])  # type: ignore[arg-type]
    assert not np.shares_memory(copy.deepcopy(workload).width, workload.width)
    assert np.shares_memory(copy.copy(workload).width, workload.width)


def test_a_changed_pickle_is_checked_on_loading() -> None:
    workload = Workload([1], [0], [1], [5], [5])  # type: ignore[arg-type]
    make, (kind, fields) = workload.__reduce__()
    with pytest.raises(InputError, match="width 0 is not within"):
        make(kind, fields | {"width": [0]})
