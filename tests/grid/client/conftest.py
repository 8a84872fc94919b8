"""A gateway and a client in the event loop of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from client_helpers import GridInMemory, Naps, Served, served
from flaky_proxy import FlakyProxy
from gridweave.grid.client.client import Client


@pytest.fixture(autouse=True)
def nothing_configured(no_configuration: None) -> None:
    """Hide this machine's user configuration from the tests."""


@pytest_asyncio.fixture
async def gateway() -> AsyncIterator[Served]:
    """Start a gateway to a grid in memory."""
    async with served() as started:
        yield started


@pytest.fixture
def world(gateway: Served) -> GridInMemory:
    """Return the grid behind the gateway."""
    return gateway.grid


@pytest.fixture
def flaky(gateway: Served) -> FlakyProxy:
    """Return the proxy in front of the gateway."""
    return gateway.proxy


@pytest_asyncio.fixture
async def grid(gateway: Served) -> AsyncIterator[Client]:
    """Open a client of the gateway."""
    async with Client(gateway.url) as client:
        yield client


@pytest.fixture
def naps() -> Naps:
    """Return a sleep function that takes no time."""
    return Naps()
