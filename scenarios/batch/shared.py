"""A site whose nodes are shared, in simulation: a workload and a policy in, a schedule out (docs/sharing.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError, TraceError
from gridweave.scenarios.batch.kernels.coscheduling_batch import UNKNOWN, run_shared_batch
from gridweave.scenarios.results.schedule import SimulationResult
from gridweave.scenarios.workload.columns import check_resources
from gridweave.scenarios.workload.table import IntArray, Workload
from gridweave.site.disciplines.sharing.kernels.state import SharedSite, empty_site
from gridweave.site.disciplines.sharing.policy import MAX_LANES, VARIANTS, NodeKind, SharingPolicy, kind_array
from gridweave.site.disciplines.sharing.slowdown_tables import SlowdownModel, SlowdownTable, parse_table

Progress = Callable[[int, int], None]

BOUND_MS = 60_000
"""The bound of the relative bounded response time (LOMARC, section 6.1)."""

MAX_WORK = 2**62
"""Node milliseconds that a workload may hold: sums of work are 64 bits wide."""

# Jobs that are played before progress is reported.
_SLICE = 2_000


class SharedMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """What a schedule with shared nodes amounts to (LOMARC, section 6.1); NaN where there is no job.

    Attributes
    ----------
    jobs, shared_starts : int
        Jobs that ran; those that began beside another (which may have started in the same pass).
    art_ms : float
        Average response time.
    relative_response : float
        Average of the response time over the run time alone, both at least 60 s.
    mean_slowdown : float
        Average of the time from start to end over the run time alone.
    util : float
        Node time in which at least one job was on a node, as a share of nodes x makespan.
    efficiency : float
        Sum of width x run time alone over nodes x makespan; above 1 if sharing gains that much.
    makespan_ms : float
        From the first submission to the last end.
    """

    jobs: int
    shared_starts: int
    art_ms: float
    relative_response: float
    mean_slowdown: float
    util: float
    efficiency: float
    makespan_ms: float


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class SharedResult:
    """A workload, and the schedule that a site with shared nodes made of it.

    Parameters
    ----------
    schedule : SimulationResult
        Starts and ends: for tables, files and plots.
    beside : numpy.ndarray of int64, shape (n,)
        With how many jobs each job shared nodes after the pass that started it.
    busy_node_ms : int
        Node time in which at least one job was on a node.
    searches : mapping from str to int
        What the searches for a match came to, summed up: ``searches`` among the waiting jobs, and over all of them the
        ``waiting`` jobs, those ``long_enough``, ``narrow_enough``, ``fitting``, ``matchable`` and ``bearable``, the
        ``matches`` and the place of the chosen among the bearable (``selected``); ``running_searches`` and
        ``running_matches`` among the running jobs.
    """

    schedule: SimulationResult
    beside: IntArray
    busy_node_ms: int
    searches: Mapping[str, int]

    def metrics(self) -> SharedMetrics:
        """Return the metrics of the paper."""
        ran = self.schedule.ran
        submit_ms, start_ms, end_ms, width = self.schedule.schedule()
        run_ms = self.schedule.workload.run_ms[ran]
        if not len(submit_ms):
            nan = float("nan")
            values = dict.fromkeys(("art_ms", "relative_response", "mean_slowdown", "util", "efficiency"), nan)
            return SharedMetrics(jobs=0, shared_starts=0, makespan_ms=nan, **values)
        response_ms = end_ms - submit_ms
        makespan_ms = int(end_ms.max() - submit_ms.min())
        capacity = self.schedule.nodes * makespan_ms
        relative = np.maximum(response_ms, BOUND_MS) / np.maximum(run_ms, BOUND_MS)
        return SharedMetrics(
            jobs=len(submit_ms),
            shared_starts=int((self.beside[ran] > 0).sum()),
            art_ms=float(response_ms.mean()),
            relative_response=float(relative.mean()),
            mean_slowdown=float(((end_ms - start_ms) / run_ms).mean()),
            util=self.busy_node_ms / capacity,
            efficiency=float(np.sum(width * run_ms.astype(np.float64)) / capacity),
            makespan_ms=float(makespan_ms),
        )


def read_slowdowns(path: str | Path) -> SlowdownTable:
    """Read a table of measured slowdowns from a CSV file.

    Parameters
    ----------
    path : str or pathlib.Path
        The labels stand in the first row and in the first column.

    Raises
    ------
    TraceError
        If the file cannot be read.
    InputError
        If it holds no such table, or a slowdown below 1; the message names the file and the cell.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not text in UTF-8"
        raise TraceError(path, f"cannot be read: {reason}") from None
    return parse_table(text, str(path))


def simulate_shared(
    workload: Workload,
    nodes: int | Sequence[NodeKind] | None = None,
    policy: SharingPolicy | str = "L-U1",
    *,
    model: SlowdownModel | None = None,
    cores: npt.ArrayLike = 1,
    rows: npt.ArrayLike | None = None,
    progress: Progress | None = None,
) -> SharedResult:
    """Simulate a site whose nodes are shared.

    Parameters
    ----------
    workload : Workload
        With the columns that `gridweave.scenarios.workload.columns.assign_resources` draws.
    nodes : int or sequence of NodeKind, optional
        Kinds of nodes; a number is of nodes with one core and two threads, of the policy's CPU. If left out, the number
        that the workload was recorded on.
    policy : SharingPolicy or str
        A policy, or the name of one of the paper's variants: PSS, AC, AM, L-U1, L-U2, L-R, L-FM, L-N.
    model : SlowdownModel, optional
        The paper's, with its estimates, if left out.
    cores : array_like of int, shape () or (n,)
        On how many cores of each of its nodes a job runs.
    rows : array_like of int, shape (n,), optional
        The row of each job in the model's table of measured slowdowns; found from the columns if left out.
    progress : callable, optional
        Called now and then, and at the end, with the number of jobs submitted so far and the number of all.

    Returns
    -------
    SharedResult
        A job that can never run on this site is refused, with a reason, and does not start.

    Raises
    ------
    InputError
        If a column is missing or impossible, with the job and the field; or if the number of nodes is not known.

    Examples
    --------
    A job on the CPU and one on the disk share a node, each slowed by the tenth of their time that they both want the
    CPU (1.4 - 1 of it); the third waits for the first end:

    >>> jobs = Workload(job_id=[1, 2, 3], submit_ms=[0, 0, 0], width=[1, 1, 1], estimate_ms=[3_600_000] * 3,
    ...                 run_ms=[3_600_000] * 3, columns={"cpu_fraction": [0.9, 0.1, 0.9],
    ...                 "network_fraction": [0.1, 0, 0.1], "disk_fraction": [0, 0.9, 0],
    ...                 "memory_fraction": [0.5, 0.5, 0.5]})
    >>> result = simulate_shared(jobs, 1)
    >>> (result.schedule.end_ms / 3_600_000).round(3).tolist()
    [1.04, 1.04, 2.04]
    """
    chosen = _policy_of(policy)
    kinds = _kinds_of(workload, nodes, chosen)
    model = model or SlowdownModel()
    state, refused = _prepare(workload, kinds, chosen, model, cores, rows)
    run = _Run(workload, state, refused, progress or _tell_nobody)
    run.play(model, chosen, kinds)
    schedule = SimulationResult(
        workload=workload,
        nodes=sum(kind.count for kind in kinds),
        start_ms=run.start_ms,
        end_ms=run.end_ms,
        killed=workload.overran & (run.start_ms != UNKNOWN),
        refused=tuple(sorted(refused.items())),
        label=chosen.label,
        shared=True,
        options={
            "trace": workload.name,
            "kinds": [msgspec.to_builtins(kind) for kind in kinds],
            "formula": model.formula,
            **{key: value for key, value in msgspec.to_builtins(chosen).items() if value != float("inf")},
        },
    )
    names = state.searches.dtype.names or ()
    searches = {name: int(state.searches[0][name]) for name in names}
    return SharedResult(schedule=schedule, beside=run.beside, busy_node_ms=int(run.busy[0]), searches=searches)


class _Run:
    """The arrays of one simulation, and the loop over them."""

    def __init__(self, workload: Workload, state: SharedSite, refused: Mapping[int, str], report: Progress) -> None:
        self._state, self._report = state, report
        self._rows = np.flatnonzero(~np.isin(workload.job_id, list(refused)))
        self._run_ms = workload.run_ms[self._rows]
        self.start_ms = np.full(len(workload), UNKNOWN, np.int64)
        self.end_ms = self.start_ms.copy()
        self.beside = np.zeros(len(workload), np.int64)
        self.busy = np.zeros(2, np.int64)

    def play(self, model: SlowdownModel, policy: SharingPolicy, kinds: Sequence[NodeKind]) -> None:
        count = len(self._rows)
        starts, ends_at = np.full(count, UNKNOWN, np.int64), np.full(count, UNKNOWN, np.int64)
        beside, clock = np.zeros(count, np.int64), np.zeros(2, np.int64)
        heap, heap_rows = (np.zeros(4 * len(self._state.running) + 4, np.int64) for _ in range(2))
        if count:
            self.busy[1] = self._state.jobs["submit_ms"][0]
            for until in [*range(_SLICE, count, _SLICE), count]:
                run_shared_batch(
                    self._state, model.arrays(), policy.codes(kinds), self._run_ms,
                    starts, ends_at, beside, self.busy, heap, heap_rows, clock, until,
                )  # fmt: skip
                self._report(until, count)
            assert (ends_at != UNKNOWN).all(), "the batch loop ended with jobs that wait"
        self.start_ms[self._rows], self.end_ms[self._rows], self.beside[self._rows] = starts, ends_at, beside


def _tell_nobody(done: int, total: int) -> None:
    pass


def _policy_of(policy: SharingPolicy | str) -> SharingPolicy:
    if isinstance(policy, SharingPolicy):
        return policy
    if policy not in VARIANTS:
        raise InputError(f"policy {policy!r} is not known; known are {', '.join(VARIANTS)}")
    return VARIANTS[policy]


def _kinds_of(workload: Workload, nodes: int | Sequence[NodeKind] | None, policy: SharingPolicy) -> Sequence[NodeKind]:
    if nodes is None:
        nodes = workload.nodes
    if nodes is None:
        raise InputError(f"{workload.name}: the number of nodes is not known; give it")
    kinds = [NodeKind(count=nodes, cpu=policy.cpu)] if isinstance(nodes, int) else list(nodes)
    if not kinds:
        raise InputError("a site has at least one kind of nodes")
    return kinds


def _prepare(
    workload: Workload,
    kinds: Sequence[NodeKind],
    policy: SharingPolicy,
    model: SlowdownModel,
    cores: npt.ArrayLike,
    rows: npt.ArrayLike | None,
) -> tuple[SharedSite, dict[int, str]]:
    """Return the state of the idle site with its table of jobs filled in, and the jobs that are not in it."""
    check_resources(workload)
    columns = workload.columns
    per_job = model.sorts_of(columns, rows)
    per_job["cores"] = np.broadcast_to(np.asarray(cores, np.int64), (len(workload),))
    _refuse(workload, "cores", per_job["cores"], 1, MAX_LANES)
    _refuse(workload, "cpu_kind", per_job["cpu_kind"], 0, len(model.cpu_factors.labels) - 1)
    _refuse(workload, "row", per_job["row"], 0, len(model.table.labels) - 1)
    if float(np.sum(workload.width * workload.estimate_ms.astype(np.float64))) >= MAX_WORK:
        raise InputError(f"{workload.name}: its work is more than {MAX_WORK:.3g} node milliseconds")
    usable = _usable(workload, kinds, per_job["cores"])
    if policy.backfill == "conservative":
        _check_alike(workload, kinds, usable)
    refused = _refusals(workload, usable)
    kept = np.flatnonzero(~np.isin(workload.job_id, list(refused)))
    state = empty_site(
        kind_array(kinds), [kind.count for kind in kinds], slots=len(kept), plans=policy.backfill == "conservative"
    )
    for name in ("submit_ms", "job_id", "width", "estimate_ms"):
        state.jobs[name] = getattr(workload, name)[kept]
    for name in ("cpu", "network", "disk", "memory"):
        state.jobs[name] = columns[f"{name}_fraction"][kept]
    for name, values in per_job.items():
        state.jobs[name] = values[kept]
    state.jobs["job_class"] = policy.classes(state.jobs["estimate_ms"])
    return state, refused


def _refuse(workload: Workload, name: str, values: IntArray, low: int, high: int) -> None:
    if values.shape != (len(workload),):
        raise InputError(f"{workload.name}: {name} has shape {values.shape}, job_id has ({len(workload)},)")
    wrong = (values < low) | (values > high)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"{workload.name}: job {workload.job_id[row]}: {name} {values[row]} is not within {low} to {high}"
        )


def _usable(workload: Workload, kinds: Sequence[NodeKind], cores: IntArray) -> IntArray:
    """Return for each job how many nodes are usable for it."""
    usable = np.zeros(len(workload), np.int64)
    memory = np.asarray(workload.columns["memory_fraction"], np.float64)
    for kind in kinds:
        usable += np.where(kind.is_usable(cores, memory), kind.count, 0)
    return usable


def _check_alike(workload: Workload, kinds: Sequence[NodeKind], usable: IntArray) -> None:
    """Refuse to plan for jobs that may use a part of the nodes alone: a reservation is a number of nodes."""
    wrong = usable < sum(kind.count for kind in kinds)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"{workload.name}: job {workload.job_id[row]}: not all nodes have the cores and the memory for it; "
            "conservative backfilling needs nodes that every job may use"
        )


def _refusals(workload: Workload, usable: IntArray) -> dict[int, str]:
    """Return the jobs that can never run, with the reason."""
    return {
        int(workload.job_id[row]): f"it needs {workload.width[row]} nodes; {usable[row]} of this site are usable for it"
        for row in np.flatnonzero(workload.width > usable)
    }
