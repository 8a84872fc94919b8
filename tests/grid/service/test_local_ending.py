"""Ending what was started for a local grid: when it is really gone."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gridweave.grid.config.local_state import wait_for_end
from gridweave.site.machine.processes import ProcessStat, process_stat, send_signal
from support.machine import PATIENCE_S

WITHOUT_ITS_FIRST_THREAD = """
import ctypes, sys, threading
def wait():
    print(flush=True)
    sys.stdin.read()
threading.Thread(target=wait).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.fixture
def headless() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process whose first thread is over, while another one goes on."""
    child = subprocess.Popen([sys.executable, "-c", WITHOUT_ITS_FIRST_THREAD], stdin=-1, stdout=-1)
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin, child.stdout:
        child.stdout.readline()
        yield child
        child.kill()
        child.wait()


def stat_of(pid: int) -> ProcessStat:
    """Return what is known of a process."""
    stat = process_stat(pid)
    assert stat is not None
    return stat


def test_a_process_lives_as_long_as_its_last_thread(headless: subprocess.Popen[bytes]) -> None:
    """A process is gone when all of its threads are: until then it holds its files, and the locks on them."""
    while (stat := stat_of(headless.pid)).state != "Z":
        pass
    assert not wait_for_end([(stat.pid, stat.start_ticks)], 0.0)
    headless.send_signal(signal.SIGKILL)
    assert wait_for_end([(stat.pid, stat.start_ticks)], PATIENCE_S)


def test_a_number_that_was_given_anew_is_not_waited_for() -> None:
    """A process that started at another time is another process."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as child:
        stat = stat_of(child.pid)
        assert wait_for_end([(stat.pid, stat.start_ticks + 1)], 0.0)
        assert not wait_for_end([(stat.pid, stat.start_ticks)], 0.0)
        assert send_signal(stat, signal.SIGKILL)
        assert wait_for_end([(stat.pid, stat.start_ticks)], PATIENCE_S)
