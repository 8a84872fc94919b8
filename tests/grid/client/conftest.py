"""A gateway that a client can talk to, within the event loop of the test."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from aiohttp.test_utils import TestServer

from client_helpers import Naps
from flaky_proxy import FlakyProxy
from gridweave.grid.client.client import Client
from tiny_gateway import TinyGateway


@pytest.fixture(autouse=True)
def no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what the user of this machine has configured away from the tests."""
    for name in [name for name in os.environ if name.startswith("GRIDWEAVE_")]:
        if name not in ("GRIDWEAVE_TRACES", "GRIDWEAVE_TOPOLOGIES"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-config"))


@pytest_asyncio.fixture
async def gateway() -> AsyncIterator[TinyGateway]:
    """Start a gateway; its address is its attribute `url`."""
    tiny = TinyGateway()
    async with TestServer(tiny.app) as server:
        tiny.url = str(server.make_url("")).rstrip("/")
        yield tiny


@pytest_asyncio.fixture
async def grid(gateway: TinyGateway) -> AsyncIterator[Client]:
    """Open a client of the gateway."""
    async with Client(gateway.url) as client:
        yield client


@pytest.fixture
def naps() -> Naps:
    """Return what sleeps in no time."""
    return Naps()


@pytest_asyncio.fixture
async def flaky(gateway: TinyGateway) -> AsyncIterator[FlakyProxy]:
    """Put a proxy that can fail before the gateway; its address is its attribute `url`."""
    proxy = FlakyProxy(gateway.url, np.random.default_rng(7), chance=0.0)
    async with TestServer(proxy.app) as server:
        proxy.url = str(server.make_url("")).rstrip("/")
        yield proxy
