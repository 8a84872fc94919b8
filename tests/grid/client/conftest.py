"""A gateway and a client in the event loop of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gridweave.grid.client.client import Client
from support.gateway import GatewayBehindProxy, GridInMemory, Naps, served
from support.web import FlakyProxy


@pytest.fixture(autouse=True)
def nothing_configured(no_configuration: None) -> None:
    """Hide this machine's user configuration from the tests."""


@pytest_asyncio.fixture
async def gateway() -> AsyncIterator[GatewayBehindProxy]:
    """Start a gateway to a grid in memory."""
    async with served() as started:
        yield started


@pytest.fixture
def world(gateway: GatewayBehindProxy) -> GridInMemory:
    """Return the grid behind the gateway."""
    return gateway.grid


@pytest.fixture
def flaky(gateway: GatewayBehindProxy) -> FlakyProxy:
    """Return the proxy in front of the gateway."""
    return gateway.proxy


@pytest_asyncio.fixture
async def grid(gateway: GatewayBehindProxy) -> AsyncIterator[Client]:
    """Open a client of the gateway."""
    async with Client(gateway.url) as client:
        yield client


@pytest.fixture
def naps() -> Naps:
    """Return a sleep function that takes no time."""
    return Naps()
