"""A site whose nodes jobs share, in simulation (docs/sharing.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError, TraceError
from gridweave.scenarios.batch.cancellations import cancellations, cancelled_in
from gridweave.scenarios.batch.kernels.loop import run_batch
from gridweave.scenarios.batch.kernels.paced import Paced, Sharing
from gridweave.scenarios.batch.kernels.run import new_run
from gridweave.scenarios.batch.pieces import Progress, in_pieces
from gridweave.scenarios.results.schedule import NEVER, SharedUse, SimulationResult
from gridweave.scenarios.workload.columns import check_resources
from gridweave.scenarios.workload.table import IntArray, Workload
from gridweave.site.disciplines.sharing.kernels.state import SharedSite, empty_site
from gridweave.site.disciplines.sharing.policy import (
    MAX_LANES,
    VARIANTS,
    NodeKind,
    SharedNodes,
    SharingPolicy,
    kind_array,
)
from gridweave.site.disciplines.sharing.slowdown_tables import SlowdownModel, SlowdownTable, parse_table
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.kernels.work import no_work

MAX_WORK = 2**62
"""Node milliseconds that a workload may hold: sums of work are 64 bits wide."""

# Jobs that are played before progress is reported.
_SLICE = 2_000


SharedPolicy = SharedNodes | SharingPolicy | str
"""How jobs share nodes; a name is that of one of the paper's variants."""

NodeKinds = int | Sequence[NodeKind] | None
"""A number is of nodes with one core and two threads, of the policy's CPU."""


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


def play_shared(
    workload: Workload,
    nodes: NodeKinds,
    policy: SharedPolicy,
    *,
    model: SlowdownModel | None = None,
    cores: npt.ArrayLike = 1,
    rows: npt.ArrayLike | None = None,
    progress: Progress | None = None,
) -> SimulationResult:
    """Simulate a site whose nodes are shared; see `gridweave.scenarios.batch.simulate.simulate`.

    Raises
    ------
    InputError
        If a column is missing or impossible, with the job and the field; or if the number of nodes is not known.
    """
    if isinstance(policy, SharedNodes):
        nodes = policy.kinds_of(nodes) if isinstance(nodes, int) else nodes
        model = model or SlowdownModel(policy.formula)
    chosen = _policy_of(policy)
    kinds = _kinds_of(workload, nodes, chosen)
    model = model or SlowdownModel()
    state, refused = _prepare(workload, kinds, chosen, model, cores, rows)
    run = _Played(workload, state, refused, progress)
    run.play(model, chosen, kinds)
    names = state.searches.dtype.names or ()
    return SimulationResult(
        workload=workload,
        nodes=sum(kind.count for kind in kinds),
        start_ms=run.start_ms,
        end_ms=run.end_ms,
        killed=workload.overran & (run.start_ms != NEVER),
        cancelled=cancelled_in(workload, run.start_ms, refused),
        refused=tuple(sorted(refused.items())),
        label=chosen.label,
        shared=True,
        sharing=SharedUse(run.beside, run.busy_node_ms, {name: int(state.searches[0][name]) for name in names}),
        options={
            "trace": workload.name,
            "kinds": [msgspec.to_builtins(kind) for kind in kinds],
            "formula": model.formula,
            **{key: value for key, value in msgspec.to_builtins(chosen).items() if value != float("inf")},
        },
    )


class _Played:
    """The arrays of one simulation, and the loop over them."""

    def __init__(
        self, workload: Workload, state: SharedSite, refused: Mapping[int, str], report: Progress | None
    ) -> None:
        self._state, self._report = state, report
        self._rows = np.flatnonzero(~np.isin(workload.job_id, list(refused)))
        self._cancels = cancellations(workload, self._rows)
        self._run = new_run(workload.run_ms[self._rows], room=len(state.running))
        self.start_ms = np.full(len(workload), NEVER, np.int64)
        self.end_ms = self.start_ms.copy()
        self.beside = np.zeros(len(workload), np.int64)
        self.busy_node_ms = 0

    def play(self, model: SlowdownModel, policy: SharingPolicy, kinds: Sequence[NodeKind]) -> None:
        count = len(self._rows)
        sharing = Sharing(model.arrays(), policy.codes(kinds), np.zeros(count, np.int64), np.zeros(2, np.int64))
        if count:
            work, paced = no_work(count), Paced(sharing=sharing)
            sharing.busy[1] = self._state.jobs["submit_ms"][0]
            for until in in_pieces(count, _SLICE, self._report):
                last = np.int64(until)
                run_batch(self._state, work, None, paced, None, None, self._cancels, None, self._run, last, NEVER_MS)
        self.start_ms[self._rows], self.end_ms[self._rows] = self._run.start_ms, self._run.end_ms
        self.beside[self._rows], self.busy_node_ms = sharing.beside, int(sharing.busy[0])


def _policy_of(policy: SharedPolicy) -> SharingPolicy:
    if isinstance(policy, SharedNodes):
        return policy.sharing
    if isinstance(policy, SharingPolicy):
        return policy
    if policy not in VARIANTS:
        raise InputError(f"policy {policy!r} is not known; one of {', '.join(VARIANTS)}")
    return VARIANTS[policy]


def _kinds_of(workload: Workload, nodes: NodeKinds, policy: SharingPolicy) -> Sequence[NodeKind]:
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
