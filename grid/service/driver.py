"""Driver of the live meta-scheduler: its core, its journal, and its channels to sites."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from gridweave.errors import UnavailableError
from gridweave.grid.api import WhatIf
from gridweave.grid.kernels.links import MAX_OVERHEAD
from gridweave.grid.messages import FromLiveSite, LiveGridEvent, SendToSite, SiteCutOff
from gridweave.grid.meta.live import LiveGrid
from gridweave.grid.meta.settings import GridSettings, changeable_of
from gridweave.grid.policy import GridPolicy
from gridweave.grid.sends import UsualCommunication
from gridweave.jit import one_at_a_time
from gridweave.settings import Changeable
from gridweave.site.job import Accepted, Declined, JobRequest, Program, Resources
from gridweave.site.journal.journal import Journal
from gridweave.site.journal.records import digest
from gridweave.site.launch import AcceptedUsers
from gridweave.site.messages import (
    Answer,
    CommitNodes,
    Ended,
    Enqueued,
    EnqueueJob,
    GridMessage,
    Probed,
    Quoted,
    RequestQuote,
    Reserved,
    ReserveNodes,
    SiteMessage,
    Started,
    TakesUsers,
    UserSubmitted,
)
from gridweave.site.needs.estimates import UsualNeeds
from gridweave.site.quotas import NO_QUOTAS, Quotas
from gridweave.site.scheduler.contract import ALONE_MS
from gridweave.site.service.clock import HISTORY_DAYS, Clock
from gridweave.site.service.driver import Driver, Send, as_begun


class NetworkIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The network settings that decisions depend on."""

    links: str  # digest of the links
    routes: str
    # As in `gridweave.netmodel.routing.find_paths`.
    k: int
    segment_bytes: int
    earliest_end: bool
    # As in `gridweave.grid.control.links.GridNetwork`.
    staging: int
    exact_up_to: int
    max_split_factor: float = 1.0 + MAX_OVERHEAD  # the default is for journals that do not record it


class GridIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The settings with which a journal was written: those of `GridSettings`, with a digest of the network's links."""

    sites: tuple[tuple[str, int], ...]
    policy: GridPolicy
    seed: int
    margin_ms: int
    retry_ms: int
    lease_ms: int
    network: NetworkIdentity | None
    usual: UsualCommunication = UsualCommunication()
    needs: UsualNeeds = UsualNeeds()
    alone_ms: int = ALONE_MS

    @property
    def changeable(self) -> Changeable:
        """The settings that may change while a journal is in use."""
        return changeable_of(self.policy)


def identity_of(settings: GridSettings) -> GridIdentity:
    """Return the form in which a journal records settings."""
    values = {name: getattr(settings, name) for name in GridIdentity.__struct_fields__}
    network = settings.network
    if network is not None:
        topology, paths = network.model.topology, network.model.paths
        columns = [topology.source, topology.target, topology.latency_ms, topology.bandwidth_bps, topology.node_of_site]
        values["network"] = NetworkIdentity(
            links=digest([column.tolist() for column in columns]).hex(),
            routes=paths.routes,
            k=paths.k,
            segment_bytes=paths.segment_bytes,
            earliest_end=network.earliest_end,
            staging=network.staging,
            exact_up_to=network.exact_up_to,
            max_split_factor=network.max_split_factor,
        )
    return GridIdentity(**values)


class GridDriver(Driver[Any]):
    """Drives a `LiveGrid` with a journal, a clock and channels to its sites."""

    def __init__(
        self,
        settings: GridSettings,
        place: str | Path,
        clock: Clock,
        *,
        to_site: Send,
        quotas: Quotas = NO_QUOTAS,
        history_days: int = HISTORY_DAYS,
    ) -> None:
        self.settings = settings
        with one_at_a_time("grid"):
            warm_up(settings)
        self._names = [name for name, _ in settings.sites]
        journal = Journal(
            place,
            event_type=LiveGridEvent,
            message_type=GridMessage,
            answer_type=Accepted | Declined,
            identity=identity_of(settings),
            batch=0,
            compacts=True,
        )
        # Older journals do not record alone_ms; they were written with the configured value.
        self.grid = LiveGrid(as_begun(settings, journal, {"alone_ms": settings.alone_ms}))
        peers = self._names
        own: dict[str, Any] = {"quotas": quotas, "history_days": history_days}
        super().__init__(self.grid, journal, clock, peers=peers, incoming=SiteMessage, send=to_site, **own)
        self.journal = journal
        self.use_settings(identity_of(self.grid.settings), identity_of(settings))

    @property
    def name(self) -> str:
        """The grid's name in messages."""
        return "the grid"

    @property
    def problem(self) -> str:
        """Why the grid accepts no jobs, e.g. because all sites are cut off; empty if the grid accepts jobs."""
        cut_off = self._cut_off()
        return super().problem or ("; ".join(cut_off.values()) if len(cut_off) == len(self._names) else "")

    def _cut_off(self) -> dict[int, str]:
        """Return the sites that are cut off from the grid, each with the reason."""
        problems = {number: (name, self.peer_problem(name)) for number, name in enumerate(self._names)}
        return {number: f"site {name}: {why}" for number, (name, why) in problems.items() if why}

    def news_of_links(self) -> list[SiteCutOff]:
        """Return events for the sites that have been cut off, and for the sites that are reachable again.

        A job placed at a site that is cut off would be stuck there. After a restart, the state in the journal applies
        until the grid has heard from the site.
        """
        before, now = self.grid.cut_off, self._cut_off()
        mended = [number for number in before if number not in now and self._names[number] in self._peers.linked]
        return [
            *(SiteCutOff(number, why) for number, why in now.items() if before.get(number) != why),
            *(SiteCutOff(number, "") for number in mended),
        ]

    async def submit(
        self, requests: Sequence[tuple[str, JobRequest]], *, origin: str = ""
    ) -> list[Accepted | Declined]:
        """Submit jobs, like `Driver.submit`; raise UnavailableError if a job needs a site that is cut off."""
        cut_off = self._cut_off()
        if cut_off and any(self.grid.needs(request, cut_off) for _, request in requests):
            raise UnavailableError("; ".join(cut_off.values()))
        return await super().submit(requests, origin=origin)

    def peer_name(self, peer: str) -> str:
        """Return the name of a site."""
        return f"site {peer}"

    def heard(self, peer: str, message: SiteMessage) -> FromLiveSite:
        """Convert a message from a site into an event."""
        return FromLiveSite(self._names.index(peer), message)

    def outgoing(self, command: Any) -> tuple[str, Any] | None:
        """Return the site and the message of a command to send; None for other commands."""
        return (self._names[command.site], command.message) if isinstance(command, SendToSite) else None

    async def probed(self, probe: Probed) -> None:
        """Record a site's measurement of its path to another site; return once the record is durable."""
        await self.apply(probe)


_MOST_ROUNDS = 50


def warm_up(settings: GridSettings) -> LiveGrid:
    """Load the kernels by simulating jobs on a separate grid: some fill a site, one waits, one is split.

    Jobs may share the nodes of the first site, because the real site may share its nodes, too. The real grid is not
    changed.
    """
    grid = LiveGrid(settings)
    sizes = [nodes for _, nodes in settings.sites]
    widths = [max(sizes), max(sizes), sum(sizes), 1, 1]
    requests = [
        JobRequest(
            program=Program(argv=("true",)), nodes=max(1, width), limit_ms=1_000 * (number + 1), resources=Resources()
        )
        for number, width in enumerate(widths)
    ]
    events: list[LiveGridEvent] = [FromLiveSite(0, TakesUsers(AcceptedUsers(shares=True)))]
    events += [UserSubmitted(str(number), request) for number, request in enumerate(requests)]
    later: list[FromLiveSite] = []
    for now_ms in range(_MOST_ROUNDS):
        commands = grid.handle(now_ms, *events)
        for job_id in grid.registry.records if now_ms == 0 else ():
            grid.forecast(now_ms, job_id)
        site_commands = [command for command in commands if isinstance(command, SendToSite)]
        later += [
            FromLiveSite(command.site, answer)
            for command in site_commands
            for answer in _answers(command.message, now_ms + 1, sizes[command.site])
        ]
        # Sites' quotes are applied while other jobs are running; otherwise there is nothing to compare.
        quotes = [event for event in later if isinstance(event.message, Quoted)]
        events, later = list(quotes or later), [event for event in later if quotes and event not in quotes]
        if not events:
            break
    grid.quote(_MOST_ROUNDS, requests[-1])
    if settings.policy.control == "full":
        grid.what_if(_MOST_ROUNDS, WhatIf(hours=0.001))()
    return grid


def _answers(message: GridMessage, now_ms: int, nodes: int) -> list[Answer]:
    """Return the answers of a simulated site, on which every job ends as soon as it has started."""
    match message:
        case ReserveNodes(job_id=job_id, attempt=attempt, start_ms=start_ms) if start_ms is not None:
            return [Reserved(job_id, attempt)]
        case ReserveNodes(job_id=job_id, attempt=attempt) | CommitNodes(job_id=job_id, attempt=attempt):
            return [Started(job_id, attempt, now_ms), Ended(job_id, attempt, now_ms, "finished")]
        case EnqueueJob(job=job, attempt=attempt):
            begun = Started(job.job_id, attempt, now_ms)
            return [Enqueued(job.job_id, attempt), begun, Ended(job.job_id, attempt, now_ms, "finished")]
        case RequestQuote(quote_id=quote_id, width=width):
            return [Quoted(quote_id, nodes, now_ms if width <= nodes else None, slowdown=1.1)]
        case _:
            return []
