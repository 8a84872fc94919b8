"""The job table: the input of every simulation, read from a file or generated."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError, not_installed, not_known
from gridweave.site.job import MAX_TIME_MS, MAX_WIDTH
from gridweave.site.kernels.parts import GROUP_COLUMNS
from gridweave.site.resources.chunks import Chunk

if TYPE_CHECKING:
    import pandas


class MadeAnew:
    """Base class for frozen dataclasses that `copy` and `pickle` rebuild by calling the constructor.

    Read-only dictionary views cannot be pickled, and arrays lose their read-only flag in a pickle. The constructor
    makes both read-only again and repeats the checks.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the constructor call that rebuilds the object, for `copy` and `pickle`."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        plain = {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}
        return _made, (type(self), plain)


def _made(kind: type[Any], fields: dict[str, Any]) -> Any:
    return kind(**fields)


__all__ = ["MAX_TIME_MS", "MAX_WIDTH", "MS_PER_S", "OPTIONAL_COLUMNS", "BoolArray", "IntArray", "Workload"]

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

MS_PER_S = 1000

FIXED_COLUMNS = ("job_id", "submit_ms", "width", "estimate_ms", "run_ms", "overran")
"""The columns of every workload."""

FRACTION_COLUMNS = (
    *("cpu_fraction", "network_fraction", "disk_fraction", "memory_fraction"),
    *("communication_fraction", "cpu_need"),
    *(name for names in GROUP_COLUMNS for name in names[1:]),
)
"""Optional columns with values from 0 to 1.

Some are fractions of a job's run time: spent on each resource, or on communication when the job runs on a single site.
The others are the fractions of a node's memory and CPU that a task can use.
"""

FLOAT_COLUMNS = ("weight", *FRACTION_COLUMNS)

OPTIONAL_COLUMNS = (
    *("user", "group", "job_class", "partition", "priority", *FLOAT_COLUMNS),
    *("cpu_kind", "cache_bytes", "message_bytes", "pattern", "memory_kb", "requested_memory_kb"),
    *("input_bytes", "input_site", "output_bytes", "output_site", "cancel_ms", "chunk"),
    *(names[0] for names in GROUP_COLUMNS),
)


@dataclass(frozen=True, eq=False, slots=True)
class Workload(MadeAnew):
    """Jobs in submit order, with one numpy array per property.

    Parameters
    ----------
    job_id : numpy.ndarray of int64, shape (n,)
        Unique ids, all >= 0.
    submit_ms : numpy.ndarray of int64, shape (n,)
        Submit times, ascending; jobs with the same submit time are in ascending order of their ids.
    width : numpy.ndarray of int64, shape (n,)
        Numbers of nodes, >= 1.
    estimate_ms : numpy.ndarray of int64, shape (n,)
        Run time estimates, > 0; a job is killed when it reaches its estimate.
    run_ms : numpy.ndarray of int64, shape (n,)
        Run times, > 0 and at most the estimate.
    overran : numpy.ndarray of bool, shape (n,), optional
        Whether the run time exceeded the estimate and was truncated to it; such a job is killed at its estimate.
    columns : mapping from str to numpy.ndarray, shape (n,), optional
        Columns with names from `OPTIONAL_COLUMNS`; float64 for names in `FLOAT_COLUMNS`, int64 for all others.
    nodes : int, optional
        Number of nodes of the machine on which the workload was recorded.
    name : str
        Name used in reports and error messages.
    start_unix_s : int, optional
        Unix time of the workload's time zero, in seconds.
    timezone : str, optional
        IANA name of the machine's time zone, for calendar months and times of day.
    chunks : tuple of Chunk
        The chunks that jobs ask for. The column ``chunk`` has an index into them for each job; -1 means whole nodes.

    Raises
    ------
    InputError
        If a value breaks one of these rules; the message names the job and the field.

    Notes
    -----
    If a policy ranks jobs equally, the order of the table decides, i.e. by submit time and then by job id.
    """

    job_id: IntArray
    submit_ms: IntArray
    width: IntArray
    estimate_ms: IntArray
    run_ms: IntArray
    overran: BoolArray = field(default_factory=lambda: np.zeros(0, np.bool_))
    columns: Mapping[str, npt.NDArray[np.generic]] = field(default_factory=dict)
    nodes: int | None = None
    name: str = "workload"
    start_unix_s: int | None = None
    timezone: str | None = None
    chunks: tuple[Chunk, ...] = ()

    def __post_init__(self) -> None:
        for name in ("job_id", "submit_ms", "width", "estimate_ms", "run_ms"):
            object.__setattr__(self, name, _frozen(self._whole(name, getattr(self, name))))
        n = len(self.job_id)
        overran = self.overran if len(self.overran) or not n else np.zeros(n, np.bool_)
        object.__setattr__(self, "overran", _frozen(np.asarray(overran, np.bool_)))
        columns = {
            name: _frozen(self._real(name, values) if name in FLOAT_COLUMNS else self._whole(name, values))
            for name, values in sorted(self.columns.items())
        }
        object.__setattr__(self, "columns", MappingProxyType(columns))
        self._check(n)

    def __len__(self) -> int:
        return len(self.job_id)

    def _whole(self, name: str, values: npt.ArrayLike) -> IntArray:
        """Convert values to int64; raise InputError if a value is text, not whole, or does not fit into 64 bits."""
        numbers: npt.NDArray[Any] = self._numbers(name, values)
        if numbers.dtype.kind == "f":
            self._refuse_at(name, numbers, ~(np.abs(numbers) < 2**63) | (numbers != np.floor(numbers)))
        elif numbers.dtype.kind == "u":
            self._refuse_at(name, numbers, numbers > np.iinfo(np.int64).max)
        return numbers.astype(np.int64, copy=False)

    def _real(self, name: str, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
        return self._numbers(name, values).astype(np.float64, copy=False)

    def _numbers(self, name: str, values: npt.ArrayLike) -> npt.NDArray[np.generic]:
        try:
            numbers = np.asarray(values)
        except ValueError:  # lists of different lengths
            numbers = np.asarray(None)
        if numbers.dtype.kind not in "biuf":
            first = numbers.ravel()[:1].tolist()[0]
            raise InputError(f"{self.name}: {name} holds {first!r:.50}; numbers of at most 64 bits only")
        return numbers

    def _refuse_at(self, name: str, values: npt.NDArray[np.generic], wrong: BoolArray) -> None:
        if wrong.any():
            row = int(np.argmax(wrong))
            raise InputError(
                f"{self.name}: {name}[{row}] is {values[row]}; expected whole numbers, with times in milliseconds"
            )

    def _check(self, n: int) -> None:
        unknown = sorted(set(self.columns) - set(OPTIONAL_COLUMNS))
        if unknown:
            raise InputError(f"{self.name}: column {not_known(unknown[0], OPTIONAL_COLUMNS)}")
        for name, values in self._all_columns():
            if values.shape != (n,):
                raise InputError(f"{self.name}: {name} has shape {values.shape}, job_id has ({n},)")
        self._check_range("job_id", self.job_id, 0, np.iinfo(np.int64).max)
        self._check_range("submit_ms", self.submit_ms, 0, MAX_TIME_MS)
        self._check_range("width", self.width, 1, MAX_WIDTH)
        self._check_range("estimate_ms", self.estimate_ms, 1, MAX_TIME_MS)
        self._check_range("run_ms", self.run_ms, 1, MAX_TIME_MS)
        for name in FRACTION_COLUMNS:
            if name in self.columns:
                fraction = np.asarray(self.columns[name], np.float64)
                self.refuse(name, ~((fraction >= 0) & (fraction <= 1)), "is not within 0 to 1")
        if "weight" in self.columns:
            weight = np.asarray(self.columns["weight"], np.float64)
            self.refuse("weight", ~((weight > 0) & (weight < np.inf)), "is not a weight; expected a number above 0")
        if "chunk" in self.columns:
            self._check_chunks()
        self.refuse("run_ms", self.run_ms > self.estimate_ms, "is longer than the estimate; cut it there")
        self._check_order(n)
        if self.nodes is not None and self.nodes < 1:
            raise InputError(f"{self.name}: nodes is {self.nodes}; expected at least 1")

    def _check_chunks(self) -> None:
        chunk = self.columns["chunk"].astype(np.int64)
        self.refuse("chunk", (chunk < -1) | (chunk >= len(self.chunks)), f"is not -1 to {len(self.chunks) - 1}")
        per_node = np.array([chunk.per_node or 1 for chunk in self.chunks] + [1], np.int64)[chunk]
        self.refuse("width", self.width % per_node != 0, "is not a multiple of its chunks per node")

    def _check_order(self, n: int) -> None:
        later = np.zeros(n, np.bool_)
        step = np.diff(self.submit_ms)
        later[1:] = (step < 0) | ((step == 0) & (np.diff(self.job_id) <= 0))
        self.refuse("submit_ms", later, "is out of order; sort by submit time, then by job id")
        repeated = repeated_id(self.job_id)
        if repeated is not None:
            raise InputError(f"{self.name}: job {repeated}: job_id appears twice; ids are unique")

    def _all_columns(self) -> Iterator[tuple[str, npt.NDArray[np.generic]]]:
        for name in FIXED_COLUMNS:
            yield name, getattr(self, name)
        yield from self.columns.items()

    def _check_range(self, name: str, values: IntArray, low: int, high: int) -> None:
        self.refuse(name, (values < low) | (values > high), f"is not within {low} to {high}")

    def refuse(self, name: str, wrong: BoolArray, problem: str) -> None:
        """Raise InputError for the first job whose value in a column is wrong, if any.

        Parameters
        ----------
        name : str
            Name of the column.
        wrong : numpy.ndarray of bool, shape (n,)
        problem : str
            What is wrong with the value; the error message consists of the value and this text.
        """
        if wrong.any():
            row = int(np.argmax(wrong))
            value = (self.columns[name] if name in self.columns else getattr(self, name))[row]
            raise InputError(f"{self.name}: job {self.job_id[row]}: {name} {value} {problem}")

    def take(self, rows: npt.NDArray[np.integer] | BoolArray, **changes: object) -> Workload:
        """Return a workload that consists of the given rows.

        Parameters
        ----------
        rows : numpy.ndarray
            Row numbers, or a mask of shape (n,). Rows may be repeated or reordered if `changes` makes the ids unique
            and restores the submit order.
        **changes
            Fields of this class and their new values for the chosen rows.
        """
        fixed = {column: getattr(self, column)[rows] for column in FIXED_COLUMNS}
        columns = {column: values[rows] for column, values in self.columns.items()}
        return self.replace(**{**fixed, "columns": columns, **changes})

    def replace(self, **changes: object) -> Workload:
        """Return a copy with some fields changed; the copy is checked like a new workload.

        Parameters
        ----------
        **changes
            Fields of this class and their new values.
        """
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]  # the new object checks its fields


def repeated_id(job_id: IntArray) -> int | None:
    """Return the smallest id that occurs more than once, or None.

    Parameters
    ----------
    job_id : numpy.ndarray of int64, shape (n,)
        In any order.

    Returns
    -------
    int or None
        None if all ids are unique.
    """
    if (job_id[1:] > job_id[:-1]).all():  # true for almost every trace
        return None
    ordered = np.sort(job_id)  # numpy.unique would use several times as much memory for its hash table
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    return int(repeated[0]) if len(repeated) else None


def _frozen(values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Return a contiguous, read-only view, since workloads are shared between simulations."""
    values = np.ascontiguousarray(values)
    view = values.view()
    view.flags.writeable = False
    return view


def data_frame(columns: Mapping[str, Any], *, extra: str = "pandas") -> pandas.DataFrame:
    """Convert columns to a pandas DataFrame.

    Parameters
    ----------
    extra : str, optional
        The gridweave extra that installs pandas, for the error message.

    Raises
    ------
    UnavailableError
        If pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise not_installed("pandas", extra) from None
    return pd.DataFrame(columns)
