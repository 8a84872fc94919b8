"""A rank that is a Python callable: what it returns, and how it fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gridweave.site.launch import Call
from gridweave.site.machine.call import run_call
from gridweave.site.machine.folders import error_path, result_path

LIMIT = 10_000


def test_a_function_is_called_with_each_item(tmp_path: Path) -> None:
    """One Python calls the function with one item after the other; what it returned is a list in their order."""
    assert run_call(tmp_path, 0, Call("math:sqrt", (4, 9, 16), each=True), LIMIT) == 0
    assert json.loads(result_path(tmp_path, 0).read_bytes()) == [2.0, 3.0, 4.0]
    assert run_call(tmp_path, 1, Call("math:hypot", (3, 4)), LIMIT) == 0
    assert json.loads(result_path(tmp_path, 1).read_bytes()) == 5.0


def test_the_item_that_fails_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job with an item that raises has failed, and says which one, and where."""
    assert run_call(tmp_path, 0, Call("math:sqrt", (4, -1, 16), each=True), LIMIT) == 1
    told = error_path(tmp_path, 0).read_text()
    assert "ValueError: math domain error" in told
    assert told.rstrip().endswith("item 1 of the 3 of this job, counted from 0")
    assert capsys.readouterr().err.rstrip() == told.rstrip()
    assert not result_path(tmp_path, 0).exists()
