"""The interface between the compiled loop of simulations and disciplines that decide with kernels.

The loop (`gridweave.scenarios.batch.kernels.loop`) knows no discipline. An entry of the dictionary may have a
`Compiled`, which turns a workload into a site that is ready to be simulated: its state and its rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gridweave.site.kernels.dispatch import Evictions, RateRules, SiteRules
from gridweave.site.kernels.order import order_keys

Ints = npt.NDArray[np.int64]


class Jobs(Protocol):
    """The workload for a discipline: jobs in the order of submission, in arrays of shape (n,), with times in ms."""

    @property
    def name(self) -> str:
        """Name of the workload in errors."""

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
        """Estimate of each job: how long it may run at full speed."""

    @property
    def columns(self) -> Mapping[str, npt.NDArray[Any]]:
        """Other columns of the jobs, by name."""

    def __len__(self) -> int:
        """Return the number of jobs."""


class OwnFigures(NamedTuple):
    """Results of a discipline in addition to the start and end of each job.

    Attributes
    ----------
    columns : mapping from str to numpy.ndarray, shape (simulated jobs,)
        Figures of each simulated job, by `Traits.columns`.
    totals : mapping from str to float
        Totals of the run, for `Entry.metrics`.
    own : object, optional
        The value of ``result.own`` for users.
    """

    columns: Mapping[str, npt.NDArray[Any]] = {}
    totals: Mapping[str, float] = {}
    own: Any = None


@dataclass(frozen=True, kw_only=True)
class CompiledSite:
    """An idle site with its table of jobs filled in.

    Attributes
    ----------
    rows : numpy.ndarray of int64
        Rows of the simulated jobs in the workload: all that are not refused, in the order of submission.
    refused : mapping from int to str
        Why each of the other jobs can never start, by job id.
    state : named tuple of arrays
        State on which the rules work; its table ``jobs`` has a row for each simulated job.
    rules : SiteRules or RateRules
        Rules with kernels as methods.
    is_paced : bool
        Whether the rules are `RateRules`, under which the rates of jobs change.
    capacity : int
        Most jobs that may run at once.
    figures : callable
        Returns the `OwnFigures` of the simulation so far.
    keys_at : callable, optional
        Takes an instant; returns the sort key of each simulated job if it were submitted then. Nodes of a site may fail
        only if this is set.
    evictions : Evictions, optional
        Filled by each pass with the jobs that it evicts; None if the discipline evicts none. Not with `is_paced`.
    options : mapping from str, optional
        Description of the policy for the result, as plain values; None: the policy itself.
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
    options: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """The description of a discipline for the compiled loop.

    Attributes
    ----------
    site : callable
        Takes the nodes, the policy, the `Jobs`, a function that returns the `WeekClock` of the site (called only if the
        policy needs the local time), and by name those of ``inputs`` that were given. Returns a `CompiledSite`.
    supports : callable
        Takes a policy; returns whether the loop can simulate it. Other policies are stepped. Default: all.
    nodes_may_fail : bool
        Whether sites have ``keys_at``.
    inputs : tuple of str
        Names of the arguments of `gridweave.simulate` that are for this discipline.
    chunk : int
        Jobs that are simulated between reports of progress: about a tenth of a second.
    """

    site: Callable[..., CompiledSite]
    supports: Callable[[Any], bool] = field(default=lambda policy: True)
    nodes_may_fail: bool = False
    inputs: tuple[str, ...] = ()
    chunk: int = 2_000


def rows_without(jobs: Jobs, refused: Iterable[int]) -> Ints:
    """Return the rows of the jobs that are not refused."""
    return np.flatnonzero(~np.isin(jobs.job_id, list(refused)))


def enter_jobs(table: npt.NDArray[np.void], jobs: Jobs, rows: Ints) -> None:
    """Fill the fields that all tables of jobs have, one slot per job, in the order of submission."""
    for name in ("submit_ms", "job_id", "width", "estimate_ms"):
        table[name] = getattr(jobs, name)[rows]


def fill_jobs(table: npt.NDArray[np.void], jobs: Jobs, rows: Ints, order: str, *, aging_ms: float = np.inf) -> None:
    """Fill a table of `gridweave.site.kernels.state.JOB`, one slot per job, in the order of submission.

    Parameters
    ----------
    table : numpy.ndarray of JOB, shape (rows,)
        Filled in, except for the limits.
    jobs : Jobs
    rows : numpy.ndarray of int64
        Rows of the jobs to fill in.
    order : str
        Order of the queue.
    aging_ms : float
        Aging of the order ``priority``.
    """
    enter_jobs(table, jobs, rows)
    table["key"] = keys_of(jobs, rows, order, table["submit_ms"], aging_ms=aging_ms)


def keys_of(
    jobs: Jobs, rows: Ints, order: str, submit_ms: npt.ArrayLike, *, aging_ms: float = np.inf
) -> npt.NDArray[np.float64]:
    """Return the sort keys of jobs in a queue if they are submitted at these instants; shape (rows,)."""
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
