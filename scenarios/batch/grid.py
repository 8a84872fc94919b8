"""A grid under full control in simulation: a workload, sites and a policy in, a schedule with its fragments out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError, OptionError
from gridweave.grid.kernels.placement import GridCodes
from gridweave.grid.kernels.state import FRAGMENT, GridState, empty_grid
from gridweave.grid.policy import GridPolicy
from gridweave.scenarios.batch.grid_network import WHY_HOPELESS, GridLoop, GridNet
from gridweave.scenarios.batch.kernels.loop import longest_ms
from gridweave.scenarios.batch.one_site import BatchRun
from gridweave.scenarios.results.metrics import Metrics, compute_metrics
from gridweave.scenarios.results.schedule import NEVER
from gridweave.scenarios.workload.table import MAX_TIME_MS, MAX_WIDTH, IntArray, Workload, fill_jobs
from gridweave.site.policy import SitePolicy

_LAST_MS = 2**62

_FEW_JOBS = 256
"""Room in a plan at first: it is made larger as the queue needs it."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class GridResult:
    """A workload and the schedule that a grid made of it.

    Attributes
    ----------
    workload : Workload
    nodes : numpy.ndarray of int64, shape (sites,)
    policy : GridPolicy
    start_ms, end_ms : numpy.ndarray of int64, shape (n,)
        `NEVER` for jobs that were refused.
    fragments : numpy.ndarray of FRAGMENT, shape (all fragments,)
        Site and width of every fragment, job after job.
    first_fragment, n_fragments : numpy.ndarray of int64, shape (n,)
        Where the fragments of each job stand, and how many they are; 0 for refused jobs.
    refused : tuple of (int, str)
        Jobs that could never run, with the reason.
    factor : numpy.ndarray of float64, shape (n,), optional
        With a network: by which each job grew on idle links (1 on one site, and for refused jobs).
    slowdown : numpy.ndarray of float64, shape (n,), optional
        With a network: by which it took longer than that because of what else was on the links, on average.
    transfer_ms : numpy.ndarray of int64, shape (n,), optional
        With a network: how long its data moved while it held its nodes.
    """

    workload: Workload
    nodes: IntArray
    policy: GridPolicy
    start_ms: IntArray
    end_ms: IntArray
    fragments: npt.NDArray[np.void]
    first_fragment: IntArray
    n_fragments: IntArray
    refused: tuple[tuple[int, str], ...]
    factor: npt.NDArray[np.float64] | None = None
    slowdown: npt.NDArray[np.float64] | None = None
    transfer_ms: IntArray | None = None

    @property
    def multi_site(self) -> npt.NDArray[np.bool_]:
        """Which jobs ran on several sites, shape (n,)."""
        return self.n_fragments > 1

    def multi_site_area(self) -> float:
        """Return the part of the squashed area (width x time run) that multi-site jobs have (Streit, Table 7.4)."""
        area = self.workload.width * (self.end_ms - self.start_ms).astype(np.float64)
        whole = float(area.sum())
        return float(area[self.multi_site].sum()) / whole if whole else 0.0

    def metrics(self) -> Metrics:
        """Return the metrics of all jobs that ran, over all nodes of the grid."""
        ran = self.start_ms != NEVER
        return compute_metrics(
            self.workload.submit_ms[ran],
            self.start_ms[ran],
            self.end_ms[ran],
            self.workload.width[ran],
            int(self.nodes.sum()),
        )

    def fragments_of(self, row: int) -> list[tuple[int, int]]:
        """Return (site, width) of each fragment of the job in a row, in the order in which they were taken."""
        first = int(self.first_fragment[row])
        taken = self.fragments[first : first + int(self.n_fragments[row])]
        return [(int(fragment["site"]), int(fragment["width"])) for fragment in taken]


def simulate_grid(
    workload: Workload,
    nodes: Sequence[int],
    policy: GridPolicy,
    *,
    home: npt.ArrayLike | None = None,
    rng: np.random.Generator | None = None,
    sensitivity: npt.ArrayLike | None = None,
    net: GridNet | None = None,
) -> GridResult:
    """Simulate a grid under full control.

    Parameters
    ----------
    nodes : sequence of int
        Nodes of each site.
    home : array_like of int, shape (n,), optional
        The site at which each job is submitted, for mode ``local``; round robin in the order of submission if left out.
    rng : numpy.random.Generator, optional
        For the selection ``random``, one draw per job.
    sensitivity : array_like of float, shape (n,), optional
        By which the overhead of each job is multiplied when it is split, >= 0: more for jobs that communicate more.
        1 if left out.
    net : GridNet, optional
        The links between the sites. The overhead of a split then comes from them and from the columns ``pattern``,
        ``communication_fraction`` and ``message_bytes`` of the workload, in the place of the policy's own and of the
        sensitivities; its data from ``input_bytes``, ``input_site``, ``output_bytes`` and ``output_site``.

    Raises
    ------
    OptionError
        If there is no site, one has no node, a home is none, a sensitivity is none, ``random`` has no generator, or the
        network is one of other sites.
    InputError
        If a split could take longer than `gridweave.site.messages.MAX_TIME_MS`, or all jobs beyond the last instant;
        with a network, if a column makes no sense, or a job runs over links that fail for ever.

    Examples
    --------
    >>> jobs = Workload(job_id=[1, 2], submit_ms=[0, 1], width=[3, 6], estimate_ms=[100, 50], run_ms=[100, 50])
    >>> result = simulate_grid(jobs, [4, 4], GridPolicy(mode="multi-site", overhead=0.2, lower_bound=4))
    >>> result.start_ms.tolist(), result.end_ms.tolist(), result.fragments_of(1)
    ([0, 100], [100, 160], [(0, 4), (1, 2)])
    """
    sites = np.array(nodes, np.int64)
    if sites.ndim != 1 or not len(sites) or sites.min() < 1 or sites.sum() > MAX_WIDTH:
        raise OptionError(
            "nodes", f"is {list(nodes)}; one number per site, each at least 1, {MAX_WIDTH} at most in all"
        )
    sensitivities = checked_sensitivity(sensitivity, len(workload))
    if net is not None:
        net.check(sites, policy)
    if policy.mode == "local":
        return _simulate_local(workload, sites, policy, home)
    reasons = {int(width): policy.why_never(sites, int(width)) for width in np.unique(workload.width)}
    refused = {row: why for row, width in enumerate(workload.width.tolist()) if (why := reasons[width]) is not None}
    rows = np.setdiff1d(np.arange(len(workload)), list(refused)) if refused else np.arange(len(workload))
    state = empty_grid(sites, slots=max(len(rows), 1))
    start_ms, end_ms = np.full((2, len(workload)), NEVER, np.int64)
    n_fragments, first_fragment, transfer_ms = np.zeros((3, len(workload)), np.int64)
    factor, slowdown = np.ones((2, len(workload)))
    if len(rows):
        state.sensitivity[:] = sensitivities[rows]
        _fill(state, workload, rows, policy, rng)
        if net is None:
            _check_lengths(state, policy.codes(), np.ascontiguousarray(workload.run_ms[rows]))
        played = GridLoop(state, workload, rows, policy, net).play()
        state, start_ms[rows], end_ms[rows], factor[rows], slowdown[rows], transfer_ms[rows] = played
        if net is not None:
            refused |= dict.fromkeys(rows[played.start_ms == NEVER].tolist(), WHY_HOPELESS)
        n_fragments[rows], first_fragment[rows] = state.n_fragments, state.first_fragment
    return GridResult(
        workload=workload,
        nodes=sites,
        policy=policy,
        start_ms=start_ms,
        end_ms=end_ms,
        fragments=state.fragments[: int(state.counters[0]["n_fragments"])].copy(),
        first_fragment=first_fragment,
        n_fragments=n_fragments,
        refused=tuple((int(workload.job_id[row]), refused[row]) for row in sorted(refused)),
        factor=None if net is None else factor,
        slowdown=None if net is None else slowdown,
        transfer_ms=None if net is None else transfer_ms,
    )


def checked_home(home: npt.ArrayLike | None, jobs: int, sites: int) -> IntArray:
    """Return the site of the user of each job: round robin in the order of submission, if it is left open."""
    homes = np.arange(jobs) % sites if home is None else np.asarray(home, np.int64)
    if homes.shape != (jobs,) or (jobs and not 0 <= homes.min() <= homes.max() < sites):
        raise OptionError("home", f"names one of the sites 0 to {sites - 1} for each of the {jobs} jobs")
    return homes


def checked_sensitivity(sensitivity: npt.ArrayLike | None, jobs: int) -> npt.NDArray[np.float64]:
    """Return the sensitivity of each job to overhead."""
    if sensitivity is None:
        return np.ones(jobs)
    try:
        checked = np.asarray(sensitivity, np.float64)
    except (TypeError, ValueError):
        checked = np.empty(0)
    if checked.shape != (jobs,) or not (np.isfinite(checked) & (checked >= 0)).all():
        raise OptionError("sensitivity", f"is one number for each of the {jobs} jobs, from 0 up; 1 is as all others")
    return checked


def _check_lengths(state: GridState, codes: GridCodes, run_ms: IntArray) -> None:
    """Refuse jobs whose splits could take longer than a job may, or all together than int64 can name."""
    longest = np.empty(len(run_ms))
    longest_ms(state, codes, run_ms, longest)
    if longest.max() > MAX_TIME_MS:
        job_id = state.jobs[int(longest.argmax())]["job_id"]
        raise InputError(f"job {job_id} could take {longest.max():.3g} ms if it is split; at most {MAX_TIME_MS:.0e} ms")
    last_ms = state.jobs["submit_ms"].max() + longest.sum()
    if last_ms > _LAST_MS:
        raise InputError(f"the jobs could take until {last_ms:.3g} ms; there is room for {_LAST_MS:.3g}")


def _fill(
    state: GridState, workload: Workload, rows: IntArray, policy: GridPolicy, rng: np.random.Generator | None
) -> None:
    """Enter jobs into the grid's table, one slot each, in the order of submission."""
    fill_jobs(state.jobs, workload, rows, policy.order)
    if policy.selection == "random":
        if rng is None:
            raise OptionError("rng", "is missing; the selection random draws from a seeded generator")
        state.draw[:] = rng.random(len(workload))[rows]


def _simulate_local(workload: Workload, sites: IntArray, policy: GridPolicy, home: npt.ArrayLike | None) -> GridResult:
    """Simulate each site by itself, with the jobs of its own users."""
    homes = checked_home(home, len(workload), len(sites))
    fits = workload.width <= sites[homes]
    start_ms = np.full(len(workload), NEVER, np.int64)
    for site, nodes in enumerate(sites):
        rows = np.flatnonzero((homes == site) & fits)
        if len(rows):
            run = BatchRun(workload, rows, int(nodes), SitePolicy(order=policy.order, backfill=policy.backfill))
            run.play(len(rows))
            start_ms[rows] = run.start_ms
    fragments = np.zeros(int(fits.sum()), FRAGMENT)
    fragments["site"], fragments["width"] = homes[fits], workload.width[fits]
    return GridResult(
        workload=workload,
        nodes=sites,
        policy=policy,
        start_ms=start_ms,
        end_ms=np.where(fits, start_ms + workload.run_ms, NEVER),
        fragments=fragments,
        first_fragment=np.where(fits, np.cumsum(fits) - 1, 0),
        n_fragments=fits.astype(np.int64),
        refused=tuple(
            (int(workload.job_id[row]), f"it needs {workload.width[row]} nodes and its site has {sites[homes[row]]}")
            for row in np.flatnonzero(~fits)
        ),
    )
