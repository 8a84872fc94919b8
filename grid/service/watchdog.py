"""Restarts processes of a grid started by `gridweave up`: ``python -m gridweave.grid.service.watchdog NAME``.

Ray restarts the grid's actors, but nothing restarts Ray's own nodes, so the watchdog does. To stay small, it does not
load Ray, numba or a server. When a process ends, the watchdog runs `gridweave.grid.service.local`, which starts the
missing processes like a second `up`. It pauses longer after each try and finally gives up, which its log and `gridweave
status` report. `gridweave down` stops the watchdog first.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import msgspec

from gridweave.errors import GridweaveError, UnavailableError
from gridweave.grid.config.local_state import (
    KEPT,
    LOGS,
    MARKER_VARIABLE,
    WATCHDOG,
    LocalGridState,
    LocalProcess,
    end_processes,
    read_grid_state,
    state_folder,
)
from gridweave.site.machine.folders import write_whole
from gridweave.site.machine.processes import open_process
from gridweave.site.times import span_text

LOG = "keeper.log"

REPAIR_S = 300.0
"""Time limit for one repair, in seconds; other commands that change the grid wait until the repair ends."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 60.0
"""Pause before the first try and the longest pause between tries, in seconds."""

MOST_TRIES = 20
"""Consecutive tries before the watchdog gives up: about 15 minutes of pauses, plus the time that the tries take."""

AWAY_S = 86_400.0
"""How long to wait for an external Ray cluster that does not answer, in seconds.

A cluster that restarts is back long before that; the address of a lost cluster can be reused by a different one.
"""

STEADY_S = 300.0
"""Time without a lost process after which the number of tries is reset, in seconds."""

_LOOK_EVERY_S = 5.0
_END_S = 30.0


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The watchdog's record of its repairs."""

    tries: int = 0  # consecutive
    mended: int = 0  # repairs since the watchdog started
    missing: tuple[str, ...] = ()  # processes that were missing at the last try
    last_ms: int = 0  # Unix time of the last try
    problem: str = ""  # why the last try failed; empty: it succeeded
    gave_up: bool = False
    gave_up_after: str = ""  # the tries or the time after which it gave up


def _probe(address: str) -> None:
    # This module is only needed on an external cluster.
    from gridweave.grid.service.ray import probe

    probe(address)


class GridWatchdog:
    """Keeps a grid running; `repair` starts the missing processes and returns the error message, or "" on success.

    `wait` returns when a process of the grid ends, or after a timeout in seconds.
    """

    def __init__(
        self,
        name: str,
        repair: Callable[[str], str],
        *,
        say: Callable[[str], None],
        wait: Callable[[LocalGridState | None, float], None],
        monotonic_s: Callable[[], float] = time.monotonic,
        probe: Callable[[str], None] = _probe,
    ) -> None:
        self._name, self._repair, self._say, self._wait, self._monotonic_s = name, repair, say, wait, monotonic_s
        self._probe = probe
        # When the external Ray cluster became unreachable, or None.
        self._away_since_s: float | None = None
        self._mended_s = monotonic_s()
        self.kept = Kept()

    def run(self, own_pid: int) -> bool:
        """Watch the grid; return True once the grid is down or has a new watchdog, False after giving up."""
        self._change()
        while True:
            state = read_grid_state(self._name)
            if state is None or all(process.pid != own_pid for process in state.watchdog):
                return True
            if not state.missing:
                self._away_since_s = None
                if self.kept.tries and self._monotonic_s() - self._mended_s > STEADY_S:
                    self._change(tries=0)
                self._wait(state, _LOOK_EVERY_S)
            elif self.kept.tries == MOST_TRIES:
                return self._give_up(state.missing, f"{self.kept.tries} tries")
            elif self._away_since_s is not None and self._monotonic_s() - self._away_since_s >= AWAY_S:
                return self._give_up(state.missing, span_text(int(AWAY_S * 1000)))
            else:
                self._try()

    def _try(self) -> None:
        """Start the missing processes after a pause, so that processes that end together are restarted in one try."""
        self._wait(None, pause_s(self.kept.tries))
        state = read_grid_state(self._name)
        if state is None or not state.missing:
            return  # another process has restarted them
        if not state.own_ray and not self._is_reachable(state.address):
            self._wait(None, LONGEST_PAUSE_S)
            return
        tries, missing = self.kept.tries + 1, state.missing
        self._say(f"{_listed(missing)} ended; try {tries} to restart what is missing")
        self._change(tries=tries, missing=missing, last_ms=int(time.time() * 1000))
        problem = self._repair(self._name)
        self._mended_s = self._monotonic_s()
        self._say(f"it failed: {problem}" if problem else f"restarted: {_listed(missing)}")
        self._change(problem=problem, mended=self.kept.mended + (not problem))

    def _is_reachable(self, address: str) -> bool:
        """Whether the external Ray cluster is reachable; while it is not, no tries are counted."""
        try:
            self._probe(address)
        except UnavailableError as error:
            if self._away_since_s is None:
                self._say(f"{error}; waiting for it")
                self._change(problem=str(error))
                self._away_since_s = self._monotonic_s()
            return False
        self._away_since_s = None
        return True

    def _give_up(self, missing: tuple[str, ...], after: str) -> bool:
        self._change(gave_up=True, gave_up_after=after, missing=missing)
        why = f": {self.kept.problem}" if self.kept.problem else ""
        self._say(
            f"GIVEN UP after {after}: {_listed(missing)} cannot be restarted{why}; "
            f"fix the problem and run: gridweave up --name {self._name}"
        )
        return False

    def _change(self, **changes: object) -> None:
        self.kept = msgspec.structs.replace(self.kept, **changes)
        write_whole(state_folder(self._name) / KEPT, msgspec.json.encode(self.kept))


def pause_s(tries: int) -> float:
    """Return the pause before the next try, in seconds, given the number of consecutive tries so far.

    Examples
    --------
    >>> [pause_s(tries) for tries in (0, 1, 2, 6, 7, 19)]
    [0.5, 1.0, 2.0, 32.0, 60.0, 60.0]
    """
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**tries)


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"the {name}" for name in names)


def read_kept(name: str) -> Kept | None:
    """Return the record of a grid's last watchdog; None if the record is missing or malformed."""
    try:
        return msgspec.json.decode((state_folder(name) / KEPT).read_bytes(), type=Kept)
    except (OSError, msgspec.MsgspecError):
        return None


@contextlib.contextmanager
def start_watchdog(state: LocalGridState, folder: Path) -> Iterator[LocalProcess]:
    """Start a grid's watchdog. The caller records it within the block, and it starts watching when the block ends."""
    # Processes with the marker are ended with the grid, so the watchdog and its children must not have it.
    environment = {name: value for name, value in os.environ.items() if name != MARKER_VARIABLE}
    if "PYTHONPATH" in environment:
        paths = environment["PYTHONPATH"].split(os.pathsep)
        environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, paths))
    with (folder / LOGS / LOG).open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "gridweave.grid.service.watchdog", state.name],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
    assert child.stdin is not None
    with child.stdin:
        process = LocalProcess.of_pid(WATCHDOG, child.pid)
        assert process is not None, "a running child has a pid"
        yield process
    child.returncode = 0  # do not wait for the watchdog, which outlives this process


def end_watchdog(state: LocalGridState) -> None:
    """Stop a grid's watchdog and any repair in progress."""
    end_processes(state.watchdog, patience_s=_END_S)


def wait_for_an_end(state: LocalGridState | None, longest_s: float) -> None:
    """Wait until a process of the grid ends, but at most `longest_s` seconds; if `state` is None, wait that long."""
    handles = [open_process(process.pid, process.start_ticks) for process in ([] if state is None else state.processes)]
    waiting = select.poll()
    try:
        for handle in handles:
            if handle is not None:
                waiting.register(handle, select.POLLIN)
        if state is None or not state.missing:
            waiting.poll(longest_s * 1000)
    finally:
        for handle in handles:
            if handle is not None:
                os.close(handle)


def repair_in_process(name: str) -> str:
    """Start the missing processes of a grid, from a separate process; return the error message, or ""."""
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "gridweave.grid.service.local", name], stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            output, _ = child.communicate(timeout=REPAIR_S)
        except subprocess.TimeoutExpired:
            child.terminate()
            return f"it was not complete within {span_text(REPAIR_S * 1000)}"
        except BaseException:
            child.terminate()
            raise
    lines = output.strip().splitlines()
    if child.returncode == 0:
        return ""
    return lines[-1] if lines else f"it ended with status {child.returncode}; see {LOG}"


def main() -> int:
    """Run the watchdog of the grid named by the first argument."""

    def end(number: int, frame: object) -> NoReturn:
        raise SystemExit(0)

    def say(text: str) -> None:
        print(time.strftime("%Y-%m-%d %H:%M:%S"), text, file=sys.stderr, flush=True)

    signal.signal(signal.SIGTERM, end)
    sys.stdin.read()  # until the caller has recorded this watchdog
    watchdog = GridWatchdog(sys.argv[1], repair_in_process, say=say, wait=wait_for_an_end)
    try:
        is_done = watchdog.run(os.getpid())
    except GridweaveError as error:
        say(f"the watchdog ends: {error}")
        return error.exit_status
    return 0 if is_done else UnavailableError.exit_status


if __name__ == "__main__":
    sys.exit(main())
