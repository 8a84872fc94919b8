"""Signal handling for commands, so that a signal never leaves work on this machine half done."""

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
    """Install a signal handler (None: keep the current ones); restore the previous handlers after the block."""
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
    """Make SIGTERM and SIGHUP raise SystemExit (128 + the signal's number), so that callers can clean up."""
    heard: list[int] = []

    def hear(number: int, frame: object) -> None:
        heard.append(number)
        raise SystemExit(128 + number)

    try:
        with _handled_by(_POSTPONED, hear):
            yield
    finally:
        if heard:
            # Ray or a callback may have replaced or swallowed the exception.
            raise SystemExit(128 + heard[0])


def run_in_order(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine like `asyncio.run`, but let SIGTERM and SIGHUP cancel it, as Ctrl-C does.

    After such a signal, raise SystemExit (128 + the signal's number) at the end. Raising it in the signal handler, as
    `ended_in_order` does, would interrupt whichever task is running, or the event loop itself.
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
    """Ignore SIGINT, SIGTERM and SIGHUP within the block, so that a shutdown is not interrupted."""
    with _handled_by(_ALL, signal.SIG_IGN):
        yield


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay SIGINT, SIGTERM and SIGHUP until after the block, in which the caller starts processes and records them.

    The signals are caught rather than blocked, because child processes would inherit the signal mask.
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
    """Delay SIGTERM and SIGHUP until after the block, then deliver them to their previous handlers.

    Needed because Ray, when it connects, installs a SIGTERM handler that aborts the process.
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
