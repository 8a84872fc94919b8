"""Few calls for many questions: those that arrive while a call is under way share the next one."""

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
    """Answers single questions by calls that carry several.

    One call is under way at a time. A question that arrives meanwhile waits for its end, and goes with all others that
    wait by then. So no question is answered by a call that started before it, and no timer delays it.

    Parameters
    ----------
    call
        Answers questions, in their order; an answer may be an error, for its question alone. If the call itself raises
        a GridweaveError, each of its questions gets that.
    most_together
        How many questions one call may carry.
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
        """Return the answer to a question; a caller that stops waiting takes its question back."""
        import asyncio  # a command that asks one thing does without

        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, answer))
        self._start()
        return await answer

    async def close(self) -> None:
        """Drop the call that is under way, and all questions."""
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
