"""Orderly reactions of commands to signals while work is half done on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

_POSTPONED = (signal.SIGTERM, signal.SIGHUP)
_ALL = (signal.SIGINT, *_POSTPONED)


@contextlib.contextmanager
def _handled_by(
    numbers: Iterable[signal.Signals], handler: Callable[[int, Any], object] | signal.Handlers | None
) -> Iterator[None]:
    """Install a handler of signals (None: keep the current ones); restore the previous handlers at the end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in numbers}
    for number in before if handler is not None else ():
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, signal.SIG_DFL if earlier is None else earlier)


@contextlib.contextmanager
def _blocked(numbers: Iterable[signal.Signals]) -> Iterator[None]:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextlib.contextmanager
def ended_in_order() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise SystemExit (128 + the signal's number), so that the caller cleans up."""
    heard: list[int] = []

    def hear(number: int, frame: object) -> None:
        heard.append(number)
        raise SystemExit(128 + number)

    try:
        with _handled_by(_POSTPONED, hear):
            yield
    finally:
        if heard:
            # Ray and callbacks may replace or swallow the exception on its way.
            raise SystemExit(128 + heard[0])


def run_in_order(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as `asyncio.run` does; SIGTERM and SIGHUP cancel it, as Ctrl-C does.

    An exception raised in a signal handler, as by `ended_in_order`, would hit whichever task is running, and the event
    loop. At the end, SystemExit carries 128 + the signal's number.
    """
    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(work)
    heard: list[int] = []
    begun: list[asyncio.Task[Any]] = []

    def hear(number: int) -> None:
        heard.append(number)
        for task in begun:
            task.cancel()

    async def cancellable() -> T:
        task = asyncio.current_task()
        assert task is not None, "a coroutine of asyncio's own runs in a task"
        begun.append(task)
        if heard:
            task.cancel()
        return await work

    try:
        with _handled_by(_POSTPONED, None), asyncio.Runner() as runner:
            for number in _POSTPONED:
                runner.get_loop().add_signal_handler(number, hear, number)
            return runner.run(cancellable())
    finally:
        if heard:
            raise SystemExit(128 + heard[0])


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Ignore signals while something is being ended."""
    with _handled_by(_ALL, signal.SIG_IGN):
        yield


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Deliver INT, TERM and HUP only after the block, when the caller has recorded what it started.

    The signals are not blocked, because a process started in the block would inherit that.
    """
    heard: list[int] = []
    try:
        with _handled_by(_ALL, lambda number, frame: heard.append(number)):
            yield
    finally:
        if heard:
            signal.raise_signal(heard[0])


@contextlib.contextmanager
def postponed() -> Iterator[None]:
    """Deliver TERM and HUP to their previous handlers only after the block.

    Ray installs a handler for TERM when it connects, and that aborts the process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _blocked(_POSTPONED), _handled_by(_POSTPONED, None):
        yield


@contextlib.contextmanager
def for_the_main_thread() -> Iterator[None]:
    """Block signals in threads started within the block, so that the main thread receives them."""
    with _blocked(_ALL):
        yield
