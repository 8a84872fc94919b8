"""The grid's side of ``gridweave serve``: the meta-scheduler and its gateway in one process, the sites elsewhere."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import msgspec

from gridweave.errors import InputError, OptionError, UnavailableError
from gridweave.grid.gateway.link import LinkDoor
from gridweave.grid.gateway.running import log_requests
from gridweave.grid.gateway.server import Gateway
from gridweave.grid.gateway.settings import GatewaySettings
from gridweave.grid.live.live_backend import LiveBackend
from gridweave.grid.live.local_gateway import GatewayPlan
from gridweave.grid.live.ray_grid import MetaActor
from gridweave.grid.live.serve_parts import STOP_S, Say, prepare_tokens, serve_gateway, warn_of_plain
from gridweave.grid.live_messages import GridSettings
from gridweave.site.service.calls import CALL_S, GRID_ACTOR
from gridweave.site.service.driver import Clock
from gridweave.site.service.link import Link, LinkEnd, Secrets

logger = logging.getLogger("gridweave.serve")


class FarSitePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A site that is elsewhere.

    Attributes
    ----------
    end : LinkEnd
    accepts_file : str
        Of the secrets that are expected from it.
    machines : tuple of str
    """

    end: LinkEnd
    accepts_file: str
    machines: tuple[str, ...]


class GridService(msgspec.Struct, frozen=True, kw_only=True):
    """The grid's side as it is to run.

    Attributes
    ----------
    folder : str
        Of the tokens, and of the journal if that is a file.
    settings : GridSettings
    sites : tuple of FarSitePlan
        In the order of the settings.
    gateway : GatewayPlan
    journal : str
        Path or URL.
    password_file : str
        Of the password of its database; empty: there is none.
    clock : Clock
    """

    folder: str
    settings: GridSettings
    sites: tuple[FarSitePlan, ...]
    gateway: GatewayPlan
    journal: str
    password_file: str = ""
    clock: Clock = Clock()


class FarCalls:
    """Carries calls to the meta-scheduler in this process, and over links to the sites and their machines.

    Parameters
    ----------
    links : dict from str to Link
        By site.

    Attributes
    ----------
    meta : MetaActor, optional
    """

    def __init__(self, links: dict[str, Link]) -> None:
        self._links = links
        self.meta: MetaActor | None = None

    async def call(self, actor: str, method: str, *arguments: Any, timeout_s: float = CALL_S) -> Any:
        """Call a method of an actor by its name, as `gridweave.site.service.calls.Calls`.

        Raises
        ------
        UnavailableError
            If there is no answer.
        """
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

    Parameters
    ----------
    service : GridService
    say : callable

    Raises
    ------
    GridweaveError
        If it cannot be started, or its journal can never be used. Should its work end by an error, the process ends
        with status 1: whoever supervises it starts it anew, and the journal knows all.
    """
    log_requests()
    tokens = prepare_tokens(service.gateway, Path(service.folder))
    settings = msgspec.structs.replace(service.gateway.settings(tokens), stop_s=STOP_S)
    asyncio.run(_serve_grid(service, settings, say))


async def _serve_grid(service: GridService, settings: GatewaySettings, say: Say) -> None:
    side = GridSide(service, settings)
    warn_of_plain([site.end for site in service.sites], say)
    try:
        await serve_gateway(side.gateway, [side.ready(say)], say)
    finally:
        await side.stop()


class GridSide:
    """The parts of the grid's side, in the event loop that makes them.

    Parameters
    ----------
    service : GridService
    settings : GatewaySettings

    Raises
    ------
    OptionError
        If a file that is named cannot be used.
    """

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
            service.clock,
            "",
            tuple(site.machines for site in service.sites),
            calls=calls,
            password_file=service.password_file,
        )
        door = LinkDoor(accepts, self.meta.packet, wants_certificate=settings.client_ca is not None)
        self.backend = LiveBackend(calls)
        self.gateway = Gateway(self.backend, settings, link=door, links=self.links)

    async def ready(self, say: Say) -> None:
        """Return when the journal is open.

        Raises
        ------
        GridweaveError
            If it can never be.
        """
        await self.meta.ready()
        say("the journal is open")

    async def stop(self) -> None:
        """Let go of the journal, and of all connections."""
        await self.meta.stop()
        for link in self.links.values():
            await link.close()
