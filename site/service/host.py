"""The host of a machine: the one actor that a grid has on a Ray node, and the processes that it starts and keeps.

Ray says where a host is, starts it anew, and carries what goes to other machines. The actors of the grid there (sites,
agents, the meta-scheduler) are plain processes of the host, and each fails by itself. A process of Ray costs 40 MB and
wakes a hundred times a second; so there is one of them on a machine, and not one for each actor.

Such a process is ``python -m gridweave.site.service.host ACTOR HOST-PID``. What it is to be it reads from standard
input; where it answers it says on standard output, which it then closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gridweave.errors import UnavailableError
from gridweave.site.machine.processes import die_with_parent
from gridweave.site.service.calls import Handles, HostLines, NearActor, NearAddress, NearLine, encode, endure, hosts_of

logger = logging.getLogger("gridweave.live")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 10.0
_STEADY_S = 60.0
"""After so long an actor counts as one that works, and is started anew at once should it end."""


class Hosting(msgspec.Struct, frozen=True):
    """What the process of an actor is told when it starts."""

    actor: str
    made: bytes  # as `packed`
    path: list[str]  # where modules are found
    host: NearAddress
    ip: str


def packed(kind: type[Any], arguments: Sequence[object], options: Mapping[str, object]) -> bytes:
    """Return what an actor is made of: its class, and what its constructor is given besides ``calls``."""
    return pickle.dumps((kind, tuple(arguments), dict(options)))


class Host(NearActor):
    """Starts the processes of actors on this machine, starts anew those that end, and carries calls to them.

    `hosted` are the actors by their names (`packed`), and `path` is where their modules are found. They end with this
    process.
    """

    near_methods = ("call", "where")

    def __init__(self, name: str, namespace: str, hosted: Mapping[str, bytes], path: Sequence[str]) -> None:
        self._name, self._hosted, self._path = name, dict(hosted), list(path)
        self._handles = Handles(namespace)
        self._addresses: dict[str, NearAddress] = {}
        self._lines: dict[str, NearLine] = {}
        self._there = {actor: asyncio.Event() for actor in hosted}
        self._tasks = endure(name, *(self._keep(actor) for actor in hosted))

    async def _keep(self, actor: str) -> None:
        """Have the process of an actor run, without end."""
        pause_s = _FIRST_PAUSE_S
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            try:
                how = f"has ended with status {await self._run(actor)}"
            except OSError as error:
                how = f"cannot be started: {error}"
            pause_s = _FIRST_PAUSE_S if loop.time() - began_s > _STEADY_S else min(2 * pause_s, _LONGEST_PAUSE_S)
            logger.warning("%s %s; starting it anew", actor, how)
            await asyncio.sleep(pause_s)

    async def _run(self, actor: str) -> int:
        """Run the process of an actor to its end, and return its status."""
        command = [sys.executable, "-m", "gridweave.site.service.host", actor, str(os.getpid())]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        order = Hosting(actor, self._hosted[actor], self._path, await self.near(), node_ip())
        try:
            said = await _told(process, encode(order))
            if said:
                self._addresses[actor] = msgspec.msgpack.decode(said, type=NearAddress)
                self._lines[actor] = await NearLine.open(self._addresses[actor])
                self._there[actor].set()
        except (OSError, msgspec.MsgspecError) as error:
            logger.warning("%s cannot be called: %s", actor, error)
            with contextlib.suppress(ProcessLookupError):  # it may have ended meanwhile
                process.kill()
        status = await process.wait()
        self._there[actor].clear()
        return status

    async def call(self, actor: str, method: str, arguments: Sequence[Any]) -> Any:
        """Call an actor that is here; or, for one of those, an actor that is elsewhere."""
        if not self._is_here(actor):
            return await self._handles.call(actor, method, *arguments)
        await self._there[actor].wait()
        return await self._lines[actor].call(method, *arguments)

    async def where(self, actor: str) -> bytes:
        """Return where an actor answers on its machine, as the bytes of a `NearAddress`."""
        if not self._is_here(actor):
            return encode(await self._handles.address(actor))
        if not self._there[actor].is_set():
            raise UnavailableError(f"{actor} is starting")
        return encode(self._addresses[actor])

    def _is_here(self, actor: str) -> bool:
        """Return whether an actor is one of this host; UnavailableError: it would be, but there is none such."""
        if actor not in self._hosted and self._name in hosts_of(actor):
            raise UnavailableError(f"there is no actor {actor} at {self._name}")
        return actor in self._hosted


async def _told(process: asyncio.subprocess.Process, order: bytes) -> bytes:
    """Hand a process its order, and return what it says until it closes its output; nothing if it has ended."""
    assert process.stdin is not None, "it was started with a pipe"
    assert process.stdout is not None, "it was started with a pipe"
    try:
        process.stdin.write(order)
        await process.stdin.drain()
        process.stdin.close()
    except (BrokenPipeError, ConnectionResetError):
        return b""
    return await process.stdout.read()


def node_ip() -> str:
    """Return the IP address of this machine, as Ray knows it."""
    import ray

    ip: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return ip


def main(host_pid: int) -> None:
    """Be an actor for as long as the host lives."""
    die_with_parent(host_pid)
    hosting = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Hosting)
    sys.path[:] = hosting.path
    asyncio.run(_work(hosting))


async def _work(hosting: Hosting) -> None:
    kind, arguments, options = pickle.loads(hosting.made)
    actor: NearActor = kind(*arguments, calls=HostLines(hosting.host, hosting.ip), **options)
    address = await actor.near()
    sys.stdout.buffer.write(encode(address))
    sys.stdout.flush()
    # What is said from now on stands with the complaints: nobody reads the output any more.
    os.dup2(2, 1)
    await asyncio.Event().wait()


if __name__ == "__main__":
    main(int(sys.argv[2]))
