"""Simulate a grid under full control: check the arguments, run the compiled loop, and convert the results."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError, OptionError
from gridweave.grid.kernels.placement import GridCodes
from gridweave.grid.kernels.resources import CountedSite
from gridweave.grid.kernels.state import FRAGMENT, GridState, empty_counted_grid, empty_grid
from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.batch.grid_chunks import (
    GridSite,
    check_counts,
    counted_sites,
    fill_requests,
    most_chunks,
    rows_by_chunk,
)
from gridweave.scenarios.batch.grid_network import WHY_UNPLACEABLE, GridLoop, GridNet, GridOutcome
from gridweave.scenarios.batch.kernels.loop import longest_ms
from gridweave.scenarios.batch.one_site import SiteRun, cancelled_in
from gridweave.scenarios.results.schedule import NEVER, Placement, SimulationResult
from gridweave.scenarios.workload.table import MAX_TIME_MS, MAX_WIDTH, BoolArray, IntArray, Workload
from gridweave.site.disciplines.compiled import fill_jobs
from gridweave.site.policy import SitePolicy

_LAST_MS = 2**62

_Number = TypeVar("_Number", np.int64, np.float64)


def simulate_full_control(
    workload: Workload,
    nodes: Sequence[GridSite],
    policy: GridPolicy,
    *,
    home: npt.ArrayLike | None = None,
    rng: np.random.Generator | None = None,
    sensitivity: npt.ArrayLike | None = None,
    net: GridNet | None = None,
) -> SimulationResult:
    """Simulate a grid under full control; see `gridweave.scenarios.batch.simulate.simulate_grid`."""
    counted = counted_sites(nodes)
    sites = checked_sites(nodes if counted is None else [site.nodes for site in counted])
    if policy.tuning is not None:
        raise OptionError("tuning", "of the queue needs the simulated world; run a scenario")
    sensitivities = checked_sensitivity(sensitivity, len(workload))
    if counted is not None:
        check_counts(policy, net)
    if net is not None:
        net.check(sites, policy)
    if policy.mode == "local":
        return _simulate_local(workload, sites, policy, home)
    refused = _refusals(workload, sites, counted, policy)
    rows = np.setdiff1d(np.arange(len(workload)), list(refused)) if refused else np.arange(len(workload))
    state = empty_grid(sites, slots=len(rows)) if counted is None else empty_counted_grid(counted, slots=len(rows))
    if len(rows):
        state.sensitivity[:] = sensitivities[rows]
        _fill(state, workload, rows, policy, rng)
        if counted is not None:
            fill_requests(state, workload, rows, counted)
        if net is None:
            _check_lengths(state, policy.codes(), np.ascontiguousarray(workload.run_ms[rows]))
    outcome = GridLoop(state, workload, rows, policy, net).run()
    refused |= dict.fromkeys(rows[outcome.unplaceable].tolist(), WHY_UNPLACEABLE)
    return _result_of(workload, sites, policy, rows, outcome, refused, with_net=net is not None)


def _refusals(
    workload: Workload, sites: IntArray, counted: Sequence[CountedSite] | None, policy: GridPolicy
) -> dict[int, str]:
    """Return why jobs can never run, by row."""
    refused: dict[int, str] = {}
    for chunk, rows in rows_by_chunk(workload, np.arange(len(workload))):
        most = sites if chunk is None else most_chunks(counted, chunk, len(sites))
        widths = workload.width[rows]
        for width in np.unique(widths).tolist():
            why = policy.why_never(most, width, of_chunks=chunk is not None)
            if why is not None:
                refused |= dict.fromkeys(rows[widths == width].tolist(), why)
    return refused


def _result_of(
    workload: Workload,
    sites: IntArray,
    policy: GridPolicy,
    rows: IntArray,
    outcome: GridOutcome,
    refused: Mapping[int, str],
    *,
    with_net: bool,
) -> SimulationResult:
    """Convert the outcome of the simulated jobs, ``rows``, to a schedule of all jobs."""

    def of_all(values: npt.NDArray[Any], default: float) -> Any:
        spread = np.full(len(workload), default, values.dtype)
        spread[rows] = values
        return spread

    state, start_ms = outcome.state, of_all(outcome.start_ms, NEVER)
    fragments = state.fragments[: int(state.counters[0]["n_fragments"])].copy()
    never = {int(workload.job_id[row]): refused[row] for row in sorted(refused)}
    return grid_result(
        workload,
        sites,
        policy,
        start_ms,
        of_all(outcome.end_ms, NEVER),
        Placement(fragments, of_all(state.first_fragment, 0), of_all(state.n_fragments, 0)),
        never,
        cancelled=cancelled_in(workload, start_ms, never),
        columns={
            "factor": of_all(outcome.factor, 1),
            "slowdown": of_all(outcome.slowdown, 1),
            "transfer_ms": of_all(outcome.transfer_ms, 0),
        }
        if with_net
        else {},
    )


def grid_result(
    workload: Workload,
    sites: IntArray,
    policy: GridPolicy,
    start_ms: IntArray,
    end_ms: IntArray,
    placement: Placement,
    refused: Mapping[int, str],
    **more: Any,
) -> SimulationResult:
    """Build the result of a grid simulation.

    Parameters
    ----------
    sites : numpy.ndarray of int64, shape (sites,)
        Number of nodes per site.
    start_ms, end_ms : numpy.ndarray of int64, shape (n,)
    refused : mapping from int to str
        Reason why each refused job could never run, by job id.
    **more
        Other fields of `SimulationResult`.
    """
    ran = start_ms != NEVER
    return SimulationResult(
        workload=workload,
        nodes=int(sites.sum()),
        site_nodes=sites,
        policy=policy,
        label=policy.label,
        start_ms=start_ms,
        end_ms=end_ms,
        killed=workload.overran & ran,
        placement=placement,
        refused=tuple(refused.items()),
        **more,
    )


def checked_sites(nodes: Any) -> IntArray:
    """Return the number of nodes per site as an array; raise OptionError if a number is invalid."""
    try:
        counts = [operator.index(count) for count in nodes]
    except TypeError:  # a single number, None, or fractions
        counts = []
    if not counts or min(counts) < 1 or sum(counts) > MAX_WIDTH:
        shown = list(nodes) if isinstance(nodes, Iterable) else nodes
        raise OptionError(
            "nodes", f"is {shown}; expected one number per site, each at least 1, with a sum of at most {MAX_WIDTH}"
        )
    return np.array(counts, np.int64)


def checked_home(home: npt.ArrayLike | None, jobs: int, sites: int) -> IntArray:
    """Return the home site of each job; defaults to round robin in submit order. Raise OptionError if invalid."""
    homes = np.arange(jobs) % sites if home is None else _array_of(home, np.int64)
    if homes.shape != (jobs,) or (jobs and not 0 <= homes.min() <= homes.max() < sites):
        raise OptionError("home", f"must be a site from 0 to {sites - 1} for each of the {jobs} jobs")
    return homes


def checked_sensitivity(sensitivity: npt.ArrayLike | None, jobs: int) -> npt.NDArray[np.float64]:
    """Return the sensitivity of each job to overhead; defaults to 1. Raise OptionError if invalid."""
    if sensitivity is None:
        return np.ones(jobs)
    checked = _array_of(sensitivity, np.float64)
    if checked.shape != (jobs,) or not (np.isfinite(checked) & (checked >= 0)).all():
        raise OptionError("sensitivity", f"must be a number >= 0 for each of the {jobs} jobs; the default is 1")
    return checked


def _array_of(values: npt.ArrayLike, kind: type[_Number]) -> npt.NDArray[_Number]:
    """Convert values to an array; return an array without dimensions if the values are not numbers."""
    try:
        return np.asarray(values, kind)
    except (TypeError, ValueError, OverflowError):
        return np.zeros((), kind)


def _check_lengths(state: GridState, codes: GridCodes, run_ms: IntArray) -> None:
    """Raise InputError if a split job could run too long, or if all jobs in sequence could exceed the time range."""
    longest = np.empty(len(run_ms))
    longest_ms(state, codes, run_ms, longest)
    if longest.max() > MAX_TIME_MS:
        job_id = state.jobs[int(longest.argmax())]["job_id"]
        raise InputError(f"job {job_id} could take {longest.max():.3g} ms if it is split; at most {MAX_TIME_MS:.0e} ms")
    last_ms = state.jobs["submit_ms"].max() + longest.sum()
    if last_ms > _LAST_MS:
        raise InputError(f"the jobs could take until {last_ms:.3g} ms; the limit is {_LAST_MS:.3g}")


def _fill(
    state: GridState, workload: Workload, rows: IntArray, policy: GridPolicy, rng: np.random.Generator | None
) -> None:
    """Fill the grid's job table, one slot per job in submit order; draw random numbers for random selection."""
    fill_jobs(state.jobs, workload, rows, policy.order)
    if policy.selection == "random":
        if rng is None:
            raise OptionError("rng", "is missing; the selection random draws from a seeded generator")
        state.draw[:] = rng.random(len(workload))[rows]


def _simulate_local(
    workload: Workload, sites: IntArray, policy: GridPolicy, home: npt.ArrayLike | None
) -> SimulationResult:
    """Simulate each site separately, with its own users' jobs."""
    homes = checked_home(home, len(workload), len(sites))
    fits = workload.width <= sites[homes]
    start_ms, end_ms = np.full((2, len(workload)), NEVER, np.int64)
    for site, nodes in enumerate(sites):
        rows = np.flatnonzero((homes == site) & fits)
        if len(rows):
            site_policy = SitePolicy(order=policy.order, backfill=policy.backfill)
            run = SiteRun(workload.take(rows), int(nodes), site_policy)
            run.run(len(rows))
            start_ms[rows], end_ms[rows] = run.start_ms, run.end_ms
    refused = {
        int(workload.job_id[row]): f"it needs {workload.width[row]} nodes and its site has {sites[homes[row]]}"
        for row in np.flatnonzero(~fits)
    }
    placement = at_home(workload, homes, start_ms != NEVER)
    cancelled = cancelled_in(workload, start_ms, refused)
    return grid_result(workload, sites, policy, start_ms, end_ms, placement, refused, cancelled=cancelled)


def placement_of(parts: Sequence[Sequence[tuple[int, int]]]) -> Placement:
    """Build the placements of jobs from the (site, nodes) pairs of each job; a job without pairs has not run."""
    counts = np.array([len(pairs) for pairs in parts], np.int64)
    fragments = np.array([pair for pairs in parts for pair in pairs], FRAGMENT)
    return Placement(fragments, np.where(counts > 0, np.cumsum(counts) - counts, 0), counts)


def at_home(workload: Workload, home: IntArray, ran: BoolArray) -> Placement:
    """Build the placements of jobs that each ran entirely on their home site."""
    fragments = np.zeros(int(ran.sum()), FRAGMENT)
    fragments["site"], fragments["width"] = home[ran], workload.width[ran]
    return Placement(fragments, np.where(ran, np.cumsum(ran) - 1, 0), ran.astype(np.int64))
