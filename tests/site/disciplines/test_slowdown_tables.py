"""Tables of measured slowdowns: the paper's, and the user's own."""

from __future__ import annotations

import numpy as np
import pytest

from gridweave.errors import InputError, OptionError
from gridweave.site.disciplines.sharing.slowdown_tables import (
    CPU_KINDS,
    TABLE_1,
    TABLE_2,
    TABLE_3,
    TABLES,
    SlowdownModel,
    SlowdownTable,
    bound_of,
    parse_table,
    rows_of,
)


def test_table_1_is_the_published_one() -> None:
    """Two alike, a float with the int of its sort, and else the larger of what two alike have."""
    at = {label: place for place, label in enumerate(TABLE_1.labels)}
    alike = np.diag(TABLE_1.slowdown).tolist()
    assert alike == [2.1, 1.07, 1, 1.3, 1.5, 1.3, 1.6, 1.4, 1.1, 1.1, 1.7, 1.2]
    assert TABLE_1.slowdown[at["float* 0"], at["int* 0"]] == 1.8
    assert TABLE_1.slowdown[at["int* 0"], at["float* 0"]] == 1.4
    assert TABLE_1.slowdown[at["float+ 400k"], at["int+ 400k"]] == 1.1
    assert TABLE_1.slowdown[at["float+ 0"], at["int* 80k"]] == 2.1


def test_tables_2_and_3_are_the_published_ones() -> None:
    """Each cell is the slowdown of the job of the row; a range stands with its upper end."""
    assert TABLE_2.slowdown.tolist() == [
        [1.1, 1.2, 1.1, 1.3],
        [1, 1.1, 1, 1.1],
        [1.1, 1.3, 1.2, 1.4],
        [1.1, 1.1, 1.1, 1.1],
    ]
    assert TABLE_3.slowdown.tolist() == [[1.4, 1.7, 1, 1], [1.1, 1.3, 1, 1.1], [1, 1, 1.1, 1], [1.3, 1.2, 1.2, 2.3]]
    assert all((table.slowdown >= 1).all() for table in TABLES.values())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        (",a,b\na,1,2\n", "has 1 rows of slowdowns; expected 2, one per column"),
        (",a,b\nb,1,2\na,1,1\n", r"mine:2: begins with 'b'; expected 'a', as in the order"),
        (",a\na,1\nb,2\n", "mine:3: begins with 'b'; expected 'no further line'"),
        (",a,b\na,1\nb,1,1\n", "mine:2: has 1 slowdowns; expected 2, one per column"),
        (",a,b\na,1,x\nb,1,1\n", "row 'a', column 'b': 'x' is not a number"),
        (",a,b\na,1,1\nb,0.99,1\n", r"row 'b', column 'a': slowdown 0\.99 is not a number from 1"),
        (",a,b\na,1,1\nb,nan,1\n", "row 'b', column 'a': slowdown nan"),
        (",a,a\na,1,1\na,1,1\n", "a label appears twice"),
    ],
)
def test_a_bad_table_is_refused_with_its_cell(text: str, problem: str) -> None:
    """The error says where and what would be right."""
    with pytest.raises(InputError, match=problem):
        parse_table(text, "mine")


def test_blank_lines_and_spaces_are_passed_over() -> None:
    """A table written by hand is read as it is meant."""
    table = parse_table("\n , a, b\na, 1, 1.5\n\nb ,2,1\n")
    assert table.labels == ("a", "b")
    assert table.slowdown.tolist() == [[1, 1.5], [2, 1]]


def test_what_is_no_csv_is_refused() -> None:
    """A cell of no end is no cell."""
    with pytest.raises(InputError, match="mine: is not a CSV table: field larger than field limit"):
        parse_table("x" * 200_000, "mine")


def test_a_table_is_square() -> None:
    """Arrays of another shape, or ragged ones, are refused."""
    with pytest.raises(InputError, match=r"has shape \(1, 2\)"):
        SlowdownTable("mine", ("a", "b"), np.ones((1, 2)))
    with pytest.raises(InputError, match="differ in length"):
        SlowdownTable("mine", ("a", "b"), [[1.0], [1.0, 2.0]])  # type: ignore[arg-type]  # the point of the test


def test_a_bad_model_is_refused() -> None:
    """A formula that is none, and paging that speeds jobs up."""
    with pytest.raises(OptionError, match=r"formula: 'whoel' is not known; one of whole, printed, measured"):
        SlowdownModel(formula="whoel")
    with pytest.raises(OptionError, match="paging: is -1"):
        SlowdownModel(paging=-1)


def test_ties_of_fractions_go_to_the_cpu_then_the_network() -> None:
    """A job is bound by its largest fraction."""
    assert bound_of([0.4, 0.2, 1 / 3], [0.4, 0.4, 1 / 3], [0.2, 0.4, 1 / 3]).tolist() == [0, 1, 0]


def test_rows_of_the_published_tables() -> None:
    """Kind and cache for Table 1, communication for Table 2, what a job is bound by for Table 3."""
    columns: dict[str, np.ndarray] = {
        "cpu_fraction": np.array([0.8, 0.2, 0.1, 0.3]),
        "network_fraction": np.array([0.1, 0.7, 0.1, 0.5]),
        "disk_fraction": np.array([0.1, 0.1, 0.8, 0.2]),
        "cpu_kind": np.array([1, 0, 1, 0]),
        "cache_bytes": np.array([0, 80, 400, 40]) * 1024,
        "message_bytes": np.array([200, 200, 18_000, 10_000]),
    }
    assert [TABLE_1.labels[row] for row in rows_of(TABLE_1, columns)] == [
        "float+ 0",
        "int* 80k",
        "float+ 400k",
        "int+ 40k",
    ]
    assert [TABLE_2.labels[row] for row in rows_of(TABLE_2, columns)] == [
        "0.4 200",
        "0.6 200",
        "0.4 18000",
        "0.4 18000",
    ]
    bound = [TABLE_3.labels[row] for row in rows_of(TABLE_3, columns)]
    assert bound == ["computation", "communication 200", "I/O", "communication 18000"]
    with pytest.raises(InputError, match="give the row of every job"):
        rows_of(SlowdownTable("mine", ("a",), np.ones((1, 1))), columns)


def test_the_kinds_of_the_paper_go_well_or_poorly() -> None:
    """1.4 and 2, the two cases of section 6.1."""
    assert CPU_KINDS.slowdown.tolist() == [[1.4, 1.4], [1.4, 2.0]]
