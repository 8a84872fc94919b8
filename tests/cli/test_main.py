"""How the command ends: exit statuses, one line for every error, interrupts, closed pipes, and what shows meanwhile."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from gridweave import __version__
from gridweave.cli.output import PATIENCE_S, delayed_progress, interruptible
from gridweave.errors import GridweaveError, InputError, UnavailableError
from gridweave.scenarios.traces import load
from support.machine import PATIENCE_S as LONGEST_S

SWF = """\
; MaxNodes: 8
1 0 -1 30 8 -1 -1 -1 30 -1 1 5 6 -1 7 8 -1 -1
2 10 -1 10 3 -1 -1 -1 20 -1 1 5 6 -1 7 8 -1 -1
"""
COMMAND = [sys.executable, "-m", "gridweave.cli"]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Write a trace of two jobs."""
    path = tmp_path / "two.swf"
    path.write_text(SWF)
    return path


Shell = Callable[..., tuple[int, str, str]]


# -- good ends


def test_version(shell: Shell) -> None:
    """The version is printed alone."""
    assert shell("--version") == (0, f"gridweave {__version__}\n", "")


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["simulate", "--help"], ["trace", "-h"]])
def test_help(shell: Shell, arguments: list[str]) -> None:
    """Help goes to standard output and is a good end."""
    status, out, err = shell(*arguments)
    assert (status, err) == (0, "")
    assert "Usage: gridweave" in out


@pytest.mark.parametrize("arguments", [[], ["trace"]])
def test_nothing_to_do(shell: Shell, arguments: list[str]) -> None:
    """A call that names no command shows the help and ends as a mistake."""
    status, out, err = shell(*arguments)
    assert status == 2
    assert "Usage: gridweave" in out + err
    assert "gridweave: " not in err


def test_a_good_run(shell: Shell, trace: Path) -> None:
    """A command that has done its work ends with 0."""
    status, out, err = shell("simulate", trace)
    assert status == 0
    assert "fcfs easy" in out
    assert err == "two: 2 of 2 records kept, on 8 nodes\n"


# -- bad ends


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["simul"], "No such command 'simul'. Did you mean 'simulate'? See: gridweave --help"),
        (["--nonsense"], "No such option: --nonsense; see: gridweave --help"),
        (["simulate"], "Missing argument"),
        (["simulate", "x.swf", "--oder", "fcfs"], "No such option: --oder"),
        (["simulate", "x.swf", "--nodes", "abc"], "Invalid value for '--nodes': must be a whole number; see: "),
        (["simulate", "x.swf", "--nodes", "2.5"], "Invalid value for '--nodes'"),
        (["simulate", "x.swf", "--nodes", "9" * 5000], "Invalid value for '--nodes'"),
        (["simulate", "x.swf", "--slack", "much"], "Invalid value for '--slack': must be a number; see: "),
        (["simulate", "x.swf", "--slack"], "Option '--slack' requires an argument"),
        (["simulate", "x.swf", "y.swf"], "unexpected extra argument"),
        (["trace", "nonsense"], "No such command 'nonsense'"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_calls_that_are_not_understood(shell: Shell, arguments: list[str], message: str) -> None:
    """A misspelt command or option, or a value of the wrong kind, is one line that tells where the help is."""
    status, out, err = shell(*arguments)
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("gridweave: ")
    assert message in err
    assert err.endswith("--help\n")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InputError("it is wrong"), 2),
        (UnavailableError("it is away"), 3),
        (GridweaveError("it is strange"), 1),
        (InputError("the file a\nb is wrong"), 2),
        (OSError(errno.ENOSPC, "No space left on device"), 1),
        (PermissionError(errno.EACCES, "Permission denied", "/somewhere"), 1),
        (KeyboardInterrupt(), 130),
    ],
    ids=repr,
)
def test_every_error_has_one_line_and_a_status(
    shell: Shell, trace: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int
) -> None:
    """Whatever a command ends in, standard error holds one line that begins with the program's name."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    monkeypatch.setattr(load, "load_workload", fail)
    ended, out, err = shell("simulate", trace)
    assert (ended, out) == (status, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("gridweave: ")
    expected = {
        KeyboardInterrupt: "interrupted",
        OSError: "standard output: No space",
        PermissionError: "/somewhere: P",
    }
    assert expected.get(type(error), " ".join(str(error).splitlines())) in err


def test_faults_of_the_program_are_not_hidden(shell: Shell, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that nobody raised on purpose keeps its traceback: it is a fault to be reported."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise ZeroDivisionError

    monkeypatch.setattr(load, "load_workload", fail)
    with pytest.raises(ZeroDivisionError):
        shell("simulate", trace)


def test_fetching_without_a_network(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace that cannot be fetched now ends with 3, and leaves nothing behind."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise urllib.error.URLError(OSError(errno.ENETUNREACH, "Network is unreachable"))

    monkeypatch.setattr(urllib.request, "urlopen", fail)
    status, out, err = shell("trace", "fetch", "KTH-SP2-1996-2", "--folder", tmp_path)
    assert (status, out) == (3, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("gridweave: http")
    assert "Network is unreachable" in err
    assert list(tmp_path.iterdir()) == []


def test_letters_that_a_terminal_has_not(trace: Path) -> None:
    """On a terminal without the dash that stands for "not defined" the table is printed all the same."""
    arguments = ["simulate", str(trace), "--discipline", "planning", "--limit", "max-nodes=1"]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, check=False, env=environment)
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr
    assert done.stdout.decode("latin-1").splitlines()[-1].endswith("?")


# -- readers that go, and interrupts


def test_a_reader_that_has_gone(trace: Path) -> None:
    """When nobody reads the output any more, as behind `| head`, the command ends well and says nothing of it."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run([*COMMAND, "simulate", str(trace)], stdout=write_end, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(write_end)
    assert done.returncode == 0
    assert done.stderr == b"two: 2 of 2 records kept, on 8 nodes\n"


def test_an_interrupt_in_a_long_run(tmp_path: Path) -> None:
    """Ctrl-C in the middle of minutes of compiled code ends at once with 130, one line and no folder."""
    path, out = tmp_path / "long.swf", tmp_path / "out"
    lines = [f"{number} 0 -1 {number % 997 + 1} {number % 61 + 1}" + " -1" * 13 for number in range(1, 150_001)]
    path.write_text("; MaxNodes: 64\n" + "\n".join(lines) + "\n")
    arguments = ["simulate", str(path), "--backfill", "conservative", "--out", str(out)]
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        remarks = [process.stderr.readline(), process.stderr.readline()]  # reading is over: the simulation begins
        process.send_signal(signal.SIGINT)
        printed, said = process.communicate(timeout=LONGEST_S)
    assert remarks[0].startswith("long: 150,000 of 150,000 records kept")
    assert (process.returncode, printed) == (130, "")
    assert said == "gridweave: interrupted\n"
    assert not out.exists()


INTERRUPTED = """
import os, signal, threading
from gridweave.cli.output import interruptible

def work():
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait()

try:
    interruptible(work)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_work_that_can_be_interrupted() -> None:
    """A function runs in a thread and returns its value or raises its error; an interrupt does not wait for it."""
    assert interruptible(lambda: threading.current_thread() is threading.main_thread()) is False
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 // 0)
    # In a process of its own: where Ray runs, too, an interrupt may end the tests.
    command = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


# -- the progress bar


class Timer:
    """Stands in for a timer: it goes off when it is told to."""

    started: list[Timer]

    def __init__(self, interval_s: float, function: Callable[[], None]) -> None:
        self.interval_s, self.function, self.cancelled, self.daemon = interval_s, function, False, False

    def start(self) -> None:
        """Remember it."""
        Timer.started.append(self)

    def cancel(self) -> None:
        """Never go off."""
        self.cancelled = True

    def join(self) -> None:
        """Return at once: nothing runs apart."""
        assert self.cancelled


class Screen(io.StringIO):
    """Stands in for standard error, on a terminal or not."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        """Whether people look at it."""
        return self._terminal


@pytest.mark.parametrize(
    ("terminal", "second_over", "shows"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_the_bar_shows_after_a_second_on_terminals(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, second_over: bool, shows: bool
) -> None:
    """A bar is shown once a second is over, on a terminal alone, even where colours are forced; then it is gone."""
    Timer.started = []
    screen = Screen(terminal=terminal)
    monkeypatch.setattr(threading, "Timer", Timer)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with delayed_progress("Reading") as report:
        assert [(timer.interval_s, timer.daemon) for timer in Timer.started] == [(PATIENCE_S, True)] * terminal
        report(3, 10, "Weaving")
        assert screen.getvalue() == ""
        for timer in Timer.started * second_over:
            timer.function()
        assert ("Weaving" in screen.getvalue()) == ("3 of 10" in screen.getvalue()) == shows
    assert all(timer.cancelled for timer in Timer.started)
    assert (screen.getvalue() != "") == shows
    if shows:
        assert screen.getvalue().rstrip("\r").endswith("\x1b[2K"), "the bar is not wiped away"


def test_the_bar_goes_when_the_work_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the block stops the timer and passes."""
    Timer.started = []
    monkeypatch.setattr(threading, "Timer", Timer)
    monkeypatch.setattr(sys, "stderr", Screen(terminal=True))
    with pytest.raises(ZeroDivisionError), delayed_progress("Reading"):
        raise ZeroDivisionError
    assert Timer.started[0].cancelled
