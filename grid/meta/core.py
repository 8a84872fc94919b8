"""MetaCore: the meta-scheduler as a state machine that turns events into commands.

It has no clock and no I/O: the time is an argument, and the caller sends the core's requests to the sites.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec
from numpy.random import Generator

from gridweave.errors import InputError, OptionError
from gridweave.grid.control.common import NO_OFFERS, Control, ControlOptions, QuoteQuestion
from gridweave.grid.control.full import FullControl
from gridweave.grid.control.limited import LEASE_MS, LimitedControl
from gridweave.grid.control.links import GridNetwork
from gridweave.grid.control.none import NoControl
from gridweave.grid.control.past import PastEvictions, forecast_of_evicted
from gridweave.grid.control.queue import GridQueue
from gridweave.grid.control.tuning import QueueTuning
from gridweave.grid.kernels.resources import CountedSite
from gridweave.grid.messages import (
    FromSite,
    GridCommand,
    GridEvent,
    GridJobCancelled,
    GridJobExclusions,
    GridJobHeld,
    GridJobReleased,
    GridJobSubmitted,
    GridJobUnplaceable,
    LinksChanged,
    PathsMeasured,
    ReportDone,
    ReportRefused,
    SiteCutOff,
    SiteShares,
)
from gridweave.grid.policy import GridPolicy
from gridweave.grid.sends import Sends, why_not_sent
from gridweave.netmodel.model import NetworkModel
from gridweave.site.explain import Forecast, Forecaster, Planner
from gridweave.site.job import MAX_ID, MAX_TIME_MS, Job, why_impossible
from gridweave.site.messages import Ended, LeaseEnded, Quoted, RequestQuote, SiteChanged
from gridweave.site.state import CoreState, with_parts

RETRY_MS = 60_000
"""How long to wait before asking a site again that refused or did not answer, unless the site reports earlier."""


CONTROLS: dict[str, type[Control]] = {"full": FullControl, "limited": LimitedControl, "none": NoControl}
"""The class that implements each level of control."""


L = TypeVar("L")


class MetaCoreState(CoreState, Generic[L], frozen=True, kw_only=True, tag="MetaCore 1"):
    """The meta-scheduler's state, including the state of its level of control."""

    now_ms: int
    control: L
    evicted: dict[int, PastEvictions] = msgspec.field(default_factory=dict)


class MetaCore:
    """The meta-scheduler of a grid.

    Parameters
    ----------
    nodes : sequence of int
        The number of nodes of each site that the grid may use, in site order.
    rng : numpy.random.Generator, optional
        The generator for the selection ``random``, with one draw per submitted job.
    margin_ms : int
        How far in advance sites agree on the start of a job on several sites; 0 if messages take no time.
    retry_ms : int
        How long to wait before asking a site again that refused or did not answer, unless the site reports earlier.
    lease_ms : int
        How long a job delegated under limited control may wait at a site that receives nothing from the grid. Leases
        are renewed after a third of this time.
    network : GridNetwork, optional
        The links between the sites. The overhead of a split then follows from the links and the job's transfers, and
        the policy's overhead and the sensitivities have no effect.
    names : sequence of str, optional
        The names of the sites, for forecasts; by default ``site 0`` and so on.
    shared : sequence of int, optional
        The sites where jobs share nodes by hardware threads. Under full control, the grid asks these sites for offers.
    counted : sequence of CountedSite, optional
        The nodes of all sites, if a site counts cores, memory and GPUs; for full control.

    Raises
    ------
    OptionError
        If there is no site, ``random`` has no generator, or the network has a different number of sites.

    Examples
    --------
    >>> core = MetaCore([4, 4], GridPolicy(mode="multi-site"))
    >>> commands = core.handle(0, GridJobSubmitted(Job(job_id=1, width=6, estimate_ms=100)))
    >>> [(command.site, command.request.width) for command in commands]
    [(0, 4), (1, 2)]
    """

    def __init__(
        self,
        nodes: Sequence[int],
        policy: GridPolicy,
        *,
        rng: Generator | None = None,
        margin_ms: int = 0,
        retry_ms: int = RETRY_MS,
        lease_ms: int = LEASE_MS,
        network: GridNetwork | None = None,
        names: Sequence[str] = (),
        shared: Sequence[int] = (),
        counted: Sequence[CountedSite] = (),
    ) -> None:
        if not len(nodes) or min(nodes) < 0 or sum(nodes) < 1:
            raise OptionError("nodes", f"is {list(nodes)}; one number per site, from 0 up, at least 1 in all")
        if policy.selection == "random" and rng is None:
            raise OptionError("rng", "is missing; the selection random draws from a seeded generator")
        self._sites = range(len(nodes))
        if network is not None and len(network.model.topology.sites) != len(nodes):
            raise OptionError("network", f"has {len(network.model.topology.sites)} sites and the grid has {len(nodes)}")
        # With links, the policy's overhead has no effect.
        self._most_overhead = max(policy.overheads) if network is None else 0.0
        self._network = network
        self._names = tuple(names) or tuple(f"site {site}" for site in self._sites)
        of_sites = self._names, tuple(shared), tuple(counted)
        options = ControlOptions(rng, margin_ms, retry_ms, lease_ms, network, *of_sites)
        self._control = CONTROLS[policy.control](nodes, policy, options)
        self._now_ms = 0
        # The evictions of jobs that have not ended, by job.
        self._evicted: dict[int, PastEvictions] = {}

    def handle(self, now_ms: int, *events: GridEvent) -> list[GridCommand]:
        """Apply the events of one instant and return the resulting commands.

        Parameters
        ----------
        now_ms : int
            The time of the instant; never earlier than in the previous call.
        *events
            The events of this instant; a call without events is a wakeup. They are applied in this order: changes of
            excluded sites and sites with shared nodes, completions (by job id), other answers from sites, changes of
            links and cut-off sites, cancellations, holds and releases, submissions, unplaceable jobs. Events of the
            same kind keep their order.

        Returns
        -------
        list of GridCommand
            The commands in the order in which to carry them out.

        Raises
        ------
        InputError
            If time went backwards, an event names an unknown site, or a job has impossible numbers. In these cases,
            nothing has changed.
        """
        return self.take_in(now_ms, events)

    def take_in(self, now_ms: int, events: Sequence[GridEvent]) -> list[GridCommand]:
        """Apply a sequence of events, like `handle`; this is faster for many events."""
        news = self._news(now_ms, events)
        self._now_ms = now_ms
        commands: list[GridCommand] = []
        for event in news:
            commands += self._apply(now_ms, event)
        commands += self._control.run(now_ms)
        if self._evicted:
            for command in commands:
                if isinstance(command, (ReportDone, ReportRefused)):
                    self._evicted.pop(command.job_id, None)
        return commands

    def _apply(self, now_ms: int, event: GridEvent) -> Sequence[GridCommand]:
        control = self._control
        if type(event) is FromSite:
            if isinstance(event.answer, (Ended, LeaseEnded)) and event.answer.evicted:
                self._note_evicted(now_ms, event.site, event.answer)
            if type(event.answer) is SiteChanged:
                control.site_changed(event.site, event.answer)
            return control.answered(now_ms, event.site, event.answer)
        if type(event) is GridJobSubmitted:
            past = self._evicted.get(event.job.job_id)
            if past is not None:
                job = msgspec.structs.replace(event.job, evictions=past.times)
                event = msgspec.structs.replace(event, job=job)
            return control.submit(now_ms, event)
        if type(event) is GridJobExclusions:
            return control.bar(now_ms, event.submitted)
        if type(event) is GridJobCancelled:
            self._evicted.pop(event.job_id, None)
            return control.cancel(now_ms, event.job_id)
        if type(event) is GridJobHeld:
            return control.hold(now_ms, event.job_id)
        if isinstance(event, (LinksChanged, PathsMeasured)):
            return control.links_changed(now_ms, event)
        if type(event) is SiteCutOff:
            control.cut_off(now_ms, event.site, event.reason)
            return ()
        if type(event) is SiteShares:
            control.site_shares(event.site)
        if isinstance(event, GridJobUnplaceable):
            return control.unplaceable(now_ms, event.job_id, event.reason)
        if type(event) is GridJobReleased:
            control.release(event.job_id)
        return ()

    def _note_evicted(self, now_ms: int, site: int, answer: Ended | LeaseEnded) -> None:
        """Count an eviction, at most once per attempt, because a job on several sites is evicted as a whole."""
        past = self._evicted.get(answer.job_id)
        is_lost = isinstance(answer, LeaseEnded) or answer.outcome == "lost"
        if not is_lost or (past is not None and answer.attempt <= past.attempt):
            return
        times = self._control.evicted(answer.job_id)
        if times:
            self._evicted[answer.job_id] = PastEvictions(times, answer.attempt, now_ms, site, answer.evicted)

    def why_never(self, job: Job, excluded: tuple[int, ...] = (), sends: Sends | None = None) -> str | None:
        """Return in one line why a job could not be placed on an idle grid without the excluded sites, or None."""
        return self._control.why_never(job, excluded, sends=sends)

    def waiting(self) -> Iterator[int]:
        """Yield the ids of the waiting jobs in the order in which the jobs are considered."""
        return self._control.waiting()

    @property
    def model(self) -> NetworkModel | None:
        """The current model of the links between the sites, or None."""
        return self._control.model

    @property
    def tuning(self) -> QueueTuning | None:
        """The state of a queue that tunes its own order, or None."""
        return self._control.tuning

    def queue_copy(self) -> GridQueue | None:
        """Return a copy of the queue over all sites; None if the level of control has no such queue."""
        return self._control.queue_copy()

    def next_wakeup_ms(self) -> int | None:
        """Return when `handle` must be called even without an event, or None; always later than the last call."""
        wakeup_ms = self._control.next_wakeup_ms()
        return None if wakeup_ms is None else max(wakeup_ms, self._now_ms + 1)

    def forecast(self, now_ms: int, job_id: int) -> Forecast | None:
        """Forecast when and where a job starts, and why not sooner (docs/explain.md); the state does not change.

        Examples
        --------
        >>> core = MetaCore([4], GridPolicy(mode="sharing"))
        >>> jobs = [Job(job_id=number, width=3, estimate_ms=100) for number in (1, 2)]
        >>> commands = core.handle(0, *(GridJobSubmitted(job) for job in jobs))
        >>> core.forecast(0, 2).start_ms
        100
        """
        forecaster = self.forecaster(now_ms, job_id)
        return None if forecaster is None else forecaster()

    def quote(self, now_ms: int, job: Job, sensitivity: float = 1.0, sends: Sends | None = None) -> Forecast:
        """Forecast when and where a job would start if it were submitted now; the state does not change."""
        return self.quoter(now_ms, GridJobSubmitted(job, sensitivity, sends))()

    def forecaster(self, now_ms: int, job_id: int, end_ms: int = 0) -> Forecaster | None:
        """Return a function that forecasts the start of a job from a copy of the state; None if the job is unknown.

        The copy takes milliseconds. The function may take a second, and may run in another thread. The simulation
        assumes that the grid learns of a job's end ``end_ms`` milliseconds after the job has ended.
        """
        return self.forecasters(now_ms, [job_id], end_ms)[0]

    def forecasters(self, now_ms: int, job_ids: Sequence[int], end_ms: int = 0) -> list[Forecaster | None]:
        """Return the `forecaster` of each job; all jobs of the grid queue share one simulation."""
        now_ms = max(now_ms, self._now_ms)
        forecasters = self._control.forecasters(now_ms, job_ids, end_ms)
        return [self._with_past(now_ms, *pair) for pair in zip(job_ids, forecasters, strict=True)]

    def _with_past(self, now_ms: int, job_id: int, forecaster: Forecaster | None) -> Forecaster | None:
        """Return a forecaster whose forecast also lists the job's evictions."""
        past = self._evicted.get(job_id)
        if forecaster is None or past is None:
            return forecaster
        return partial(forecast_of_evicted, forecaster, past.text(now_ms, self._names))

    def questions(self, now_ms: int, asked: GridJobSubmitted) -> dict[int, RequestQuote]:
        """Return the quote request to each site for a job submitted now; `quoter` takes the answers as `offers`."""
        return self._control.questions(max(now_ms, self._now_ms), asked)

    def quoter(
        self,
        now_ms: int,
        asked: GridJobSubmitted,
        end_ms: int = 0,
        without: int | None = None,
        offers: Mapping[int, Quoted] = NO_OFFERS,
    ) -> Forecaster:
        """Return a function that forecasts the start of a job submitted now; `QuoteQuestion` has the same parameters.

        Raise InputError if `handle` would reject the submission.
        """
        now_ms = max(now_ms, self._now_ms)
        self.check(now_ms, (asked,))
        return self._control.quoter(now_ms, QuoteQuestion(asked, end_ms, without, offers))

    def planner(self, now_ms: int, most_jobs: int, end_ms: int = 0) -> Planner:
        """Return a function that forecasts the starts of the first `most_jobs` waiting jobs from the current state."""
        return self._control.planner(max(now_ms, self._now_ms), most_jobs, end_ms)

    @property
    def state_type(self) -> Any:
        """The type of the state, which depends on the level of control."""
        return with_parts(MetaCoreState, self._control)

    def state(self) -> MetaCoreState[Any]:
        """Return the state between two instants."""
        return MetaCoreState(now_ms=self._now_ms, control=self._control.state(), evicted=self._evicted)

    def restore(self, state: MetaCoreState[Any]) -> None:
        """Restore the state of a core with the same settings; this core must be new."""
        self._now_ms, self._evicted = state.now_ms, state.evicted
        self._control.restore(state.control)

    @property
    def cut_off(self) -> dict[int, str]:
        """The sites that are cut off from all messages, each with the reason."""
        return self._control.cut_off_sites

    def reconsider(self, now_ms: int) -> None:
        """Make the next pass reconsider all waiting jobs; call this after restoring the state of other settings."""
        self._control.reconsider(now_ms)

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself, for example if a job is lost."""
        self._control.check_invariants()

    def check(self, now_ms: int, events: Sequence[GridEvent]) -> None:
        """Raise InputError if `handle` would raise it for these events; change nothing."""
        self._news(now_ms, events)

    def check_senders(self, now_ms: int, sites: Iterable[int]) -> None:
        """Raise InputError if time went backwards, or if a site is not in this grid."""
        if now_ms < self._now_ms:
            raise InputError(
                f"now_ms is {now_ms}, earlier than {self._now_ms} in the call before; time never goes back"
            )
        for site in sites:
            if site not in self._sites:
                raise InputError(f"site {site} is not one of the {len(self._sites)} sites")

    def _news(self, now_ms: int, events: Sequence[GridEvent]) -> list[GridEvent]:
        """Return the events in the order in which they are applied; raise InputError like `check`."""
        self.check_senders(now_ms, (event.site for event in events if isinstance(event, (FromSite, SiteShares))))
        news: list[GridEvent] = []
        for event in events:
            if type(event) is GridJobSubmitted:
                self._check_submitted(event)
            elif type(event) is LinksChanged:
                if self._network is None:
                    raise InputError("links have changed, but the grid has no network")
                self._network.model.with_cables(event.factors)
            news.append(event)
        if len(news) > 1:
            news.sort(key=_instant_order)
        return news

    def _check_submitted(self, event: GridJobSubmitted) -> None:
        job, sensitivity, sends = event.job, event.sensitivity, event.sends
        problem = why_impossible(job)
        if problem is None and sends is not None:
            problem = why_not_sent(sends, len(self._sites))
        if problem is not None:
            raise InputError(f"job {job.job_id}: {problem}")
        overhead_ms = sensitivity * self._most_overhead * job.estimate_ms
        if not (sensitivity >= 0 and overhead_ms <= MAX_TIME_MS):
            raise InputError(
                f"job {job.job_id}: sensitivity {sensitivity} is not from 0 up, or a split could "
                f"take {overhead_ms:.3g} ms longer, where {MAX_TIME_MS:.0e} is the most"
            )


# The order of events of one instant. Ends of jobs are sorted by job id, so all other answers come after the largest id.
_ANSWERED = MAX_ID + 1
_ORDER: dict[type, int] = {
    LinksChanged: MAX_ID + 2,
    PathsMeasured: MAX_ID + 2,
    # Excluded sites come first, so that jobs refused at this instant are placed without these sites.
    GridJobExclusions: -1,
    SiteShares: -1,
    GridJobCancelled: MAX_ID + 3,
    GridJobHeld: MAX_ID + 4,
    GridJobReleased: MAX_ID + 4,
    GridJobSubmitted: MAX_ID + 5,
    GridJobUnplaceable: MAX_ID + 6,
    SiteCutOff: MAX_ID + 2,
}


def _instant_order(event: GridEvent) -> int:
    """Return the key that sorts events with the same time; events with equal keys keep their original order."""
    if type(event) is FromSite:
        return event.answer.job_id if type(event.answer) is Ended else _ANSWERED
    return _ORDER[type(event)]
