"""Slowdown models, with the paper's slowdown tables or a user's own (docs/sharing.md, "Slowdown").

Source: Sodan and Lan, *LOMARC: Lookahead Matchmaking for Multi-Resource Coscheduling* (below: the paper), sections 4.1,
4.2 and 6.1.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError, OptionError, check_known
from gridweave.site.disciplines.sharing.kernels.slowdown import MEASURED, PRINTED, WHOLE, SlowdownArrays

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

FORMULAS = {"whole": WHOLE, "printed": PRINTED, "measured": MEASURED}
"""The kernels' code for each formula, by name."""

PAGING = 2.5
"""Amount added to the slowdown if a node's memory is too small for its jobs (section 6.1)."""

MAX_SLOWDOWN = 1e6


@dataclass(frozen=True, eq=False)
class SlowdownTable:
    """The slowdowns of jobs that share a core, by the types of the two jobs.

    Parameters
    ----------
    name : str
        Name of the table in error messages.
    labels : tuple of str
        Names of the job types.
    slowdown : numpy.ndarray of float64, shape (sorts, sorts)
        Slowdown of a job of the row's type that shares a core with a job of the column's type, at least 1.

    Raises
    ------
    InputError
        If the table is not square, a label appears twice, or a cell is not a number from 1 to `MAX_SLOWDOWN`; the
        message names the cell's row and column.

    Examples
    --------
    >>> table = SlowdownTable("mine", ("a", "b"), [[1.2, 1.5], [1, 2]])
    >>> float(table.slowdown[0, 1])
    1.5
    >>> SlowdownTable("mine", ("a", "b"), [[1.2, 0.5], [1, 2]])
    Traceback (most recent call last):
    gridweave.errors.InputError: mine: row 'a', column 'b': slowdown 0.5 is not a number from 1 to 1,000,000
    """

    name: str
    labels: tuple[str, ...]
    slowdown: FloatArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", tuple(self.labels))
        sorts = len(self.labels)
        try:
            values = np.array(self.slowdown, np.float64)
        except (TypeError, ValueError):
            raise InputError(
                f"{self.name}: the rows of the table differ in length, or a cell is not a number"
            ) from None
        if not sorts or values.shape != (sorts, sorts):
            raise InputError(
                f"{self.name}: the table has shape {values.shape}; expected {sorts} by {sorts}, the number of labels"
            )
        if len(set(self.labels)) != sorts:
            raise InputError(f"{self.name}: a label appears twice among {', '.join(self.labels)}")
        for row, column in np.argwhere(~((values >= 1) & (values <= MAX_SLOWDOWN))):
            cell = f"row {self.labels[row]!r}, column {self.labels[column]!r}"
            raise InputError(
                f"{self.name}: {cell}: slowdown {values[row, column]:g} is not a number from 1 to {MAX_SLOWDOWN:,.0f}"
            )
        values.flags.writeable = False
        object.__setattr__(self, "slowdown", values)


def parse_table(text: str, name: str = "table") -> SlowdownTable:
    r"""Parse a slowdown table in CSV format; its first row and first column have the labels, in the same order.

    Parameters
    ----------
    name : str
        Name of the table in error messages, e.g. the file name.

    Raises
    ------
    InputError
        If the text is not in this format or a slowdown is below 1; the message names the line, or the row and column.

    Examples
    --------
    >>> parse_table(",cpu,disk\ncpu,1.6,1.1\ndisk,1.2,1.9\n").slowdown.tolist()
    [[1.6, 1.1], [1.2, 1.9]]
    """
    try:
        rows = [[cell.strip() for cell in cells] for cells in csv.reader(text.splitlines())]
    except csv.Error as error:
        raise InputError(f"{name}: is not a CSV table: {error}") from None
    lines = [(number, cells) for number, cells in enumerate(rows, start=1) if any(cells)]
    if not lines:
        raise InputError(f"{name}: is empty; the first line has the labels of the columns")
    labels = lines[0][1][1:]
    values: list[list[float]] = []
    for number, (label, *cells) in lines[1:]:
        if len(values) == len(labels) or label != labels[len(values)]:
            expected = labels[len(values)] if len(values) < len(labels) else "no further line"
            raise InputError(
                f"{name}:{number}: begins with {label!r}; expected {expected!r}, as in the order of the columns"
            )
        if len(cells) != len(labels):
            raise InputError(f"{name}:{number}: has {len(cells)} slowdowns; expected {len(labels)}, one per column")
        values.append(
            [
                _number(cell, f"{name}: row {label!r}, column {column!r}")
                for cell, column in zip(cells, labels, strict=True)
            ]
        )
    if len(values) != len(labels):
        raise InputError(f"{name}: has {len(values)} rows of slowdowns; expected {len(labels)}, one per column")
    return SlowdownTable(name, tuple(labels), np.array(values, np.float64))


def _number(cell: str, where: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise InputError(f"{where}: {cell!r} is not a number; expected a slowdown of at least 1") from None


CPU_KINDS = SlowdownTable("CPU kinds", ("integer", "float"), np.array([[1.4, 1.4], [1.4, 2.0]]))
"""CPU factors by kind of work (section 6.1): two floating-point programs slow each other down most."""

_TABLE_1_LABELS = (
    *("float+ 0", "int+ 0", "float+ 40k", "int+ 40k", "float+ 400k", "int+ 400k"),
    *("float* 0", "int* 0", "float* 80k", "int* 80k", "float* 400k", "int* 400k"),
)
_TWO_ALIKE = (2.1, 1.07, 1.0, 1.3, 1.5, 1.3, 1.6, 1.4, 1.1, 1.1, 1.7, 1.2)
_FLOAT_AND_INT = ((1.1, 1.0), (1.1, 1.0), (1.1, 1.0), (1.8, 1.4), (1.2, 1.1), (1.7, 1.4))


def _table_1() -> SlowdownTable:
    """Return Table 1. The paper measured each program with itself, and float with int for equal operations and data.

    Every other pair gets the larger of the slowdowns of its two programs when each is paired with itself.
    """
    alike = np.array(_TWO_ALIKE)
    values = np.maximum(alike[:, None], alike[None, :])
    for pair, (of_float, of_int) in enumerate(_FLOAT_AND_INT):
        values[2 * pair, 2 * pair + 1], values[2 * pair + 1, 2 * pair] = of_float, of_int
    return SlowdownTable("Table 1", _TABLE_1_LABELS, values)


def _from_upper(
    name: str, labels: tuple[str, ...], upper: Mapping[tuple[int, int], tuple[float, float]]
) -> SlowdownTable:
    """Complete a table whose upper triangle is printed in the paper; each cell has the row's and column's slowdowns."""
    values = np.zeros((len(labels), len(labels)))
    for (row, column), (of_row, of_column) in upper.items():
        values[row, column], values[column, row] = of_row, of_column
    return SlowdownTable(name, labels, values)


TABLE_1 = _table_1()
"""Slowdowns by computation: floating-point or integer, addition (+) or multiplication (*), bytes of cached data."""

TABLE_2 = _from_upper(
    "Table 2",
    ("0.4 200", "0.4 18000", "0.6 200", "0.6 18000"),
    {
        (0, 0): (1.1, 1.1), (0, 1): (1.2, 1.0), (0, 2): (1.1, 1.1), (0, 3): (1.3, 1.1),
        (1, 1): (1.1, 1.1), (1, 2): (1.0, 1.3), (1, 3): (1.1, 1.1),
        # (2, 3) is printed as "1.4 / 1/1"; the run times are 79 s and 64 s, versus 60 s alone, so we read 1.4 / 1.1.
        (2, 2): (1.2, 1.2), (2, 3): (1.4, 1.1), (3, 3): (1.1, 1.1),
    },
)  # fmt: skip
"""Slowdowns of communicating jobs, by fraction of communication and message size in bytes."""

TABLE_3 = _from_upper(
    "Table 3",
    ("communication 200", "communication 18000", "computation", "I/O"),
    {
        (0, 0): (1.4, 1.4), (0, 1): (1.7, 1.1), (0, 2): (1.0, 1.0), (0, 3): (1.0, 1.3),
        (1, 1): (1.3, 1.3), (1, 2): (1.0, 1.0), (1, 3): (1.1, 1.2),
        # (3, 3) is printed as "1.2 / 1.2 to 2.3 / 2.3"; we take the upper end.
        (2, 2): (1.1, 1.1), (2, 3): (1.0, 1.2), (3, 3): (2.3, 2.3),
    },
)  # fmt: skip
"""Slowdowns of jobs that only communicate (by message size in bytes), only compute, or only do I/O."""

TABLES = {"table-1": TABLE_1, "table-2": TABLE_2, "table-3": TABLE_3}
"""The paper's tables, by name."""

BOUND_LABELS = ("cpu", "network", "disk")
"""Labels of a user's table whose job types are the limiting resources."""

LARGE_MESSAGE = 18_000
"""Assumed message size in bytes for a job that does not state a message size."""


def bound_of(cpu: npt.ArrayLike, network: npt.ArrayLike, disk: npt.ArrayLike) -> IntArray:
    """Return the limiting resource of each job: 0 CPU, 1 network, 2 disk.

    It is the resource with the largest fraction; ties go to the first.

    Examples
    --------
    >>> bound_of([0.5, 0.2, 0.3], [0.5, 0.3, 0.4], [0.0, 0.5, 0.3]).tolist()
    [0, 2, 1]
    """
    parts = np.stack([np.asarray(fractions, np.float64) for fractions in (cpu, network, disk)])
    return np.asarray(np.argmax(parts, axis=0), np.int64)


def rows_of(table: SlowdownTable, columns: Mapping[str, npt.NDArray[np.generic]]) -> IntArray:
    """Return each job's row in a slowdown table.

    Parameters
    ----------
    table : SlowdownTable
        A table of the paper, or a table whose labels are `BOUND_LABELS` in any order.
    columns : mapping from str to numpy.ndarray, shape (n,)
        The workload's columns: the three fractions and, if known, ``cpu_kind``, ``cache_bytes`` and
        ``message_bytes``.

    Returns
    -------
    numpy.ndarray of int64, shape (n,)

    Raises
    ------
    InputError
        If the table has other labels, so that a job's row cannot be determined.

    Notes
    -----
    Table 1: integer or floating-point according to ``cpu_kind``, and the nearest amount of cached data; multiplication
    for 80k, which the paper only measured for multiplication, else addition. Table 2: the nearest fraction of
    communication, and the nearest message size on a logarithmic scale. Table 3: the job's limiting resource, and the
    nearest message size.
    """
    n = len(columns["cpu_fraction"])
    bound = bound_of(columns["cpu_fraction"], columns["network_fraction"], columns["disk_fraction"])
    message = np.maximum(1, columns.get("message_bytes", np.full(n, LARGE_MESSAGE)).astype(np.float64))
    large = (np.log(message) > (math.log(200) + math.log(18_000)) / 2).astype(np.int64)
    if table is TABLE_1:
        floats = columns.get("cpu_kind", np.zeros(n)).astype(np.int64) != 0
        cache = columns.get("cache_bytes", np.zeros(n)).astype(np.float64) / 1024
        pair = np.argmin(np.abs(cache[:, None] - np.array([0, 40, 400, 80])[None, :]), axis=1)
        return np.asarray(2 * np.array([0, 1, 2, 4])[pair] + ~floats, np.int64)
    if table is TABLE_2:
        return np.asarray(2 * (columns["network_fraction"].astype(np.float64) > 0.5) + large, np.int64)
    if table is TABLE_3:
        return np.asarray(np.where(bound == 0, 2, np.where(bound == 2, 3, large)), np.int64)
    if set(table.labels) == set(BOUND_LABELS):
        return np.array([table.labels.index(label) for label in BOUND_LABELS], np.int64)[bound]
    raise InputError(f"{table.name}: its labels are not {', '.join(BOUND_LABELS)}; give the row of every job")


@dataclass(frozen=True, eq=False)
class SlowdownModel:
    """How jobs that share a node slow each other down.

    Parameters
    ----------
    formula : {"whole", "printed", "measured"}
        "whole": the formula of section 4.1 plus the unshared part of the run time, as in the estimates of Table 2;
        "printed": the formula as printed; "measured": a table of measured slowdowns.
    cpu_factors : SlowdownTable
        Factors by which two kinds of CPU work slow each other down, by ``cpu_kind``, the index of a label; with
        `TABLE_1`, the cached data counts too.
    table : SlowdownTable
        Measured slowdowns, used by the formula "measured".
    paging : float
        Amount added to the slowdown if a node's memory is too small for its jobs, at least 0.

    Raises
    ------
    OptionError
        If the formula is unknown or `paging` is out of range.
    """

    formula: str = "whole"
    cpu_factors: SlowdownTable = CPU_KINDS
    table: SlowdownTable = TABLE_3
    paging: float = PAGING

    def __post_init__(self) -> None:
        check_known("formula", self.formula, FORMULAS)
        if not 0 <= self.paging <= MAX_SLOWDOWN:
            raise OptionError("paging", f"is {self.paging:g}; expected 0 to {MAX_SLOWDOWN:,.0f}")

    def arrays(self) -> SlowdownArrays:
        """Return the model in the form that the kernels read."""
        factors, measured = self.cpu_factors.slowdown.copy(), self.table.slowdown.copy()
        return SlowdownArrays(FORMULAS[self.formula], factors, measured, float(self.paging))

    def kinds_of(self, columns: Mapping[str, npt.NDArray[np.generic]]) -> IntArray:
        """Return each job's CPU kind, an index into `cpu_factors`; 0 for all jobs if there is no column ``cpu_kind``.

        The caller must check that every kind is in the table.
        """
        if self.cpu_factors is TABLE_1:
            return rows_of(TABLE_1, columns)
        return columns.get("cpu_kind", np.zeros(len(columns["cpu_fraction"]))).astype(np.int64)

    def sorts_of(
        self, columns: Mapping[str, npt.NDArray[np.generic]], rows: npt.ArrayLike | None = None
    ) -> dict[str, IntArray]:
        """Return each job's CPU kind, limiting resource, and row in the measured table.

        If `rows` is None, rows are derived from the columns (`rows_of`). They are 0 unless the formula is "measured".
        """
        bound = bound_of(columns["cpu_fraction"], columns["network_fraction"], columns["disk_fraction"])
        row = np.zeros(len(bound), np.int64)
        if self.formula == "measured":
            row = rows_of(self.table, columns) if rows is None else np.asarray(rows, np.int64)
        return {"cpu_kind": self.kinds_of(columns), "bound": bound, "row": row}
