"""Calls to actors on Ray by their names, over Ray and past it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from gridweave.errors import UnavailableError
from gridweave.site.service.calls import Handles, NearActor, NearAddress, actor_options

ray = pytest.importorskip("ray")

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.asyncio]

NAMESPACE = "handles"


class Plain:
    """An actor that offers no line."""

    async def process(self) -> int:
        """Return the number of its process."""
        return os.getpid()

    async def echo(self, value: Any) -> Any:
        """Return what it was given."""
        return value

    async def wait(self) -> None:
        """Never return."""
        await asyncio.Event().wait()


class Near(NearActor, Plain):
    """One that offers a line."""

    near_methods = ("process", "echo", "wait")


class Elsewhere(Near):
    """One that is on another machine, as far as it knows."""

    async def near(self) -> NearAddress:
        """Return where it answers there."""
        address = await super().near()
        return NearAddress("another machine", address.port, address.secret)


@pytest.fixture
def make(ray_cluster: None) -> Iterator[Callable[[type], str]]:
    """Give what makes an actor and returns its name; all of them end."""
    actors = []

    def make(kind: type) -> str:
        name = f"{kind.__name__}-{len(actors)}"
        actors.append(ray.remote(kind).options(**actor_options(name, NAMESPACE, {})).remote())
        return name

    yield make
    for actor in actors:
        ray.kill(actor)


async def until(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Ask until there is an answer that is true."""
    async with asyncio.timeout(120):
        while True:
            try:
                if found := await ask():
                    return found
            except UnavailableError:
                pass
            await asyncio.sleep(0.01)


async def line_to(handles: Handles, actor: str) -> None:
    """Return when there is a line to an actor."""

    async def is_near() -> bool:
        await handles.call(actor, "process")
        return actor in handles.near

    await until(is_near)


async def test_calls_go_past_ray_as_soon_as_they_can(make: Callable[[type], str]) -> None:
    """The first call opens a line; what is called means the same before and after."""
    handles = Handles(NAMESPACE)
    name = make(Near)
    assert await handles.call(name, "echo", b"over Ray", timeout_s=60) == b"over Ray"
    await line_to(handles, name)
    assert await handles.call(name, "echo", b"past it") == b"past it"


@pytest.mark.parametrize("kind", [Plain, Elsewhere])
async def test_who_is_not_near_is_called_over_ray(make: Callable[[type], str], kind: type) -> None:
    """An actor that offers no line, or is on another machine, is called as ever."""
    handles = Handles(NAMESPACE)
    name = make(kind)
    for number in range(20):
        assert await handles.call(name, "echo", number, timeout_s=60) == number
    assert handles.near == []


async def test_an_actor_that_was_started_anew_is_found_again(make: Callable[[type], str]) -> None:
    """With the process of an actor its line ends; calls find the next one, and a line to it."""
    handles = Handles(NAMESPACE)
    name = make(Near)
    await line_to(handles, name)
    first = await handles.call(name, "process")
    waiting = asyncio.create_task(handles.call(name, "wait"))
    await asyncio.sleep(0)
    os.kill(first, signal.SIGKILL)
    with pytest.raises(UnavailableError, match=f"actor {name} does not answer"):
        await waiting
    second = await until(lambda: handles.call(name, "process"))
    assert second != first
    await line_to(handles, name)


async def test_who_does_not_answer_in_time_is_looked_up_again(make: Callable[[type], str]) -> None:
    """A call that takes too long fails by itself: others that wait for the same actor get their answers."""
    handles = Handles(NAMESPACE)
    name = make(Near)
    await line_to(handles, name)
    slow = asyncio.create_task(handles.call(name, "wait", timeout_s=5))
    with pytest.raises(UnavailableError, match="does not answer: TimeoutError"):
        await handles.call(name, "wait", timeout_s=0.05)
    assert handles.near == []
    await line_to(handles, name)
    with pytest.raises(UnavailableError, match="does not answer: TimeoutError"):
        await slow
    assert handles.near == [name], "the line that is there by now has done nothing"


async def test_a_method_that_fails_is_no_fault_of_the_line(make: Callable[[type], str]) -> None:
    """Why a call failed is told, and the next goes the same way."""
    handles = Handles(NAMESPACE)
    name = make(Near)
    await line_to(handles, name)
    with pytest.raises(UnavailableError, match=f"actor {name} does not answer: TypeError"):
        await handles.call(name, "echo")
    assert handles.near == [name]
