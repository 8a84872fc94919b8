"""The keeper of a grid: what it brings back, how long it waits in between, and when it gives up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gridweave.errors import UnavailableError
from gridweave.grid.config.local_state import (
    GATEWAY,
    HEAD,
    LOGS,
    WATCHDOG,
    LocalGridState,
    LocalProcess,
    make_private,
    read_grid_state,
    state_folder,
    write_state,
)
from gridweave.grid.service.status import look
from gridweave.grid.service.watchdog import (
    AWAY_S,
    LONGEST_PAUSE_S,
    MOST_TRIES,
    STEADY_S,
    GridWatchdog,
    end_watchdog,
    read_kept,
    start_watchdog,
)
from gridweave.site.machine.processes import boot_id
from support.machine import until

NAME = "test"


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what these tests write down in a folder of their own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """Return a process that leads a session."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process
        process.kill()


def process_of(pid: int, name: str) -> LocalProcess:
    """Return a process as it is written down."""
    found = LocalProcess.of_pid(name, pid)
    assert found is not None
    return found


def a_state(folder: Path, *processes: LocalProcess) -> LocalGridState:
    """Return what is written down of a grid of these processes, of which a head and a gateway are to run."""
    return LocalGridState(
        name=NAME,
        marker="m",
        boot=boot_id(),
        since_ms=0,
        folder=str(folder / "live"),
        namespace="n",
        sites=(),
        processes=processes,
        parts=(HEAD, GATEWAY),
        text="[[sites]]\n",
        url="http://127.0.0.1:1",
        file="GRID.toml",
    )


class Bench:
    """A keeper whose time passes when it waits; what it would bring back comes back when `mends` says so."""

    def __init__(self, folder: Path, mends: list[str]) -> None:
        self.now_s, self.folder, self.mends = 0.0, folder, mends
        self.said: list[str] = []
        self.waits: list[float] = []
        self.tried_s: list[float] = []
        self.watchdog = GridWatchdog(
            NAME, self._repair, say=self.said.append, wait=self._wait, monotonic_s=lambda: self.now_s
        )
        self.own = process_of(os.getpid(), WATCHDOG)
        write_state(a_state(folder, self.own))

    def _wait(self, state: LocalGridState | None, longest_s: float) -> None:
        self.now_s += longest_s
        if state is not None and self.now_s > 10 * STEADY_S:
            write_state(a_state(self.folder))  # another keeper has it now

    def _repair(self, name: str) -> str:
        self.tried_s.append(self.now_s)
        problem = self.mends.pop(0) if self.mends else ""
        if not problem:
            both = [process_of(os.getpid(), part) for part in (HEAD, GATEWAY)]
            write_state(a_state(self.folder, self.own, *both))
        return problem


def test_it_waits_longer_after_each_try_and_begins_anew_when_all_is_steady(tmp_path: Path) -> None:
    """Pauses double up to a minute; what was brought back and ran for five minutes is no longer held against it."""
    bench = Bench(tmp_path, ["no", "no", "no", ""])
    assert bench.watchdog.run(os.getpid())
    assert bench.tried_s == [0.5, 1.5, 3.5, 7.5]
    kept = read_kept(NAME)
    assert kept is not None
    assert (kept.tries, kept.mended, kept.gave_up, kept.missing) == (0, 1, False, (HEAD, GATEWAY))
    assert bench.said[-1] == "restarted: the head of Ray, the gateway"


def test_it_gives_up_aloud(tmp_path: Path) -> None:
    """After many tries in a row it ends, and its log and `status` say what is missing and why."""
    bench = Bench(tmp_path, ["port 8765 is taken"] * (MOST_TRIES + 1))
    assert not bench.watchdog.run(os.getpid())
    assert len(bench.tried_s) == MOST_TRIES
    assert max(b - a for a, b in zip(bench.tried_s, bench.tried_s[1:], strict=False)) == LONGEST_PAUSE_S
    assert bench.said[-1].startswith("GIVEN UP after 20 tries: the head of Ray, the gateway cannot be restarted")
    assert "port 8765 is taken" in bench.said[-1]
    write_state(a_state(tmp_path, process_of(os.getpid(), GATEWAY)))
    parts = {part.name: part for part in look(NAME).parts}
    assert not parts[WATCHDOG].well
    assert "gave up head of Ray, gateway after 20 tries: port 8765 is taken" in parts[WATCHDOG].detail
    assert parts[WATCHDOG].detail.endswith("and run `gridweave up --name test`")


@pytest.mark.parametrize(("name", "command"), [("default", "`gridweave up`"), (NAME, "`gridweave up --name test`")])
def test_status_tells_how_a_keeper_is_brought_back(
    tmp_path: Path, child: subprocess.Popen[bytes], name: str, command: str
) -> None:
    """Nobody brings back the keeper: `status` says that it is gone, or stands still, and what to type."""
    all_run = [process_of(child.pid, part) for part in (HEAD, GATEWAY, WATCHDOG)]

    def told(*processes: LocalProcess) -> str:
        write_state(msgspec.structs.replace(a_state(tmp_path, *processes), name=name))
        found = {part.name: part for part in look(name).parts}[WATCHDOG]
        return "well" if found.well else found.detail

    assert told(*all_run) == "well"
    assert told(*all_run[:2]) == f"does not run, so nothing restarts what ends; {command} starts it"
    os.kill(child.pid, signal.SIGSTOP)
    until(lambda: told(*all_run) != "well")
    assert told(*all_run) == f"its process was stopped (SIGSTOP); kill -CONT {child.pid} resumes it"


def test_a_real_one_sees_an_end_at_once_and_is_ended_before_the_rest(
    tmp_path: Path, child: subprocess.Popen[bytes]
) -> None:
    """The process notices that a part was killed, tries to bring it back, and leaves when it is told to."""
    folder = make_private(state_folder(NAME))
    make_private(folder / LOGS)
    with start_watchdog(a_state(tmp_path), folder) as watchdog:
        write_state(a_state(tmp_path, process_of(child.pid, HEAD), process_of(child.pid, GATEWAY), watchdog))
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    # Its GRID.toml says nothing of use, so that what it brings back is nothing.
    kept = until(lambda: (kept := read_kept(NAME)) and kept.problem and kept)
    assert "sites" in kept.problem
    state = read_grid_state(NAME)
    assert state is not None
    assert state.watchdog == (watchdog,)
    end_watchdog(state)
    assert not watchdog.is_alive
    assert "the head of Ray, the gateway ended; try 1" in (folder / LOGS / "keeper.log").read_text()


def test_one_that_nobody_has_written_down_ends(tmp_path: Path) -> None:
    """If `up` was killed in the moment in which it started a keeper, that one ends by itself."""
    folder = make_private(state_folder(NAME))
    make_private(folder / LOGS)
    write_state(a_state(tmp_path))
    with start_watchdog(a_state(tmp_path), folder) as watchdog:
        pass
    until(lambda: not watchdog.is_alive)


def test_it_is_small() -> None:
    """The keeper loads no Ray, no compiler, no server and no event loop: it is there as long as the grid is."""
    code = "import gridweave.grid.service.watchdog, sys; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"ray", "numba", "numpy", "aiohttp", "asyncio", "sqlalchemy", "typer"}


def test_it_waits_for_a_cluster_of_others_without_counting_tries(tmp_path: Path) -> None:
    """The watchdog repairs nothing while the Ray head does not answer; one try is enough once the head is back."""
    bench = Bench(tmp_path, [""])
    answers = ["no Ray cluster answers"] * 50

    def probe(address: str) -> None:
        if answers:
            raise UnavailableError(answers.pop())

    bench.watchdog = GridWatchdog(
        NAME, bench._repair, say=bench.said.append, wait=bench._wait, monotonic_s=lambda: bench.now_s, probe=probe
    )
    write_state(msgspec.structs.replace(a_state(tmp_path, bench.own), own_ray=False, address="10.0.0.1:6379"))
    assert bench.watchdog.run(os.getpid())
    assert len(bench.tried_s) == 1
    assert bench.tried_s[0] >= 50 * LONGEST_PAUSE_S
    assert bench.said[0] == "no Ray cluster answers; waiting for it"


def test_a_cluster_of_others_that_came_back_is_waited_for_again(tmp_path: Path) -> None:
    """The day of patience starts at the last loss, even if someone else restarted what was missing before."""
    bench = Bench(tmp_path, [""])
    external = {"own_ray": False, "address": "10.0.0.1:6379"}
    both = [process_of(os.getpid(), part) for part in (HEAD, GATEWAY)]
    lost = msgspec.structs.replace(a_state(tmp_path, bench.own), **external)

    def probe(address: str) -> None:
        if bench.now_s < AWAY_S:
            raise UnavailableError("no Ray cluster answers")

    def wait(state: LocalGridState | None, longest_s: float) -> None:
        bench.now_s += longest_s
        if bench.tried_s:
            write_state(a_state(tmp_path))  # another watchdog has it now
        elif bench.now_s > 2 * AWAY_S:
            write_state(lost)
        elif bench.now_s > 100:
            write_state(a_state(tmp_path, bench.own, *both))
            bench.now_s += STEADY_S

    bench.watchdog = GridWatchdog(
        NAME, bench._repair, say=bench.said.append, wait=wait, monotonic_s=lambda: bench.now_s, probe=probe
    )
    write_state(lost)
    assert bench.watchdog.run(os.getpid())
    assert len(bench.tried_s) == 1


def test_it_gives_up_a_cluster_of_others_that_is_gone(tmp_path: Path) -> None:
    """The address of a cluster that is gone for good is not asked forever; `status` says so, and `up` begins again."""
    bench = Bench(tmp_path, [])
    asked_s: list[float] = []

    def probe(address: str) -> None:
        asked_s.append(bench.now_s)
        raise UnavailableError("no Ray cluster answers")

    bench.watchdog = GridWatchdog(
        NAME, bench._repair, say=bench.said.append, wait=bench._wait, monotonic_s=lambda: bench.now_s, probe=probe
    )
    write_state(msgspec.structs.replace(a_state(tmp_path, bench.own), own_ray=False, address="10.0.0.1:6379"))
    assert not bench.watchdog.run(os.getpid())
    assert AWAY_S <= bench.now_s <= AWAY_S + 2 * LONGEST_PAUSE_S
    assert asked_s[-1] > AWAY_S - 2 * LONGEST_PAUSE_S
    assert not bench.tried_s
    assert bench.said[-1].startswith("GIVEN UP after 1 d: the head of Ray, the gateway cannot be restarted: no Ray ")
    kept = read_kept(NAME)
    assert kept is not None
    assert kept.gave_up
