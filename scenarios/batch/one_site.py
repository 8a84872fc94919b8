"""Simulate one site: check the arguments, then run the workload in the compiled loop."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.errors import InputError, OptionError, check_known
from gridweave.jit import prepared
from gridweave.scenarios.batch.kernels.loop import Cancellations, run_batch
from gridweave.scenarios.batch.kernels.outages import NOBODY, Outages
from gridweave.scenarios.batch.saving import Saving, identity_of
from gridweave.scenarios.batch.stepped import Stepped, run_core
from gridweave.scenarios.results.schedule import NEVER, SimulationResult
from gridweave.scenarios.workload.columns import check_resources
from gridweave.scenarios.workload.needs import check_needs
from gridweave.scenarios.workload.site_events import KINDS, NodeEvent, Request, check_node_events, check_requests
from gridweave.scenarios.workload.table import MAX_WIDTH, MS_PER_S, BoolArray, IntArray, Workload
from gridweave.site.disciplines.compiled import CompiledSite
from gridweave.site.disciplines.dictionary import DISCIPLINES, counted_kinds, deciding, entry_of, traits_of
from gridweave.site.disciplines.entry import Entry, Policy, SiteOutcome
from gridweave.site.kernels.limits import FROM_MONDAY, WeekClock, week_of
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.kernels.work import new_run, no_work
from gridweave.site.policy import SitePolicy
from gridweave.site.resources.refusals import why_whole_only
from gridweave.site.service.zones import DAY_S, LAST_S, load_zone, weeks_of

Progress = Callable[[int, int], None]

DRIVERS = ("batch", "core")

_OF_KINDS = ("kinds", "placement")
"""Options of a policy that matter only if the site counts resources."""

# Jobs to simulate between progress reports; None leaves the choice to the discipline.
_CHUNK: int | None = None

# Half the range of int64; the other half is left for reservations and closed windows.
_LAST_MS = 2**62

_YEARS_AHEAD = 5
"""Years after the last submission for which daylight saving time changes are computed."""


def simulate_one_site(
    workload: Workload,
    nodes: Any,
    policy: Policy,
    reservations: Sequence[Request],
    node_events: Sequence[NodeEvent],
    *,
    driver: str,
    check: bool,
    progress: Progress | None,
    saving: Saving | None,
    **inputs: Any,
) -> SimulationResult:
    """Simulate one site; see `gridweave.scenarios.batch.simulate.simulate_site`."""
    entry = entry_of(policy)
    if entry.lender is not None:
        raise OptionError("discipline", f"{entry.name!r} works only on live sites: {entry.about}")
    _check_workload(workload, policy)
    nodes = _checked_nodes(workload, nodes)
    check_node_events(node_events, nodes)
    if entry.compiled and entry.compiled.supports(policy) and driver == "batch" and not reservations:
        run = SiteRun(workload, nodes, policy, node_events, **inputs)
        if saving is not None:
            saving.begin(_identity(workload, nodes, policy, node_events), run.parts)
        for until in _chunks(len(run.rows), _CHUNK or entry.compiled.chunk, progress):
            run.run(until)
            if saving is not None:
                saving.after_chunk()
        if saving is not None:
            saving.done()
        outcome, options = run.outcome(), run.site.options
    else:
        for name in inputs:
            raise OptionError(name, "needs the compiled loop; leave it out, or leave out driver and reservations")
        cancellations(workload, np.arange(len(workload)))
        week, options = week_for(workload, policy), None
        outcome = run_core(workload, nodes, policy, week, reservations, report=progress, check=check)
    return _result_of(workload, nodes, policy, outcome, options or {"nodes": nodes, **_options_of(policy)})


def _identity(workload: Workload, nodes: int, policy: Policy, node_events: Sequence[NodeEvent]) -> str:
    """Return a hash that identifies this simulation."""
    times = workload.job_id, workload.submit_ms, workload.width, workload.estimate_ms, workload.run_ms
    columns = [thing for name in sorted(workload.columns) for thing in (name, workload.columns[name])]
    when = workload.start_unix_s, workload.timezone, workload.chunks
    return identity_of(*times, *columns, *when, nodes, policy, list(node_events))


def _result_of(
    workload: Workload, nodes: int, policy: Policy, outcome: Stepped, options: Mapping[str, Any]
) -> SimulationResult:
    """Convert the jobs' outcome to a `SimulationResult`."""
    entry = entry_of(policy)
    traits = entry.traits_of(policy)
    return SimulationResult(
        workload=workload,
        nodes=nodes,
        start_ms=outcome.start_ms,
        end_ms=outcome.end_ms,
        killed=workload.overran & (outcome.start_ms != NEVER),
        cancelled=cancelled_in(workload, outcome.start_ms, outcome.refused),
        refused=tuple(sorted(outcome.refused.items())),
        reservations=outcome.answers,
        label=policy.label,
        options={"trace": workload.name, **options},
        shared=traits.overlaps,
        site_kinds=(kinds,) if (kinds := counted_kinds(policy)) else (),
        shares_time=traits.shares_time,
        columns=outcome.columns,
        labels={} if entry.labels is None else entry.labels(policy),
        own_metrics=_own_metrics(entry, workload, nodes, outcome) | _by_needs(workload, nodes, outcome),
        own=outcome.own,
    )


def _own_metrics(entry: Entry, workload: Workload, nodes: int, outcome: Stepped) -> dict[str, float]:
    """Return the discipline's own metrics by name, if any job ran, and the number of restarts."""
    restarts = {name: value for name, value in outcome.totals.items() if name == "restarts"}
    ran = outcome.start_ms != NEVER
    if entry.metrics is None or not ran.any():
        return restarts
    columns = {name: values[ran] for name, values in outcome.columns.items()}
    times = (
        workload.submit_ms[ran],
        outcome.start_ms[ran],
        outcome.end_ms[ran],
        workload.width[ran],
        workload.run_ms[ran],
    )
    return restarts | dict(entry.metrics(SiteOutcome(nodes, *times, columns, outcome.totals)))


def _by_needs(workload: Workload, nodes: int, outcome: Stepped) -> dict[str, float]:
    """Return the metrics based on CPU needs; empty if the workload states no CPU needs or no job ran."""
    if "cpu_need" not in workload.columns or not (outcome.start_ms != NEVER).any():
        return {}
    from gridweave.scenarios.results.bound import need_metrics

    return dict(need_metrics(workload, nodes, outcome.start_ms, outcome.end_ms))


def _chunks(jobs: int, size: int, progress: Progress | None) -> Iterator[int]:
    """Yield, for each chunk, the total number of jobs to submit by its end; report progress after each chunk.

    Without jobs, yield nothing, but report progress once.
    """
    for until in [*range(size, jobs, size), jobs]:
        if jobs:
            yield until
        if progress is not None:
            progress(until, jobs)


def week_for(workload: Workload, policy: Policy, timezone: str | None = None) -> WeekClock:
    """Return the workload's `week_clock` if the policy uses local time; otherwise `FROM_MONDAY`.

    An unknown time zone is an error only if the policy uses local time.
    """
    return week_clock(workload, timezone) if deciding(policy)[1].week else FROM_MONDAY


def _options_of(policy: Policy) -> dict[str, Any]:
    """Return a policy as plain values; an unused slack and infinite numbers become None."""
    options: dict[str, Any] = {"discipline": policy.discipline, **msgspec.to_builtins(policy)}
    if isinstance(policy, SitePolicy):
        options["slack"] = policy.slack if policy.backfill == "slack" else None
        options = {name: value for name, value in options.items() if policy.kinds or name not in _OF_KINDS}
    finite: dict[str, Any] = _without_infinite(options)
    return finite


def _without_infinite(value: Any) -> Any:
    """Replace infinite numbers, which JSON lacks, with None in nested plain values."""
    if isinstance(value, dict):
        return {name: _without_infinite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinite(item) for item in value]
    return None if isinstance(value, float) and math.isinf(value) else value


def check_reserves(policy: Policy) -> None:
    """Raise OptionError if a site cannot reserve nodes in advance under this policy."""
    if not traits_of(policy).reserves:
        right = "use the discipline planning, or another one that plans and evicts no jobs"
        raise OptionError("reservations", f"are refused under the policy {policy.label!r}; {right}")


def check_driver(
    driver: str,
    policy: Policy,
    reservations: Sequence[Request],
    node_events: Sequence[NodeEvent],
    saving: Saving | None,
) -> None:
    """Raise OptionError if the driver is unknown, or the driver or the policy does not support the other arguments."""
    check_known("driver", driver, DRIVERS)
    if saving is not None and (not isinstance(policy, SitePolicy) or driver != "batch" or reservations):
        raise OptionError("save", "works with discipline queue or planning, driver batch, and no reservations")
    entry = entry_of(policy)
    if reservations:
        check_reserves(policy)
    check_requests(reservations)
    if not node_events:
        return
    if entry.compiled is None or not entry.compiled.nodes_may_fail or driver != "batch":
        names = [name for name, entry in DISCIPLINES.items() if entry.compiled and entry.compiled.nodes_may_fail]
        raise OptionError("node_events", f"are for the disciplines {' and '.join(names)} in the compiled loop")
    if traits_of(policy).counts_resources:
        raise OptionError("node_events", "are for sites with a number of nodes; leave out the kinds of nodes")
    if reservations or getattr(policy, "limits", ()):
        raise OptionError("node_events", "cannot be combined with reservations or limits, which could not be kept")


def _check_workload(workload: Workload, policy: Policy) -> None:
    if "weight" in workload.columns:  # a live site checks this at submission
        weight = np.asarray(workload.columns["weight"], np.float64)
        workload.refuse("weight", ~((weight > 0) & (weight < np.inf)), "is not above 0 and finite")
    _check_times(workload)
    traits = traits_of(policy)
    check_needs(workload, traits.needs)
    if traits.uses_resources:
        check_resources(workload)
    if "chunk" in workload.columns and not entry_of(policy).counts_resources:
        parts = np.array([why_whole_only(chunk) is not None for chunk in workload.chunks] + [False])
        asks = f"asks for parts of nodes or labels, which the discipline {policy.discipline} does not know"
        workload.refuse("chunk", parts[workload.columns["chunk"].astype(np.int64)], asks)


def _check_times(workload: Workload) -> None:
    """Raise InputError if running all jobs one after the other could exceed the supported time range."""
    last_ms = workload.submit_ms.max(initial=0) + workload.estimate_ms.sum(dtype=np.float64)
    if last_ms > _LAST_MS:
        raise InputError(f"{workload.name}: its estimates add up to {last_ms:.3g} ms; the limit is {_LAST_MS:.3g}")


def _checked_nodes(workload: Workload, nodes: int | None) -> int:
    nodes = workload.nodes if nodes is None else nodes
    if nodes is None:
        raise OptionError("nodes", f"{workload.name} does not state the size of its machine; give a number")
    try:
        number = operator.index(nodes)
    except TypeError:
        raise OptionError("nodes", f"is {nodes!r}; expected a whole number from 1 to {MAX_WIDTH}") from None
    if not 1 <= number <= MAX_WIDTH:
        raise OptionError("nodes", f"is {number}; expected 1 to {MAX_WIDTH} nodes")
    return number


def _outages(events: Sequence[NodeEvent], workload: Workload, site: CompiledSite, nodes: int) -> Outages | None:
    """Convert node events to arrays for compiled code; return None if there are no events."""
    if not events:
        return None
    assert site.keys_at is not None, "this policy does not support node events"
    ordered = sorted(events, key=lambda event: event.at_ms)
    first = np.array([event.first_node for event in ordered], np.int64)
    at_0, at_1, jobs = site.keys_at(0), site.keys_at(1), len(site.rows)
    return Outages(
        at_ms=np.array([event.at_ms for event in ordered], np.int64),
        kind=np.array([KINDS.index(event.kind) for event in ordered], np.int64),
        first=first,
        end=first + np.array([event.nodes for event in ordered], np.int64),
        holder=np.full(nodes, NOBODY),
        is_out=np.zeros(nodes, np.bool_),
        width=workload.width[site.rows].copy(),
        new_key=np.broadcast_to(at_0, jobs).copy(),
        ages=bool((at_0 != at_1).any()),
        restarts=np.zeros(jobs, np.int64),
    )


class SiteRun:
    """A simulation of a workload on one site in the compiled loop, which can be run in parts.

    Parameters
    ----------
    nodes : int
        Nodes of the site.
    policy : Policy
        Its discipline must be compiled.
    **inputs
        Inputs of the discipline, such as models.

    Attributes
    ----------
    site : CompiledSite
    rows : numpy.ndarray of int64
        Rows of the jobs that are simulated; refused jobs are left out.
    start_ms, end_ms : numpy.ndarray of int64, shape (rows,)
        Starts and ends so far; `NEVER` for jobs that have not started or ended.
    """

    def __init__(
        self, workload: Workload, nodes: int, policy: Policy, node_events: Sequence[NodeEvent] = (), **inputs: Any
    ) -> None:
        compiled = entry_of(policy).compiled
        assert compiled is not None, f"{policy.discipline} has no kernels"
        self.site = compiled.site(nodes, policy, workload, lambda: week_clock(workload), **inputs)
        self._workload, self._nodes, self._policy, self.rows = workload, nodes, policy, self.site.rows
        self._cancels = cancellations(workload, self.rows)
        self._outages = _outages(node_events, workload, self.site, nodes)
        needs_work = self.site.is_paced or self._outages is not None or self.site.evictions is not None
        self._work = no_work(len(self.rows)) if needs_work else None
        self._run = new_run(workload.run_ms[self.rows], capacity=self.site.capacity)
        self.start_ms, self.end_ms = self._run.start_ms, self._run.end_ms

    @property
    def parts(self) -> tuple[object, ...]:
        """The state to save: everything that changes during the run."""
        return self.site.state, self.site.rules, self._work, self._outages, self._run

    def run(self, until: int, stop_ms: int = int(NEVER_MS)) -> None:
        """Continue until ``until`` jobs have been submitted or ``stop_ms`` is reached.

        If ``until`` is the number of all jobs, continue until no events are left.
        """
        rules: Any = self.site.rules
        site, paced = (None, rules) if self.site.is_paced else (rules, None)
        own = self.site.state, self._work, site, paced, None, None
        trouble = self._cancels, self._outages, self.site.evictions
        arguments = *own, *trouble, self._run, np.int64(until), np.int64(stop_ms)
        prepared(run_batch, *arguments)(*arguments)

    def next_instant_ms(self) -> int:
        """Return the time of the next event or due decision, or `NEVER_MS`."""
        jobs, clock, ends = self.site.state.jobs, self._run.clock[0], self._run.ends
        rules: Any = self.site.rules
        instants = [int(rules.wakeup_ms(self.site.state))]
        instants += [int(jobs["submit_ms"][clock["submitted"]])] if clock["submitted"] < len(jobs) else []
        instants += [int(ends.heap["end_ms"][0])] if ends.size[0] else []
        if self._cancels is not None and clock["cancelled"] < len(self._cancels.row):
            instants.append(int(self._cancels.at_ms[clock["cancelled"]]))
        return min(instants)

    def outcome(self) -> Stepped:
        """Return the jobs' outcome; raise InputError if the discipline leaves jobs waiting forever."""
        figures, refused = self.site.figures(), dict(self.site.refused)
        columns = {name: self._of_all(values, 0) for name, values in figures.columns.items()}
        totals = dict(figures.totals)
        if self._outages is not None:
            waiting = self.site.state.waiting[: self.site.state.counters[0]["n_waiting"]]
            totals["restarts"] = int(self._outages.restarts.sum())
            columns["restarts"] = self._of_all(self._outages.restarts, 0)
            back = f"but too many of the {self._nodes} nodes did not return"
            for row in self.rows[waiting].tolist():
                refused[int(self._workload.job_id[row])] = f"it needs {self._workload.width[row]} nodes, {back}"
        else:
            never = self.rows[self.start_ms == NEVER]
            never = never[self._workload.columns.get("cancel_ms", np.full(len(self._workload), -1))[never] < 0]
            if len(never):
                left = f"{len(never)} jobs waiting on an idle site, the first job {self._workload.job_id[never[0]]}"
                raise InputError(f"{self._workload.name}: {self._policy.label} leaves {left}")
        starts, ends = self._of_all(self.start_ms, NEVER), self._of_all(self.end_ms, NEVER)
        return Stepped(starts, ends, refused, (), columns, totals, figures.own)

    def _of_all(self, values: npt.NDArray[Any], default: int) -> npt.NDArray[Any]:
        """Expand values of the simulated jobs to a column of all jobs; refused jobs get the default."""
        spread = np.full(len(self._workload), default, values.dtype)
        spread[self.rows] = values
        return spread


def week_clock(workload: Workload, timezone: str | None = None) -> WeekClock:
    """Return the local time of the week at a site; `FROM_MONDAY` if the workload has no date.

    The time zone defaults to the workload's. Daylight saving time is followed from time zero to
    `_YEARS_AHEAD` years after the last submission.

    Raises
    ------
    InputError
        If the time zone is unknown, or the date is too late for the calendar.
    """
    if workload.start_unix_s is None:
        return FROM_MONDAY
    start_s = workload.start_unix_s
    last_s = start_s + int(workload.submit_ms.max(initial=0)) // MS_PER_S + _YEARS_AHEAD * 365 * DAY_S
    try:
        return week_of(weeks_of(load_zone(timezone or workload.timezone), start_s, start_s, min(last_s, LAST_S)))
    except InputError as error:
        raise InputError(f"{workload.name}: {error}") from None
    except (OverflowError, ValueError, OSError):
        problem = f"{start_s} s since 1970 is beyond the calendar (years 1 to 9999)"
        raise InputError(f"{workload.name}: {problem}") from None


def cancellations(workload: Workload, rows: IntArray) -> Cancellations | None:
    """Return the cancellations of the jobs in these rows, or None if there are none.

    The times come from the column ``cancel_ms``, where -1 means never. Raise InputError if a job is cancelled at or
    before its submission.
    """
    if "cancel_ms" not in workload.columns:
        return None
    cancel_ms = np.asarray(workload.columns["cancel_ms"], np.int64)
    wrong = (cancel_ms >= 0) & (cancel_ms <= workload.submit_ms)
    if wrong.any():
        row = int(np.argmax(wrong))
        times = f"cancel_ms {cancel_ms[row]} is not after its submission at {workload.submit_ms[row]} ms"
        raise InputError(f"{workload.name}: job {workload.job_id[row]}: {times}")
    rows_of_cancelled = np.flatnonzero(cancel_ms[rows] >= 0)
    rows_of_cancelled = rows_of_cancelled[
        np.lexsort((workload.job_id[rows][rows_of_cancelled], cancel_ms[rows][rows_of_cancelled]))
    ]
    return Cancellations(cancel_ms[rows][rows_of_cancelled], rows_of_cancelled) if len(rows_of_cancelled) else None


def cancelled_in(workload: Workload, start_ms: IntArray, refused: Container[int]) -> BoolArray:
    """Return a mask of the jobs that were cancelled while waiting: bool, shape (n,).

    Parameters
    ----------
    start_ms : numpy.ndarray of int64, shape (n,)
        `NEVER` for jobs that did not start.
    refused : container of int
        Ids of jobs that could never start.
    """
    waited: BoolArray = start_ms == NEVER
    if waited.any():
        waited &= [job_id not in refused for job_id in workload.job_id.tolist()]
    cancel_ms = np.asarray(workload.columns.get("cancel_ms", np.full(len(workload), NEVER)), np.int64)
    assert (cancel_ms[waited] >= 0).all(), "the loop ended with jobs that wait"
    return waited
