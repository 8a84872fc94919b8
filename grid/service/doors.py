"""Create gateways for a grid on its own Ray cluster, a single site, or a grid whose sites are reached over links."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, NamedTuple

import msgspec
from typing_extensions import override

from gridweave.errors import InputError, OptionError, UnavailableError
from gridweave.grid.config.gateway import GatewaySettings
from gridweave.grid.gateway.link import LinkDoor, ProbeDoor
from gridweave.grid.gateway.server import Gateway
from gridweave.grid.service.backend import LiveBackend, SiteBackend
from gridweave.grid.service.link_probes import LinkProbing, make_probe
from gridweave.site.service.calls import CALL_S, GRID_ACTOR, Calls, agent_actor, site_actor
from gridweave.site.service.clock import Clock
from gridweave.site.service.link import Link, LinkEnd, Secrets
from gridweave.site.service.probe_link import PROBE_METHOD
from gridweave.site.service.prober import ProbePlan


class ClusterDoor(msgspec.Struct, frozen=True, tag="cluster"):
    """A grid whose actors are all in the gateway's Ray cluster."""


class SiteDoor(msgspec.Struct, frozen=True, tag="site"):
    """A single site, which may belong to a remote grid."""

    name: str
    machines: tuple[str, ...]
    accepts_file: str = ""  # file of the secrets accepted from the grid; empty: the site belongs to no grid


class FarSite(msgspec.Struct, frozen=True, kw_only=True):
    """A remote site, and how the grid reaches it."""

    end: LinkEnd
    accepts_file: str  # file of the secrets accepted from the site
    machines: tuple[str, ...]


class LinksDoor(msgspec.Struct, frozen=True, tag="links"):
    """A meta-scheduler in the gateway's Ray cluster with remote sites."""

    sites: tuple[FarSite, ...]
    probes: ProbePlan | None = None  # interval of measurements between sites; None: never


GatewayDoor = ClusterDoor | SiteDoor | LinksDoor


class ServedGateway(NamedTuple):
    """A gateway with its links to remote sites."""

    gateway: Gateway
    links: dict[str, Link]
    probing: LinkProbing | None = None

    def works(self) -> list[Coroutine[Any, Any, None]]:
        """Return the gateway's background tasks, which run forever."""
        beats = [link.beat() for link in self.links.values()]
        return beats if self.probing is None else [*beats, *(rounds.run() for rounds in self.probing.rounds)]


def serve_door(door: GatewayDoor, settings: GatewaySettings, calls: Calls) -> ServedGateway:
    """Create the gateway for a door; raise OptionError if a link's file cannot be used."""
    match door:
        case SiteDoor():
            return ServedGateway(_site_gateway(door, settings, calls), {})
        case LinksDoor():
            return _links_gateway(door, settings, calls)
        case _:
            return ServedGateway(Gateway(LiveBackend(calls), settings), {})


def _site_gateway(door: SiteDoor, settings: GatewaySettings, calls: Calls) -> Gateway:
    name, turn = door.name, asyncio.Lock()

    async def take(_site: str, data: bytes) -> str | None:
        problem: str | None = await calls.call(site_actor(name), "packet", data)
        return problem

    async def answer(_site: str, machine: str, method: str, data: bytes) -> bytes:
        if not machine and method == PROBE_METHOD:
            return await make_probe(name, data, turn)
        if machine and machine not in door.machines:
            raise UnavailableError(f"site {name} has no machine {machine!r:.100}; it has {', '.join(door.machines)}")
        return await calls.ask(agent_actor(name, machine) if machine else site_actor(name), method, data, alone=True)

    link = None
    if door.accepts_file:
        accepts = {name: Secrets(door.accepts_file)}
        wants, probes = settings.client_ca is not None, ProbeDoor(name, accepts[name], turn)
        link = LinkDoor(accepts, take, answer, wants_certificate=wants, probes=probes)
    return Gateway(SiteBackend(calls, name), settings, link=link)


def open_links(sites: tuple[FarSite, ...]) -> tuple[dict[str, Link], dict[str, Secrets]]:
    """Return each site's link and accepted secrets; raise OptionError if a site's file is unusable."""
    links: dict[str, Link] = {}
    accepts: dict[str, Secrets] = {}
    for site in sites:
        name = site.end.site
        try:
            links[name], accepts[name] = Link(site.end), Secrets(site.accepts_file)
        except OptionError as error:
            raise OptionError(f"sites.{name}", f"{error.option}: {error.problem}") from None
    return links, accepts


def _links_gateway(door: LinksDoor, settings: GatewaySettings, calls: Calls) -> ServedGateway:
    links, accepts = open_links(door.sites)

    async def take(site: str, data: bytes) -> str | None:
        problem: str | None = await calls.call(GRID_ACTOR, "packet", site, data)
        return problem

    link = LinkDoor(
        accepts,
        take,
        wants_certificate=settings.client_ca is not None,
        problem=lambda site: links[site].problem,
    )
    gateway = Gateway(LiveBackend(CallsOverLinks(calls, links)), settings, link=link, links=links)
    probing = None if door.probes is None else LinkProbing(links, calls, door.probes, Clock())
    return ServedGateway(gateway, links, probing)


class CallsOverLinks(Calls):
    """Calls to the meta-scheduler over Ray, and to sites and machines over links."""

    def __init__(self, calls: Calls, links: dict[str, Link]) -> None:
        self._calls, self._links = calls, links

    @override
    async def call(self, actor: str, method: str, *arguments: Any, timeout_s: float = CALL_S) -> Any:
        """Call a method of the meta-scheduler; linked sites support only `ask`."""
        if actor != GRID_ACTOR:
            raise InputError(f"{actor!r:.100} runs at a linked site, which answers questions only")
        return await self._calls.call(actor, method, *arguments, timeout_s=timeout_s)

    @override
    async def ask(
        self, actor: str, method: str, data: bytes, *, timeout_s: float = CALL_S, alone: bool = False
    ) -> bytes:
        """Send a query to the meta-scheduler, a site, or a machine of a site."""
        if actor == GRID_ACTOR:
            return await self._calls.ask(actor, method, data, timeout_s=timeout_s, alone=alone)
        kind, _, place = actor.partition(":")
        site, _, machine = place.partition("/")
        link = self._links.get(site)
        if link is None or kind not in ("site", "agent"):
            raise InputError(f"there is no {actor!r:.100}; the grid has {', '.join(self._links)}")
        return await link.ask(machine, method, data, timeout_s)


async def carry(links: dict[str, Link], site: str, data: bytes) -> str | None:
    """Send a packet from the meta-scheduler to a site, like `Link.packet`."""
    if site not in links:
        raise UnavailableError(f"there is no link to {site!r:.100}; there are {', '.join(links)}")
    return await links[site].packet(data)


async def close_links(links: dict[str, Link]) -> None:
    """Close the connections of all links."""
    await asyncio.gather(*(link.close() for link in links.values()))
