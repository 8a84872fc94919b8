"""Ray actors for tests, in a module of their own because Ray's workers import it by name.

`Called` answers calls. `DrilledMeta` and `DrilledSite` replace the actors of a live grid, and inject a fault when they
send a chosen message of the agreement on a start (`checks.DRILLS` lists the drills).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec

from gridweave.errors import InputError, UnavailableError
from gridweave.grid.service.actor import MetaActor
from gridweave.site.channel import Packet
from gridweave.site.messages import GridMessage, SiteMessage
from gridweave.site.service.actor import SiteActor
from gridweave.site.service.calls import Calls, Door, LiveActor


class Called(LiveActor):
    """An actor that answers."""

    def __init__(self, name: str, *, calls: Calls, **own: str) -> None:
        super().__init__(name, **own)
        self._calls, self._door = calls, Door(self, ("double", "refuse"))

    async def ready(self) -> str:
        """Return the actor's name."""
        return self._name

    async def echo(self, value: Any) -> Any:
        """Return the value."""
        return value

    async def double(self, value: int) -> int:
        """Return twice a number."""
        return 2 * value

    async def refuse(self) -> None:
        """Raise InputError."""
        raise InputError("no such thing")

    async def wait(self) -> None:
        """Never return."""
        await asyncio.Event().wait()

    async def pass_on(self, actor: str, value: Any) -> Any:
        """Return another actor's answer."""
        return await self._calls.call(actor, "echo", value)

    async def ask_all(self, method: str, questions: list[bytes]) -> list[bytes]:
        """Answer questions that share a call."""
        return await self._door.ask_all(method, questions)

    async def stop(self) -> None:
        """Do nothing."""


FROM_GRID: msgspec.msgpack.Decoder[Packet[Any]] = msgspec.msgpack.Decoder(Packet[GridMessage])
FROM_SITE: msgspec.msgpack.Decoder[Packet[Any]] = msgspec.msgpack.Decoder(Packet[SiteMessage])


class Fault(msgspec.Struct, frozen=True):
    """A fault and the message that triggers it; only one of the actors carries it out."""

    message: str
    pid: int = 0  # the process that gets the signal
    signal: int = 0
    cut: list[str] = []  # the sites that are cut off from the grid


def wanted(folder: Path) -> Path:
    """Return the file of the planned fault."""
    return folder / "fault.json"


def taken(folder: Path) -> Path:
    """Return the file of the fault that was carried out."""
    return folder / "fault.taken"


def cut_off(folder: Path, site: str) -> Path:
    """Return the file whose existence means that a site is cut off."""
    return folder / f"{site}.cut"


async def carry(
    folder: Path,
    site: str,
    data: bytes,
    decoder: msgspec.msgpack.Decoder[Packet[Any]],
    send: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    """Carry a packet between the grid and a site unless the site is cut off; carry out a fault that it triggers."""
    if cut_off(folder, site).exists():
        raise UnavailableError(f"{site} is cut off")
    sending = asyncio.ensure_future(send())
    fault = _fault(folder, {type(message).__name__ for message in decoder.decode(data).messages})
    if fault is not None:
        await asyncio.sleep(0)  # lets the packet be sent
        for each in fault.cut:
            cut_off(folder, each).touch()
        if fault.pid:
            os.kill(fault.pid, fault.signal)
    await sending


def _fault(folder: Path, messages: set[str]) -> Fault | None:
    with contextlib.suppress(FileNotFoundError):
        fault = msgspec.json.decode(wanted(folder).read_bytes(), type=Fault)
        if fault.message in messages:
            os.rename(wanted(folder), taken(folder))
            return fault
    return None


class DrilledMeta(MetaActor):
    """A meta-scheduler whose packets may trigger a fault."""

    async def _to_site(self, site: str, data: bytes) -> None:
        folder, send = Path(self._journal).parent, super()._to_site
        await carry(folder, site, data, FROM_GRID, lambda: send(site, data))


class DrilledSite(SiteActor):
    """A site whose packets may trigger a fault."""

    async def _to_grid(self, peer: str, data: bytes) -> None:
        folder, send = Path(self._journal).parent.parent, super()._to_grid
        await carry(folder, self._settings.name, data, FROM_SITE, lambda: send(peer, data))
