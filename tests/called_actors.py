"""Actors for tests of calls, where the workers of Ray find them."""

from __future__ import annotations

import asyncio
from typing import Any

from gridweave.errors import InputError
from gridweave.site.service.calls import Calls, Door, LiveActor


class Called(LiveActor):
    """An actor that answers."""

    def __init__(self, name: str, *, calls: Calls, **own: str) -> None:
        super().__init__(name, **own)
        self._calls, self._door = calls, Door(self, ("double", "refuse"))

    async def ready(self) -> str:
        """Return its name."""
        return self._name

    async def echo(self, value: Any) -> Any:
        """Return the value."""
        return value

    async def double(self, value: int) -> int:
        """Return twice a number."""
        return 2 * value

    async def refuse(self) -> None:
        """Refuse a question."""
        raise InputError("no such thing")

    async def wait(self) -> None:
        """Never return."""
        await asyncio.Event().wait()

    async def pass_on(self, actor: str, value: Any) -> Any:
        """Return what another actor answers."""
        return await self._calls.call(actor, "echo", value)

    async def ask_all(self, method: str, questions: list[bytes]) -> list[bytes]:
        """Answer questions that share a call."""
        return await self._door.ask_all(method, questions)

    async def stop(self) -> None:
        """End nothing."""
