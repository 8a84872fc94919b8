"""What a command that starts a grid does when it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys

import pytest

from gridweave.grid.service.signals import ended_in_order, run_in_order, uninterrupted


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_whoever_makes_another_exception_of_it_changes_nothing(number: signal.Signals) -> None:
    """The status is that of the signal, though Ray turns every SystemExit that reaches it into one with status 1."""

    def wait_as_ray_does() -> None:
        with ended_in_order(), ended_in_order():
            try:
                signal.raise_signal(number)
            except SystemExit:
                raise SystemExit(1) from None

    with pytest.raises(SystemExit) as end:
        wait_as_ray_does()
    assert end.value.code == 128 + number


def test_whoever_swallows_it_cannot_keep_the_command_from_ending() -> None:
    """A signal that was heard in a callback, where its exception is lost, ends the command with its block."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end, ended_in_order(), contextlib.suppress(SystemExit):
        signal.raise_signal(signal.SIGTERM)
    assert end.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before


def test_without_a_signal_nothing_is_changed() -> None:
    """An error that no signal has led to is handed on."""
    with pytest.raises(ZeroDivisionError), ended_in_order():
        _ = 1 // 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_started_is_in_hand_when_a_signal_is_heard(number: signal.Signals) -> None:
    """A signal during a start is heard after it, and by whoever would have heard it before."""
    started = []

    def start() -> None:
        with ended_in_order(), uninterrupted():
            signal.raise_signal(number)
            started.append("a process")

    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit):
        start()
    assert started == ["a process"]


def test_a_process_that_is_started_meanwhile_hears_signals() -> None:
    """What keeps signals from the one that starts a process is not handed on to it."""
    with uninterrupted():
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with child:
        child.terminate()
        assert child.wait() == -signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_work_in_an_event_loop_is_cancelled(number: signal.Signals, caplog: pytest.LogCaptureFixture) -> None:
    """Whichever task has its turn when a signal comes, the work ends as by Ctrl-C, and nothing is complained of."""
    before, done = signal.getsignal(number), []

    async def beside() -> None:
        signal.raise_signal(number)
        await asyncio.Event().wait()

    async def work() -> None:
        try:
            await asyncio.gather(asyncio.Event().wait(), beside())
        finally:
            await asyncio.sleep(0)
            done.append("tidied up")

    with pytest.raises(SystemExit) as end:
        run_in_order(work())
    assert end.value.code == 128 + number
    assert done == ["tidied up"]
    assert caplog.records == []
    assert signal.getsignal(number) is before


def test_work_in_an_event_loop_that_nobody_interrupts() -> None:
    """What it returns is returned, what it raises is raised."""

    async def divided(by: int) -> int:
        return 6 // by

    assert run_in_order(divided(2)) == 3
    with pytest.raises(ZeroDivisionError):
        run_in_order(divided(0))
