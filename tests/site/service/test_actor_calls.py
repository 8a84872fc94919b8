"""Calls to actors by their names: questions that share a call, deadlines, and what a caller hears of failures."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import pytest

from gridweave.errors import InputError, UnavailableError
from gridweave.grid.service.actors import RunningActors, Spot, ask_about
from gridweave.site.service import calls as calls_module
from gridweave.site.service.calls import CALL_S, ActorCalls, Door, answer_of, question
from support.actors import Called
from support.machine import PATIENCE_S

NAMESPACE = "calls"


class HeldCalls(ActorCalls):
    """Calls whose answers a test gives: `sent` has each call's questions, and `release` answers the oldest."""

    def __init__(self) -> None:
        super().__init__("nowhere")
        self.sent: list[list[bytes]] = []
        self._held: list[asyncio.Future[list[bytes]]] = []

    async def call(self, actor: str, method: str, *arguments: Any, timeout_s: float = CALL_S) -> Any:
        """Hold a call until its answer is given."""
        assert method == "ask_all"
        self.sent.append(arguments[1])
        self._held.append(asyncio.get_running_loop().create_future())
        return await self._held[-1]

    async def release(self, error: UnavailableError | None = None) -> None:
        """Complete the oldest call: answer each question with its text in upper case, or fail it with `error`."""
        held, questions = self._held.pop(0), self.sent[len(self.sent) - len(self._held) - 1]
        if error is None:
            held.set_result([data.upper() for data in questions])
        else:
            held.set_exception(error)
        await settle()


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_questions_that_come_meanwhile_share_the_next_call() -> None:
    """Nobody waits for a timer: the first go out at once, the others as soon as one of those is answered."""
    calls = HeldCalls()
    asked = [asyncio.create_task(calls.ask("site:a", "status", data)) for data in (b"a", b"b", b"c", b"d")]
    await settle()
    assert calls.sent == [[b"a"]]
    await calls.release()
    assert calls.sent[1:] == [[b"b", b"c", b"d"]]
    await calls.release()
    assert [task.result() for task in asked] == [b"A", b"B", b"C", b"D"]


@pytest.mark.asyncio
async def test_other_methods_other_actors_and_long_questions_go_by_themselves() -> None:
    """A question never waits for one of another kind, or for one that takes long."""
    calls = HeldCalls()
    for actor, method, alone in (("a", "x", False), ("a", "y", False), ("b", "x", False), ("a", "x", True)):
        task = asyncio.create_task(calls.ask(actor, method, b"q", alone=alone))
        task.add_done_callback(lambda done: done.exception())
    await settle()
    assert len(calls.sent) == 4
    while calls._held:
        await calls.release()


@pytest.mark.asyncio
async def test_a_call_that_fails_fails_for_all_its_questions() -> None:
    """Each asker gets an error of its own, and the next questions go out."""
    calls = HeldCalls()
    asked = [asyncio.create_task(calls.ask("a", "x", b"%d" % number)) for number in range(4)]
    await settle()
    await calls.release()
    await calls.release(UnavailableError("gone"))
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert found[0] == b"0"
    assert [str(each) for each in found[1:]] == ["gone"] * 3
    assert len({id(each) for each in found}) == 4
    again = asyncio.create_task(calls.ask("a", "x", b"again"))
    await settle()
    await calls.release()
    assert await again == b"AGAIN"


@pytest.mark.asyncio
async def test_a_question_that_is_given_up_harms_no_other() -> None:
    """A question that times out or is cancelled is dropped; the others of the call are answered."""
    calls = HeldCalls()
    under_way = asyncio.create_task(calls.ask("a", "x", b"w"))
    await settle()
    late = asyncio.create_task(calls.ask("a", "x", b"late", timeout_s=0.0))
    cancelled, patient = (asyncio.create_task(calls.ask("a", "x", data)) for data in (b"c", b"p"))
    await settle()
    cancelled.cancel()
    with pytest.raises(UnavailableError, match="actor a does not answer within 0 s"):
        await late
    await calls.release()
    assert calls.sent[-1] == [b"p"]
    while calls._held:
        await calls.release()
    assert await patient == b"P"
    assert await under_way == b"W"


@pytest.mark.asyncio
async def test_a_call_carries_a_bounded_number_of_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is beyond goes with the next."""
    monkeypatch.setattr(calls_module, "MOST_IN_A_CALL", 3)
    calls = HeldCalls()
    asked = [asyncio.create_task(calls.ask("a", "x", b"%d" % number)) for number in range(9)]
    await settle()
    while calls._held:
        await calls.release()
    assert [len(sent) for sent in calls.sent] == [1, 3, 3, 2]
    assert [int(await task) for task in asked] == list(range(9))


@pytest.mark.asyncio
async def test_answers_come_in_the_order_of_the_questions() -> None:
    """Also where one of them cannot be read: it is refused by itself."""

    class Queries:
        async def double(self, value: int) -> int:
            await asyncio.sleep(0 if value % 2 else 0.001)
            return 2 * value

    data = [question(number) for number in range(6)]
    data[3] = question("three")
    answers = await Door(Queries(), ("double",)).ask_all("double", data)
    decoder = msgspec.msgpack.Decoder(int)
    with pytest.raises(InputError, match="the question cannot be read"):
        answer_of(answers.pop(3), decoder)
    assert [answer_of(answer, decoder) for answer in answers] == [0, 2, 4, 8, 10]


@pytest.mark.asyncio
async def test_a_process_outside_ray_starts_no_cluster_to_look_for_an_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would by itself; the caller hears at once that there is no answer."""
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "get_actor", lambda *_: pytest.fail("Ray was asked"))
    with pytest.raises(UnavailableError, match="this process has not joined Ray"):
        await ActorCalls("nowhere").call("grid", "process")


# -- on Ray

MakeActors = Callable[..., RunningActors]


@pytest.fixture
def running(ray_cluster: None) -> Iterator[RunningActors]:
    """Return two actors, ``one`` and ``other``; they are ended after the test."""
    made = RunningActors(NAMESPACE, grid_id="ours")
    for name in ("one", "other"):
        made.add(Called, name, Spot(), name)
    made.wait_for(["one", "other"], PATIENCE_S)
    yield made
    made.stop()


async def until(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Ask until there is an answer that is true."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                if found := await ask():
                    return found
            except UnavailableError:
                pass
            await asyncio.sleep(0.01)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.asyncio
async def test_actors_call_each_other_by_name(running: RunningActors) -> None:
    """A caller needs the namespace alone; who is unknown does not answer, and why a method failed is reported."""
    calls = ActorCalls(NAMESPACE)
    assert await calls.call("one", "echo", b"value") == b"value"
    assert await calls.call("one", "pass_on", "other", b"value") == b"value"
    answer = await calls.ask("one", "double", question(21))
    assert answer_of(answer, msgspec.msgpack.Decoder(int)) == 42
    with pytest.raises(InputError, match="no such thing"):
        answer_of(await calls.ask("one", "refuse", question()), msgspec.msgpack.Decoder(None))
    with pytest.raises(UnavailableError, match="actor nobody does not answer"):
        await calls.call("one", "pass_on", "nobody", b"value")
    with pytest.raises(UnavailableError, match="actor nobody does not answer"):
        await calls.call("nobody", "echo", b"value")


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_killed_actor_is_restarted_and_found_again(running: RunningActors) -> None:
    """Who waits for it hears that it is gone; the next calls reach the one that Ray has started in its place."""
    calls = ActorCalls(NAMESPACE)
    first = await calls.call("one", "process")
    waiting = asyncio.create_task(calls.call("one", "wait", timeout_s=PATIENCE_S))
    await until(lambda: calls.call("one", "process"))
    os.kill(first, signal.SIGKILL)
    with pytest.raises(UnavailableError, match="actor one does not answer"):
        await waiting

    async def second() -> bool:
        return bool(await calls.call("one", "process") != first)

    await until(second)
    assert await calls.call("other", "pass_on", "one", 1) == 1


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_call_ends_at_its_deadline_and_leaves_nothing_behind(running: RunningActors) -> None:
    """The actor answers others meanwhile and afterwards."""
    calls = ActorCalls(NAMESPACE)
    with pytest.raises(UnavailableError, match=r"actor one does not answer within 50 ms"):
        await calls.call("one", "wait", timeout_s=0.05)
    assert await calls.call("one", "echo", 1) == 1


@pytest.mark.ray
@pytest.mark.slow
def test_the_actors_of_another_grid_are_not_taken_over(running: RunningActors) -> None:
    """Each says of which grid it is, on which host, and as which process."""
    info = ask_about(running.actors)["one"]
    assert (info.grid_id, info.pid, info.problem) == ("ours", running.call("one", "process"), "")
    same = RunningActors(NAMESPACE, grid_id="ours")
    same.find(["one", "other", "third"])
    assert sorted(same.actors) == ["one", "other"]
    problem = r"has the actors of another grid \(one on .*\); give this grid another --name"
    with pytest.raises(UnavailableError, match=problem):
        RunningActors(NAMESPACE, grid_id="theirs").find(["one"])


@pytest.mark.ray
@pytest.mark.slow
def test_an_actor_of_another_version_is_named(running: RunningActors, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line says which version runs, which one this is, and what to do."""
    from gridweave.grid.service import actors

    monkeypatch.setattr(actors, "__version__", "99.0")
    with pytest.raises(UnavailableError, match=r"actor one on .* runs gridweave .*, but this is 99\.0; stop the grid"):
        RunningActors(NAMESPACE, grid_id="ours").find(["one"])
