"""A whole grid on this machine, brought up, killed in parts, mended, and taken down; nothing of it is ever left."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gridweave.grid.config.local_state import HEAD, LocalGridState, node_of, read_grid_state, state_folder
from gridweave.grid.service.ray import EXPOSURE
from gridweave.grid.service.status import look
from gridweave.site.machine.processes import process_stat
from support.live_grids import PATIENCE_S, UP_FILE, UpWorld
from support.machine import until

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpWorld]:
    """Return a world with a grid that is up, and end all of it after the tests."""
    pytest.importorskip("ray")
    there = UpWorld(tmp_path_factory.mktemp("up"))
    before = os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = there.environment["XDG_STATE_HOME"]
    try:
        status, printed = there.run("up", "GRID.toml")
        assert status == 0, printed
        assert "The grid default is up" in printed
        assert EXPOSURE.partition(": ")[0] in " ".join(printed.split()), "the firewall rule for Ray's ports"
        yield there
    finally:
        there.run("down")
        there.close()
        if before is None:
            del os.environ["XDG_STATE_HOME"]
        else:
            os.environ["XDG_STATE_HOME"] = before


@pytest.fixture
def own(tmp_path: Path) -> Iterator[UpWorld]:
    """Return a world for one test, with no grid in it."""
    there = UpWorld(tmp_path)
    yield there
    there.close()


def state_now() -> LocalGridState:
    """Return what is written down of the grid."""
    state = read_grid_state()
    assert state is not None
    return state


def run_job(*argv: str, nodes: int) -> tuple[str, tuple[tuple[str, int], ...]]:
    """Run a job through the gateway, with the token that was made; return its outcome and where it ran."""
    from gridweave.grid.client.client import Client

    async def work() -> Any:
        state = state_now()
        async with Client(state.url, token=state.token) as grid:
            job = await grid.submit(list(argv), nodes=nodes, limit="2h")
            return await job.done(timeout_s=PATIENCE_S)

    record = asyncio.run(work())
    return record.outcome, record.places


def test_a_job_runs_on_two_sites(world: UpWorld) -> None:
    """The grid that is up runs a job that is wider than any site, and says that all is well."""
    assert run_job("true", nodes=5) == ("finished", (("north", 3), ("south", 2)))
    outcome, _ = run_job("sh", "-c", f"test $(nice) = {os.nice(0)}", nodes=1)
    assert outcome == "finished", "a job is as nice as whoever ran `up`, not as the workers of Ray are"
    until(lambda: world.run("status")[0] == 0)
    _, printed = world.run("status", "--json")
    parts = {part["name"]: part for part in json.loads(printed)["parts"]}
    assert all(part["pid"] for part in parts.values())
    assert {"meta-scheduler", "gateway", HEAD, "site north", node_of("south")} <= set(parts)


def test_who_has_no_token_is_refused_by_ray(world: UpWorld) -> None:
    """Whoever reaches the head of Ray without its token cannot join it."""
    code = f"import ray; ray.init(address={state_now().address!r}, logging_level='ERROR')"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment["RAY_AUTH_MODE"] = "disabled"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode != 0
    assert "auth" in done.stderr.lower()


def test_a_second_up_says_what_runs(world: UpWorld) -> None:
    """What runs stays as it is; a grid by another file, or elsewhere, is not started under the same name."""
    before = state_now()
    status, printed = world.run("up")
    assert (status, state_now().processes) == (0, before.processes)
    assert "The grid default runs already" in printed
    status, printed = world.run("up", "--address", "127.0.0.1:1")
    assert (status, "runs on a Ray of its own" in printed) == (2, True)
    (world.folder / "other.toml").write_text(UP_FILE.replace("north", "east"))
    status, printed = world.run("up", "other.toml")
    assert (status, "was started from another GRID.toml" in printed) == (2, True)


def processes_of(world: UpWorld, what: str) -> list[int]:
    """Return the processes of the world whose command has some text, but those of the commands of these tests."""
    found = []
    for stat in world.left():
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{stat.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if what in command and "gridweave.cli" not in command:
                found.append(stat.pid)
    return found


def process_of(world: UpWorld, part: str) -> int | None:
    """Return the number of a process of the grid: by its name, or by its command, of the site south if there is one."""
    state = state_now()
    process = state.process(part)
    if process is not None:
        return process.pid
    node, found = state.process(node_of("south")), processes_of(world, part)
    of_south = [pid for pid in found if (stat := process_stat(pid)) is not None and node and stat.session == node.pid]
    return next(iter(of_south or found), None)


def is_back(world: UpWorld, part: str, killed: int) -> bool:
    """Return whether another process is in the place of one that was killed, and all is well."""
    return look("default").well and process_of(world, part) not in (None, killed)


META = "ray::MetaActor"
ACTORS = ("ray::GatewayActor", "ray::AgentActor", "ray::SiteActor", META)
PARTS = (*ACTORS, "raylet/raylet", "gcs/gcs_server", HEAD)


@pytest.mark.timeout(3600)
def test_what_is_killed_comes_back_by_itself(world: UpWorld) -> None:
    """Each part is killed with SIGKILL, one after the other: it comes back, and a job that runs goes on meanwhile."""
    from gridweave.grid.client.client import Client

    history = world.folder / "story"

    async def begin() -> int:
        state = state_now()
        async with Client(state.url, token=state.token) as grid:
            line = f"echo $$ >> {history}; exec sleep 3000"
            job = await grid.submit(["sh", "-c", line], nodes=1, limit="2h", working_directory=str(world.folder))
            while not history.exists():
                await job.record()
            return job.id

    async def end(job_id: int) -> Any:
        state = state_now()
        async with Client(state.url, token=state.token) as grid:
            before = await grid.record(job_id)
            await grid.cancel([job_id])
            await grid.ended(job_id)
            return before

    job_id = asyncio.run(begin())
    for part in PARTS:
        killed = process_of(world, part)
        assert killed is not None, part
        os.kill(killed, signal.SIGKILL)
        until(functools.partial(is_back, world, part, killed), patience_s=600.0, every_s=0.5)
        assert run_job("true", nodes=4)[0] == "finished", part
        assert len(history.read_text().split()) == 1, f"{part}: the job that ran was begun again"
    until(lambda: world.run("status")[0] == 0)
    before = asyncio.run(end(job_id))
    assert (before.state, before.attempt) == ("running", 1)
    watchdog = state_folder("default") / "logs" / "keeper.log"
    # On a busy machine a try may fail, and what ends meanwhile is brought back with the rest.
    assert "the Ray node of south ended" in watchdog.read_text()
    assert "restarted: " in watchdog.read_text()


def test_the_meta_scheduler_stands_on_the_head(world: UpWorld) -> None:
    """A site's node may go: the meta-scheduler is never on it."""
    head, meta = state_now().process(HEAD), process_of(world, META)
    assert head is not None
    assert meta is not None
    stat = process_stat(meta)
    assert stat is not None
    assert stat.session == head.pid


def test_everything_is_ended_and_known_again(world: UpWorld) -> None:
    """After a kill of Ray's head all is taken down all the same; `--fresh` asks before it forgets open jobs."""
    from gridweave.grid.client.client import Client

    async def hand_in() -> int:
        state = state_now()
        async with Client(state.url, token=state.token) as grid:
            return (await grid.submit(["sleep", "1000"], nodes=5, limit="1h")).id

    job_id = asyncio.run(hand_in())
    state = state_now()
    head = state.process(HEAD)
    assert head is not None
    watchdog = state.watchdog[0]
    os.kill(watchdog.pid, signal.SIGSTOP)  # it is to be found with the head gone, and what it would bring back
    os.kill(head.pid, signal.SIGKILL)
    os.kill(watchdog.pid, signal.SIGCONT)
    status, printed = world.run("down")
    assert status == 0, printed
    assert (world.left(), world.folders_left()) == ([], [])
    assert world.run("down") == (0, "Ending the grid ...\nthe grid default is not running\n")
    status, printed = world.run("up", "--fresh")
    assert (status, "would forget 1 open job;" in printed) == (2, True)
    assert job_id > 0


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGINT, "Starting Ray ..."),
        (signal.SIGTERM, "Starting the sites"),
        (signal.SIGINT, "are submitted"),
    ],
)
def test_an_interrupted_demonstration_leaves_nothing(own: UpWorld, number: signal.Signals, moment: str) -> None:
    """Whenever the demonstration is interrupted, no process is left of it, and no folder of Ray."""
    child = own.begin("demo", "out")
    assert child.stdout is not None
    guard = threading.Timer(PATIENCE_S, child.kill)
    guard.start()
    try:
        for line in child.stdout:
            if moment in line:
                child.send_signal(number)
                break
        rest = child.stdout.read()
        status = child.wait()
    finally:
        guard.cancel()
        child.stdout.close()
    assert status == (130 if number == signal.SIGINT else 128 + number), rest
    assert "Traceback" not in rest
    assert (own.left(), own.folders_left()) == ([], [])
    assert not (own.folder / "state" / "gridweave" / "demo").exists()
