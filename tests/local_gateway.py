"""A whole live grid with real processes and its gateway, in the event loop of another thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from gridweave.grid.config.gateway import GatewaySettings
from gridweave.grid.gateway.server import Gateway
from local_grid import SITES, LocalGrid
from waiting import PATIENCE_S

T = TypeVar("T")


class GridBehindGateway:
    """A `LocalGrid` with a gateway on a port of this machine, as a context manager for synchronous tests.

    Parameters
    ----------
    folder : pathlib.Path
        Folder of journals and jobs.
    sites
        As for `LocalGrid`.
    **options
        Fields of `GridSettings`.

    Attributes
    ----------
    url : str
    """

    def __init__(self, folder: Path, sites: tuple[tuple[str, tuple[int, ...]], ...] = SITES, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="grid")
        self._folder, self._sites, self._options = folder, sites, options

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the grid's event loop and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=PATIENCE_S)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.do(self._start())
        except BaseException:
            self._stop_loop()
            raise
        return self

    async def _start(self) -> None:
        self.grid = await LocalGrid(self._folder, self._sites, **self._options).__aenter__()
        unlimited = {"requests_per_s": 1e6, "burst": 1e6}
        self.gateway = Gateway(self.grid.backend, GatewaySettings(port=0, **unlimited))
        await self.gateway.start()
        self.url = self.gateway.url

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.do(self._end())
        finally:
            self._stop_loop()

    async def _end(self) -> None:
        await self.gateway.stop()
        await self.grid.__aexit__()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
