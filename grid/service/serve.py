"""The two sides of ``gridweave serve``: the meta-scheduler in one process with its gateway, and one site by itself.

A site has a Ray of its own, or a cluster that it joins, its actors, and its own gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from gridweave.errors import InputError, OptionError, UnavailableError
from gridweave.grid.config.reading import ReadGrid
from gridweave.grid.config.tables import EndTable, GatewayTable, ServedGrid, ServedSite
from gridweave.grid.gateway.link import LinkDoor
from gridweave.grid.gateway.server import Gateway
from gridweave.grid.gateway.settings import GatewaySettings, is_loopback
from gridweave.grid.live import GridSettings
from gridweave.grid.service.actor import MetaActor
from gridweave.grid.service.backend import LiveBackend, SiteBackend
from gridweave.grid.service.cluster import (
    FIRST_PORT,
    Place,
    RunningActors,
    SitePlan,
    add_site,
    machines_of,
    plan_of,
)
from gridweave.grid.service.gateway_process import Say, log_requests, prepare_tokens, serve_gateway
from gridweave.grid.service.local import MARKER, kept_secret
from gridweave.grid.service.ray import (
    LOOPBACK,
    MOST_NODES,
    STORE_BYTES,
    OwnRay,
    RayMachine,
    RayState,
    connected,
    knock,
)
from gridweave.grid.service.signals import ended_in_order, signals_held
from gridweave.grid.service.state import HEAD, locked, make_private
from gridweave.site.machine.folders import write_whole
from gridweave.site.maxima import NO_MAXIMA, Maxima
from gridweave.site.runs import SiteSettings
from gridweave.site.service.calls import CALL_S, GRID_ACTOR, NAMESPACE, SITE_LABEL, Handles, agent_actor, site_actor
from gridweave.site.service.clock import HISTORY_DAYS, Clock
from gridweave.site.service.link import Link, LinkEnd, Secrets

PORTS_OF_A_SITE = 1_000
"""So many ports for the ranks of jobs to meet at are kept for each site."""

_MOST_PLACES = 44

STOP_S = 3.0
"""So long requests may take to come to an end when the process is told to end."""


def warn_of_plain(ends: Sequence[LinkEnd], say: Say) -> None:
    """Tell which secrets go over the network for all to read."""
    for end in ends:
        if end.url.startswith("http:") and not is_loopback(urlsplit(end.url).hostname or ""):
            say(f"warning: {end.url} is not encrypted: anyone in between can read the secret of its link")


logger = logging.getLogger("gridweave.serve")


class FarSitePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A site that is elsewhere."""

    end: LinkEnd
    accepts_file: str  # of the secrets that are expected from it
    machines: tuple[str, ...]


class GridService(msgspec.Struct, frozen=True, kw_only=True):
    """The grid's side as it is to run."""

    folder: str  # of the tokens, and of the journal if that is a file
    settings: GridSettings
    sites: tuple[FarSitePlan, ...]  # in the order of the settings
    gateway: GatewayTable
    journal: str  # path or URL
    password_file: str = ""  # of the password of its database; empty: there is none
    maxima: Maxima = NO_MAXIMA  # of users and accounts
    history_days: int = HISTORY_DAYS


def grid_service(read: ReadGrid) -> GridService:
    """Return the grid's side that is to run."""
    file = read.file
    assert isinstance(file, ServedGrid), "a site is not a grid"
    plan = plan_of(read, folder=read.folder, namespace="", labelled=False, first_port=FIRST_PORT, secret=b"")
    return GridService(
        folder=read.folder,
        settings=plan.settings(),
        sites=tuple(
            FarSitePlan(
                end=_link_end(site, site.name, read),
                accepts_file=read.placed(site.accepts_file),
                machines=tuple(machine.name for machine in machines_of(each, FIRST_PORT)),
            )
            for site, each in zip(file.sites, plan.sites, strict=True)
        ),
        gateway=read.gateway,
        journal=plan.journal or str(Path(read.folder) / "grid.journal"),
        password_file=_password_file(file.grid.journal_password_file, read),
        maxima=file.maxima,
        history_days=plan.history_days,
    )


def _link_end(table: EndTable, site: str, read: ReadGrid) -> LinkEnd:
    end = read.with_places(table)
    names = ("token_file", "ca", "cert", "key")
    return LinkEnd(site=site, url=end.url.rstrip("/"), **{name: getattr(end, name) for name in names})


def _password_file(path: str | None, read: ReadGrid) -> str:
    return "" if path is None else read.placed(path)


class FarCalls:
    """Carries calls to the meta-scheduler in this process, and over links to the sites and their machines."""

    def __init__(self, links: dict[str, Link]) -> None:
        self._links = links
        self.meta: MetaActor | None = None

    async def call(self, actor: str, method: str, *arguments: Any, timeout_s: float = CALL_S) -> Any:
        """Call a method of an actor by its name, as `gridweave.site.service.calls.Calls`."""
        if actor == GRID_ACTOR:
            return await self._call_meta(method, arguments, timeout_s)
        kind, _, place = actor.partition(":")
        site, _, machine = place.partition("/")
        link = self._links.get(site)
        if link is None or kind not in ("site", "agent"):
            raise InputError(f"there is no {actor!r:.100}; the grid has {', '.join(self._links)}")
        if method == "packet":
            return await link.packet(*arguments)
        assert method == "ask", "a site is only asked at its desk"
        question: str
        question, data = arguments
        return await link.ask(machine, question, data, timeout_s)

    async def _call_meta(self, method: str, arguments: tuple[Any, ...], timeout_s: float) -> Any:
        assert self.meta is not None, "called before the meta-scheduler was made"
        try:
            async with asyncio.timeout(timeout_s):
                return await getattr(self.meta, method)(*arguments)
        except TimeoutError:
            why = self.meta.problem or "it is busy, or starting"
            raise UnavailableError(f"the meta-scheduler does not answer within {timeout_s:.0f} s: {why}") from None


def serve_grid(service: GridService, say: Say) -> None:
    """Run the grid's side until INT or TERM.

    Should its work end by an error, the process ends with status 1: whoever supervises it starts it anew, and the
    journal knows all.
    """
    log_requests()
    asyncio.run(_serve_grid(service, _settings(service), say))


def _runs_as_others(service: GridService | SiteService) -> bool:
    """Tell whether users of jobs must reach folders below that of a service."""
    return isinstance(service, SiteService) and bool(service.plan.rules.launcher)


def _settings(service: GridService | SiteService) -> GatewaySettings:
    tokens = prepare_tokens(service.gateway, Path(service.folder), passable=_runs_as_others(service))
    return msgspec.structs.replace(service.gateway.settings(tokens), stop_s=STOP_S)


async def _serve_grid(service: GridService, settings: GatewaySettings, say: Say) -> None:
    side = GridSide(service, settings)
    warn_of_plain([site.end for site in service.sites], say)
    try:
        await serve_gateway(side.gateway, [side.ready(say)], say)
    finally:
        await side.stop()


class GridSide:
    """The parts of the grid's side, in the event loop that makes them."""

    def __init__(self, service: GridService, settings: GatewaySettings) -> None:
        self.links: dict[str, Link] = {}
        accepts: dict[str, Secrets] = {}
        for site in service.sites:
            name = site.end.site
            try:
                self.links[name], accepts[name] = Link(site.end), Secrets(site.accepts_file)
            except OptionError as error:
                raise OptionError(f"sites.{name}", f"{error.option}: {error.problem}") from None
        calls = FarCalls(self.links)
        self.meta = calls.meta = MetaActor(
            service.settings,
            service.journal,
            Clock(),
            tuple(site.machines for site in service.sites),
            calls=calls,
            password_file=service.password_file,
            maxima=service.maxima,
            history_days=service.history_days,
        )
        door = LinkDoor(
            accepts,
            self.meta.packet,
            wants_certificate=settings.client_ca is not None,
            problem=lambda site: self.links[site].problem,
        )
        self.backend = LiveBackend(calls)
        self.gateway = Gateway(self.backend, settings, link=door, links=self.links)
        self._beats = [asyncio.create_task(link.beat()) for link in self.links.values()]

    async def ready(self, say: Say) -> None:
        """Return when the journal is open."""
        await self.meta.ready()
        say("the journal is open")

    async def stop(self) -> None:
        """Let go of the journal, and of all connections."""
        for beat in self._beats:
            beat.cancel()
        await asyncio.gather(*self._beats, return_exceptions=True)
        await self.meta.stop()
        for link in self.links.values():
            await link.close()


_LOCK, _RAY = "serve.lock", "ray.json"
_LOOK_S = 1.0
_ACTORS_S = 6.0
"""So long the actors on a cluster of others have to end."""


class SiteService(msgspec.Struct, frozen=True, kw_only=True):
    """A site as it is to run."""

    folder: str  # of its journal, jobs and output, and of the tokens
    plan: SitePlan
    settings: SiteSettings
    namespace: str  # of its actors
    gateway: GatewayTable
    uplink: LinkEnd | None = None  # the grid; None: it is in none
    accepts_file: str = ""  # of the secrets that are expected from the grid
    # By which other sites reach its machine; empty: the address by which it reaches the grid, or, on a cluster that it
    # joins, that which Ray has.
    host: str = ""
    password_file: str = ""  # of the password of the journal's database; empty: there is none
    maxima: Maxima = NO_MAXIMA  # of users and accounts, for the jobs of its own users
    history_days: int = HISTORY_DAYS
    address: str | None = None  # of a Ray cluster that runs; None: it gets one of its own
    # Of its own.
    ray_port: int = 0
    store_bytes: int = STORE_BYTES


def site_service(read: ReadGrid) -> SiteService:
    """Return the site that is to run."""
    file = read.file
    assert isinstance(file, ServedSite), "the grid's side is not a site"
    own, ray, uplink = file.site, file.ray, file.uplink
    first_port = ray.first_port or FIRST_PORT + own.number % _MOST_PLACES * PORTS_OF_A_SITE
    plan = plan_of(read, folder=read.folder, namespace="", labelled=False, first_port=first_port, secret=b"")
    return SiteService(
        folder=read.folder,
        plan=plan.sites[0],
        settings=msgspec.structs.replace(plan.site_settings(0), number=own.number),
        namespace=f"{NAMESPACE}-{own.name}",
        gateway=read.gateway,
        uplink=None if uplink is None else _link_end(uplink, own.name, read),
        accepts_file="" if uplink is None else read.placed(uplink.accepts_file),
        host=own.host or "",
        password_file=_password_file(own.journal_password_file, read),
        maxima=file.maxima,
        history_days=plan.history_days,
        address=ray.address,
        ray_port=ray.port,
        store_bytes=ray.store_bytes,
    )


def serve_site(service: SiteService, say: Say, *, keep_jobs: bool = False) -> None:
    """Run a site until INT or TERM; then all that was started for it ends, its jobs too unless they are kept.

    When the head of its Ray has ended, jobs go on, as after a kill.
    """
    folder = make_private(Path(service.folder), passable=_runs_as_others(service))
    taken = f"another process serves the site in {folder}; end it, or name another folder"
    with locked(folder / _LOCK, taken), ended_in_order():
        log_requests()
        settings = _settings(service)
        _check_files(service)
        if service.uplink is not None:
            warn_of_plain([service.uplink], say)
        side = _on_cluster if service.address is not None else _on_own_ray
        try:
            side(service, settings, say, keep_jobs)
        except SystemExit:
            say("told to end while it was starting; nothing is left of it")


def _check_files(service: SiteService) -> None:
    """Raise OptionError if a file of the link cannot be used, before anything is started."""
    if service.uplink is None:
        return
    try:
        Link(service.uplink)
        Secrets(service.accepts_file)
    except OptionError as error:
        raise OptionError("uplink", f"{error.option}: {error.problem}") from None


def site_ray(service: SiteService, say: Say) -> OwnRay:
    """Return the Ray of a site, as it was left; a head alone, or with a node for each of several machines."""
    folder, machines = Path(service.folder), service.plan.machines
    place = folder / _RAY
    try:
        state = msgspec.json.decode(place.read_bytes(), type=RayState)
    except FileNotFoundError:
        state = RayState()
    except (OSError, msgspec.MsgspecError) as error:
        raise UnavailableError(f"{place}: cannot be read: {error}") from None
    several = 1 < machines <= MOST_NODES
    nodes = [RayMachine(service.settings.name, f"m{number}", alone=False) for number in range(machines)]
    return OwnRay(
        folder,
        nodes if several else [],
        marker=kept_secret(folder, MARKER),
        store_bytes=service.store_bytes,
        port=service.ray_port,
        state=state,
        changed=lambda now: write_whole(place, msgspec.json.encode(now)),
        tell=say,
    )


def _on_own_ray(service: SiteService, settings: GatewaySettings, say: Say, keep_jobs: bool) -> None:
    ray = site_ray(service, say)
    say("Ray runs already; looking at the actors" if ray.process(HEAD) is not None else "starting Ray")
    is_wanted = False
    try:
        ray.start()
        with ray.connected():
            ray.wait()
            own = service.host or own_address(service.uplink.url if service.uplink is not None else "")
            _make_actors(msgspec.structs.replace(service, host=own), ray.labelled, say)
            asyncio.run(_serve_site(service, settings, say, ray))
            is_wanted = True
    except SystemExit:
        is_wanted = True
        raise
    finally:
        with signals_held():
            goes_on = keep_jobs or not is_wanted
            count = ray.end(Path(service.folder), "the site was told to end", keep_jobs=goes_on)
            if count:
                say(f"parts of jobs that ran: {count}; {'they go on' if goes_on else 'they were ended'}")


def own_address(url: str) -> str:
    """Return the address by which this machine reaches a URL; nothing is sent.

    If its name is not known now, or empty, the address of the way to anywhere; `LOOPBACK` if there is none.

    Examples
    --------
    >>> own_address("http://127.0.0.1:8765")
    '127.0.0.1'
    """
    # The second one is kept for examples, and nobody has it.
    for host in (urlsplit(url).hostname, "192.0.2.1"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            if host:
                way.connect((host, 9))
                return str(way.getsockname()[0])
    return LOOPBACK


def _on_cluster(service: SiteService, settings: GatewaySettings, say: Say, keep_jobs: bool) -> None:
    address = service.address or ""
    knock(address)
    with connected(address) as ray:
        there = {node["Labels"].get(SITE_LABEL) for node in ray.nodes() if node["Alive"]} - {None}
        if there and service.settings.name not in there:
            right = "give one to the nodes of this site, or to none"
            raise UnavailableError(
                f"no node of the Ray cluster has the label {SITE_LABEL}={service.settings.name}; {right}"
            )
        found = _make_actors(service, bool(there), say)
        is_wanted = False
        try:
            asyncio.run(_serve_site(service, settings, say, None))
            is_wanted = True
        finally:
            with signals_held():
                found.stop(end_jobs=is_wanted and not keep_jobs, timeout_s=_ACTORS_S)


def _make_actors(service: SiteService, labelled: bool, say: Say) -> RunningActors:
    """Make the actors of the site, or find those that run, and wait for them."""
    found = RunningActors(service.namespace)
    place = Place(folder=service.folder, labelled=labelled, host=service.host)
    options: dict[str, Any] = {
        "uplink": service.uplink,
        "password_file": service.password_file,
        "maxima": service.maxima,
        "history_days": service.history_days,
    }
    add_site(found, service.plan, service.settings, place, **options)
    found.make()
    say("waiting for the actors (for the first time on a machine: compiling, which takes a minute)")
    found.wait()
    return found


async def _serve_site(service: SiteService, settings: GatewaySettings, say: Say, ray: OwnRay | None) -> None:
    gateway = make_gateway(service, settings, Handles(service.namespace))
    await serve_gateway(gateway, [] if ray is None else [_look_after(ray)], say)


def make_gateway(service: SiteService, settings: GatewaySettings, calls: Any) -> Gateway:
    """Return the gateway of a site."""
    name = service.settings.name
    machines = [machine.name for machine in service.settings.machines]

    async def take(_site: str, data: bytes) -> str | None:
        problem: str | None = await calls.call(site_actor(name), "packet", data)
        return problem

    async def answer(_site: str, machine: str, method: str, data: bytes) -> bytes:
        if machine and machine not in machines:
            raise UnavailableError(f"site {name} has no machine {machine!r:.100}; it has {', '.join(machines)}")
        actor = agent_actor(name, machine) if machine else site_actor(name)
        answered: bytes = await calls.call(actor, "ask", method, data)
        return answered

    link = None
    if service.uplink is not None:
        accepts = {name: Secrets(service.accepts_file)}
        link = LinkDoor(accepts, take, answer, wants_certificate=settings.client_ca is not None)
    return Gateway(SiteBackend(calls, name), settings, link=link)


async def _look_after(ray: OwnRay) -> None:
    while True:
        await asyncio.to_thread(ray.mend)
        await asyncio.sleep(_LOOK_S)
