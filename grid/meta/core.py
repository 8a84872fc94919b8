"""MetaCore: the meta-scheduler as a state machine, events in, commands out.

No clock, no I/O: the time is an argument, and whoever drives the core carries its requests to the sites.
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
from gridweave.grid.messages import (
    FromSite,
    GridCommand,
    GridEvent,
    GridJobBarred,
    GridJobCancelled,
    GridJobHeld,
    GridJobHopeless,
    GridJobReleased,
    GridJobSubmitted,
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
from gridweave.site.messages import Ended, LeaseEnded, Quoted, SiteChanged
from gridweave.site.state import CoreState, with_parts

RETRY_MS = 60_000
"""After how long a site that refused, or was silent, is asked again though nothing was heard of it."""


CONTROLS: dict[str, type[Control]] = {"full": FullControl, "limited": LimitedControl, "none": NoControl}
"""Level of control to what decides at it."""


L = TypeVar("L")


class MetaCoreState(CoreState, Generic[L], frozen=True, kw_only=True, tag="MetaCore 1"):
    """What the meta-scheduler knows: the state of its level of control."""

    now_ms: int
    control: L
    evicted: dict[int, PastEvictions] = msgspec.field(default_factory=dict)


class MetaCore:
    """The meta-scheduler of a grid.

    Parameters
    ----------
    nodes : sequence of int
        Nodes of each site that the grid may have, in site order.
    rng : numpy.random.Generator, optional
        For the selection ``random``, one draw per submitted job.
    margin_ms : int
        How far ahead the start of a job on several sites is agreed; 0 if messages take no time.
    retry_ms : int
        After how long a site that refused, or was silent, is asked again though nothing was heard of it.
    lease_ms : int
        How long a job that was delegated under limited control may wait at a site that hears nothing of the grid; it is
        renewed at a third of that.
    network : GridNetwork, optional
        The links between the sites. The overhead of a split then comes from them and from what each job sends, in the
        place of the policy's own and of the sensitivities.
    names : sequence of str, optional
        Of the sites, for forecasts; left out: ``site 0`` and so on.
    shared : sequence of int, optional
        The sites whose nodes jobs share by hardware threads. Under full control they are asked what they offer.

    Raises
    ------
    OptionError
        If there is no site, ``random`` has no generator, or the network has other sites.

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
    ) -> None:
        if not len(nodes) or min(nodes) < 0 or sum(nodes) < 1:
            raise OptionError("nodes", f"is {list(nodes)}; one number per site, from 0 up, at least 1 in all")
        if policy.selection == "random" and rng is None:
            raise OptionError("rng", "is missing; the selection random draws from a seeded generator")
        self._sites = range(len(nodes))
        if network is not None and len(network.model.topology.sites) != len(nodes):
            raise OptionError("network", f"has {len(network.model.topology.sites)} sites and the grid has {len(nodes)}")
        # With links no overhead of the policy counts.
        self._most_overhead = max(policy.overheads) if network is None else 0.0
        self._network = network
        self._names = tuple(names) or tuple(f"site {site}" for site in self._sites)
        options = ControlOptions(rng, margin_ms, retry_ms, lease_ms, network, self._names, tuple(shared))
        self._control = CONTROLS[policy.control](nodes, policy, options)
        self._now_ms = 0
        # Of jobs that are not over, those that sites have evicted.
        self._evicted: dict[int, PastEvictions] = {}

    def handle(self, now_ms: int, *events: GridEvent) -> list[GridCommand]:
        """Take in what has happened and return what is to be done.

        Parameters
        ----------
        now_ms : int
            The instant; never earlier than in the call before.
        *events
            What happened at this instant. They are taken in the order completions (by job id), other answers of
            sites (as given), changes of links, cancellations, wishes to hold and to release (as given), submissions (as
            given), jobs that are hopeless. None is a wakeup.

        Returns
        -------
        list of GridCommand
            In the order in which they are to be carried out.

        Raises
        ------
        InputError
            If time went backwards, an event names a site that there is not, or a job has impossible numbers; nothing
            has changed then.
        """
        return self.take_in(now_ms, events)

    def take_in(self, now_ms: int, events: Sequence[GridEvent]) -> list[GridCommand]:
        """Do as `handle`, for a caller that has the events in a sequence, and many of them."""
        news = self._news(now_ms, events)
        self._now_ms = now_ms
        commands: list[GridCommand] = []
        for event in news:
            commands += self._told(now_ms, event)
        commands += self._control.run(now_ms)
        if self._evicted:
            for command in commands:
                if isinstance(command, (ReportDone, ReportRefused)):
                    self._evicted.pop(command.job_id, None)
        return commands

    def _told(self, now_ms: int, event: GridEvent) -> Sequence[GridCommand]:
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
        if type(event) is GridJobBarred:
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
        if isinstance(event, GridJobHopeless):
            return control.hopeless(now_ms, event.job_id, event.reason)
        if type(event) is GridJobReleased:
            control.release(event.job_id)
        return ()

    def _note_evicted(self, now_ms: int, site: int, answer: Ended | LeaseEnded) -> None:
        """Count an eviction, once for each attempt: a job on several sites is evicted as a whole."""
        past = self._evicted.get(answer.job_id)
        is_lost = isinstance(answer, LeaseEnded) or answer.outcome == "lost"
        if not is_lost or (past is not None and answer.attempt <= past.attempt):
            return
        times = self._control.evicted(answer.job_id)
        if times:
            self._evicted[answer.job_id] = PastEvictions(times, answer.attempt, now_ms, site, answer.evicted)

    def why_never(self, job: Job, barred: tuple[int, ...] = (), sends: Sends | None = None) -> str | None:
        """Return why a job could not be placed on the idle grid without some sites, in one line, or None."""
        return self._control.why_never(job, barred, sends=sends)

    def waiting(self) -> Iterator[int]:
        """Yield the jobs that wait, in the order in which they are thought of."""
        return self._control.waiting()

    @property
    def model(self) -> NetworkModel | None:
        """The network model that decisions currently use, or None if no links are known."""
        return self._control.model

    @property
    def tuning(self) -> QueueTuning | None:
        """What its queue knows of its orders, if it has one that tunes itself."""
        return self._control.tuning

    def queue_copy(self) -> GridQueue | None:
        """Return a copy of the queue over all sites; None under a level of control that has none."""
        return self._control.queue_copy()

    def next_wakeup_ms(self) -> int | None:
        """Return when `handle` is to be called though no event comes."""
        wakeup_ms = self._control.next_wakeup_ms()
        return None if wakeup_ms is None else max(wakeup_ms, self._now_ms + 1)

    def forecast(self, now_ms: int, job_id: int) -> Forecast | None:
        """Return when a job starts, and where, and why not sooner (docs/explain.md); nothing changes by that.

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
        """Return when a job would start, and where, that were submitted now; nothing changes by that."""
        return self.quoter(now_ms, GridJobSubmitted(job, sensitivity, sends))()

    def forecaster(self, now_ms: int, job_id: int, end_ms: int = 0) -> Forecaster | None:
        """Return what works a forecast out, from a copy of what is known now; None if the job is not known.

        The copy takes milliseconds. To play it forward can take a second, which may be another thread's. In that play
        the grid hears of the ends of jobs ``end_ms`` later.
        """
        return self.forecasters(now_ms, [job_id], end_ms)[0]

    def forecasters(self, now_ms: int, job_ids: Sequence[int], end_ms: int = 0) -> list[Forecaster | None]:
        """Return the `forecaster` of each job; those of the grid queue share one play."""
        now_ms = max(now_ms, self._now_ms)
        found = self._control.forecasters(now_ms, job_ids, end_ms)
        return [self._with_past(now_ms, *each) for each in zip(job_ids, found, strict=True)]

    def _with_past(self, now_ms: int, job_id: int, found: Forecaster | None) -> Forecaster | None:
        """Return a forecaster that tells of evictions as well."""
        past = self._evicted.get(job_id)
        if found is None or past is None:
            return found
        return partial(forecast_of_evicted, found, past.text(now_ms, self._names))

    def quoter(
        self,
        now_ms: int,
        asked: GridJobSubmitted,
        end_ms: int = 0,
        without: int | None = None,
        offers: Mapping[int, Quoted] = NO_OFFERS,
    ) -> Forecaster:
        """Return what works a quote out, from a copy of what is known now; parameters as in `QuoteQuestion`."""
        now_ms = max(now_ms, self._now_ms)
        self.check(now_ms, (asked,))
        return self._control.quoter(now_ms, QuoteQuestion(asked, end_ms, without, offers))

    def planner(self, now_ms: int, most_jobs: int, end_ms: int = 0) -> Planner:
        """Return what works out when jobs start that wait, for so many of them at most, from a copy made now."""
        return self._control.planner(max(now_ms, self._now_ms), most_jobs, end_ms)

    @property
    def state_type(self) -> Any:
        """The type of the state; it goes with the level of control."""
        return with_parts(MetaCoreState, self._control)

    def state(self) -> MetaCoreState[Any]:
        """Return all that is known between two instants."""
        return MetaCoreState(now_ms=self._now_ms, control=self._control.state(), evicted=self._evicted)

    def restore(self, state: MetaCoreState[Any]) -> None:
        """Take in all that another of the same settings knew; this one is fresh."""
        self._now_ms, self._evicted = state.now_ms, state.evicted
        self._control.restore(state.control)

    @property
    def cut_off(self) -> dict[int, str]:
        """The sites with which no messages are exchanged, each with the reason."""
        return self._control.cut_off_sites

    def reconsider(self, now_ms: int) -> None:
        """Have the next pass think anew of all that waits: the state was of one with other settings."""
        self._control.reconsider(now_ms)

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself: a job lost, or nodes that do not add up."""
        self._control.check_invariants()

    def check(self, now_ms: int, events: Sequence[GridEvent]) -> None:
        """Raise InputError if `handle` would."""
        self._news(now_ms, events)

    def check_senders(self, now_ms: int, sites: Iterable[int]) -> None:
        """Raise InputError if time went backwards or one of `sites`, which have sent something, is not in this grid."""
        if now_ms < self._now_ms:
            raise InputError(
                f"now_ms is {now_ms}, earlier than {self._now_ms} in the call before; time never goes back"
            )
        for site in sites:
            if site not in self._sites:
                raise InputError(f"site {site} is not one of the {len(self._sites)} sites")

    def _news(self, now_ms: int, events: Sequence[GridEvent]) -> list[GridEvent]:
        """Return the events in the order in which they are applied; raise as `check`."""
        self.check_senders(now_ms, (event.site for event in events if isinstance(event, (FromSite, SiteShares))))
        news: list[GridEvent] = []
        for event in events:
            if type(event) is GridJobSubmitted:
                self._check_submitted(event)
            elif type(event) is LinksChanged:
                if self._network is None:
                    raise InputError("links have changed, and the grid has no network")
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


# Behind the ends, which stand at the ids of their jobs.
_ANSWERED = MAX_ID + 1
_ORDER: dict[type, int] = {
    LinksChanged: MAX_ID + 2,
    PathsMeasured: MAX_ID + 2,
    # What sites refuse at this instant is placed by it.
    GridJobBarred: -1,
    SiteShares: -1,
    GridJobCancelled: MAX_ID + 3,
    GridJobHeld: MAX_ID + 4,
    GridJobReleased: MAX_ID + 4,
    GridJobSubmitted: MAX_ID + 5,
    GridJobHopeless: MAX_ID + 6,
    SiteCutOff: MAX_ID + 2,
}


def _instant_order(event: GridEvent) -> int:
    """Return where an event stands among those of one instant; those that are alike keep their order."""
    if type(event) is FromSite:
        return event.answer.job_id if type(event.answer) is Ended else _ANSWERED
    return _ORDER[type(event)]
