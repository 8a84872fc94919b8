"""Actors for tests of calls, in a module that Ray's workers can import."""

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
