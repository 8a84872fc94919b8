"""LiveGrid: the meta-scheduler with its jobs' programs and records, as a state machine (docs/live.md).

It contains a `MetaCore`, which makes the decisions, and keeps the users' jobs (`JobRegistry`) and the sites' reports.
It has no clock and no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from gridweave.errors import InputError
from gridweave.grid.api import KnownNetwork, LearntSplit, WhatIf, WhatIfAnswer
from gridweave.grid.explain.network import network_now
from gridweave.grid.explain.what_if import HOUR_MS, GridNow, PastJob, what_if
from gridweave.grid.messages import (
    FromLiveSite,
    FromSite,
    GridCommand,
    GridEvent,
    GridJobCancelled,
    GridJobExclusions,
    GridJobHeld,
    GridJobReleased,
    GridJobSubmitted,
    GridJobUnplaceable,
    LiveGridCommand,
    LiveGridEvent,
    PathsMeasured,
    ReportDone,
    ReportHeld,
    ReportRefusal,
    ReportRefused,
    SendToSite,
    SiteCutOff,
    SiteShares,
    ToSite,
)
from gridweave.grid.meta.settings import GridSettings, core_of, delays_ms, traffic_of
from gridweave.grid.meta.traffic import SplitExperience
from gridweave.grid.sends import Sends
from gridweave.netmodel.correction import Measurements, MeasurementsState, correct
from gridweave.settings import SettingsChanged, settings_as
from gridweave.site.array_tasks import of_attempt
from gridweave.site.explain import (
    Forecast,
    Forecaster,
    Planner,
    nodes_text,
    record_forecast,
    settled,
    took_text,
    with_cost,
    with_refusals,
)
from gridweave.site.job import DescribeJob, FragmentReport, Job, JobRecord, JobRequest
from gridweave.site.launch import ANYONE, AcceptedUsers, NodeSharing, both_ran, total_usage
from gridweave.site.lifecycle import BEGUN, OVER, PENDING, WITHOUT_NODES, JobCause, JobState
from gridweave.site.messages import (
    Answer,
    CommitNodes,
    Ended,
    EnqueueJob,
    FragmentEnding,
    FragmentOpened,
    FragmentReady,
    FragmentsMet,
    JobAction,
    KillFragment,
    LeaseEnded,
    NodesShared,
    OfAttempt,
    OpenGate,
    Probed,
    Quoted,
    Refused,
    RequestQuote,
    RequeueFragment,
    Reserved,
    ReserveNodes,
    SignalFragment,
    SiteMessage,
    Started,
    TakesUsers,
    UserSubmitted,
    Withdrawn,
)
from gridweave.site.needs.beside import beside_text
from gridweave.site.quotas import QuotasChanged
from gridweave.site.resources.problems import why_on_no_site
from gridweave.site.state import CoreState, hand_over, with_parts
from gridweave.site.times import run_time_ms
from gridweave.site.users.registry import JobRegistry, RegistryState

MEASURED_JOBS = 31
"""Number of recently ended jobs over which the usual delays of starts and ends are averaged."""

_ACTIONS: dict[str, Callable[[int], GridEvent]] = {
    "cancel": GridJobCancelled,
    "kill": GridJobCancelled,
    "hold": GridJobHeld,
    "release": GridJobReleased,
}
"""The event that the core gets for a user's action on a job that has entered the queue."""

C = TypeVar("C")

Offers = Mapping[str, Quoted]
"""The sites' quotes for a job, by site."""


class Gate(msgspec.Struct):
    """The gate of a job on several sites: its ranks wait there until the ranks on all sites are ready."""

    ready: set[int] = set()  # the sites whose ranks are waiting at the gate
    begun: set[int] = set()  # the sites whose ranks have passed it
    is_open: bool = False  # whether the sites have been ordered to open it
    has_ended: bool = False  # whether a part is over, so that the gate must stay closed
    start_ms: int = 0  # the agreed start
    has_failed: bool = False  # whether a part failed by itself while the gate was closed


class LiveGridState(CoreState, Generic[C], frozen=True, kw_only=True, tag="LiveGrid 1"):
    """The state of a live grid; the type of `core` depends on the level of control."""

    now_ms: int
    core: C
    registry: RegistryState = msgspec.field(name="book")
    measured: MeasurementsState
    gates: dict[int, Gate]
    meeting: dict[int, str]
    takes: dict[int, AcceptedUsers] = msgspec.field(default_factory=dict)
    denied: list[tuple[int, str]] = msgspec.field(default_factory=list)
    at_limit: list[int] = msgspec.field(default_factory=list)
    traffic: list[SplitExperience] = msgspec.field(default_factory=list)
    # The settings of the last `SettingsChanged` event; empty if there was none.
    settings: dict[str, Any] = msgspec.field(default_factory=dict)


class LiveGrid:
    """The meta-scheduler of a grid whose sites run real programs.

    Examples
    --------
    >>> from gridweave.grid.policy import GridPolicy
    >>> from gridweave.site.job import JobRequest, Program
    >>> grid = LiveGrid(GridSettings(sites=(("north", 4), ("south", 4)), policy=GridPolicy(mode="multi-site")))
    >>> request = JobRequest(program=Program(argv=("true",)), nodes=6, limit_ms=1000)
    >>> commands = grid.handle(0, UserSubmitted("key", request))
    >>> [(c.site, type(c.message).__name__) for c in commands if isinstance(c, SendToSite)]
    [(0, 'DescribeJob'), (0, 'ReserveNodes'), (1, 'DescribeJob'), (1, 'ReserveNodes')]
    >>> grid.registry.records[1].places
    (('north', 4), ('south', 2))
    """

    def __init__(self, settings: GridSettings) -> None:
        self.settings = settings
        self.registry = JobRegistry(1, can_hold=(*WITHOUT_NODES, "starting"), needs=settings.needs)
        self.core = core_of(settings)
        self.measured = Measurements()
        self._traffic = traffic_of(settings)
        self._names = [name for name, _ in settings.sites]
        # The gates of jobs on several sites, and the addresses at which their ranks meet, by job.
        self._gates: dict[int, Gate] = {}
        self._meeting: dict[int, str] = {}
        # The accepted users of each site, and the users that it has refused since it reported them.
        self._takes: dict[int, AcceptedUsers] = {}
        self._denied: set[tuple[int, str]] = set()
        # The jobs that a site is ending at their limit; if such a job is lost instead, it runs again.
        self._at_limit: set[int] = set()
        self._now_ms = 0
        self._changed: dict[str, Any] = {}
        # The users whose acceptance has changed at this instant; None stands for all users.
        self._new_users: set[str | None] = set()
        # The events for the core.
        self._inner: list[GridEvent] = []

    def handle(self, now_ms: int, *events: LiveGridEvent) -> list[LiveGridCommand]:
        """Apply the events of one instant and return the commands in order; a call without events is a wakeup.

        Raise InputError, and change nothing, if time went backwards or a site is not in this grid.
        """
        self.core.check_senders(now_ms, (event.site for event in events if isinstance(event, FromLiveSite)))
        self._now_ms, self._inner = now_ms, []
        self.registry.begin(now_ms)
        for event in events:
            self._take_in(event)
        self._place_anew()
        self._settle()
        self._run_core()
        while self._settle():
            self._run_core()
        for job_id in self.registry.accept():
            if self.registry.records[job_id].state == "waiting":
                self.registry.note(job_id, "waits", "no nodes for it now, or others go first")
        return self.registry.out

    def forecast(self, now_ms: int, job_id: int) -> Forecast | None:
        """Forecast when and where a job starts, and why not sooner (docs/explain.md)."""
        return None if (forecaster := self.forecaster(now_ms, job_id)) is None else forecaster()

    def quote(self, now_ms: int, request: JobRequest) -> Forecast:
        """Forecast when and where a job would start if it were submitted now."""
        return self.quoter(now_ms, request)()

    def forecaster(self, now_ms: int, job_id: int) -> Forecaster | None:
        """Return a function that forecasts the start of a job from a copy of the state; None if the job is unknown.

        The copy takes milliseconds. The function may take a second, and may run in another thread.
        """
        return self.forecasters(now_ms, [job_id])[0]

    def forecasters(self, now_ms: int, job_ids: Sequence[int]) -> list[Forecaster | None]:
        """Return the `forecaster` of each job; all jobs of the grid queue share one simulation."""
        now_ms = max(now_ms, self._now_ms)
        by_job: dict[int, Forecaster | None] = {}
        ours = list[JobRecord]()
        for job_id in job_ids:
            record = self.registry.records.get(job_id)
            if record is not None:
                kept = self.registry.why_kept(job_id, now_ms)
                by_job[job_id] = settled(record_forecast(record, now_ms, kept))
                if not kept and record.state in PENDING:
                    ours.append(record)
        forecasters = self.core.forecasters(now_ms, [record.job_id for record in ours], self._end_ms())
        for record, forecaster in zip(ours, forecasters, strict=True):
            if forecaster is not None:
                by_job[record.job_id] = self._completed(forecaster, record)
        return [by_job.get(job_id) for job_id in job_ids]

    def _completed(self, forecaster: Forecaster, record: JobRecord) -> Forecaster:
        """Return a forecaster that also reports the sites that do not accept the job, and the cost of its split."""
        completed = self._with_refusals(forecaster, record.request)
        return (
            completed
            if record.split is None or record.state != "starting"
            else partial(with_cost, completed, record.split)
        )

    def quoter(
        self, now_ms: int, request: JobRequest, instead_of: int | None = None, offers: Offers | None = None
    ) -> Forecaster:
        """Return a function that makes a quote; `instead_of` is a job to replace, `offers` are the sites' quotes."""
        now_ms = max(now_ms, self._now_ms)
        state: JobState = "refused"
        refusal = self.registry.refusal(request)
        if refusal is None and (waits := self.registry.why_it_would_wait(request, now_ms)):
            state, refusal = "held", f"it would wait: {waits}"
        if refusal is None:
            try:
                asked = self._submission(self.registry.next_job(request), request)
                if len(asked.excluded) < len(self._names):
                    by_site = {self._names.index(name): quoted for name, quoted in (offers or {}).items()}
                    quoter = self.core.quoter(now_ms, asked, self._end_ms(), instead_of, by_site)
                    return self._with_refusals(quoter, request)
                state, refusal = "refused", self._why_nowhere(request, self._excluded(request))
            except InputError as error:
                refusal = str(error)
        return settled(Forecast(now_ms=now_ms, state=state, length_ms=request.limit_ms, reason=refusal or ""))

    def questions(self, now_ms: int, request: JobRequest) -> dict[str, RequestQuote]:
        """Return the quote request to send to each site for a job; `quoter` gets the answers as `offers`."""
        now_ms = max(now_ms, self._now_ms)
        try:
            asked = self._submission(self.registry.next_job(request), request)
        except InputError:  # the quote names the reason
            return {}
        return {self._names[site]: question for site, question in self.core.questions(now_ms, asked).items()}

    def planner(self, now_ms: int, most_jobs: int) -> Planner:
        """Return a function that forecasts the starts of the first `most_jobs` waiting jobs from the current state."""
        return self.core.planner(max(now_ms, self._now_ms), most_jobs, self._end_ms())

    def what_if(self, now_ms: int, asked: WhatIf) -> Callable[[], WhatIfAnswer]:
        """Return a function that simulates the grid with other settings; raise InputError without full control."""
        queue, settings = self.core.queue_copy(), self.settings
        if queue is None:
            control = settings.policy.control
            raise InputError(f"under control {control} sites decide what starts when; this needs control full")
        since_ms = max(now_ms, self._now_ms) - int(asked.hours * HOUR_MS)
        records = self.registry.records
        waiting = [self._past(records[job.job_id]) for job in queue.waiting]
        grid = GridNow(
            now_ms=max(now_ms, self._now_ms),
            names=tuple(self._names),
            queue=queue,
            policy=settings.policy,
            network=settings.network,
            margin_ms=settings.margin_ms,
            end_ms=self._end_ms(),
            seed=settings.seed,
            waiting=tuple(waiting),
            past=tuple(self._past(record) for record in records.values() if self._came(record, since_ms)),
            n_apart=sum(1 for _ in self.core.waiting()) - len(waiting),
        )
        return partial(what_if, grid, asked)

    def network(self) -> KnownNetwork:
        """Return the current network between the sites, with the number of running jobs on each link."""
        numbers = {name: number for number, name in enumerate(self._names)}
        begun = (record for record in self.registry.records.values() if record.state in BEGUN)
        spread = [[numbers[name] for name, _ in record.places] for record in begun if len(record.places) > 1]
        measured = self.measured.pairs(self._now_ms, self._names)
        model, network = self.core.model, self.settings.network
        if model is None and network is not None:
            model = correct(network.model, measured).model
        return network_now(self._names, network, model, measured, spread)

    def learnt_splits(self) -> list[LearntSplit]:
        """Return the measured costs of the splits of ended jobs."""
        return self._traffic.learnt()

    def _came(self, record: JobRecord, since_ms: int) -> bool:
        return record.submit_ms > since_ms and record.state in (*PENDING, *BEGUN, "ended")

    def _past(self, record: JobRecord) -> PastJob:
        """Convert a submitted job into the input of a simulation."""
        run_ms, part = run_time_ms(record), None
        if record.outcome and run_ms is not None:
            part = min(1.0, max(0, run_ms) / max(1, record.request.limit_ms))
        request = record.request
        asked = GridJobSubmitted(self.registry.job(record), request.sensitivity, self._sends(request))
        return PastJob(record.submit_ms, asked, part)

    def around_ms(self) -> tuple[int, int] | None:
        """Return the typical delays at the start and end of a job, in ms; see `delays_ms`."""
        return delays_ms(self.settings, self.registry.last_ended(MEASURED_JOBS))

    def _end_ms(self) -> int:
        return (self.around_ms() or (0, 0))[1]

    def next_wakeup_ms(self) -> int | None:
        """Return when `handle` must be called even without an event, or None."""
        return self.registry.next_wakeup_ms(self.core.next_wakeup_ms())

    @property
    def state_type(self) -> Any:
        """The type of the state, which depends on the level of control."""
        return with_parts(LiveGridState, self.core)

    def state(self) -> LiveGridState[Any]:
        """Return the state between two instants."""
        return LiveGridState(
            now_ms=self._now_ms,
            core=self.core.state(),
            registry=self.registry.state(),
            measured=self.measured.state(),
            gates=self._gates,
            meeting=self._meeting,
            takes=self._takes,
            denied=sorted(self._denied),
            at_limit=sorted(self._at_limit),
            traffic=self._traffic.state(),
            settings=self._changed,
        )

    def restore(self, state: LiveGridState[Any]) -> None:
        """Restore the state of a grid with the same settings; this grid must be new."""
        self._now_ms = state.now_ms
        if state.settings:
            self._use(state.settings)
        self.core.restore(state.core)
        self.registry.restore(state.registry)
        self.measured.restore(state.measured)
        self._gates = state.gates
        self._meeting = state.meeting
        self._takes, self._denied = state.takes, set(state.denied)
        self._at_limit = set(state.at_limit)
        self._traffic.restore(state.traffic)

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself."""
        self.core.check_invariants()
        open_jobs = {job_id for job_id, record in self.registry.records.items() if record.state not in OVER}
        assert self._gates.keys() | self._meeting.keys() <= open_jobs, "a job is over, but some of its parts are not"
        ending = {job_id for job_id in open_jobs if self.registry.records[job_id].state == "ending"}
        assert self._at_limit <= ending, "a job at its limit is not ending"
        self.registry.check_invariants()

    # -- events -------------------------------------------------------------------------------------------------------

    def _take_in(self, event: LiveGridEvent) -> None:
        match event:
            case UserSubmitted():
                job = self.registry.submit(event, lambda job: self._why_never(job, event.request))
                if job is not None:
                    self._inner.append(self._submission(job, event.request))
            case JobAction():
                for record in self.registry.apply_action(event):
                    self._apply_action(event, record)
                self._inner += self._over_while_held(event)
            case Probed():
                self._probed(event)
            case QuotasChanged(quotas=quotas):
                self.registry.eligibility.set_quotas(quotas)
            case SettingsChanged(settings=settings):
                self._settings_changed(settings)
            case SiteCutOff():
                self._inner.append(event)
            case FromLiveSite(site=site, message=message):
                self._hear(site, message)

    def _use(self, settings: dict[str, Any]) -> None:
        """Switch to other settings, with a new core and without the measured costs of splits."""
        self._changed = settings
        self.settings = settings_as(self.settings, settings, self.settings.changeable)
        self.core, self._traffic = core_of(self.settings), traffic_of(self.settings)
        self.registry.needs.change(self.settings.needs)

    def _settings_changed(self, settings: dict[str, Any]) -> None:
        """Switch to other settings, keep the state, and reconsider the waiting jobs."""
        core, traffic = self.core, self._traffic
        self._use(settings)
        hand_over(core, self.core)
        self._traffic.restore(traffic.state())
        self.core.reconsider(self._now_ms)
        for job_id in list(self.core.waiting()):
            record = self.registry.records[job_id]
            if why := self._why_never(self.registry.job(record), record.request):
                self._inner.append(GridJobUnplaceable(job_id, why))

    def _over_while_held(self, action: JobAction) -> list[GridEvent]:
        """Return the events that make the core forget jobs that were cancelled while they were held."""
        if action.kind not in ("cancel", "kill"):
            return []
        records = (self.registry.records.get(job_id) for job_id in action.job_ids)
        return [GridJobCancelled(record.job_id) for record in records if record is not None and record.state in OVER]

    def _apply_action(self, action: JobAction, record: JobRecord) -> None:
        """Apply a user's action to a queued or placed job; actions on the job's processes are sent to its sites."""
        if action.kind == "kill":
            self._send_to_all(record, KillFragment(record.job_id, record.attempt))
        if action.kind == "signal" and action.signal is not None:
            self._send_to_all(record, SignalFragment(record.job_id, record.attempt, action.signal))
            return
        if action.kind == "requeue":
            self._send_to_all(record, RequeueFragment(record.job_id, record.attempt, action.why_requeued))
            return
        if action.kind in ("cancel", "kill"):
            self._at_limit.discard(record.job_id)
            self.registry.change(record, "stop")
        self._inner.append(_ACTIONS[action.kind](record.job_id))

    def _submission(self, job: Job, request: JobRequest, attempt: int = 0) -> GridJobSubmitted:
        """Return the event that submits a job to the core; raise InputError if the job is impossible."""
        return GridJobSubmitted(job, request.sensitivity, self._sends(request), attempt, tuple(self._excluded(request)))

    def _sends(self, request: JobRequest) -> Sends | None:
        """Return a job's transfers, or None without links; raise InputError if the transfers are impossible."""
        sends = self._traffic.sends(request)
        return sends if self.settings.network is not None or request.traffic is not None else None

    def _why_never(self, job: Job, request: JobRequest) -> str | None:
        try:
            asked = self._submission(job, request)
            self.core.check(self._now_ms, (asked,))
        except InputError as error:
            return str(error)
        if len(asked.excluded) == len(self._names):
            return self._why_nowhere(request, self._excluded(request))
        if (reason := why_on_no_site(self.settings.kinds, request.chunk)) is not None:
            return reason
        return self.core.why_never(job, asked.excluded, asked.sends)

    @property
    def cut_off(self) -> dict[int, str]:
        """The sites that are cut off from all messages, each with the reason."""
        return self.core.cut_off

    def needs(self, request: JobRequest, sites: Collection[int]) -> bool:
        """Whether a job can be placed, but only if at least one of these sites is available."""
        if self.registry.refusal(request) is not None:
            return False
        try:
            asked = self._submission(self.registry.next_job(request), request)
        except InputError:
            return False
        without = {*asked.excluded, *sites}
        is_placed = self.core.why_never(asked.job, asked.excluded, asked.sends) is None
        return is_placed and self.core.why_never(asked.job, tuple(without), asked.sends) is not None

    # -- accepted users -----------------------------------------------------------------------------------------------

    def _excluded(self, request: JobRequest) -> dict[int, str]:
        """Return the sites that do not accept this user's job, each with the reason."""
        asked = request.user, request.batch_options, bool(request.forms)
        reasons = {site: self._refusal(site, *asked) for site in range(len(self._names))}
        return {site: why for site, why in reasons.items() if why is not None}

    def _refusal(self, site: int, user: str, options: Sequence[str] = (), has_forms: bool = False) -> str | None:
        denied = f"it has refused a job of {user!r}" if (site, user) in self._denied else None
        return self._takes.get(site, ANYONE).refusal(user, options, has_forms=has_forms) or denied

    def _why_nowhere(self, request: JobRequest, excluded: dict[int, str]) -> str:
        takes_user = any(self._refusal(site, request.user) is None for site in excluded)
        what = "this job" if takes_user else f"jobs of {request.user!r}"
        return f"no site accepts {what}: {self._by_site(excluded)}"

    def _by_site(self, excluded: dict[int, str]) -> str:
        return "; ".join(f"{self._names[site]}: {why}" for site, why in sorted(excluded.items()))

    def _over(self, record: JobRecord, outcome: str) -> None:
        self._part(record)
        if record.split is not None and (took := took_text(record, self._now_ms)):
            self.registry.note(record.job_id, "took", f"{took}, {record.split.text}")
        self.registry.end(record, *record.judged(outcome, record.reason))
        self._traffic.ended(record, self.core.model)

    def _refused(self, job_id: int, reason: str) -> None:
        """Record that a job is refused, and the reasons of the sites that do not accept the user's job."""
        record = self.registry.records[job_id]
        self._part(record)
        excluded = self._excluded(record.request)
        if len(excluded) == len(self._names):
            reason = self._why_nowhere(record.request, excluded)
        elif excluded:
            reason = f"{reason}; {self._by_site(excluded)}"
        if not self.registry.decline(job_id, reason):
            self.registry.refuse(record, reason)

    def _with_refusals(self, forecaster: Forecaster, request: JobRequest) -> Forecaster:
        """Return a forecaster that also reports the sites that do not accept the job."""
        refusals = {self._names[site]: why for site, why in self._excluded(request).items()}
        return (lambda: with_refusals(forecaster(), refusals)) if refusals else forecaster

    def _place_anew(self) -> None:
        """Update jobs' excluded sites if a site's accepted users have changed at this instant."""
        users, self._new_users = self._new_users, set()
        if not users:
            return
        # Submissions of the same instant still have the old excluded sites.
        for place, event in enumerate(self._inner):
            if isinstance(event, GridJobSubmitted):
                request = self.registry.records[event.job.job_id].request
                self._inner[place] = self._submission(event.job, request, event.attempt)
        for record in self.registry.records.values():
            is_meant = None in users or record.request.user in users
            if is_meant and record.state not in OVER and record.job_id not in self.registry.eligibility:
                self._inner.append(GridJobExclusions(self._submission(self.registry.job(record), record.request)))

    def _probed(self, probe: Probed) -> None:
        """Record a measurement, and use it to correct the model of the links."""
        names, at_ms = (probe.origin, probe.target), probe.at_ms
        try:
            self.measured.add_round_trip(*names, at_ms, probe.round_trips_ms)
            if probe.there_bps > 0:
                self.measured.add_bandwidth(*names, at_ms, probe.there_bps)
            if probe.back_bps > 0:
                self.measured.add_bandwidth(*names[::-1], at_ms, probe.back_bps)
        except InputError:
            # A clock that was set in between may give an impossible time; the next probe will be right.
            return
        if self.settings.network is not None:
            self._inner.append(PathsMeasured(tuple(self.measured.pairs(self._now_ms, self._names))))

    def _reported(self, site: int, report: FragmentReport) -> None:
        """Add a site's report of a fragment to the job's record."""
        record = self.registry.records.get(report.job_id)
        if record is None or record.attempt != report.attempt or record.state in OVER:
            return
        record.used, record.ran_ms = total_usage((record.used, report.used)), both_ran(record.ran_ms, report.ran_ms)
        record.exit_codes = (record.exit_codes + report.exit_codes)[:20]
        record.machines += tuple(f"{self._names[site]}/{machine}" for machine in report.machines)
        record.reason = record.reason or report.reason
        record.array_tasks += of_attempt(report.array_tasks, report.attempt)
        record.interrupted += report.interrupted

    def _shares(self, record: JobRecord, sharing: NodeSharing) -> None:
        """Record with which jobs a job shares its nodes; add a history entry while the job is sharing."""
        record.sharing = sharing
        if sharing.now:
            self.registry.note(record.job_id, "shares", f"its nodes at {record.places[0][0]}: {sharing.text}")

    def _at_gate(self, site: int, message: FragmentReady | FragmentOpened) -> None:
        """Open the gate when all parts of a job are ready; notify the job's sites when all ranks have passed."""
        record = self.registry.records[message.job_id]
        if record.state in OVER or len(record.places) < 2:
            return
        gate, n_sites = self._gates.setdefault(record.job_id, Gate()), len(record.places)
        if isinstance(message, FragmentReady):
            gate.ready.add(site)
            if len(gate.ready) == n_sites and not (gate.is_open or gate.has_ended):
                gate.is_open = True
                by_ms = self._now_ms + self.settings.alone_ms
                self._send_to_all(record, OpenGate(record.job_id, record.attempt, by_ms))
            return
        gate.begun.add(site)
        if len(gate.begun) == n_sites:
            self._send_to_all(record, FragmentsMet(record.job_id, record.attempt))
            self._runs(record, gate.start_ms)

    def _ends_at_limit(self, record: JobRecord) -> None:
        """Record that a site is ending its part of a job that has reached its time limit."""
        if record.state not in OVER and self.registry.change(record, "stop"):
            self._at_limit.add(record.job_id)

    def _send_to_all(self, record: JobRecord, message: object) -> None:
        for name, _ in record.places:
            self._send(self._names.index(name), message)

    def _counted(self, answer: Answer) -> Answer:
        """Record the end of a job's part; return the answer with the outcome that counts.

        A part that was still at its gate is ``unmet``, and the job gets another attempt. But if the gate stayed closed
        because another part failed before it could begin, the job has failed, and this part counts as ``cancelled``.
        """
        if not isinstance(answer, Ended) or len(self.registry.records[answer.job_id].places) < 2:
            return answer
        gate = self._gates.setdefault(answer.job_id, Gate())
        gate.has_ended = True
        gate.has_failed = gate.has_failed or (answer.outcome == "failed" and not gate.is_open)
        if answer.outcome == "unmet" and gate.has_failed:
            return msgspec.structs.replace(answer, outcome="cancelled")
        return answer

    def _hear(self, site: int, message: SiteMessage) -> None:
        """Apply a site's message."""
        if isinstance(message, FragmentReport):
            self._reported(site, message)
        elif isinstance(message, TakesUsers):
            if message.users.shares and not self._takes.get(site, ANYONE).shares:
                self._inner.append(SiteShares(site))
            self._takes[site] = message.users
            self._denied = {(other, user) for other, user in self._denied if other != site}
            self._new_users.add(None)
        elif self._is_asked(site, message):
            if isinstance(message, NodesShared):
                self._shares(self.registry.records[message.job_id], message.sharing)
            elif isinstance(message, FragmentReady | FragmentOpened):
                self._at_gate(site, message)
            elif isinstance(message, FragmentEnding):
                self._ends_at_limit(self.registry.records[message.job_id])
            else:
                message = self._counted(message)
                self._answered(site, message)
                self._inner.append(FromSite(site, message))

    def _is_asked(self, site: int, answer: SiteMessage) -> bool:
        """Whether an answer is valid: an answer about a job must come from a site of the job's current attempt."""
        if not isinstance(answer, OfAttempt):
            return True
        record = self.registry.records.get(answer.job_id)
        if record is None or record.attempt != answer.attempt:
            return False
        return any(name == self._names[site] for name, _ in record.places)

    def _answered(self, site: int, answer: Answer) -> None:
        """Record a site's answer about a job, before the core decides what follows."""
        if not isinstance(answer, OfAttempt):
            return
        record = self.registry.records[answer.job_id]
        if record.state in OVER:
            return
        job_id, name = record.job_id, self._names[site]
        match answer:
            case Reserved(rendezvous=rendezvous):
                if record.state != "held":
                    self._meeting[job_id] = rendezvous or self._meeting.get(job_id, "")
                self.registry.note(job_id, "reserved", f"at {name}")
            case Started(start_ms=start_ms):
                if len(record.places) == 1:
                    self._runs(record, start_ms)
                else:
                    # The job is running once the ranks of all sites have passed the gate; its start stays as agreed.
                    self._gates.setdefault(job_id, Gate()).start_ms = start_ms
            case Refused(reason=reason, cause=cause):
                if cause == "user":
                    self._denied.add((site, record.request.user))
                    self._new_users.add(record.request.user)
                if cause != "job":  # the core reports that refusal itself (`ReportRefusal`)
                    self.registry.note(job_id, "refused", f"at {name}: {reason}")
                self._waits_again(record)
            case LeaseEnded() | Withdrawn():
                self.registry.note(job_id, "released", f"at {name}")
                self._waits_again(record)
            case Ended(outcome=outcome):
                self.registry.note(job_id, "left", f"{name}: {outcome}")
                if outcome in ("lost", "unmet"):
                    self._waits_again(record)
                elif outcome == "cancelled" and job_id in self._gates:
                    # This part has left, so the gate can no longer be passed by all parts.
                    self._gates[job_id].begun.discard(site)

    def _runs(self, record: JobRecord, start_ms: int) -> None:
        """Record that a job is running on all its sites."""
        job_id = record.job_id
        record.starts += record.start_ms is None  # a repeated report is not a new start
        record.start_ms = start_ms
        self.registry.change(record, "run")
        if self.registry.eligibility.started(job_id, record.request):
            self.registry.note(job_id, "release", "it has started before it could be held")
            self._inner.append(GridJobReleased(job_id))
        where = " and ".join(f"{nodes_text(nodes)} at {name}" for name, nodes in record.places)
        # Use the time of the start: the job may have ended before the report of its start arrives here.
        self.registry.note(job_id, "runs", where, min(start_ms, self._now_ms))

    def _waits_again(self, record: JobRecord) -> None:
        """Return a job to the queue for its next attempt, unless it is ending."""
        if record.state != "held":
            # A late answer about an attempt that was given up must not bring a cancelled job back into the queue.
            is_retried = record.state != "ending" or record.job_id in self._at_limit
            self.registry.end_attempt(record, is_retried=is_retried)
        self._part(record)

    def _part(self, record: JobRecord) -> None:
        """Forget a job's gate, the address where its ranks meet, and whether the job has reached its limit."""
        self._gates.pop(record.job_id, None)
        self._meeting.pop(record.job_id, None)
        self._at_limit.discard(record.job_id)

    # -- decisions of the core ----------------------------------------------------------------------------------------

    def _settle(self) -> bool:
        """Admit held jobs that may enter the queue; return whether there are events for the core."""
        for job, attempt in self.registry.settle():
            self._inner.append(self._submission(job, self.registry.records[job.job_id].request, attempt))
        return bool(self._inner)

    def _run_core(self) -> None:
        inner, self._inner = self._inner, []
        self._carry_out(self.core.handle(self._now_ms, *inner))

    def _carry_out(self, commands: list[GridCommand]) -> None:
        fragments: dict[int, list[tuple[int, int]]] = {}
        for command in commands:
            if isinstance(command, ToSite) and isinstance(command.request, ReserveNodes):
                fragments.setdefault(command.request.job_id, []).append((command.site, command.request.width))
        for command in commands:
            match command:
                case ToSite(site=site, request=ReserveNodes() as request):
                    # A job with nodes reserved in advance waits in its sites' queues until all sites have its nodes.
                    cause: JobCause = "delegate" if request.ahead else "place"
                    placement = fragments[request.job_id]
                    self._describe(site, request.attempt, request.length_ms, request.job_id, placement, cause)
                    self._note_beside(site, request)
                    self._send(site, request)
                case ToSite(site=site, request=EnqueueJob(job=job, attempt=attempt) as request):
                    self._describe(site, attempt, job.estimate_ms, job.job_id, [(site, job.width)], "delegate")
                    self.registry.note(job.job_id, "delegated", f"to {self._names[site]}")
                    self._send(site, request)
                case ToSite(site=site, request=CommitNodes(job_id=job_id) as request):
                    meeting, record = self._meeting.get(job_id, ""), self.registry.records[job_id]
                    self.registry.change(record, "place")
                    self._send(site, msgspec.structs.replace(request, rendezvous=meeting))
                case ToSite(site=site, request=RequestQuote(job_id=int(job_id)) as request):
                    user = self.registry.records[job_id].request.user
                    self._send(site, msgspec.structs.replace(request, user=user))
                case ToSite(site=site, request=request):
                    self._send(site, request)
                case ReportDone(job_id=job_id, outcome=outcome):
                    self._over(self.registry.records[job_id], outcome)
                case ReportRefused(job_id=job_id, reason=reason):
                    self._refused(job_id, reason)
                case ReportRefusal(job_id=job_id, site=site, reason=reason):
                    self.registry.note(job_id, "refused", f"at {self._names[site]}: {reason}")
                case ReportHeld(job_id=job_id, attempt=attempt):
                    record = self.registry.records[job_id]
                    self._waits_again(record)
                    record.reason = ""
                    self.registry.take_out(record, attempt)

    def _note_beside(self, site: int, request: ReserveNodes) -> None:
        """Record in a job's history that the job starts on shared nodes because it will end sooner there."""
        if request.beside is None:
            return
        text = beside_text((), request.length_ms, request.beside)
        self.registry.note(request.job_id, "beside", f"{text} at {self._names[site]}, rather than wait or be split")

    def _describe(
        self, site: int, attempt: int, length_ms: int, job_id: int, placement: list[tuple[int, int]], cause: JobCause
    ) -> None:
        """Send a site the description of its part of a job, and record the job's placement."""
        record = self.registry.records[job_id]
        if record.attempt != attempt:
            if record.attempt:
                self.registry.note(job_id, "retried", f"attempt {attempt}")
            record.attempt = attempt
            record.used, record.exit_codes, record.machines, record.reason = type(record.used)(), (), (), ""
            record.placed_ms, record.ran_ms, record.split, record.sharing = self._now_ms, None, None, None
            self._part(record)
        self.registry.change(record, cause)
        where = tuple((self._names[place], nodes) for place, nodes in placement)
        record.places = where
        if len(where) > 1 and record.split is None:
            record.split = self._traffic.split_cost(record.request, where, length_ms, self.core.model)
            self.registry.note(job_id, "split", record.split.text)
        one_each = record.request.program.ranks == "first-node"
        ranks = [1 if one_each else nodes for _, nodes in placement]
        position = [place for place, _ in placement].index(site)
        sites = tuple(name for name, _ in record.places)
        first, size = sum(ranks[:position]), sum(ranks)
        args = length_ms, first, size, sites, record.left(), record.starts
        self._send(site, DescribeJob(job_id, attempt, record.request, *args))

    def _send(self, site: int, message: object) -> None:
        self.registry.out.append(SendToSite(site, message))  # type: ignore[arg-type]
