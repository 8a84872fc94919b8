"""Actors for tests of calls, where the processes of hosts find them."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from gridweave.site.service.calls import HostLines, NearActor, NearAddress


class Near(NearActor):
    """An actor that answers."""

    near_methods = ("process", "echo", "wait", "pass_on")

    def __init__(self, *, calls: HostLines) -> None:
        self._calls = calls

    async def process(self) -> int:
        """Return the number of its process."""
        return os.getpid()

    async def echo(self, value: Any) -> Any:
        """Return what it was given."""
        return value

    async def wait(self) -> None:
        """Never return."""
        await asyncio.Event().wait()

    async def pass_on(self, actor: str, value: Any) -> Any:
        """Return what another actor answers, and over which lines it can be asked."""
        return [await self._calls.call(actor, "echo", value), self._calls.near]


class Elsewhere(Near):
    """One that is on another machine, as far as it knows."""

    async def near(self) -> NearAddress:
        """Return where it answers there."""
        address = await super().near()
        return NearAddress("another machine", address.port, address.secret)
