"""Calls to actors by their names, over their hosts on Ray and past them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from gridweave.errors import UnavailableError
from gridweave.site.service.calls import Handles, actor_options, hosts_of
from gridweave.site.service.host import Host, packed
from near_actors import Elsewhere, Near

ray = pytest.importorskip("ray")

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.asyncio]

NAMESPACE = "handles"


@pytest.fixture
def make(ray_cluster: None) -> Iterator[Callable[..., list[str]]]:
    """Give what makes the actors of a host, and returns their names; all of them end."""
    hosts: list[Any] = []

    def make(*kinds: type) -> list[str]:
        names = [f"{kind.__name__}-{len(hosts)}-{number}" for number, kind in enumerate(kinds)]
        host, _ = hosts_of(names[0])
        hosted = {name: packed(kind, (), {}) for name, kind in zip(names, kinds, strict=True)}
        maker = ray.remote(Host).options(**actor_options(host, NAMESPACE, {}))
        hosts.append(maker.remote(host, NAMESPACE, hosted, sys.path))
        return names

    yield make
    for host in hosts:
        ray.kill(host)


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


async def test_calls_go_past_ray_as_soon_as_they_can(make: Callable[..., list[str]]) -> None:
    """The first call opens a line; what is called means the same before and after."""
    handles = Handles(NAMESPACE)
    (name,) = make(Near)
    assert await handles.call(name, "echo", b"over Ray", timeout_s=60) == b"over Ray"
    await line_to(handles, name)
    assert await handles.call(name, "echo", b"past it") == b"past it"


async def test_who_is_not_near_is_called_over_its_host(make: Callable[..., list[str]]) -> None:
    """An actor on another machine is called as ever."""
    handles = Handles(NAMESPACE)
    (name,) = make(Elsewhere)
    for number in range(20):
        assert await handles.call(name, "echo", number, timeout_s=60) == number
    assert handles.near == []


async def test_actors_call_each_other_without_ray(make: Callable[..., list[str]]) -> None:
    """An actor finds the others by its host: over a line, elsewhere over the hosts; who is unknown does not answer."""
    handles = Handles(NAMESPACE)
    one, other, distant = make(Near, Near, Elsewhere)
    (apart,) = make(Near)
    for asked, is_near in ((other, True), (apart, True), (distant, False)):

        async def answers(asked: str = asked, is_near: bool = is_near) -> bool:
            value, lines = await handles.call(one, "pass_on", asked, b"?")
            assert value == b"?"
            return (asked in lines) == is_near

        await until(answers)
    with pytest.raises(UnavailableError, match="actor nobody does not answer"):
        await handles.call(one, "pass_on", "nobody", b"?")
    with pytest.raises(UnavailableError, match=f"there is no actor agent:{one}"):
        await handles.call(f"agent:{one}", "process")


async def test_an_actor_that_was_started_anew_is_found_again(make: Callable[..., list[str]]) -> None:
    """With the process of an actor its line ends; calls find the next one, and a line to it."""
    handles = Handles(NAMESPACE)
    (name,) = make(Near)
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


async def test_who_does_not_answer_in_time_is_looked_up_again(make: Callable[..., list[str]]) -> None:
    """A call that takes too long fails by itself: others that wait for the same actor get their answers."""
    handles = Handles(NAMESPACE)
    (name,) = make(Near)
    await line_to(handles, name)
    slow = asyncio.create_task(handles.call(name, "wait", timeout_s=5))
    with pytest.raises(UnavailableError, match="does not answer: TimeoutError"):
        await handles.call(name, "wait", timeout_s=0.05)
    assert handles.near == []
    await line_to(handles, name)
    with pytest.raises(UnavailableError, match="does not answer: TimeoutError"):
        await slow
    assert handles.near == [name], "the line that is there by now has done nothing"


async def test_a_method_that_fails_is_no_fault_of_the_line(make: Callable[..., list[str]]) -> None:
    """Why a call failed is told, and the next goes the same way."""
    handles = Handles(NAMESPACE)
    (name,) = make(Near)
    await line_to(handles, name)
    with pytest.raises(UnavailableError, match=f"actor {name} does not answer: TypeError"):
        await handles.call(name, "echo")
    assert handles.near == [name]
