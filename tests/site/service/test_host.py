"""The host of a machine starts its actors anew, whatever becomes of one of them."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import sys
from asyncio.subprocess import Process

import pytest

from gridweave.site.service import host as host_module
from gridweave.site.service.calls import NearAddress, encode
from gridweave.site.service.host import Host

pytestmark = pytest.mark.asyncio


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    """Give a host without actors, whose processes end at once."""
    monkeypatch.setattr(sys, "executable", shutil.which("true"))
    monkeypatch.setattr(host_module, "node_ip", lambda: "127.0.0.1")
    return Host("host", "namespace", {}, [])


def host_one(host: Host) -> None:
    """Have a host know an actor, and not yet keep it."""
    host._hosted["one"], host._there["one"] = b"", asyncio.Event()


@pytest.mark.parametrize("said", [encode(NearAddress("", 1, b"")), b"a warning", b""])
async def test_an_actor_that_ends_as_it_begins_ends_no_host(
    host: Host, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    """Neither by the address at which it answers no more, nor by what is no address."""

    async def told(process: Process, order: bytes) -> bytes:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        await process.stdout.read()
        # Until asyncio has let go of it, too.
        while process._transport._proc is not None:  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        return said

    monkeypatch.setattr(host_module, "_told", told)
    host_one(host)
    assert await host._run("one") == 0
    await host.stop_near()


async def test_a_machine_that_has_no_room_for_a_process_is_tried_again(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The host goes on, and its other actors with it."""
    again = asyncio.Event()

    async def full(*command: str, **pipes: int) -> Process:
        if "cannot be started" in caplog.text:
            again.set()
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", full)
    monkeypatch.setattr(host_module, "_FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(host_module, "_LONGEST_PAUSE_S", 0.0)
    host_one(host)
    keeping = asyncio.ensure_future(host._keep("one"))
    await again.wait()
    keeping.cancel()
    assert "one cannot be started: [Errno 11]" in caplog.text
