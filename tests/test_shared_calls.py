"""Many questions share few calls, each is answered once, and errors reach those whom they concern."""

from __future__ import annotations

import asyncio

import pytest

from gridweave.errors import GridweaveError, InputError, UnavailableError
from gridweave.shared_calls import SharedCalls

pytestmark = pytest.mark.asyncio


class Doubler:
    """Doubles numbers, once it is let go on; refuses odd numbers from 100 on."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.go = asyncio.Event()
        self.error: GridweaveError | None = None

    async def __call__(self, numbers: list[int]) -> list[int | GridweaveError]:
        """Answer a call."""
        self.calls.append(numbers)
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return [InputError(f"{number} is odd") if number > 100 and number % 2 else 2 * number for number in numbers]


async def settle() -> None:
    """Let all tasks run until they wait."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_questions_that_arrive_during_a_call_share_the_next_one() -> None:
    """A call takes all that wait, up to its bound."""
    double = Doubler()
    shared = SharedCalls(double, most_together=3)
    asked = [asyncio.create_task(shared.ask(1))]
    await settle()
    asked += [asyncio.create_task(shared.ask(number)) for number in range(2, 7)]
    await settle()
    assert double.calls == [[1]]
    double.go.set()
    assert await asyncio.gather(*asked) == [2, 4, 6, 8, 10, 12]
    assert double.calls == [[1], [2, 3, 4], [5, 6]]


async def test_an_error_of_one_question_is_its_own() -> None:
    """The other questions of the call are answered."""
    double = Doubler()
    double.go.set()
    shared = SharedCalls(double)
    found = await asyncio.gather(*(shared.ask(number) for number in (1, 101, 102)), return_exceptions=True)
    assert [str(each) for each in found] == ["2", "101 is odd", "204"]


async def test_a_call_that_fails_fails_for_all_its_questions_and_no_other() -> None:
    """Each question gets a copy of the error, and the next call goes out."""
    double = Doubler()
    double.go.set()
    double.error = UnavailableError("gone")
    shared = SharedCalls(double)
    found = await asyncio.gather(shared.ask(1), shared.ask(2), return_exceptions=True)
    assert [type(each) for each in found] == [UnavailableError, UnavailableError]
    assert found[0] is not found[1] or len(double.calls) == 2
    double.error = None
    assert await shared.ask(3) == 6


async def test_a_question_that_nobody_waits_for_any_more_is_not_asked() -> None:
    """A question that was cancelled while it waited is left out."""
    double = Doubler()
    shared = SharedCalls(double)
    first, given_up, patient = (asyncio.create_task(shared.ask(number)) for number in (1, 2, 3))
    await settle()
    given_up.cancel()
    double.go.set()
    assert await asyncio.gather(first, patient) == [2, 6]
    assert double.calls == [[1], [3]]


async def test_closing_ends_all_who_wait() -> None:
    """Those under way and those that wait are cancelled."""
    double = Doubler()
    shared = SharedCalls(double)
    asked = [asyncio.create_task(shared.ask(number)) for number in (1, 2)]
    await settle()
    await shared.close()
    assert [type(each) for each in await asyncio.gather(*asked, return_exceptions=True)] == [
        asyncio.CancelledError,
        asyncio.CancelledError,
    ]


async def test_closing_what_was_never_used_needs_no_event_loop() -> None:
    """A command that asks one thing runs without one."""
    shared = SharedCalls(Doubler())
    with pytest.raises(StopIteration):
        shared.close().send(None)
