"""The driver of a live site: its core and journal, the orders to its machines, and the channel to the grid."""

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
    SendToGrid,
    SignalRun,
    SiteMessage,
    StartRun,
    UserSubmitted,
)
from gridweave.site.quotas import NO_QUOTAS, Quotas
from gridweave.site.run.runs import SiteSettings
from gridweave.site.scheduler.live import LiveSite
from gridweave.site.service.clock import HISTORY_DAYS, Clock
from gridweave.site.service.driver import Driver, Send, as_begun

GRID = "grid"
"""Name of a site's only peer."""

_SENT_ONCE = (KeepRun, SignalRun)
"""Orders that are sent only once; `Runs.orders` does not repeat them."""

REPEAT_S = 2.0
"""Interval at which unconfirmed orders are resent [s]."""


class SiteDriver(Driver[Any]):
    """Drives a `LiveSite`; ``to_grid`` sends packets to the grid, and ``to_machine`` sends orders to a machine."""

    def __init__(
        self,
        settings: SiteSettings,
        place: str | Path,
        clock: Clock,
        *,
        to_grid: Send,
        to_machine: Send,
        quotas: Quotas = NO_QUOTAS,
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
        own: dict[str, Any] = {"quotas": quotas, "history_days": history_days}
        super().__init__(self.site, journal, clock, peers=[GRID], incoming=GridMessage, send=to_grid, **own)
        self.journal = journal
        self.use_settings(self.site.settings, settings)
        self._to_machine = to_machine
        self._due: set[str] = set()

    @property
    def name(self) -> str:
        """How error messages name the site."""
        return f"site {self.settings.name}"

    def heard(self, peer: str, message: GridMessage) -> GridMessage:
        """Return the message, because messages from the grid are events of the core."""
        return message

    def outgoing(self, command: Any) -> tuple[str, Any] | None:
        """Return the grid and the message to send to it, or None if the command sends no message."""
        return (GRID, command.message) if isinstance(command, SendToGrid) else None

    def act(self, commands: Sequence[Any]) -> None:
        """Send orders to the machines."""
        orders: dict[str, list[Order]] = {}
        # Collect the orders to repeat at this point, because the site's whole state is durable now.
        for order in self.site.runs.orders(*self._due):
            orders.setdefault(order.machine, []).append(order)
        for command in commands:
            # Machines in `_due` already get all their unconfirmed orders again, except those that are sent only once.
            if isinstance(command, Order) and (isinstance(command, _SENT_ONCE) or command.machine not in self._due):
                orders.setdefault(command.machine, []).append(command)
        self._due = set()
        for machine, ordered in orders.items():
            self.spawn(self._to_machine(machine, ENCODER.encode([self._in_real_time(order) for order in ordered])))

    async def forget_machine(self, machine: str) -> None:
        """Give up the jobs on a machine that will not come back."""
        names = [machine.name for machine in self.settings.machines]
        if machine not in names:
            raise InputError(f"site {self.settings.name} has no machine {machine!r:.100}; it has {', '.join(names)}")
        await self.apply(MachineForgotten(machine))

    async def drain(self, draining: bool) -> None:
        """Stop accepting new grid jobs if ``draining``, otherwise accept them again."""
        await self.apply(DrainSite() if draining else ResumeSite())

    async def report(self, data: bytes) -> None:
        """Apply reports from a machine; return once they are durable, so that the machine need not resend them."""
        try:
            reports = REPORTS.decode(data)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise InputError(f"site {self.settings.name}: a report cannot be read: {error}") from error
        await self.apply(*map(self._in_site_time, reports))
        self._repeat({report.machine for report in reports if isinstance(report, MachineJoined)})

    async def repeat_orders(self) -> None:
        """Resend unconfirmed orders to the machines periodically, forever, because any call may be lost."""
        machines = {machine.name for machine in self.settings.machines}
        while True:
            # Take no turn if there are no orders to repeat.
            if any(True for _ in self.site.runs.orders(*machines)):
                self._repeat(machines)
            await asyncio.sleep(REPEAT_S)

    def _repeat(self, machines: set[str]) -> None:
        """Resend these machines' unconfirmed orders in the next turn."""
        if machines:
            self._due |= machines
            self._news.set()

    def _in_site_time(self, report: Report) -> Report:
        """Convert the times in a report from Unix time to the site's clock."""
        if not isinstance(report, RunEnded) or report.ran_ms is None:
            return report
        began_ms, ended_ms = report.ran_ms
        return msgspec.structs.replace(report, ran_ms=(self.clock.at(began_ms), self.clock.at(ended_ms)))

    def _in_real_time(self, order: Order) -> Order:
        """Convert the times in an order from the site's clock to real time."""
        if isinstance(order, PaceRun) and order.at_ms:
            return msgspec.structs.replace(order, at_ms=self.clock.unix_ms(order.at_ms))
        if not isinstance(order, StartRun):
            return order
        spans = {"limit_ms": order.launch.limit_ms, "alone_ms": order.launch.alone_ms}
        real = {name: self.clock.real_ms(span_ms) for name, span_ms in spans.items() if span_ms is not None}
        return msgspec.structs.replace(order, launch=msgspec.structs.replace(order.launch, **real))


_MOST_ROUNDS = 50


def warm_up(settings: SiteSettings) -> LiveSite:
    """Compile the kernels by running some jobs on a throwaway site; return that site."""
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
        for job_id in site.registry.records if now_ms == 0 else ():
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
    """Return events that reserve nodes for two grid jobs: one starts at once, the other at a committed later time."""
    events: list[LiveSiteEvent] = []
    for job_id, start_ms in ((1, None), (2, 10_000)):
        events.append(DescribeJob(job_id, 1, request, 1_000, 0, 1, ("here",)))
        events.append(ReserveNodes(job_id, 1, 1, 1_000, start_ms))
    return [*events, CommitNodes(2, 1)]
