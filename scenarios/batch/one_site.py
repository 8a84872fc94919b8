"""One site in simulation: what is checked beforehand, and a workload in the compiled loop."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from gridweave.errors import InputError, OptionError
from gridweave.scenarios.batch.beforehand import limit_masks, refusals, week_offset_ms
from gridweave.scenarios.batch.cancellations import cancellations, cancelled_in
from gridweave.scenarios.batch.fractional import play_fractional
from gridweave.scenarios.batch.gang import played_gang
from gridweave.scenarios.batch.kernels.loop import run_batch
from gridweave.scenarios.batch.kernels.outages import NOBODY, Outages
from gridweave.scenarios.batch.kernels.run import new_run
from gridweave.scenarios.batch.pieces import Progress, in_pieces, times_of
from gridweave.scenarios.batch.saving import Saving, identity_of
from gridweave.scenarios.batch.stepped import Stepped, run_core
from gridweave.scenarios.batch.tuned import played_tuned
from gridweave.scenarios.results.needs import need_metrics
from gridweave.scenarios.results.schedule import NEVER, SimulationResult
from gridweave.scenarios.workload.needs import check_needs
from gridweave.scenarios.workload.node_events import KINDS, NodeEvent, check_node_events
from gridweave.scenarios.workload.reservations import Request, check_requests
from gridweave.scenarios.workload.table import MAX_WIDTH, IntArray, Workload, fill_jobs, keys_of
from gridweave.site.disciplines.dictionary import entry_of
from gridweave.site.disciplines.dynp.policy import DynPPolicy
from gridweave.site.disciplines.fractional.policy import FractionalPolicy
from gridweave.site.disciplines.gang.policy import GangPolicy
from gridweave.site.disciplines.protocol import Entry, Played, Policy
from gridweave.site.kernels.state import NEVER_MS, empty_plan, empty_state
from gridweave.site.kernels.work import no_work
from gridweave.site.policy import SitePolicy

DRIVERS = ("batch", "core")

# Jobs that are played before progress is reported: about a hundredth of a second of EASY.
_SLICE = 20_000

# Half of what int64 can hold: what lies beyond is left for reservations and closed windows.
_LAST_MS = 2**62


def play_site(
    workload: Workload,
    nodes: int | None,
    policy: Policy,
    reservations: Sequence[Request] = (),
    node_events: Sequence[NodeEvent] = (),
    *,
    driver: str = "batch",
    check: bool = False,
    progress: Progress | None = None,
    saving: Saving | None = None,
) -> SimulationResult:
    """Simulate one site; see `gridweave.scenarios.batch.simulate.simulate`."""
    _check_workload(workload, policy)
    nodes = _checked_nodes(workload, nodes)
    check_node_events(node_events, nodes)
    in_loop = driver == "batch" and not reservations
    play = _COMPILED.get(type(policy))
    if isinstance(policy, SitePolicy) and in_loop:
        told = _played(workload, nodes, policy, node_events, progress, saving)
    elif play is not None and in_loop:
        told = play(workload, nodes, policy, progress)
    else:
        cancellations(workload, np.arange(len(workload)))
        offset_ms = _offset_for(workload, policy)
        told = run_core(workload, nodes, policy, offset_ms, reservations, report=progress, check=check)
    return SimulationResult(
        workload=workload,
        nodes=nodes,
        start_ms=told.start_ms,
        end_ms=told.end_ms,
        killed=workload.overran & (told.start_ms != NEVER),
        cancelled=cancelled_in(workload, told.start_ms, told.refused),
        refused=tuple(sorted(told.refused.items())),
        reservations=told.answers,
        label=policy.label,
        options={"trace": workload.name, "nodes": nodes, **_options_of(policy)},
        columns=told.columns,
        tuning=told.tuning,
        **_by_discipline(entry_of(policy), workload, nodes, told),
    )


def _by_discipline(entry: Entry, workload: Workload, nodes: int, told: Stepped) -> dict[str, Any]:
    """Return the fields of a result that hang on the discipline alone."""
    return {
        "shared": entry.shares_nodes,
        "shares_time": entry.shares_time,
        "own_metrics": own_metrics(entry, workload, nodes, told) | _by_needs(workload, nodes, told),
    }


def own_metrics(entry: Entry, workload: Workload, nodes: int, told: Stepped) -> dict[str, float]:
    """Return the metrics that a discipline has of its own, by name, if any job ran; and how many jobs were lost."""
    restarts = {name: value for name, value in told.totals.items() if name == "restarts"}
    ran = told.start_ms != NEVER
    if entry.metrics is None or not ran.any():
        return restarts
    columns = {name: values[ran] for name, values in told.columns.items()}
    times = workload.submit_ms[ran], told.start_ms[ran], told.end_ms[ran], workload.width[ran], workload.run_ms[ran]
    return restarts | dict(entry.metrics(Played(nodes, *times, columns, told.totals)))


def _by_needs(workload: Workload, nodes: int, told: Stepped) -> dict[str, float]:
    """Return the metrics by CPU needs, under any discipline; empty if no needs are known, or no job ran."""
    if "cpu_need" not in workload.columns or not (told.start_ms != NEVER).any():
        return {}
    return dict(need_metrics(workload, nodes, told.start_ms, told.end_ms))


def _played(
    workload: Workload,
    nodes: int,
    policy: SitePolicy,
    node_events: Sequence[NodeEvent],
    progress: Progress | None,
    saving: Saving | None,
) -> Stepped:
    """Return what becomes of the jobs in the compiled loop."""
    refused = refusals(workload, nodes, policy)
    rows = np.flatnonzero(~np.isin(workload.job_id, list(refused)))
    offset_ms = _offset_for(workload, policy)
    run = BatchRun(workload, rows, nodes, policy, week_offset_ms=offset_ms, node_events=node_events)
    if saving is not None:
        columns_of = [workload.columns[name] for name in sorted(workload.columns)]
        times = workload.job_id, workload.submit_ms, workload.width, workload.estimate_ms, workload.run_ms
        saving.begin(identity_of(*times, *columns_of, nodes, policy, list(node_events), offset_ms), run.parts)
    for until in in_pieces(len(rows), _SLICE, progress):
        run.play(until)
        if saving is not None:
            saving.after_piece()
    if saving is not None:
        saving.done()
    start_ms, end_ms = times_of(run.start_ms, run.end_ms, rows, len(workload))
    columns, totals = {}, {}
    if run.outages is not None:
        totals["restarts"] = int(run.outages.restarts.sum())
        columns["restarts"] = np.zeros(len(workload), np.int64)
        columns["restarts"][rows] = run.outages.restarts
        left = rows[run.waiting]
        back = f"and of {nodes} so many did not come back"
        refused |= {int(workload.job_id[row]): f"it needs {workload.width[row]} nodes, {back}" for row in left}
    return Stepped(start_ms, end_ms, refused, (), columns, totals)


_Play = Callable[[Workload, int, Any, Progress | None], Stepped]

_COMPILED: dict[type, _Play] = {
    GangPolicy: played_gang,
    DynPPolicy: played_tuned,
    FractionalPolicy: play_fractional,
}
"""Who else plays a workload in the compiled loop, by the policy; of all others a core is stepped."""


def _offset_for(workload: Workload, policy: Policy) -> int:
    """Return the local time of instant zero in the week, where a window of a limit asks for it.

    Without one, a zone that nobody knows does no harm.
    """
    if isinstance(policy, SitePolicy) and all(limit.window is None for limit in policy.limits):
        return 0
    return week_offset_ms(workload)


def _options_of(policy: Policy) -> dict[str, Any]:
    """Return a policy as plain values; what does not count is None, or left out."""
    options: dict[str, Any] = {"discipline": policy.discipline, **msgspec.to_builtins(policy)}
    if isinstance(policy, SitePolicy):
        options["slack"] = policy.slack if policy.backfill == "slack" else None
    return {name: None if value == math.inf else value for name, value in options.items()}


def check_driver(
    driver: str,
    policy: Policy,
    reservations: Sequence[Request],
    node_events: Sequence[NodeEvent] = (),
    saving: Saving | None = None,
) -> None:
    """Check that a driver is known, and that it and the policy know reservations and the like, if there are any."""
    if driver not in DRIVERS:
        raise OptionError("driver", f"{driver!r} is not known; one of {', '.join(DRIVERS)}")
    if saving is not None and (not isinstance(policy, SitePolicy) or driver != "batch" or reservations):
        raise OptionError(
            "save", "is for the disciplines queue and planning in the compiled loop, without reservations"
        )
    if reservations and not entry_of(policy).keeps_reservations:
        raise OptionError("reservations", "are kept by planning sites; use discipline='planning'")
    check_requests(reservations)
    if not node_events:
        return
    if not isinstance(policy, SitePolicy) or driver != "batch":
        raise OptionError("node_events", "are for the disciplines queue and planning in the compiled loop")
    if reservations or policy.limits:
        raise OptionError("node_events", "do not go with reservations or limits, which may not be kept then")


def _check_workload(workload: Workload, policy: Policy) -> None:
    _check_weights(workload)
    _check_times(workload)
    check_needs(workload, entry_of(policy).needs)


def _check_weights(workload: Workload) -> None:
    """Refuse what a site would refuse at submission, whichever driver there is."""
    weight = np.asarray(workload.columns.get("weight", ()), np.float64)
    wrong = ~(weight > 0)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(f"{workload.name}: job {workload.job_id[row]}: weight {weight[row]} is not above 0")


def _check_times(workload: Workload) -> None:
    """Refuse jobs that, one after the other, would run beyond the last instant that int64 can name."""
    last_ms = workload.submit_ms.max(initial=0) + workload.estimate_ms.sum(dtype=np.float64)
    if last_ms > _LAST_MS:
        raise InputError(f"{workload.name}: its estimates add up to {last_ms:.3g} ms; there is room for {_LAST_MS:.3g}")


def _checked_nodes(workload: Workload, nodes: int | None) -> int:
    nodes = workload.nodes if nodes is None else nodes
    if nodes is None:
        raise OptionError("nodes", f"{workload.name} does not say how many its machine had; give a number")
    try:
        number = operator.index(nodes)
    except TypeError:
        raise OptionError("nodes", f"is {nodes!r}; a whole number from 1 to {MAX_WIDTH}") from None
    if not 1 <= number <= MAX_WIDTH:
        raise OptionError("nodes", f"is {number}; a site has from 1 to {MAX_WIDTH} nodes")
    return number


def _outages(
    events: Sequence[NodeEvent], workload: Workload, rows: IntArray, nodes: int, policy: SitePolicy
) -> Outages | None:
    """Return what happens to nodes as compiled code reads it; None if nothing does."""
    if not events:
        return None
    ordered = sorted(events, key=lambda event: event.at_ms)
    first = np.array([event.first_node for event in ordered], np.int64)
    at_0, at_1 = (keys_of(workload, rows, policy.order, at_ms, aging_ms=policy.aging_ms) for at_ms in (0, 1))
    return Outages(
        at_ms=np.array([event.at_ms for event in ordered], np.int64),
        kind=np.array([KINDS.index(event.kind) for event in ordered], np.int64),
        first=first,
        end=first + np.array([event.nodes for event in ordered], np.int64),
        holder=np.full(nodes, NOBODY),
        is_out=np.zeros(nodes, np.bool_),
        width=workload.width[rows].copy(),
        new_key=np.broadcast_to(at_0, len(rows)).copy(),
        ages=bool((at_0 != at_1).any()),
        restarts=np.zeros(len(rows), np.int64),
    )


class BatchRun:
    """A workload in the compiled loop, played in as many pieces as one likes.

    Parameters
    ----------
    rows : numpy.ndarray of int64
        The rows of the jobs to play; none is refused by the site.
    nodes : int
        Nodes of the site.
    week_offset_ms : int
        Local time of instant zero, from Monday 00:00.

    Attributes
    ----------
    outages : Outages or None
        What happens to nodes.
    start_ms, end_ms : numpy.ndarray of int64, shape (rows,)
        The starts and ends so far; `NEVER` for jobs that have not started, or ended.
    """

    def __init__(
        self,
        workload: Workload,
        rows: IntArray,
        nodes: int,
        policy: SitePolicy,
        *,
        week_offset_ms: int = 0,
        node_events: Sequence[NodeEvent] = (),
    ) -> None:
        self._state = empty_state(nodes, slots=len(rows))
        fill_jobs(self._state.jobs, workload, rows, policy.order, aging_ms=policy.aging_ms)
        self._state.jobs["limits"] = limit_masks(workload, policy)[rows]
        plan = empty_plan(self._state, policy.profile_totals(nodes)) if policy.makes_plan else None
        self._discipline = policy.kernel_arguments(plan, policy.limit_arrays(week_offset_ms=week_offset_ms))
        self._cancels = cancellations(workload, rows)
        self.outages = _outages(node_events, workload, rows, nodes, policy)
        self._work = None if self.outages is None else no_work(len(rows))
        self._run = new_run(workload.run_ms[rows], room=len(self._state.running))
        self.start_ms, self.end_ms = self._run.start_ms, self._run.end_ms

    @property
    def parts(self) -> tuple[object, ...]:
        """All that changes as the run goes on, and more."""
        return self._state, self._discipline, self._work, self.outages, self._run

    @property
    def waiting(self) -> IntArray:
        """Which of the rows wait."""
        return self._state.waiting[: self._state.counters[0]["n_waiting"]]

    def play(self, until: int) -> None:
        """Play on until this many jobs have been submitted; if that is all of them, until nothing is left."""
        run_batch(
            self._state, self._work, self._discipline, None, None, None, self._cancels, self.outages, self._run,
            np.int64(until), NEVER_MS,
        )  # fmt: skip
