"""Answer many questions with few calls: all questions that arrive during a call share the next call."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from gridweave.errors import GridweaveError

if TYPE_CHECKING:
    import asyncio

Q = TypeVar("Q")
A = TypeVar("A")


class SharedCalls(Generic[Q, A]):
    """Batches single questions into shared calls.

    One call runs at a time. Questions that arrive during a call wait until it ends and then share the next call. So a
    call never answers a question that arrived after the call started, and no timer delays a question.

    Parameters
    ----------
    call
        Returns the answers to a list of questions, in the same order; an answer may be an error, which is raised for
        its question. If the call itself raises an error, each of its questions gets a copy of that error.
    most_together
        Maximum number of questions per call.
    """

    def __init__(
        self,
        call: Callable[[list[Q]], Awaitable[Sequence[A | GridweaveError]]],
        *,
        most_together: int = 500,
    ) -> None:
        self._call, self._most_together = call, most_together
        self._waiting: list[tuple[Q, asyncio.Future[A]]] = []
        self._under_way: asyncio.Task[None] | None = None

    async def ask(self, question: Q) -> A:
        """Return the answer to a question, or raise the question's error; withdraw the question if cancelled."""
        import asyncio  # imported here because many commands never call this

        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, answer))
        self._start()
        return await answer

    async def close(self) -> None:
        """Cancel the call in progress and all waiting questions."""
        for _, answer in self._waiting:
            answer.cancel()
        if self._under_way is not None:
            import asyncio

            self._under_way.cancel()
            await asyncio.gather(self._under_way, return_exceptions=True)

    def _start(self) -> None:
        import asyncio

        self._waiting = [(question, answer) for question, answer in self._waiting if not answer.done()]
        if self._waiting and self._under_way is None:
            shared, self._waiting = self._waiting[: self._most_together], self._waiting[self._most_together :]
            self._under_way = asyncio.get_running_loop().create_task(self._answer(shared))
            self._under_way.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way = None
        if not task.cancelled():
            self._start()

    async def _answer(self, shared: list[tuple[Q, asyncio.Future[A]]]) -> None:
        answers: Sequence[A | GridweaveError | BaseException]
        try:
            answers = await self._call([question for question, _ in shared])
        except Exception as error:
            answers = [copy.copy(error) for _ in shared]
        except BaseException:
            for _, future in shared:
                future.cancel()
            raise
        for (_, future), answer in zip(shared, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)
