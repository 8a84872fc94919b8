"""A live site: its core, its journal, the machines that run its jobs, and the connection to the grid."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from gridweave.errors import InputError
from gridweave.jit import one_at_a_time
from gridweave.site.job import Accepted, Declined, DescribeJob, JobRequest, Program, Resources
from gridweave.site.journal.journal import Journal
from gridweave.site.live import LiveSite
from gridweave.site.maxima import NO_MAXIMA, Maxima
from gridweave.site.messages import (
    ENCODER,
    REPORTS,
    CommitNodes,
    DrainSite,
    GridMessage,
    KeepRun,
    LiveSiteEvent,
    MachineForgotten,
    MachineJoined,
    Order,
    PaceRun,
    Report,
    RequestQuote,
    ReserveNodes,
    ResumeSite,
    RunEnded,
    RunStarted,
    SignalRun,
    SiteMessage,
    StartRun,
    TellGrid,
    UserSubmitted,
)
from gridweave.site.runs import SiteSettings
from gridweave.site.service.clock import HISTORY_DAYS, Clock
from gridweave.site.service.driver import Driver, Send, as_begun

GRID = "grid"
"""The other end of a site's connection."""

_TOLD_ONCE = (KeepRun, SignalRun)
"""Orders that are not among those which `Runs.orders` repeats."""

REPEAT_S = 2.0
"""After so long a machine is told again what it has not said to have done."""


class SiteDriver(Driver[Any]):
    """Drives a `LiveSite`; packets go to the grid, and orders to machines by their names."""

    def __init__(
        self,
        settings: SiteSettings,
        place: str | Path,
        clock: Clock,
        *,
        to_grid: Send,
        to_machine: Send,
        maxima: Maxima = NO_MAXIMA,
        history_days: int = HISTORY_DAYS,
    ) -> None:
        self.settings = settings
        with one_at_a_time(f"site-{settings.policy.discipline}"):
            warm_up(settings)
        journal = Journal(
            place,
            event_type=LiveSiteEvent,
            message_type=SiteMessage,
            answer_type=Accepted | Declined,
            identity=settings,
            batch=0,
            compacts=True,
        )
        self.site = LiveSite(as_begun(settings, journal))
        own: dict[str, Any] = {"maxima": maxima, "history_days": history_days}
        super().__init__(self.site, journal, clock, peers=[GRID], incoming=GridMessage, send=to_grid, **own)
        self.journal = journal
        self.use_settings(self.site.settings, settings)
        self._to_machine = to_machine
        self._due: set[str] = set()

    @property
    def name(self) -> str:
        """What people call this site."""
        return f"site {self.settings.name}"

    def heard(self, peer: str, message: GridMessage) -> GridMessage:
        """Return what the grid has sent: it is an event as it is."""
        return message

    def outgoing(self, command: Any) -> tuple[str, Any] | None:
        """Return what is to be sent to the grid."""
        return (GRID, command.message) if isinstance(command, TellGrid) else None

    def act(self, commands: Sequence[Any]) -> None:
        """Tell the machines what to run and what to end."""
        orders: dict[str, list[Order]] = {}
        # What is not durable is no order: only here is it certain that all that the site knows is.
        for order in self.site.runs.orders(*self._due):
            orders.setdefault(order.machine, []).append(order)
        for command in commands:
            # What is not repeated is told even to those that are told again all that is.
            if isinstance(command, Order) and (isinstance(command, _TOLD_ONCE) or command.machine not in self._due):
                orders.setdefault(command.machine, []).append(command)
        self._due = set()
        for machine, ordered in orders.items():
            self.spawn(self._to_machine(machine, ENCODER.encode([self._in_real_time(order) for order in ordered])))

    async def forget_machine(self, machine: str) -> None:
        """Give up what a machine ran that will not come back."""
        names = [machine.name for machine in self.settings.machines]
        if machine not in names:
            raise InputError(f"site {self.settings.name} has no machine {machine!r:.100}; it has {', '.join(names)}")
        await self.told(MachineForgotten(machine))

    async def drain(self, draining: bool) -> None:
        """Take in nothing new for the grid, or take it in again."""
        await self.told(DrainSite() if draining else ResumeSite())

    async def report(self, data: bytes) -> None:
        """Take in what a machine tells; return when it is durable, and need not be told again."""
        try:
            reports = REPORTS.decode(data)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise InputError(f"site {self.settings.name}: a report cannot be read: {error}") from error
        await self.told(*map(self._in_site_time, reports))
        self._repeat({report.machine for report in reports if isinstance(report, MachineJoined)})

    async def repeat_orders(self) -> None:
        """Tell the machines again what they have not confirmed, without end: any call may be lost."""
        machines = {machine.name for machine in self.settings.machines}
        while True:
            # Where there is nothing to repeat, nobody is woken.
            if any(True for _ in self.site.runs.orders(*machines)):
                self._repeat(machines)
            await asyncio.sleep(REPEAT_S)

    def _repeat(self, machines: set[str]) -> None:
        """Have the next turn tell machines again what they have not confirmed."""
        if machines:
            self._due |= machines
            self._news.set()

    def _in_site_time(self, report: Report) -> Report:
        """Return a report with the times of a machine as the clock of the site shows them."""
        if not isinstance(report, RunEnded) or report.ran_ms is None:
            return report
        began_ms, ended_ms = report.ran_ms
        return msgspec.structs.replace(report, ran_ms=(self.clock.at(began_ms), self.clock.at(ended_ms)))

    def _in_real_time(self, order: Order) -> Order:
        """Return an order with its times as they are measured on a machine."""
        if isinstance(order, PaceRun) and order.at_ms:
            return msgspec.structs.replace(order, at_ms=self.clock.unix_ms(order.at_ms))
        if not isinstance(order, StartRun):
            return order
        spans = {"limit_ms": order.launch.limit_ms, "alone_ms": order.launch.alone_ms}
        real = {name: self.clock.real_ms(span_ms) for name, span_ms in spans.items() if span_ms is not None}
        return msgspec.structs.replace(order, launch=msgspec.structs.replace(order.launch, **real))


_MOST_ROUNDS = 50


def warm_up(settings: SiteSettings) -> LiveSite:
    """Play some jobs on a site of its own, and return it: one job that fills it, some that wait, some of a grid."""
    site = LiveSite(settings)
    widths = [settings.nodes, settings.nodes, 1, 1]
    requests = [
        JobRequest(program=Program(argv=("true",)), nodes=width, limit_ms=1_000 * (number + 1))
        for number, width in enumerate(widths)
    ]
    events: list[LiveSiteEvent] = [UserSubmitted(str(number), request) for number, request in enumerate(requests)]
    events += [RequestQuote(1, 1, 1_000, Resources(memory=0.5))]
    rest = _of_the_grid(requests[-1])
    now_ms = 0
    for _ in range(_MOST_ROUNDS):
        commands = site.handle(now_ms, *events)
        for job_id in site.book.records if now_ms == 0 else ():
            site.forecast(now_ms, job_id)
            site.quote(now_ms, requests[0])
        now_ms += 1
        events = []
        for command in commands:
            if isinstance(command, StartRun):
                key = command.machine, command.launch.job_id, command.launch.attempt
                events += [RunStarted(*key), RunEnded(*key, "finished")]
        if not events and not rest:
            break
        if not events:
            events = [rest.pop(0)]
            if isinstance(events[0], DescribeJob):
                events.append(rest.pop(0))
            if isinstance(events[-1], ReserveNodes) and events[-1].start_ms is not None:
                now_ms = events[-1].start_ms - 10
    site.handle(100_000)
    return site


def _of_the_grid(request: JobRequest) -> list[LiveSiteEvent]:
    """Return a request for nodes that starts at once, and one that is committed."""
    found: list[LiveSiteEvent] = []
    for job_id, start_ms in ((1, None), (2, 10_000)):
        found.append(DescribeJob(job_id, 1, request, 1_000, 0, 1, ("here",)))
        found.append(ReserveNodes(job_id, 1, 1, 1_000, start_ms))
    return [*found, CommitNodes(2, 1)]
