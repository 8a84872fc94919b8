"""The interface between the compiled simulation loop and disciplines that decide in kernels.

The loop (`gridweave.scenarios.batch.kernels.loop`) is independent of all disciplines. A discipline's entry may have a
`Compiled`, which turns a workload into the state and rules of a site that is ready to be simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gridweave.site.kernels.chunks import NodeArrays
from gridweave.site.kernels.dispatch import Evictions, RateRules, SiteRules
from gridweave.site.kernels.order import order_keys
from gridweave.site.resources.chunks import Chunk

Ints = npt.NDArray[np.int64]


class Jobs(Protocol):
    """A workload as seen by a discipline: jobs in submit order, as arrays of shape (n,), with times in ms."""

    @property
    def name(self) -> str:
        """Name of the workload, for error messages."""

    @property
    def job_id(self) -> Ints:
        """Id of each job."""

    @property
    def submit_ms(self) -> Ints:
        """Submit time of each job."""

    @property
    def width(self) -> Ints:
        """Number of nodes that each job needs."""

    @property
    def estimate_ms(self) -> Ints:
        """Estimate of each job, i.e. how long the job may run at full speed."""

    @property
    def columns(self) -> Mapping[str, npt.NDArray[Any]]:
        """The other columns of the workload, by name."""

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """The chunks to which the column ``chunk`` refers."""

    def __len__(self) -> int:
        """Return the number of jobs."""


class OwnFigures(NamedTuple):
    """The results that a discipline reports in addition to each job's start and end.

    Attributes
    ----------
    columns : mapping from str to numpy.ndarray, shape (simulated jobs,)
        Figures of the simulated jobs, by column (`Traits.columns`).
    totals : mapping from str to float
        Totals of the run, for `Entry.metrics`.
    own : object, optional
        The discipline's own results, available to users as ``result.own``.
    """

    columns: Mapping[str, npt.NDArray[Any]] = {}
    totals: Mapping[str, float] = {}
    own: Any = None


@dataclass(frozen=True, kw_only=True)
class CompiledSite:
    """An idle site whose job table is filled in.

    Attributes
    ----------
    rows : numpy.ndarray of int64
        Workload rows of the simulated jobs, i.e. of all jobs that are not refused, in submit order.
    refused : mapping from int to str
        The reasons why all other jobs can never start, by job id.
    state : named tuple of arrays
        The state that the rules change; its table ``jobs`` has a row for each simulated job.
    rules : SiteRules or RateRules
        Rules with kernels as methods.
    is_paced : bool
        Whether the rules are `RateRules`, with which the rates of jobs change.
    capacity : int
        Maximum number of jobs that may run at the same time.
    figures : callable
        Returns the `OwnFigures` of the simulation so far.
    keys_at : callable, optional
        Takes a time; returns the sort key that each simulated job would have if it were submitted at this time. The
        site's nodes may fail only if this is set.
    evictions : Evictions, optional
        Filled in by each pass with the jobs that it evicts; None if the discipline never evicts. Not with `is_paced`.
    nodes : NodeArrays, optional
        The site's nodes, if the site counts resources.
    options : mapping from str, optional
        Description of the policy in the result, as plain values; None: the policy itself.
    """

    rows: Ints
    refused: Mapping[int, str]
    state: Any
    rules: SiteRules | RateRules
    is_paced: bool = False
    capacity: int
    figures: Callable[[], OwnFigures] = OwnFigures
    keys_at: Callable[[int], npt.NDArray[np.float64]] | None = None
    evictions: Evictions | None = None
    nodes: NodeArrays | None = None
    options: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A discipline's description for the compiled loop.

    Attributes
    ----------
    site : callable
        Takes the number of nodes, the policy, the `Jobs`, a function that returns the site's `WeekClock` (called only
        if the policy needs the local time), and, as keyword arguments, the given ``inputs``. Returns a `CompiledSite`.
    supports : callable
        Takes a policy; returns whether the loop can simulate it. Other policies are stepped. Default: all policies.
    nodes_may_fail : bool
        Whether the sites have ``keys_at``.
    counts_resources : bool
        Whether the sites know the column ``chunk``: they count resources or refuse jobs that ask for parts of nodes.
    inputs : tuple of str
        Names of the arguments of `gridweave.simulate` that belong to this discipline.
    chunk : int
        Number of jobs simulated between progress reports; should take about a tenth of a second.
    """

    site: Callable[..., CompiledSite]
    supports: Callable[[Any], bool] = field(default=lambda policy: True)
    nodes_may_fail: bool = False
    counts_resources: bool = False
    inputs: tuple[str, ...] = ()
    chunk: int = 2_000


def rows_without(jobs: Jobs, refused: Iterable[int]) -> Ints:
    """Return the rows of the jobs that are not refused."""
    return np.flatnonzero(~np.isin(jobs.job_id, list(refused)))


def enter_jobs(table: npt.NDArray[np.void], jobs: Jobs, rows: Ints) -> None:
    """Fill in the fields that all job tables have in common, one slot per job, in submit order."""
    for name in ("submit_ms", "job_id", "width", "estimate_ms"):
        table[name] = getattr(jobs, name)[rows]


def fill_jobs(table: npt.NDArray[np.void], jobs: Jobs, rows: Ints, order: str, *, aging_ms: float = np.inf) -> None:
    """Fill in a table of `gridweave.site.kernels.state.JOB`, one slot per job, in submit order.

    Parameters
    ----------
    table : numpy.ndarray of JOB, shape (rows,)
        All fields except the limits are filled in.
    jobs : Jobs
    rows : numpy.ndarray of int64
        Rows of the jobs to fill in.
    order : str
        Queue order.
    aging_ms : float
        Aging time, for the order ``priority``.
    """
    enter_jobs(table, jobs, rows)
    table["key"] = keys_of(jobs, rows, order, table["submit_ms"], aging_ms=aging_ms)


def keys_of(
    jobs: Jobs, rows: Ints, order: str, submit_ms: npt.ArrayLike, *, aging_ms: float = np.inf
) -> npt.NDArray[np.float64]:
    """Return the queue's sort keys, shape (rows,), for jobs that are submitted at these times."""
    columns = jobs.columns
    return order_keys(
        order,
        submit_ms=submit_ms,
        width=jobs.width[rows],
        estimate_ms=jobs.estimate_ms[rows],
        weight=columns["weight"][rows] if "weight" in columns else 1.0,
        priority=columns["priority"][rows] if "priority" in columns else 0.0,
        aging_ms=aging_ms,
    )
