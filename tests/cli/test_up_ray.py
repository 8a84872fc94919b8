"""A whole grid on this machine, brought up, killed in parts, mended, and taken down; nothing of it is ever left."""

from __future__ import annotations

import asyncio
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

from gridweave.grid.service.state import HEAD, LocalGridState, node_of, read_grid_state
from up_world import FILE, PATIENCE_S, World

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Return a world with a grid that is up, and end all of it after the tests."""
    pytest.importorskip("ray")
    there = World(tmp_path_factory.mktemp("up"))
    before = os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = there.environment["XDG_STATE_HOME"]
    try:
        status, printed = there.run("up", "GRID.toml")
        assert status == 0, printed
        assert "The grid default is up" in printed
        yield there
    finally:
        there.run("down")
        there.close()
        if before is None:
            del os.environ["XDG_STATE_HOME"]
        else:
            os.environ["XDG_STATE_HOME"] = before


@pytest.fixture
def own(tmp_path: Path) -> Iterator[World]:
    """Return a world for one test, with no grid in it."""
    there = World(tmp_path)
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
            job = await grid.submit(list(argv), nodes=nodes, limit="2m")
            return await job.done(timeout_s=PATIENCE_S)

    record = asyncio.run(work())
    return record.outcome, record.places


def test_a_job_runs_on_two_sites(world: World) -> None:
    """The grid that is up runs a job that is wider than any site, and says that all is well."""
    assert run_job("true", nodes=5) == ("finished", (("north", 3), ("south", 2)))
    outcome, _ = run_job("sh", "-c", f"test $(nice) = {os.nice(0)}", nodes=1)
    assert outcome == "finished", "a job is as nice as whoever ran `up`, not as the workers of Ray are"
    status, printed = world.run("status", "--json")
    assert status == 0, printed
    parts = {part["name"]: part for part in json.loads(printed)["parts"]}
    assert all(part["pid"] for part in parts.values())
    assert {"meta-scheduler", "gateway", HEAD, "site north", node_of("south")} <= set(parts)


def test_who_has_no_token_is_refused_by_ray(world: World) -> None:
    """Whoever reaches the head of Ray without its token cannot join it."""
    code = f"import ray; ray.init(address={state_now().address!r}, logging_level='ERROR')"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment["RAY_AUTH_MODE"] = "disabled"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode != 0
    assert "auth" in done.stderr.lower()


def test_a_second_up_says_what_runs(world: World) -> None:
    """What runs stays as it is; a grid by another file, or elsewhere, is not started under the same name."""
    before = state_now()
    status, printed = world.run("up")
    assert (status, state_now().processes) == (0, before.processes)
    assert "The grid default runs already" in printed
    status, printed = world.run("up", "--address", "127.0.0.1:1")
    assert (status, "runs on a Ray of its own" in printed) == (2, True)
    (world.folder / "other.toml").write_text(FILE.replace("north", "east"))
    status, printed = world.run("up", "other.toml")
    assert (status, "runs by another GRID.toml" in printed) == (2, True)


def test_what_was_killed_is_started_again(world: World) -> None:
    """Without its gateway and a site's node the grid is not well; the next up mends that, and jobs are known still."""
    state = state_now()
    gateway, node = state.process("gateway"), state.process(node_of("south"))
    assert gateway is not None
    assert node is not None
    os.kill(gateway.pid, signal.SIGKILL)
    os.kill(node.pid, signal.SIGKILL)
    assert world.run("status")[0] == 3
    status, printed = world.run("up", "--json")
    assert status == 0, printed
    assert {"gateway", node_of("south")} <= set(json.loads(printed[printed.index("{") :])["started"])
    assert run_job("true", nodes=5)[0] == "finished"
    assert world.run("status")[0] == 0


def test_everything_is_ended_and_known_again(world: World) -> None:
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
    os.kill(head.pid, signal.SIGKILL)
    status, printed = world.run("down")
    assert status == 0, printed
    assert (world.left(), world.folders_left()) == ([], [])
    assert world.run("down") == (0, "Ending the grid ...\nthe grid default is not running\n")
    status, printed = world.run("up", "--fresh")
    assert (status, "would forget 1 jobs that are not over" in printed) == (2, True)
    assert job_id > 0


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGINT, "Starting Ray ..."),
        (signal.SIGTERM, "Starting the sites"),
        (signal.SIGINT, "are submitted"),
    ],
)
def test_an_interrupted_demonstration_leaves_nothing(own: World, number: signal.Signals, moment: str) -> None:
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
