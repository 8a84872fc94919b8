"""A TCP proxy that can cut the connections in one direction: it closes them, or drops all data."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Literal

Cut = Literal["", "refused", "silent"]


class Wire:
    """Forwards connections to a port of this machine.

    Parameters
    ----------
    port : int
        The port to forward to.

    Attributes
    ----------
    cut : str
        Empty: the wire works. ``refused``: connections are closed at once. ``silent``: data is dropped without notice,
        as with an unplugged cable.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self.cut: Cut = ""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ends: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Wire:
        """Start to listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    @property
    def port(self) -> int:
        """The port on which the wire listens."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """The URL at which the wire listens."""
        return f"http://127.0.0.1:{self.port}"

    def set(self, cut: Cut) -> None:
        """Cut or repair the wire; unless it becomes ``silent``, close all open connections."""
        self.cut = cut
        if cut != "silent":
            for task in self._tasks:
                task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._ends.add(writer)
        try:
            if self.cut == "refused":
                return
            with contextlib.suppress(OSError):
                there, back = await asyncio.open_connection("127.0.0.1", self._to)
                self._ends.add(back)
                try:
                    await asyncio.gather(self._pass(reader, back), self._pass(there, writer))
                finally:
                    back.close()
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            if self.cut != "silent":
                writer.write(data)
                await writer.drain()
        writer.close()

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for end in self._ends:
            end.transport.abort()  # data that the other end no longer reads would keep the connection open
