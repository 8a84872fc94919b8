"""Slowdown models, the paper's tables of slowdowns, and tables of users (docs/sharing.md, "Slowdown").

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
"""The code of each formula in the kernels, by name."""

PAGING = 2.5
"""Added to the slowdown if the memory of a node is too small for its jobs (section 6.1)."""

MAX_SLOWDOWN = 1e6


@dataclass(frozen=True, eq=False)
class SlowdownTable:
    """The slowdowns of jobs that share a core, by the sorts of the two jobs.

    Parameters
    ----------
    name : str
        Name of the table in errors.
    labels : tuple of str
        Names of the sorts of jobs.
    slowdown : numpy.ndarray of float64, shape (sorts, sorts)
        Slowdown of a job of the row's sort that shares a core with a job of the column's sort, 1 or more.

    Raises
    ------
    InputError
        If the table is not square, a label appears twice, or a cell is not a number from 1 to `MAX_SLOWDOWN`; the
        message names the row and the column of the cell.

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
    r"""Read a table of slowdowns from CSV; the first row and the first column have the labels, in the same order.

    Parameters
    ----------
    name : str
        Name of the table in errors, e.g. its file.

    Raises
    ------
    InputError
        If the text is not such a table, or a slowdown is below 1; the message names the line, or the row and column.

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
"""CPU factors by kind of work (section 6.1): two floating point programs stretch each other most."""

_TABLE_1_LABELS = (
    *("float+ 0", "int+ 0", "float+ 40k", "int+ 40k", "float+ 400k", "int+ 400k"),
    *("float* 0", "int* 0", "float* 80k", "int* 80k", "float* 400k", "int* 400k"),
)
_TWO_ALIKE = (2.1, 1.07, 1.0, 1.3, 1.5, 1.3, 1.6, 1.4, 1.1, 1.1, 1.7, 1.2)
_FLOAT_AND_INT = ((1.1, 1.0), (1.1, 1.0), (1.1, 1.0), (1.8, 1.4), (1.2, 1.1), (1.7, 1.4))


def _table_1() -> SlowdownTable:
    """Return Table 1. The paper has pairs of equal programs, and float with int of the same operation and data.

    Every other pair gets the larger of the slowdowns that its two programs have when paired with themselves.
    """
    alike = np.array(_TWO_ALIKE)
    values = np.maximum(alike[:, None], alike[None, :])
    for pair, (of_float, of_int) in enumerate(_FLOAT_AND_INT):
        values[2 * pair, 2 * pair + 1], values[2 * pair + 1, 2 * pair] = of_float, of_int
    return SlowdownTable("Table 1", _TABLE_1_LABELS, values)


def _from_upper(
    name: str, labels: tuple[str, ...], upper: Mapping[tuple[int, int], tuple[float, float]]
) -> SlowdownTable:
    """Return a full table from the upper triangle that the paper prints; a cell has the slowdowns of row and column."""
    values = np.zeros((len(labels), len(labels)))
    for (row, column), (of_row, of_column) in upper.items():
        values[row, column], values[column, row] = of_row, of_column
    return SlowdownTable(name, labels, values)


TABLE_1 = _table_1()
"""Slowdowns by computation: floating point or integer, addition (+) or multiplication (*), and bytes of cached data."""

TABLE_2 = _from_upper(
    "Table 2",
    ("0.4 200", "0.4 18000", "0.6 200", "0.6 18000"),
    {
        (0, 0): (1.1, 1.1), (0, 1): (1.2, 1.0), (0, 2): (1.1, 1.1), (0, 3): (1.3, 1.1),
        (1, 1): (1.1, 1.1), (1, 2): (1.0, 1.3), (1, 3): (1.1, 1.1),
        # (2, 3) is printed as "1.4 / 1/1"; the run times are 79 s and 64 s, against 60 s alone, so we read 1.4 / 1.1.
        (2, 2): (1.2, 1.2), (2, 3): (1.4, 1.1), (3, 3): (1.1, 1.1),
    },
)  # fmt: skip
"""Slowdowns of communicating jobs, by the fraction of communication and the bytes of a message."""

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
"""Slowdowns of jobs that only communicate (by the bytes of a message), only compute, or only do I/O."""

TABLES = {"table-1": TABLE_1, "table-2": TABLE_2, "table-3": TABLE_3}
"""The tables of the paper, by name."""

BOUND_LABELS = ("cpu", "network", "disk")
"""Labels of a user's table whose sorts are the resources by which jobs are bound."""

LARGE_MESSAGE = 18_000
"""Assumed bytes of a message of a job that does not state its message size."""


def bound_of(cpu: npt.ArrayLike, network: npt.ArrayLike, disk: npt.ArrayLike) -> IntArray:
    """Return the resource by which each job is bound: 0 CPU, 1 network, 2 disk.

    That is the resource with the largest fraction; ties go to the first.

    Examples
    --------
    >>> bound_of([0.5, 0.2, 0.3], [0.5, 0.3, 0.4], [0.0, 0.5, 0.3]).tolist()
    [0, 2, 1]
    """
    parts = np.stack([np.asarray(fractions, np.float64) for fractions in (cpu, network, disk)])
    return np.asarray(np.argmax(parts, axis=0), np.int64)


def rows_of(table: SlowdownTable, columns: Mapping[str, npt.NDArray[np.generic]]) -> IntArray:
    """Return the row of a table for each job of a workload.

    Parameters
    ----------
    table : SlowdownTable
        A table of the paper, or one whose labels are `BOUND_LABELS` in any order.
    columns : mapping from str to numpy.ndarray, shape (n,)
        Columns of the workload: the three fractions, and, if known, ``cpu_kind``, ``cache_bytes`` and
        ``message_bytes``.

    Returns
    -------
    numpy.ndarray of int64, shape (n,)

    Raises
    ------
    InputError
        If the table has other labels, which do not determine the row of a job.

    Notes
    -----
    Table 1: integer or floating point by ``cpu_kind``, and the nearest amount of cached data; multiplication for 80k,
    which the paper measured only for multiplication, else addition. Table 2: the nearest fraction of communication and
    the nearest size of a message, on a logarithmic scale. Table 3: the resource by which a job is bound, and the
    nearest size of a message.
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
    """How jobs that share a node slow each other.

    Parameters
    ----------
    formula : {"whole", "printed", "measured"}
        "whole": the formula of section 4.1 plus the unshared part of the run time, as in the estimates of Table 2;
        "printed": that formula as printed; "measured": a table of measured slowdowns.
    cpu_factors : SlowdownTable
        Factors by which two kinds of CPU work stretch each other. The index of a label is a value of ``cpu_kind``; with
        `TABLE_1` the cached data counts too.
    table : SlowdownTable
        Measured slowdowns, for "measured".
    paging : float
        Added to the slowdown if the memory of a node is too small for its jobs, 0 or more.

    Raises
    ------
    OptionError
        If the formula is unknown, or paging is out of bounds.
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
        """Return the model as the kernels read it."""
        factors, measured = self.cpu_factors.slowdown.copy(), self.table.slowdown.copy()
        return SlowdownArrays(FORMULAS[self.formula], factors, measured, float(self.paging))

    def kinds_of(self, columns: Mapping[str, npt.NDArray[np.generic]]) -> IntArray:
        """Return the CPU kind of each job, an index into `cpu_factors`; 0 for all jobs without a column ``cpu_kind``.

        A kind may be out of the bounds of the table; the caller checks that.
        """
        if self.cpu_factors is TABLE_1:
            return rows_of(TABLE_1, columns)
        return columns.get("cpu_kind", np.zeros(len(columns["cpu_fraction"]))).astype(np.int64)

    def sorts_of(
        self, columns: Mapping[str, npt.NDArray[np.generic]], rows: npt.ArrayLike | None = None
    ) -> dict[str, IntArray]:
        """Return for each job its CPU kind, the resource by which it is bound, and its row of the measured table.

        If `rows` is None, the rows follow from the columns (`rows_of`). They are 0 if the formula is not "measured".
        """
        bound = bound_of(columns["cpu_fraction"], columns["network_fraction"], columns["disk_fraction"])
        row = np.zeros(len(bound), np.int64)
        if self.formula == "measured":
            row = rows_of(self.table, columns) if rows is None else np.asarray(rows, np.int64)
        return {"cpu_kind": self.kinds_of(columns), "bound": bound, "row": row}
