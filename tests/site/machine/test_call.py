"""A rank that is a Python callable: what it returns, and how it fails."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from gridweave.site.launch import Call, ItemEnd
from gridweave.site.machine.call import run_call
from gridweave.site.machine.folders import error_path, result_path

LIMIT = 10_000


def ends(folder: Path, rank: int) -> list[ItemEnd]:
    """Return what a rank has written down of its items."""
    return [msgspec.json.decode(line, type=ItemEnd) for line in result_path(folder, rank).read_bytes().splitlines()]


def test_a_function_is_called_with_each_item(tmp_path: Path) -> None:
    """One Python calls the function with one item after the other; what it returned is in their order."""
    assert run_call(tmp_path, 0, Call("math:sqrt", (4, 9, 16), per_item=True), LIMIT) == 0
    assert [end.value for end in ends(tmp_path, 0)] == [2.0, 3.0, 4.0]
    assert run_call(tmp_path, 1, Call("math:hypot", (3, 4)), LIMIT) == 0
    assert json.loads(result_path(tmp_path, 1).read_bytes()) == 5.0


def test_an_item_that_fails_ends_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The others have their results; the job has failed, and says how many raised, and which one first."""
    assert run_call(tmp_path, 0, Call("math:sqrt", (4, -1, 16, "x"), per_item=True), LIMIT) == 1
    kept = ends(tmp_path, 0)
    assert [end.value for end in kept] == [2.0, None, 4.0, None]
    assert [bool(end.error) for end in kept] == [False, True, False, True]
    assert kept[1].error == "ValueError: math domain error"
    assert "Traceback" in kept[1].trace
    told = error_path(tmp_path, 0).read_text()
    assert told == "2 of 4 items raised, first item 1: ValueError: math domain error"
    assert [line for line in capsys.readouterr().err.splitlines() if line.startswith("item")] == ["item 1:", "item 3:"]


def test_an_item_that_exits_or_returns_too_much_fails_alone(tmp_path: Path) -> None:
    """Neither ends the Python, nor what JSON cannot say; what is kept of all together has its limit."""
    assert run_call(tmp_path, 0, Call("sys:exit", (3, 0), per_item=True), LIMIT) == 1
    assert [end.error for end in ends(tmp_path, 0)] == ["SystemExit: 3", "SystemExit: 0"]
    assert run_call(tmp_path, 1, Call("builtins:complex", (1, 2), per_item=True), LIMIT) == 1
    assert ["that JSON cannot represent" in end.error for end in ends(tmp_path, 1)] == [True, True]
    assert run_call(tmp_path, 3, Call("builtins:set", ([1],)), LIMIT) == 1
    assert "returned a value that JSON cannot represent (a value of type set)" in error_path(tmp_path, 3).read_text()
    assert run_call(tmp_path, 4, Call("builtins:dict", ([[1, 2]],)), LIMIT) == 1
    assert "an object with a key that is not text" in error_path(tmp_path, 4).read_text()
    assert run_call(tmp_path, 5, Call("numpy:float32", (0.5,)), LIMIT) == 0
    assert result_path(tmp_path, 5).read_text() == "0.5"
    assert run_call(tmp_path, 2, Call("builtins:str", ("a" * 60, "b" * 60, "c"), per_item=True), 100) == 1
    assert [end.value for end in ends(tmp_path, 2)] == ["a" * 60, None, "c"]
    assert "returned 62 bytes of JSON; output_limit_bytes allows 29 more" in ends(tmp_path, 2)[1].error


def test_a_rank_that_others_may_wait_for_goes_on_no_more(tmp_path: Path) -> None:
    """Where a job has several ranks, the first item that raises ends it."""
    assert run_call(tmp_path, 0, Call("math:sqrt", (4, -1, 16), per_item=True), LIMIT, size=2) == 1
    assert [end.value for end in ends(tmp_path, 0)] == [2.0, None]
