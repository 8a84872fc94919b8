"""What a command does when it is told to end while something half done is on this machine."""

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
def _heard_by(
    numbers: Iterable[signal.Signals], handler: Callable[[int, Any], object] | signal.Handlers | None
) -> Iterator[None]:
    """Have a handler hear signals (None: who hears them now); then whoever heard them before does so again."""
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
    """Have SIGTERM and SIGHUP take down what was started, as Ctrl-C does, and end with 128 + the signal's number."""
    heard: list[int] = []

    def hear(number: int, frame: object) -> None:
        heard.append(number)
        raise SystemExit(128 + number)

    try:
        with _heard_by(_POSTPONED, hear):
            yield
    finally:
        if heard:
            # Where the exception passes through Ray, or through a callback, another one comes out of it, or none.
            raise SystemExit(128 + heard[0])


def run_in_order(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as `asyncio.run` does; SIGTERM and SIGHUP cancel it, as Ctrl-C does.

    An exception that is raised where they are heard, as that of `ended_in_order`, would end whichever task has its
    turn, and the event loop with it. When the work has come to its end, SystemExit has 128 + the number of the signal.
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
        with _heard_by(_POSTPONED, None), asyncio.Runner() as runner:
            for number in _POSTPONED:
                runner.get_loop().add_signal_handler(number, hear, number)
            return runner.run(cancellable())
    finally:
        if heard:
            raise SystemExit(128 + heard[0])


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Let nothing interrupt this: what is being ended is ended whole."""
    with _heard_by(_ALL, signal.SIG_IGN):
        yield


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hear of INT, TERM and HUP only after this: whoever is to end what is started in it has it in hand by then.

    Blocking them would not do: a process that is started would never hear of them.
    """
    heard: list[int] = []
    try:
        with _heard_by(_ALL, lambda number, frame: heard.append(number)):
            yield
    finally:
        if heard:
            signal.raise_signal(heard[0])


@contextlib.contextmanager
def postponed() -> Iterator[None]:
    """Hear of TERM and HUP only after this, by those who heard of them before.

    Ray has a handler of its own for TERM from the moment it is connected, by which the process aborts.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _blocked(_POSTPONED), _heard_by(_POSTPONED, None):
        yield


@contextlib.contextmanager
def for_the_main_thread() -> Iterator[None]:
    """Leave signals to the thread that runs this: threads that are started in it hear of none."""
    with _blocked(_ALL):
        yield
