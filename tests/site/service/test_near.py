"""Calls between actors of one machine, past Ray."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio

from gridweave.errors import InputError, UnavailableError
from gridweave.site.service.calls import LOOPBACK, NearAddress, NearDoor, NearLine, own_network


class Actor:
    """Answers, fails, and waits until it is told to go on."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.called: list[object] = []

    async def echo(self, *arguments: object) -> object:
        """Return what it was given."""
        self.called.append(arguments)
        return list(arguments)

    async def later(self) -> str:
        """Return something, but not now."""
        self.called.append("later")
        await self.go_on.wait()
        return "at last"

    async def refuse(self) -> None:
        """Say that it cannot."""
        raise UnavailableError("north is starting")

    async def fail(self) -> None:
        """Fail otherwise."""
        raise InputError("no such job")

    async def secret(self) -> str:
        """Is not offered."""
        raise AssertionError("called")


OFFERED = ("echo", "later", "refuse", "fail")


@pytest.fixture
def actor() -> Actor:
    """Give an actor."""
    return Actor()


@pytest_asyncio.fixture
async def door(actor: Actor) -> AsyncIterator[NearDoor]:
    """Give its door."""
    door = NearDoor(actor, OFFERED, "here")
    yield door
    await door.close()


@pytest_asyncio.fixture
async def line(door: NearDoor) -> AsyncIterator[NearLine]:
    """Give a line to it."""
    line = await NearLine.open(await door.address())
    yield line
    line.end()


async def called(actor: Actor, count: int) -> None:
    """Return when it was called so often."""
    async with asyncio.timeout(30):
        while len(actor.called) < count:
            await asyncio.sleep(0)


async def closed(line: NearLine) -> None:
    """Return when a line knows that it has ended."""
    async with asyncio.timeout(30):
        while line.is_open:
            await asyncio.sleep(0)


@pytest.mark.asyncio
@pytest.mark.parametrize("value", [None, 7, "text", b"\x00bytes", [1, [2]], b"x" * (3 << 20)])
async def test_values_come_back(line: NearLine, value: object) -> None:
    """What MessagePack knows is carried there and back, also when it is longer than any buffer."""
    assert await line.call("echo", value, 1) == [value, 1]


@pytest.mark.asyncio
async def test_answers_find_who_waits_for_them(line: NearLine, actor: Actor) -> None:
    """Calls of one line do not wait for each other, and each gets its own answer."""
    slow = asyncio.create_task(line.call("later"))
    await called(actor, 1)
    assert await asyncio.gather(*(line.call("echo", n) for n in range(200))) == [[n] for n in range(200)]
    assert not slow.done()
    actor.go_on.set()
    assert await slow == "at last"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("method", "kind", "want"),
    [
        ("refuse", UnavailableError, "^north is starting$"),
        ("fail", InputError, "^no such job$"),
        ("secret", UnavailableError, "'secret' cannot be called"),
    ],
)
async def test_what_fails_is_told_and_the_line_stays(
    line: NearLine, method: str, kind: type[Exception], want: str
) -> None:
    """Why a call failed is told to who called; what is not offered is not called; the next call works."""
    with pytest.raises(kind, match=want):
        await line.call(method)
    assert await line.call("echo") == []


@pytest.mark.asyncio
async def test_arguments_that_do_not_fit_are_told(line: NearLine) -> None:
    """A call with too many arguments fails, and nothing else does."""
    with pytest.raises(UnavailableError, match="TypeError"):
        await line.call("later", 1, 2)
    assert await line.call("echo", 3) == [3]


@pytest.mark.asyncio
async def test_without_the_secret_nothing_is_called(door: NearDoor, actor: Actor) -> None:
    """Whoever does not know the secret is not answered, and the others are."""
    address = await door.address()
    thief = await NearLine.open(msgspec.structs.replace(address, secret=b"?" * 32))
    with pytest.raises(UnavailableError, match="the connection has ended"):
        await thief.call("echo", "stolen")
    await closed(thief)
    line = await NearLine.open(address)
    assert await line.call("echo", 1) == [1]
    assert actor.called == [(1,)]
    line.end()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "data", [b"", b"short", b"\x00\x00\x00\x05hello", b"\x00\x00\x00\x01\xc1", b"\xff\xff\xff\xff"]
)
async def test_garbage_ends_the_line_that_it_came_by(door: NearDoor, line: NearLine, actor: Actor, data: bytes) -> None:
    """A connection that sends what is no call, or ends in the middle of one, ends; the others go on."""
    address = await door.address()
    reader, writer = await asyncio.open_connection(LOOPBACK, address.port)
    writer.write(address.secret + data)
    writer.write_eof()
    async with asyncio.timeout(30):
        assert await reader.read() == b""
    writer.close()
    assert await line.call("echo", 1) == [1]
    assert actor.called == [(1,)]


@pytest.mark.asyncio
async def test_who_waits_hears_that_the_other_end_is_gone(door: NearDoor, line: NearLine, actor: Actor) -> None:
    """A call whose answer cannot come any more fails, and so does every later one."""
    waiting = asyncio.create_task(line.call("later"))
    await called(actor, 1)
    await door.close()
    with pytest.raises(UnavailableError, match="the connection has ended"):
        await waiting
    await closed(line)
    with pytest.raises(UnavailableError, match="the connection has ended"):
        await line.call("echo")


@pytest.mark.asyncio
async def test_a_line_that_is_given_up_serves_who_waits_already(line: NearLine, actor: Actor) -> None:
    """A line ends once the last answer has come."""
    waiting = asyncio.create_task(line.call("later"))
    await called(actor, 1)
    line.end()
    actor.go_on.set()
    assert await waiting == "at last"
    await closed(line)


@pytest.mark.asyncio
async def test_who_gives_up_waiting_harms_nobody(line: NearLine, actor: Actor) -> None:
    """An answer that nobody waits for any more is dropped."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await line.call("later")
    actor.go_on.set()
    assert await line.call("echo", 1) == [1]


@pytest.mark.asyncio
async def test_a_line_is_of_one_event_loop(door: NearDoor, line: NearLine) -> None:
    """In another event loop a line is not open."""
    assert line.is_open
    assert not await asyncio.to_thread(lambda: asyncio.run(_is_open(line)))


async def _is_open(line: NearLine) -> bool:
    return line.is_open


@pytest.mark.asyncio
async def test_nobody_there() -> None:
    """Where nobody answers there is no line."""
    door = NearDoor(Actor(), OFFERED, "here")
    address = await door.address()
    await door.close()
    with pytest.raises(OSError, match="Connect"):
        await NearLine.open(NearAddress("here", address.port, address.secret))


def test_processes_of_one_machine_know_that_they_are() -> None:
    """A process started here has the same network, and it is known; one in a network of its own has another."""
    ask = [sys.executable, "-c", "from gridweave.site.service.calls import own_network; print(own_network())"]
    here = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    assert here == own_network() != ""
    apart = subprocess.run(["unshare", "--net", *ask], capture_output=True, text=True, check=False)
    if apart.returncode != 0:
        pytest.skip(f"no network of its own can be made here: {apart.stderr.strip()}")
    assert apart.stdout.strip() not in ("", here)


def test_where_the_kernel_does_not_tell_there_are_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what says which network it is, none is known."""

    def missing(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(os, "stat", missing)
    assert own_network.__wrapped__() == ""


def test_a_line_that_ends_before_it_has_begun_to_read_is_closed() -> None:
    """It leaves no connection behind, though none of its task has run; as when an event loop ends just then."""

    async def open_line(port: int) -> None:
        line = await NearLine.open(NearAddress(own_network(), port, b"secret"))
        line.end()

    with socket.create_server((LOOPBACK, 0)) as server, warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        asyncio.run(open_line(server.getsockname()[1]))
        gc.collect()
    assert [str(each.message) for each in heard] == []


@pytest.mark.asyncio
async def test_a_door_whose_tasks_are_cancelled_says_nothing(
    door: NearDoor, line: NearLine, caplog: pytest.LogCaptureFixture
) -> None:
    """So it is where an event loop ends under it, as when a command is interrupted."""
    assert await line.call("echo", 2) == [2]
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.wait(others)
    assert not [record for record in caplog.records if record.name == "asyncio"]
