"""Calls to actors on Ray, by their names."""

from __future__ import annotations

import asyncio
from typing import Any

from gridweave.errors import UnavailableError
from gridweave.site.live.near import NearAddress, NearDoor, NearLine, own_network
from gridweave.site.live.ray_names import CALL_S


class NearActor:
    """An actor that offers a line to whoever shares its loopback interface.

    Attributes
    ----------
    near_methods : tuple of str
        Which of its methods may be called over it; they take and return what MessagePack knows.
    """

    near_methods: tuple[str, ...] = ()
    near_door: NearDoor | None = None

    async def near(self) -> NearAddress:
        """Return where it answers on its machine."""
        if self.near_door is None:
            offered = [name for name in self.near_methods if hasattr(self, name)]
            self.near_door = NearDoor(self, offered, own_network())
        return await self.near_door.address()

    async def stop_near(self) -> None:
        """End all lines; what is called from now on is called over Ray."""
        if self.near_door is not None:
            await self.near_door.close()


class Handles:
    """Handles of actors by their names, and lines to those on this machine; who does not answer is looked up again.

    Parameters
    ----------
    namespace : str

    Notes
    -----
    Nobody waits for a line: until there is one calls go over Ray.
    """

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._known: dict[str, Any] = {}
        self._lines: dict[str, NearLine] = {}
        self._opening: set[asyncio.Task[None]] = set()

    @property
    def near(self) -> list[str]:
        """The actors to which there is a line, by name."""
        return sorted(actor for actor, line in self._lines.items() if line.is_open)

    async def call(self, actor: str, method: str, *arguments: object, timeout_s: float = CALL_S) -> Any:
        """Call a method of an actor.

        Raises
        ------
        UnavailableError
            If there is no answer. The call may have run all the same.
        """
        import ray

        line = self._lines.get(actor)
        if line is not None and not line.is_open:
            self._forget(actor)
            line = None
        try:
            async with asyncio.timeout(timeout_s):
                if line is not None:
                    return await line.call(method, *arguments)
                return await _result(getattr(await self._handle(actor), method).remote(*arguments))
        except (ray.exceptions.RayError, TimeoutError, ValueError, UnavailableError) as error:
            # A method that fails says nothing against the line that told so, and nothing here against a newer line.
            is_broken = line is None or not line.is_open or isinstance(error, TimeoutError)
            if is_broken and self._lines.get(actor) is line:
                self._forget(actor)
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UnavailableError(f"actor {actor} does not answer: {reason}") from error

    async def _handle(self, actor: str) -> Any:
        import ray

        handle = self._known.get(actor)
        if handle is None:
            handle = self._known[actor] = await asyncio.to_thread(ray.get_actor, actor, self._namespace)
            task = asyncio.get_running_loop().create_task(self._come_near(actor, handle))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
        return handle

    async def _come_near(self, actor: str, handle: Any) -> None:
        """Open a line to an actor, if it is on this machine and offers one."""
        import ray

        if not (own_network() and hasattr(handle, "near")):
            return
        try:
            async with asyncio.timeout(CALL_S):
                address: NearAddress = await _result(handle.near.remote())
                if address.network != own_network() or self._known.get(actor) is not handle:
                    return
                self._lines[actor] = await NearLine.open(address)
        except (ray.exceptions.RayError, TimeoutError, OSError):
            # It is asked anew when the actor is looked up anew.
            return

    def _forget(self, actor: str) -> None:
        self._known.pop(actor, None)
        line = self._lines.pop(actor, None)
        if line is not None:
            # Others may wait for answers still.
            line.end()


async def _result(reference: Any) -> Any:
    return await reference
