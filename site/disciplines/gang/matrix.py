"""Convert a gang matrix to lists and text, check it, and return its totals."""

from __future__ import annotations

from gridweave.site.disciplines.gang.kernels.columns import WORD_BITS
from gridweave.site.disciplines.gang.kernels.state import GangSite, turns_until
from gridweave.site.kernels.parts import UNIT

ACROSS_AT_MOST = 12
"""Maximum number of columns of a printed matrix, not counting row headings; a wider matrix is transposed."""


def columns_of(state: GangSite, slot: int) -> list[int]:
    """Return a placed job's nodes, ascending."""
    words = state.columns[state.jobs["bits"][slot]].tolist()
    return [
        number * WORD_BITS + bit for number, word in enumerate(words) for bit in range(WORD_BITS) if word >> bit & 1
    ]


def matrix_rows(matrix: list[list[int | None]], row_now: int | None) -> tuple[list[str], list[list[str]]]:
    """Return a matrix as the headings and rows of a text table, like Zhang's Figure 9.

    Adjacent nodes with the same jobs share a column. If there are more than `ACROSS_AT_MOST` columns, the table has
    slices as columns and nodes as rows. A ``*`` marks ``row_now``, the row whose slice is in progress.

    Examples
    --------
    >>> headings, rows = matrix_rows([[1, 1, 2], [3, 3, None]], 1)
    >>> headings
    ['', 'P0-P1', 'P2']
    >>> rows
    [['time-slice 0', 'J1', 'J2'], ['time-slice 1 *', 'J3', '']]
    """
    kinds = list(zip(*matrix, strict=True))
    firsts = [node for node, kind in enumerate(kinds) if node == 0 or kind != kinds[node - 1]]
    ends = [*firsts[1:], len(kinds)]
    nodes = [f"P{low}" if high == low + 1 else f"P{low}-P{high - 1}" for low, high in zip(firsts, ends, strict=True)]
    slices = [f"time-slice {number}{' *' if number == row_now else ''}" for number in range(len(matrix))]
    cells = [["" if row[first] is None else f"J{row[first]}" for first in firsts] for row in matrix]
    if len(nodes) > ACROSS_AT_MOST:
        return ["", *slices], [[name, *column] for name, column in zip(nodes, zip(*cells, strict=True), strict=True)]
    return ["", *nodes], [[name, *row] for name, row in zip(slices, cells, strict=True)]


def placed_slots(state: GangSite) -> list[int]:
    """Return the slots of the placed jobs, in order of placement."""
    placed: list[int] = state.placed[: state.counters["n_placed"][0]].tolist()
    return placed


def matrix_of(state: GangSite) -> list[list[int | None]]:
    """Return the matrix of job ids.

    Returns
    -------
    list of list of int or None, shape (rows, nodes)
        The id of the job on each node in each row; None if the node is free in this row.
    """
    rows, nodes = int(state.counters["rows"][0]), len(state.memory)
    matrix: list[list[int | None]] = [[None] * nodes for _ in range(rows)]
    for slot in placed_slots(state):
        for row in range(rows):
            if int(state.jobs["rows"][slot]) >> row & 1:
                for column in columns_of(state, slot):
                    assert matrix[row][column] is None, "a node is taken twice in one row"
                    matrix[row][column] = int(state.jobs["job_id"][slot])
    return matrix


def check_matrix(state: GangSite) -> None:
    """Raise AssertionError if the state is inconsistent; the cycle is checked only if no decision is due."""
    matrix = matrix_of(state)
    counters = state.counters[0]
    closed = {node for node in range(len(state.memory)) if int(state.closed[node // WORD_BITS]) >> node % WORD_BITS & 1}
    assert len(state.memory) - len(closed) == counters["nodes"], "the nodes in service are miscounted"
    for row, nodes in enumerate(matrix):
        taken = [column for column, job_id in enumerate(nodes) if job_id is not None]
        assert len(taken) == state.used[row], "the nodes in use in a row are miscounted"
        assert len(closed.intersection(taken)) == state.shut[row], "the nodes in use and out of service are miscounted"
        bits = sum(int(word) << (number * WORD_BITS) for number, word in enumerate(state.taken[row].tolist()))
        assert bits & ((1 << len(state.memory)) - 1) == sum(1 << column for column in taken), (
            "the nodes marked as taken differ"
        )
    slots = placed_slots(state)
    memory = [0] * len(state.memory)
    for slot in slots:
        for column in columns_of(state, slot):
            memory[column] += int(state.jobs["memory"][slot])
    assert memory == state.memory.tolist(), "the memory that jobs hold in core is miscounted"
    assert max(memory) <= UNIT, "jobs of one column do not fit into its memory together"
    assert sorted(slots) == sorted(state.by_width[: len(slots)].tolist()), (
        "the jobs by width differ from the placed jobs"
    )
    for slot in slots:
        job = state.jobs[slot]
        assert len(columns_of(state, slot)) == job["width"], "a job lacks its nodes"
        assert int(job["rows"]) >> int(job["home"]) & 1, "a job is not in its home"
        if not counters["is_stirred"]:
            assert job["turns"] > 0, "a job has no turn in the cycle"
            ahead = [row for row in range(counters["rows"]) if int(job["rows"]) >> row & 1]
            latest = turns_until(state, job["last_row"])
            assert min(turns_until(state, row) for row in ahead) <= latest, "a job misses a cycle"


def gang_totals(state: GangSite) -> dict[str, float]:
    """Return the totals so far, for `gridweave.site.disciplines.gang.entry.gang_metrics`.

    ``lost``, ``lost_any``, ``migrated`` and ``switched`` are in node milliseconds; all other totals are counts.
    """
    counters = state.counters[0]
    names = ("lost", "lost_any", "migrated", "migrations", "tasks_migrated", "switched", "changes")
    return {name: float(counters[name]) for name in names}
