"""One site of ``gridweave serve``: its Ray, or a cluster that it joins, its actors, and its own gateway."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from gridweave.errors import OptionError, UnavailableError
from gridweave.grid.gateway.link import LinkDoor
from gridweave.grid.gateway.running import log_requests
from gridweave.grid.gateway.server import Gateway
from gridweave.grid.gateway.settings import GatewaySettings
from gridweave.grid.live.local_gateway import GatewayPlan
from gridweave.grid.live.local_ray import LOOPBACK, connected
from gridweave.grid.live.local_state import make_private
from gridweave.grid.live.local_up import MARKER, kept_secret
from gridweave.grid.live.ray_joining import knock
from gridweave.grid.live.serve_parts import STOP_S, Say, prepare_tokens, serve_gateway, warn_of_plain
from gridweave.grid.live.signals import ended_in_order, signals_held
from gridweave.grid.live.site_backend import SiteBackend
from gridweave.grid.live.site_ray import SiteRay
from gridweave.site.runs import SiteSettings
from gridweave.site.service.calls import SITE_LABEL, Handles, agent_actor, site_actor
from gridweave.site.service.driver import Clock
from gridweave.site.service.link import Link, LinkEnd, Secrets

if TYPE_CHECKING:
    from gridweave.grid.live.cluster import RunningActors, SitePlan

_LOCK = "serve.lock"
_LOOK_S = 1.0
_ACTORS_S = 6.0
"""So long the actors on a cluster of others have to end."""


class SiteService(msgspec.Struct, frozen=True, kw_only=True):
    """A site as it is to run.

    Attributes
    ----------
    folder : str
        Of its journal, jobs and output, and of the tokens.
    plan : SitePlan
    settings : SiteSettings
    namespace : str
        Of its actors.
    gateway : GatewayPlan
    uplink : LinkEnd, optional
        The grid; None: it is in none.
    accepts_file : str
        Of the secrets that are expected from the grid.
    host : str
        By which other sites reach its machine; empty: the address by which it reaches the grid, or, on a cluster that
        it joins, that which Ray has.
    password_file : str
        Of the password of the journal's database; empty: there is none.
    address : str, optional
        Of a Ray cluster that runs; None: it gets one of its own.
    ray_port, store_bytes : int
        Of its own.
    clock : Clock
    """

    folder: str
    plan: Any  # a SitePlan; naming it here would load the cores
    settings: SiteSettings
    namespace: str
    gateway: GatewayPlan
    uplink: LinkEnd | None = None
    accepts_file: str = ""
    host: str = ""
    password_file: str = ""
    address: str | None = None
    ray_port: int = 0
    store_bytes: int = 80 << 20
    clock: Clock = Clock()


def serve_site(service: SiteService, say: Say, *, keep_jobs: bool = False) -> None:
    """Run a site until INT or TERM; then all that was started for it ends.

    Parameters
    ----------
    service : SiteService
    say : callable
    keep_jobs : bool
        Whether the processes of jobs go on.

    Raises
    ------
    GridweaveError
        If it cannot be started, or the head of its Ray has ended. Jobs go on then, as after a kill.
    """
    folder = make_private(Path(service.folder))
    with _alone(folder), ended_in_order():
        log_requests()
        tokens = prepare_tokens(service.gateway, folder)
        settings = msgspec.structs.replace(service.gateway.settings(tokens), stop_s=STOP_S)
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


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep another process from serving the same site."""
    handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UnavailableError(
                f"another process serves the site in {folder}; end it, or name another folder"
            ) from None
        yield
    finally:
        os.close(handle)


def _on_own_ray(service: SiteService, settings: GatewaySettings, say: Say, keep_jobs: bool) -> None:
    ray = SiteRay(
        Path(service.folder),
        service.settings.name,
        service.plan.machines,
        marker=kept_secret(Path(service.folder), MARKER),
        port=service.ray_port,
        store_bytes=service.store_bytes,
    )
    say("Ray runs already; looking at the actors" if ray.head is not None else "starting Ray")
    is_wanted = False
    try:
        with ray.running():
            own = service.host or own_address(service.uplink.url if service.uplink is not None else "")
            _make_actors(msgspec.structs.replace(service, host=own), ray.labelled, say)
            asyncio.run(_serve_site(service, settings, say, ray))
            is_wanted = True
    except SystemExit:
        is_wanted = True
        raise
    finally:
        with signals_held():
            count = ray.end(keep_jobs=keep_jobs or not is_wanted)
            if count:
                say(f"{count} parts of jobs {'go on' if keep_jobs or not is_wanted else 'were ended'}")


def own_address(url: str) -> str:
    """Return the address by which this machine reaches another one; nothing is sent.

    Parameters
    ----------
    url : str
        Of something there. If its name is not known now, or empty, the address of the way to anywhere.

    Returns
    -------
    str
        `LOOPBACK` if there is no way.

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
    from gridweave.grid.live.cluster import Place, RunningActors, make_site

    plan: SitePlan = service.plan
    found = RunningActors(service.namespace)
    place = Place(folder=service.folder, clock=service.clock, labelled=labelled, host=service.host)
    make_site(found, plan, service.settings, place, uplink=service.uplink, password_file=service.password_file)
    say("waiting for the actors (for the first time on a machine: compiling, which takes a minute)")
    found.wait()
    return found


async def _serve_site(service: SiteService, settings: GatewaySettings, say: Say, ray: SiteRay | None) -> None:
    gateway = make_gateway(service, settings, Handles(service.namespace))
    await serve_gateway(gateway, [] if ray is None else [_look_after(ray)], say)


def make_gateway(service: SiteService, settings: GatewaySettings, calls: Any) -> Gateway:
    """Return the gateway of a site.

    Parameters
    ----------
    service : SiteService
    settings : GatewaySettings
    calls : Calls
        To the actors of the site.
    """
    name = service.settings.name
    machines = [agent.name for agent in service.settings.agents]

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


async def _look_after(ray: SiteRay) -> None:
    """See again and again that Ray runs."""
    while True:
        await asyncio.to_thread(ray.mend)
        await asyncio.sleep(_LOOK_S)
