"""The tables of states, and the only code that changes the state of a record."""

from __future__ import annotations

import ast
import runpy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import house
from gridweave.errors import GridweaveError, InputError
from gridweave.grid import lifecycle as of_grid
from gridweave.grid.lifecycle import ATTEMPT, DELEGATION
from gridweave.site import lifecycle as of_site
from gridweave.site.lifecycle import JOB, OPEN, OVER, PART, RUN_END, Lifecycle, StateTable, TransitionError

TABLES: list[StateTable[Any, Any]] = [JOB, PART, RUN_END, DELEGATION, ATTEMPT]
# Of each table: its types, and its final states.
MEANT: dict[str, tuple[Any, Any, set[str]]] = {
    "job": (of_site.JobState, of_site.JobCause, {"ended", "refused"}),
    "part of job": (of_site.PartState, of_site.PartCause, {"over"}),
    "end of the run of job": (of_site.RunEnd, of_site.RunEndCause, set()),
    "delegation of job": (of_grid.DelegationState, of_grid.DelegationCause, {"over"}),
    "attempt of job": (of_grid.AttemptState, of_grid.AttemptCause, {"over"}),
}
EVERY_TABLE = pytest.mark.parametrize("table", TABLES, ids=lambda table: table.record)


@dataclass
class Record:
    """A record of whatever kind."""

    state: Any


@EVERY_TABLE
@given(data=st.data())
def test_possible_causes_lead_to_declared_states_only(table: StateTable[Any, Any], data: st.DataObject) -> None:
    """Random possible causes never lead out of the table, and `change` says whether the state is a new one."""
    life = Lifecycle(table)
    record = Record(life.begin(1, data.draw(st.sampled_from(sorted(table.first)))))
    for _ in range(data.draw(st.integers(0, 30))):
        assert record.state in table.states
        row = table.rows[record.state]
        if not row:
            break
        before, cause = record.state, data.draw(st.sampled_from(sorted(row)))
        assert life.change(1, record, cause) == (record.state != before)


@pytest.mark.parametrize("table", [table for table in TABLES if table.over], ids=lambda table: table.record)
@given(data=st.data())
def test_impossible_causes_raise_and_change_nothing(table: StateTable[Any, Any], data: st.DataObject) -> None:
    """A cause that is not in the row of a state is an error, and the record keeps its state."""
    state = data.draw(st.sampled_from(sorted(table.states)))
    impossible = sorted(set(table.causes) - set(table.rows[state]))
    assume(impossible)
    cause = data.draw(st.sampled_from(impossible))
    record = Record(state)
    with pytest.raises(TransitionError, match=f"{table.record} 5 is '{state}': '{cause}' is impossible"):
        Lifecycle(table).change(5, record, cause)
    assert record.state == state


@EVERY_TABLE
def test_every_state_is_reachable_and_has_a_way_to_the_end(table: StateTable[Any, Any]) -> None:
    """A record can come to each state, and from each it can come to a final one."""
    steps = {state: set(row.values()) for state, row in table.rows.items()}
    assert _reached(set(table.first.values()), steps) == set(table.states)
    back: dict[str, set[str]] = {state: set() for state in table.states}
    for before, afters in steps.items():
        for after in afters:
            back[after].add(before)
    assert _reached(set(table.over), back) == (set(table.states) if table.over else set())


def _reached(found: set[str], steps: dict[str, set[str]]) -> set[str]:
    while more := {after for state in found for after in steps[state]} - found:
        found = found | more
    return found


@EVERY_TABLE
def test_only_the_declared_states_are_final(table: StateTable[Any, Any]) -> None:
    """The final states of each table are those that are meant to be."""
    _, _, final = MEANT[table.record]
    assert set(table.over) == final
    assert set(table.open) == set(table.states) - final


@EVERY_TABLE
def test_tables_name_the_states_and_causes_of_their_types(table: StateTable[Any, Any]) -> None:
    """A table has the states and causes of its types, in their order, and uses each."""
    states, causes, _ = MEANT[table.record]
    assert tuple(table.rows) == tuple(table.states) == get_args(states)
    assert tuple(table.causes) == get_args(causes)
    assert {*table.first, *(cause for row in table.rows.values() for cause in row)} == set(table.causes)


def test_open_and_ended_states_are_all_states_of_a_job() -> None:
    """Each state of a job is open or over."""
    assert (*OPEN, *OVER) == tuple(JOB.states)


def test_an_error_has_the_job_and_its_history() -> None:
    """An impossible change names the job and what happened to it before, and nothing of other jobs."""
    life = Lifecycle(JOB)
    job, other = Record(life.begin(7, "submit")), Record(life.begin(8, "keep"))
    life.change(7, job, "place")
    life.change(8, other, "admit")
    life.change(7, job, "end")
    with pytest.raises(TransitionError) as caught:
        life.change(7, job, "run")
    assert (caught.value.job_id, caught.value.state, caught.value.cause) == (7, "ended", "run")
    assert caught.value.history == (("submit", "waiting"), ("place", "starting"), ("end", "ended"))
    assert str(caught.value) == (
        "job 7 is 'ended': 'run' is impossible; it is possible when waiting or starting or running or ending; "
        "history: submit: waiting, place: starting, end: ended"
    )
    assert isinstance(caught.value, GridweaveError)
    # A driver refuses an event with an InputError, and goes on.
    assert not isinstance(caught.value, InputError)


def test_the_history_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the last moves are remembered."""
    monkeypatch.setattr(of_site, "KEEP_MOVES", 3)
    life = Lifecycle(JOB)
    job = Record(life.begin(1, "submit"))
    for _ in range(3):
        life.change(1, job, "place")
        life.change(1, job, "place")  # is no move
        life.change(1, job, "retry")
    assert life.history(1) == (("retry", "waiting"), ("place", "starting"), ("retry", "waiting"))


def test_the_page_shows_the_tables_as_they_are() -> None:
    """docs/states.md is what `python docs/draw_states.py` draws now."""
    draw = runpy.run_path(str(house.ROOT / "docs" / "draw_states.py"))
    page = (house.ROOT / "docs" / "states.md").read_text(encoding="utf-8")
    assert draw["drawn"](page) == page, "run python docs/draw_states.py"
    assert [name for name in draw["TABLES"] if f"<!-- drawn: {name} -->" not in page] == []


# -- the rule of the house --------------------------------------------------------------------------------------------

HOME = ("site/lifecycle.py", "grid/lifecycle.py")
RULED = [file for file in house.product_files() if file.startswith(("site/", "grid/", "slurm/")) and file not in HOME]

FIELDS = ("state", "killed")

# A state of something else, or a copy of what somebody else has said last.
NO_RECORD = {
    ("grid/client/client.py", "self.state"): "the state of a job that the client has last heard of",
    ("grid/control/delegated_forecasts.py", "replace(forecast)"): "a forecast",
    ("grid/control/limited.py", "replace(forecast)"): "a forecast",
    ("grid/service/local.py", "self.done.state"): "what is known of a local grid",
    ("grid/service/ray.py", "self.state"): "what is known of a Ray cluster",
    ("slurm/service/reconciler.py", "replace(allocation)"): "what a batch system has shown last",
    ("slurm/cluster/parse.py", "replace(allocation)"): "what Slurm has shown last",
    ("site/explain.py", "replace(forecast)"): "a forecast",
    ("site/run/runs.py", "self.killed"): "`Run.end_for`, which goes by the table",
    ("site/state.py", "rng.bit_generator.state"): "the state of a random generator",
}


def _assigned_states(tree: ast.AST) -> Iterator[str]:
    """Yield what gives a field with a state a value, or makes a copy of a record with another one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in FIELDS and isinstance(node.ctx, ast.Store | ast.Del):
            yield ast.unparse(node)
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            if name == "replace" and any(keyword.arg in FIELDS for keyword in node.keywords):
                yield f"replace({ast.unparse(node.args[0])})"
            if name in ("setattr", "force_setattr", "__setattr__") and any(
                f"'{field}'" in ast.unparse(node) for field in FIELDS
            ):
                yield ast.unparse(node)


def _listed_states(tree: ast.AST) -> Iterator[int]:
    """Yield the lines with a tuple, list or set of several states of one table."""
    constants = _state_constants(tree)
    types = {id(node.slice) for node in ast.walk(tree) if isinstance(node, ast.Subscript)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Tuple | ast.List | ast.Set) and id(node) not in types:
            values = [constants.get(one.id) if isinstance(one, ast.Name) else _text(one) for one in node.elts]
            if len(values) > 1 and any(set(values) <= set(table.states) for table in TABLES):
                yield node.lineno


def _state_constants(tree: ast.AST) -> dict[str, str]:
    """Return the names of single states that a file imports from a table's file, with the states."""
    found = {}
    for node in ast.walk(tree):
        module = {"gridweave.site.lifecycle": of_site, "gridweave.grid.lifecycle": of_grid}.get(
            getattr(node, "module", None) or ""
        )
        if isinstance(node, ast.ImportFrom) and module is not None:
            known = ((alias.asname or alias.name, getattr(module, alias.name)) for alias in node.names)
            found |= {name: value for name, value in known if isinstance(value, str)}
    return found


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def test_only_the_lifecycle_changes_the_state_of_a_record() -> None:
    """No other file of a site or of the grid assigns a state."""
    changed = {(file, text) for file in RULED for text in _assigned_states(house.tree_of(file))}
    assert changed - NO_RECORD.keys() == set()
    assert NO_RECORD.keys() - changed == set(), "no exceptions any more"


def test_lists_of_states_stand_beside_their_table() -> None:
    """No other file of a site or of the grid lists several states of a table."""
    assert {file: lines for file in RULED if (lines := list(_listed_states(house.tree_of(file))))} == {}


@pytest.mark.parametrize(
    "line",
    [
        "record.state = 'ended'",
        "record.state, record.reason = 'ended', ''",
        "self.records[1].state: str = 'ended'",
        "msgspec.structs.replace(record, state='ended')",
        "setattr(record, 'state', 'ended')",
        "run.killed, run.saves = 'lost', True",
    ],
)
def test_the_rule_sees_each_way_to_change_a_state(line: str) -> None:
    """The check finds assignments, changed copies and `setattr`."""
    assert len(list(_assigned_states(ast.parse(line)))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "x = ('ended', 'refused')",
        "x = y in {'held', 'waiting'}",
        "from gridweave.site.lifecycle import RESERVED, RUNNING; x = [RESERVED, RUNNING]",
    ],
)
def test_the_rule_sees_lists_of_states(line: str) -> None:
    """The check finds lists of texts and of imported constants."""
    assert list(_listed_states(ast.parse(line))) == [1]
