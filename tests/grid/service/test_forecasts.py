"""Questions about the future of a grid: those about one state share a simulation, and nobody's keep others' waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

import pytest

from gridweave.errors import InputError, UnavailableError
from gridweave.grid.service.forecasts import ForecastQueue
from gridweave.site.explain import Forecast, Forecaster, Planner
from support.machine import PATIENCE_S


class GatedGrid:
    """A grid whose simulations wait for a gate, and which counts them."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.simulated: list[str] = []

    def _once(self, what: str) -> Callable[[], None]:
        """Return what a simulation calls at its first answer."""
        began = threading.Lock()

        def begin() -> None:
            if began.acquire(blocking=False):
                self.gate.wait(PATIENCE_S)
                self.simulated.append(what)

        return begin

    def forecasters(self, now_ms: int, job_ids: Sequence[int]) -> list[Forecaster | None]:
        """Return forecasters of jobs below 1,000."""
        begin = self._once(f"{len(job_ids)} jobs")

        def forecast(job_id: int) -> Forecast:
            begin()
            return Forecast(job_id=job_id, now_ms=now_ms)

        return [None if job_id >= 1_000 else (lambda job_id=job_id: forecast(job_id)) for job_id in job_ids]

    def planner(self, now_ms: int, most_jobs: int) -> Planner:
        """Return a planner of one start after the other."""
        begin = self._once(f"plan of {most_jobs}")

        def plan() -> list[Forecast]:
            begin()
            return [Forecast(job_id=number, now_ms=now_ms) for number in range(most_jobs)]

        return plan

    def quoter(self, name: str) -> Callable[[], str]:
        """Return a quoter."""
        begin = self._once(name)

        def quote() -> str:
            begin()
            return name

        return quote


async def begun(*tasks: asyncio.Task[object]) -> None:
    """Return when tasks have asked their questions."""
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_questions_that_come_meanwhile_share_a_simulation() -> None:
    """Ninety-eight questions about jobs, and ten for the plan, are answered by two simulations after the first one."""
    grid = GatedGrid()
    queue = ForecastQueue(grid, lambda: 5)
    first = asyncio.create_task(queue.of([0]))
    await begun(first)
    others = [asyncio.create_task(queue.of([number])) for number in range(1, 99)]
    plans = [asyncio.create_task(queue.plan(most)) for most in range(1, 11)]
    await begun(*others, *plans)
    grid.gate.set()
    assert list(await first) == [0]
    assert [list(found) for found in await asyncio.gather(*others)] == [[number] for number in range(1, 99)]
    assert [len(found) for found in await asyncio.gather(*plans)] == list(range(1, 11))
    assert sorted(grid.simulated) == ["1 jobs", "98 jobs", "plan of 10"]


@pytest.mark.asyncio
async def test_forecasts_do_not_wait_behind_quotes() -> None:
    """Between two quotes all questions about jobs that have come are answered, and between these one quote."""
    grid = GatedGrid()
    queue = ForecastQueue(grid, lambda: 5)
    quotes = [asyncio.create_task(queue.alone(lambda name=name: grid.quoter(name))) for name in ("a", "b", "c")]
    await begun(*quotes)
    about = [asyncio.create_task(queue.of([number])) for number in (1, 2, 1_000)]
    await begun(*about)
    grid.gate.set()
    assert await asyncio.gather(*quotes) == ["a", "b", "c"]
    assert [list(found) for found in await asyncio.gather(*about)] == [[1], [2], []]
    assert grid.simulated == ["a", "3 jobs", "b", "c"]


@pytest.mark.asyncio
async def test_the_same_quotes_share_a_simulation() -> None:
    """Those that wait when it is the turn of one have its answer; one that comes later has a state of its own."""
    grid = GatedGrid()
    queue = ForecastQueue(grid, lambda: 5)
    first = asyncio.create_task(queue.of([0]))
    await begun(first)
    names = ["a", "b", "a", "a", "b"]
    quotes = [asyncio.create_task(queue.alone(lambda name=name: grid.quoter(name), name=name)) for name in names]
    await begun(*quotes)
    quotes[2].cancel()
    grid.gate.set()
    found = await asyncio.gather(*(quotes[number] for number in (0, 1, 3, 4)))
    assert (found, grid.simulated) == (["a", "b", "a", "b"], ["1 jobs", "a", "b"])
    assert await queue.alone(lambda: grid.quoter("a"), name="a") == "a"
    assert grid.simulated == ["1 jobs", "a", "b", "a"]


@pytest.mark.asyncio
async def test_who_is_gone_is_passed_over() -> None:
    """Nothing is simulated for a question that was given up, or has waited longer than anybody waits for its answer."""
    grid, now_s = GatedGrid(), 0.0
    queue = ForecastQueue(grid, lambda: 5, now_s=lambda: now_s)
    first = asyncio.create_task(queue.of([0]))
    await begun(first)
    gone = asyncio.create_task(queue.alone(lambda: grid.quoter("gone")))
    late = asyncio.create_task(queue.alone(lambda: grid.quoter("late"), patience_s=10.0))
    patient = asyncio.create_task(queue.alone(lambda: grid.quoter("patient"), patience_s=30.0))
    await begun(gone, late, patient)
    gone.cancel()
    now_s = 20.0
    grid.gate.set()
    assert await patient == "patient"
    with pytest.raises(UnavailableError, match="try again later"):
        await late
    assert grid.simulated == ["1 jobs", "patient"]


@pytest.mark.asyncio
async def test_a_question_that_makes_no_sense_harms_no_other() -> None:
    """What cannot be asked is told to whoever asked, and the next question is answered."""
    grid = GatedGrid()
    grid.gate.set()
    queue = ForecastQueue(grid, lambda: 5)

    def wrong() -> Callable[[], str]:
        raise InputError("no such job")

    answers = await asyncio.gather(
        queue.alone(wrong), queue.alone(lambda: grid.quoter("right")), return_exceptions=True
    )
    assert isinstance(answers[0], InputError)
    assert answers[1] == "right"
    assert list(await queue.of([1])) == [1]
