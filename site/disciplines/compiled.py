"""How a discipline whose decisions are kernels is played by the compiled loop of simulations.

The loop (`gridweave.scenarios.batch.kernels.loop`) knows no discipline. An entry of the dictionary may bring a
`Compiled`; that makes of a workload a site that is ready to be played: its state, and the rules by which it goes on.
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
    """A workload, as a discipline sees it: jobs in the order of submission; arrays of shape (n,), times in ms."""

    @property
    def name(self) -> str:
        """What errors call it."""

    @property
    def job_id(self) -> Ints:
        """Their ids."""

    @property
    def submit_ms(self) -> Ints:
        """When each is submitted."""

    @property
    def width(self) -> Ints:
        """How many nodes each needs."""

    @property
    def estimate_ms(self) -> Ints:
        """How long each may run."""

    @property
    def columns(self) -> Mapping[str, npt.NDArray[Any]]:
        """What else is known of each, by name."""

    def __len__(self) -> int:
        """Return how many jobs there are."""


class OwnFigures(NamedTuple):
    """What a discipline tells of a run besides when jobs ran.

    Attributes
    ----------
    columns : mapping from str to numpy.ndarray, shape (played jobs,)
        Of each job that was played, under the names `Entry.columns`.
    totals : mapping from str to float
        What it has counted, for `Entry.metrics`.
    own : object, optional
        What users find as ``result.own``.
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
        Which jobs of the workload are played: those that are not refused, in the order of submission.
    refused : mapping from int to str
        Why the others can never start, by their ids.
    state : named tuple of arrays
        As the rules have it; its table ``jobs`` has a row for each job that is played.
    rules : SiteRules or RateRules
        With kernels as methods.
    is_paced : bool
        Whether they are `RateRules`, under which rates change.
    room : int
        How many jobs may run at once.
    figures : callable
        Returns the `OwnFigures` of what has been played.
    keys_at : callable, optional
        Takes an instant; returns what each job that is played would be sorted by if it were submitted then. Nodes may
        fail at a site that has it.
    evictions : Evictions, optional
        What passes evict, if they may; jobs run at full speed then.
    options : mapping from str, optional
        What the result is to say of the policy, as plain values; the policy itself if left out.
    """

    rows: Ints
    refused: Mapping[int, str]
    state: Any
    rules: SiteRules | RateRules
    is_paced: bool = False
    room: int
    figures: Callable[[], OwnFigures] = OwnFigures
    keys_at: Callable[[int], npt.NDArray[np.float64]] | None = None
    evictions: Evictions | None = None
    options: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What the compiled loop has to know of a discipline.

    Attributes
    ----------
    site : callable
        Takes the nodes, the policy, the `Jobs`, and a function that returns the local time of instant zero from Monday
        00:00 in ms, to be called if that is needed; and by name what of ``inputs`` was given. Returns a `CompiledSite`.
    plays : callable
        Whether the loop can play a policy; it plays all if left out. A core is stepped for others.
    nodes_may_fail : bool
        Whether sites have ``keys_at``.
    inputs : tuple of str
        Which arguments of `gridweave.simulate` are for this discipline.
    piece : int
        Jobs that are played before progress is reported: about a tenth of a second.
    """

    site: Callable[..., CompiledSite]
    plays: Callable[[Any], bool] = field(default=lambda policy: True)
    nodes_may_fail: bool = False
    inputs: tuple[str, ...] = ()
    piece: int = 2_000


def rows_without(jobs: Jobs, refused: Iterable[int]) -> Ints:
    """Return the rows of the jobs whose ids are not among these."""
    return np.flatnonzero(~np.isin(jobs.job_id, list(refused)))


def enter_jobs(table: npt.NDArray[np.void], jobs: Jobs, rows: Ints) -> None:
    """Enter what every table of jobs has of these jobs, one slot each, in the order of submission."""
    for name in ("submit_ms", "job_id", "width", "estimate_ms"):
        table[name] = getattr(jobs, name)[rows]


def fill_jobs(table: npt.NDArray[np.void], jobs: Jobs, rows: Ints, order: str, *, aging_ms: float = np.inf) -> None:
    """Enter jobs into a table of `gridweave.site.kernels.state.JOB`, one slot each, in the order of submission.

    Parameters
    ----------
    table : numpy.ndarray of JOB, shape (rows,)
        Filled in, but for the limits.
    jobs : Jobs
    rows : numpy.ndarray of int64
        The jobs to enter.
    order : str
        Of the queue.
    aging_ms : float
        For the order ``priority``.
    """
    enter_jobs(table, jobs, rows)
    table["key"] = keys_of(jobs, rows, order, table["submit_ms"], aging_ms=aging_ms)


def keys_of(
    jobs: Jobs, rows: Ints, order: str, submit_ms: npt.ArrayLike, *, aging_ms: float = np.inf
) -> npt.NDArray[np.float64]:
    """Return by what jobs stand in a queue if they are submitted at these instants; shape (rows,)."""
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
