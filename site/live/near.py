"""Calls between the actors of one machine over a connection of their own, past Ray.

A call of an actor on Ray passes through half a dozen threads of both processes, each of which has to wait for the
interpreter; on a busy machine that takes longer than what the call is about. So whoever has found an actor on Ray asks
it for a line: a connection over the loopback interface, opened with a secret that only Ray, which knows who may ask,
hands out. Where there can be no line (another machine or container, an actor that offers none) calls go over Ray as
ever, and mean the same: each may be lost, or come late.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gridweave.errors import UnavailableError

logger = logging.getLogger("gridweave.live")

LOOPBACK = "127.0.0.1"

_SECRET_BYTES = 32
_LENGTH_BYTES = 4
_GREETING_S = 10.0
_BUFFER_BYTES = 1 << 20


@functools.cache
def own_network() -> str:
    """Return by what processes know that they share a loopback interface: their kernel, and their network in it.

    Ray nodes do not say it: several may be on one machine, and containers on one kernel. Empty: it is not known.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return ""


class NearAddress(msgspec.Struct, frozen=True):
    """Where an actor answers on its machine.

    Attributes
    ----------
    network : str
        Whose loopback interface it is (`own_network`).
    port : int
    secret : bytes
        What a line begins with.
    """

    network: str
    port: int
    secret: bytes


class _Call(msgspec.Struct, frozen=True, array_like=True):
    """A call: its number on this line, the method, and the arguments, which are plain data."""

    number: int
    method: str
    arguments: tuple[Any, ...]


class _Answer(msgspec.Struct, frozen=True, array_like=True):
    """What became of a call: what the method returned, or why it failed."""

    number: int
    value: Any
    problem: str | None = None


_ENCODER = msgspec.msgpack.Encoder()
_CALLS = msgspec.msgpack.Decoder(_Call)
_ANSWERS = msgspec.msgpack.Decoder(_Answer)


class NearDoor:
    """Answers calls on this machine.

    Parameters
    ----------
    actor : object
    methods : sequence of str
        Which of its methods may be called; they are coroutines, and take and return what MessagePack knows.
    network : str
        Of this process.

    Examples
    --------
    >>> class Adder:
    ...     async def add(self, left: int, right: int) -> int:
    ...         return left + right
    >>> async def example() -> int:
    ...     door = NearDoor(Adder(), ("add",), own_network())
    ...     line = await NearLine.open(await door.address())
    ...     try:
    ...         return await line.call("add", 2, 3)
    ...     finally:
    ...         line.end()
    ...         await door.close()
    >>> asyncio.run(example())
    5
    """

    def __init__(self, actor: object, methods: Sequence[str], network: str) -> None:
        self._methods: dict[str, Callable[..., Awaitable[object]]] = {name: getattr(actor, name) for name in methods}
        self._network = network
        self._secret = secrets.token_bytes(_SECRET_BYTES)
        self._server: asyncio.Server | None = None
        self._opening = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def address(self) -> NearAddress:
        """Return where it answers; from the first time on it does."""
        async with self._opening:
            if self._server is None:
                self._server = await asyncio.start_server(self._greet, LOOPBACK, 0, limit=_BUFFER_BYTES)
        return NearAddress(self._network, self._server.sockets[0].getsockname()[1], self._secret)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve whoever knows the secret; the connection of anybody else ends without a word."""
        self._writers.add(writer)
        try:
            async with asyncio.timeout(_GREETING_S):
                said = await reader.readexactly(_SECRET_BYTES)
            if hmac.compare_digest(said, self._secret):
                while True:
                    call = _CALLS.decode(await _read(reader))
                    task = asyncio.get_running_loop().create_task(self._answer(call, writer))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
        except (OSError, EOFError, TimeoutError, msgspec.MsgspecError) as error:
            logger.debug("a line ended: %r", error)
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, call: _Call, writer: asyncio.StreamWriter) -> None:
        answer = await self._answered(call)
        if not writer.is_closing():
            _write(writer, answer)
            with contextlib.suppress(OSError):
                await writer.drain()

    async def _answered(self, call: _Call) -> bytes:
        try:
            if call.method not in self._methods:
                raise UnavailableError(f"{call.method!r:.100} cannot be called")
            return _ENCODER.encode(_Answer(call.number, await self._methods[call.method](*call.arguments)))
        except Exception as error:
            # As on Ray, where whoever called hears of it, whatever it is.
            logger.debug("%s failed", call.method, exc_info=error)
            problem = str(error) if isinstance(error, UnavailableError) else f"{type(error).__name__}: {error}"
            return _ENCODER.encode(_Answer(call.number, None, problem))

    async def close(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        for writer in self._writers:
            writer.close()
        if self._server is not None:
            await self._server.wait_closed()


class NearLine:
    """A connection to an actor of this machine; `open` makes one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._number = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._loop = asyncio.get_running_loop()
        self._is_ending = False
        self._task = self._loop.create_task(self._read(reader))
        # Not by the task itself: one that is cancelled before it has begun runs none of its code.
        self._task.add_done_callback(self._ended)

    @classmethod
    async def open(cls, address: NearAddress) -> NearLine:
        """Return a line to an actor.

        Parameters
        ----------
        address : NearAddress
            Of this machine.

        Raises
        ------
        OSError
            If nobody answers there.
        """
        reader, writer = await asyncio.open_connection(LOOPBACK, address.port, limit=_BUFFER_BYTES)
        writer.write(address.secret)
        return cls(reader, writer)

    @property
    def is_open(self) -> bool:
        """Whether calls can go over it, as far as this end knows; in another event loop they cannot."""
        return not self._task.done() and asyncio.get_running_loop() is self._loop

    async def call(self, method: str, *arguments: object) -> Any:
        """Call a method.

        Raises
        ------
        UnavailableError
            If there is no answer, or the method failed. It may have run all the same.
        """
        if not self.is_open:
            raise UnavailableError("the connection has ended")
        self._number += 1
        number = self._number
        future = self._waiting[number] = self._loop.create_future()
        try:
            _write(self._writer, _ENCODER.encode(_Call(number, method, arguments)))
            await self._writer.drain()
            answer: _Answer = await future
        except OSError as error:
            raise UnavailableError(f"the connection has ended: {error}") from error
        finally:
            self._waiting.pop(number, None)
            self._end_if_idle()
        if answer.problem is not None:
            raise UnavailableError(answer.problem)
        return answer.value

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Hand answers out, until the connection ends or the event loop does."""
        try:
            while True:
                answer = _ANSWERS.decode(await _read(reader))
                future = self._waiting.get(answer.number)
                if future is not None and not future.done():
                    future.set_result(answer)
        except (OSError, EOFError, msgspec.MsgspecError) as error:
            logger.debug("a line ended: %r", error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._writer.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(UnavailableError("the connection has ended"))

    def end(self) -> None:
        """End the connection once nobody waits for an answer."""
        self._is_ending = True
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self._is_ending and not self._waiting:
            self._task.cancel()


async def _read(reader: asyncio.StreamReader) -> bytes:
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
    return await reader.readexactly(length)


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    # In one piece: each write may be a packet of its own, and wakes the other end.
    writer.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
