"""An event loop in virtual time; its virtual processes can be killed or stopped between any two awaits."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np

CURRENT: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class _Selector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """A selector that advances the virtual time instead of waiting."""

    now_s = 1000.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("everybody waits, and nothing is to come")
        self.now_s += max(0.0, timeout)
        return []


class _Held:
    """A callback that is held back while its process is stopped."""

    handle: Any = None

    def __init__(self, process: Process | None, callback: Any, args: Any) -> None:
        self.process, self.callback, self.args = process, callback, args

    def __call__(self) -> None:
        if self.process is not None and self.process.is_stopped:
            self.process.held.append((contextvars.copy_context(), self))
        elif not self.handle.cancelled():
            self.callback(*self.args)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time.

    A call in an executor takes a random time, and is skipped if its process dies before.

    Parameters
    ----------
    rng : numpy.random.Generator
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)
        self._rng = rng
        # Sets the delays of calls in an executor. The result arrives after the call, so a process can die in between.
        self.slowest_s = 0.05

    def time(self) -> float:
        """Return the virtual time in s."""
        return self._virtual.now_s

    def now_ms(self) -> int:
        """Return the virtual time in ms."""
        return int(self.time() * 1000)

    def outside(self, delay_s: float, callback: Callable[..., Any], *args: Any) -> None:
        """Call a function after a delay, outside of all processes, so that it runs even if this process dies."""
        self.call_later(delay_s, callback, *args, context=contextvars.Context())

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        """Call a function soon, or when its process continues if that is stopped."""
        held = _Held(self._process_of(context), callback, args)
        held.handle = super().call_soon(held, context=context)
        return held.handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        """Call a function at an instant, or when its process continues if that is stopped."""
        held = _Held(self._process_of(context), callback, args)
        held.handle = super().call_at(when, held, context=context)
        return held.handle

    @staticmethod
    def _process_of(context: Any) -> Process | None:
        return CURRENT.get() if context is None else context.get(CURRENT)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Call a function after a random delay, and return its result after another one."""
        future = self.create_future()
        process = CURRENT.get()
        done_s, heard_s = sorted(self._rng.exponential(self.slowest_s / 4, 2))

        def do() -> None:
            if process is not None and not process.is_alive:
                return
            try:
                settle = functools.partial(future.set_result, func(*args))
            except Exception as error:
                settle = functools.partial(future.set_exception, error)
            self.call_later(heard_s, lambda: None if future.done() else settle())

        self.call_later(done_s, do)
        return future


class Process:
    """A virtual process: tasks that are stopped and killed together."""

    def __init__(self, name: str, on_error: Callable[[BaseException], None]) -> None:
        self.name = name
        self.is_alive = True
        self.is_stopped = False
        self.held: list[tuple[contextvars.Context, _Held]] = []
        # A dict keeps the order of starts, so that a seed gives the same history in every run.
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._on_error = on_error

    def spawn(self, work: Coroutine[Any, Any, Any], *, endless: bool = False) -> asyncio.Task[Any]:
        """Run a coroutine in this process; if an `endless` one ends while the process lives, report an error."""
        context = contextvars.copy_context()
        context.run(CURRENT.set, self)
        task = asyncio.get_running_loop().create_task(work, context=context)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        if endless:
            task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if self.is_alive and not task.cancelled():
            self._on_error(task.exception() or RuntimeError(f"{self.name} has ended"))

    def kill(self) -> None:
        """Cancel all tasks of the process at once."""
        self.is_alive = False
        for task in list(self._tasks):
            task.cancel()

    def stop(self) -> None:
        """Stop the process as SIGSTOP does; its callbacks wait."""
        self.is_stopped = True

    def go_on(self) -> None:
        """Continue the process as SIGCONT does, and run the callbacks that waited."""
        self.is_stopped = False
        loop = asyncio.get_running_loop()
        for context, held in self.held:
            loop.call_soon(held, context=context)
        self.held = []


class VirtualClock:
    """Replaces `gridweave.site.service.driver.Clock`; shows the time of the loop plus `off_ms`."""

    def __init__(self, loop: VirtualLoop, off_ms: int) -> None:
        self._loop, self._off_ms = loop, off_ms

    def now_ms(self) -> int:
        """Return the time that the clock shows, in ms."""
        return self._loop.now_ms() + self._off_ms

    def real_ms(self, span_ms: float) -> int:
        """Return the length of a time span, rounded up to whole ms."""
        return int(np.ceil(span_ms))

    def at(self, unix_ms: float) -> int:
        """Return the time that the clock shows at an instant of the loop."""
        return int(unix_ms) + self._off_ms

    def unix_ms(self, shown_ms: int) -> int:
        """Return the instant of the loop at which the clock shows this time."""
        return shown_ms - self._off_ms
