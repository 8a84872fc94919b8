"""Compute forecasts in a thread, one simulation at a time, so that one user's questions do not block another's.

Questions about waiting jobs that arrive during a simulation share the next simulation. Questions that need a separate
state (quotes, what-ifs) take turns with them, one at a time; equal questions share an answer.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from gridweave.errors import UnavailableError
from gridweave.site.explain import Forecast, Forecaster, Planner

FORECAST_S = 30.0
"""How long a caller waits, in seconds; a question that is still queued by then is dropped."""

Q = TypeVar("Q")
T = TypeVar("T")
Work = Callable[[], T]


class Forecasting(Protocol):
    """A grid that can be simulated from its current state."""

    def forecasters(self, now_ms: int, job_ids: Sequence[int]) -> list[Forecaster | None]:
        """Return a forecasting function for each job, or None; all functions share one simulation."""

    def planner(self, now_ms: int, most_jobs: int) -> Planner:
        """Return a function that forecasts the starts of the first `most_jobs` waiting jobs."""


class _Asked(NamedTuple, Generic[Q, T]):
    question: Q
    answer: asyncio.Future[T]
    until_s: float  # when the caller stops waiting


class _Questions(Generic[Q, T]):
    """A queue of questions of one kind; up to `most` questions, and all questions equal to them, are answered together.

    `prepare` is called in the event loop with the grid's current state; the function it returns computes the answers in
    a thread.
    """

    def __init__(
        self, prepare: Callable[[list[Q]], Work[list[T]]], now_s: Callable[[], float], most: int | None = None
    ) -> None:
        self._prepare, self._now_s, self._most = prepare, now_s, most
        self._asked: deque[_Asked[Q, T]] = deque()

    def __len__(self) -> int:
        return len(self._asked)

    def add(self, question: Q, patience_s: float) -> asyncio.Future[T]:
        """Return a future for the answer to a question; the future fails unless the turn comes within `patience_s`."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._asked.append(_Asked(question, answer, self._now_s() + patience_s))
        return answer

    async def answer(self) -> None:
        """Answer the first questions, except those whose callers have stopped waiting."""
        batch = self._next()
        if not batch:
            return
        try:
            answers = await asyncio.to_thread(self._prepare([entry.question for entry in batch]))
        except Exception as error:
            for entry in batch:
                if not entry.answer.done():
                    entry.answer.set_exception(error)
            return
        for entry, answer in zip(batch, answers, strict=True):
            if not entry.answer.done():
                entry.answer.set_result(answer)

    def _next(self) -> list[_Asked[Q, T]]:
        batch: list[_Asked[Q, T]] = []
        while self._asked and len(batch) != self._most:
            first = self._asked.popleft()
            if first.answer.done():
                continue
            if first.until_s < self._now_s():
                first.answer.set_exception(UnavailableError("too many users ask for forecasts now; try again later"))
                continue
            batch.append(first)
        if self._most is not None:
            same = [other for other in self._asked if any(other.question == first.question for first in batch)]
            self._asked = deque(other for other in self._asked if other not in same)
            batch += [other for other in same if not other.answer.done()]
        return batch


class _SeparateQuestion:
    """A question that needs a separate state; questions with the same name are equal."""

    def __init__(self, make: Callable[[], Work[Any]], name: object) -> None:
        self.make, self._name = make, name

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, _SeparateQuestion) and self._name is not None and self._name == other._name
        )

    __hash__ = None  # type: ignore[assignment]


class _AboutJobs(NamedTuple):
    job_ids: Sequence[int]
    within_s: float | None


class ForecastQueue:
    """Answers questions about a grid's future; `now_ms` is the grid's clock, `now_s` measures callers' patience.

    Examples
    --------
    >>> class Grid:
    ...     def forecasters(self, now_ms, job_ids):
    ...         return [lambda job_id=job_id: Forecast(job_id=job_id, now_ms=now_ms) for job_id in job_ids]
    >>> async def example():
    ...     forecasts = ForecastQueue(Grid(), lambda: 7)
    ...     found = await asyncio.gather(forecasts.of([1]), forecasts.of([2, 3]))
    ...     return [sorted(each) for each in found]
    >>> asyncio.run(example())
    [[1], [2, 3]]
    """

    def __init__(
        self, grid: Forecasting, now_ms: Callable[[], int], now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._grid, self._now_ms = grid, now_ms
        self._about_jobs = _Questions(self._forecasts, now_s)
        self._about_plan = _Questions(self._plans, now_s)
        self._alone = _Questions[_SeparateQuestion, Any](lambda asked: _one(asked[0].make(), len(asked)), now_s, most=1)
        self._task: asyncio.Task[None] | None = None

    async def of(self, job_ids: Sequence[int], *, within_s: float | None = None) -> dict[int, Forecast]:
        """Return the forecasts of jobs; unknown jobs and jobs whose forecasts take too long are left out."""
        return await self._answer(self._about_jobs, _AboutJobs(job_ids, within_s), FORECAST_S)

    async def plan(self, most_jobs: int) -> list[Forecast]:
        """Return the forecast starts of the first `most_jobs` waiting jobs, in order."""
        return await self._answer(self._about_plan, most_jobs, FORECAST_S)

    async def alone(self, make: Callable[[], Work[T]], patience_s: float = FORECAST_S, *, name: object = None) -> T:
        """Call `make` when this question's turn comes, run the function that `make` returns, and return the result.

        Questions with the same name that are waiting at that time share the answer, unless the name is None.
        """
        result: T = await self._answer(self._alone, _SeparateQuestion(make, name), patience_s)
        return result

    async def _answer(self, line: _Questions[Q, T], question: Q, patience_s: float) -> T:
        answer = line.add(question, patience_s)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())
        return await answer

    async def _work(self) -> None:
        lines: tuple[_Questions[Any, Any], ...] = (self._about_jobs, self._about_plan, self._alone)
        while any(lines):
            for line in lines:
                await line.answer()

    def _forecasts(self, asked: list[_AboutJobs]) -> Work[list[dict[int, Forecast]]]:
        job_ids = list(dict.fromkeys(job_id for question in asked for job_id in question.job_ids))
        forecasters = dict(zip(job_ids, self._grid.forecasters(self._now_ms(), job_ids), strict=True))
        return lambda: _worked_out(forecasters, asked)

    def _plans(self, asked: list[int]) -> Work[list[list[Forecast]]]:
        planner = self._grid.planner(self._now_ms(), max(asked))
        return lambda: _parts(planner(), asked)


def _worked_out(forecasters: dict[int, Forecaster | None], asked: list[_AboutJobs]) -> list[dict[int, Forecast]]:
    """Compute the forecasts for each question, starting with questions about few jobs."""
    forecasts: dict[int, Forecast] = {}
    for job_ids, within_s in sorted(asked, key=lambda question: len(question.job_ids)):
        until_s = None if within_s is None else time.monotonic() + within_s
        for job_id in job_ids:
            if until_s is not None and time.monotonic() >= until_s:
                break
            forecaster = forecasters[job_id]
            if job_id not in forecasts and forecaster is not None:
                forecasts[job_id] = forecaster()
    return [{job_id: forecasts[job_id] for job_id in question.job_ids if job_id in forecasts} for question in asked]


def _parts(planned: list[Forecast], asked: list[int]) -> list[list[Forecast]]:
    return [planned[:most_jobs] for most_jobs in asked]


def _one(work: Work[T], times: int) -> Work[list[T]]:
    return lambda: [work()] * times
