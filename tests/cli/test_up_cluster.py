"""A grid on a Ray cluster of several hosts, started by hand as docs/cluster.md says: each host is a Ray node here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from gridweave.grid.client.client import Client, JobHandle
from gridweave.grid.config.local_state import LocalGridState, kill
from gridweave.grid.config.reading import read_grid
from gridweave.grid.service.cluster import GridPlan, plan_of
from gridweave.grid.service.local import first_port_of
from gridweave.site.job import JobRecord
from gridweave.site.machine.processes import process_stat, strays
from support.checks import WRITES_ITS_OWN_STORY, check_history, check_stories
from support.live_grids import PATIENCE_S, UpWorld
from support.machine import until, unused_port

# It brings a grid up three times: a minute each on a machine that does much else.
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

SITES = {"north": 3, "south": 2}
HEAD = "north"

GRID = """
folder = "grid"

[[sites]]
name = "north"
nodes = 3

[[sites]]
name = "south"
nodes = 2

[grid]
retry_ms = 2_000

[gateway]
host = "{host}"
port = 0
plain_http = true
"""


def own_address() -> str:
    """Return an address of this host that is not its loopback, if it has one."""
    found = [
        each.address
        for addresses in psutil.net_if_addrs().values()
        for each in addresses
        if each.family == socket.AF_INET
    ]
    return next((address for address in found if not address.startswith("127.")), "127.0.0.1")


class Hosts:
    """The hosts of a Ray cluster behind a token, and the commands of who works on the one with its head."""

    def __init__(self, folder: Path) -> None:
        self.world = UpWorld(folder)
        self.folder, self.history = folder, folder / "story"
        self.address = f"127.0.0.1:{unused_port()}"
        (folder / "grid.toml").write_text(GRID.format(host=own_address()))
        token = folder / "ray-token"
        token.write_text(secrets.token_hex(32))
        self.world.environment |= {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_ADDRESS": self.address,
            "RAY_USAGE_STATS_ENABLED": "0",
            "SPT_NOENV": "1",  # so that the processes of Ray are found by their environment
        }
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, host: str) -> None:
        """Start Ray on a host, with the label of its site."""
        place = ["--head", f"--port={self.address.rpartition(':')[2]}", "--include-dashboard=false"]
        options = [
            *(place if host == HEAD else [f"--address={self.address}"]),
            f"--labels=gridweave.io/site={host}",
            f"--temp-dir={self.world.temp / host}",
            *("--block", "--num-cpus=0", f"--object-store-memory={80 << 20}"),
            *("--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"),
        ]
        with (self.folder / f"{host}.log").open("ab") as log:
            self.running[host] = subprocess.Popen(
                [sys.executable, "-m", "ray.scripts.scripts", "start", *options],
                env={k: v for k, v in self.world.environment.items() if k != "RAY_ADDRESS"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start_all(self) -> None:
        """Start Ray on all hosts; those without the head join it when it is there."""
        self.start(HEAD)
        host, _, port = self.address.rpartition(":")
        for _ in range(1200):
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1.0):
                break
            time.sleep(0.1)
        for other in SITES:
            if other != HEAD:
                self.start(other)

    def kill(self, host: str) -> None:
        """End all of Ray on a host with SIGKILL; the processes of jobs are in sessions of their own."""
        leader = self.running.pop(host)
        stat = process_stat(leader.pid)
        assert stat is not None
        kill(strays("", [(stat.pid, stat.start_ticks)]))
        leader.wait()

    def plan(self) -> GridPlan:
        """Return what was brought up."""
        read = read_grid(str(self.folder / "grid.toml"))
        ports = first_port_of("default")
        return plan_of(read, folder=read.folder, namespace="gridweave", labelled=True, first_port=ports, secret=b"")

    def up(self) -> None:
        """Bring the grid up on the cluster, as soon as that is there."""
        for _ in range(20):
            status, printed = self.world.run("up", "--address", "auto", "grid.toml")
            if status == 0:
                return
            # The hosts are on their way: not all sites have a node. On a busy machine Ray gives up one now and then.
            for host in [host for host, leader in self.running.items() if leader.poll() is not None]:
                self.start(host)
            assert "--address: " in printed or "no node of the Ray cluster has the label" in printed, printed
        raise AssertionError(printed)

    def close(self) -> None:
        """End all."""
        self.world.run("down")
        for host in list(self.running):
            self.kill(host)
        self.world.close()

    # -- its user

    def state(self) -> LocalGridState:
        """Return what is written down of the grid."""
        import msgspec

        path = self.folder / "state" / "gridweave" / "default" / "grid.json"
        return msgspec.json.decode(path.read_bytes(), type=LocalGridState)

    def ask(self, what: Any) -> Any:
        """Return what comes of some work with a client."""
        state = self.state()
        token = (self.folder / "state" / "gridweave" / "default" / "token").read_text().strip()

        async def work() -> Any:
            async with Client(state.url, token=token, plain_http=state.plain_http) as grid, asyncio.timeout(PATIENCE_S):
                return await what(grid)

        return asyncio.run(work())

    def actors_that_are_well(self, *arguments: str) -> dict[str, Any] | None:
        """Return the actors in ``gridweave status``; None if one of them is not well: on a busy machine, it is slow."""
        status, printed = self.world.run("status", "--json", *arguments)
        actors = {actor["name"]: actor for actor in json.loads(printed)["actors"]}
        return actors if status == 0 and all(actor["well"] for actor in actors.values()) else None

    def submit(self, name: str, widths: Sequence[int], sleep_s: float) -> list[int]:
        """Hand in jobs that write down what they do, and wait until one of them runs."""
        argv = [*WRITES_ITS_OWN_STORY, str(self.history), str(sleep_s)]

        async def hand_in(grid: Client) -> list[int]:
            jobs = [
                await grid.submit(argv, nodes=width, limit="1h", key=f"{name} {number}")
                for number, width in enumerate(widths)
            ]
            while not self.wrote(jobs):
                await asyncio.sleep(0.1)
            return [job.id for job in jobs]

        found: list[int] = self.ask(hand_in)
        return found

    def wrote(self, jobs: Sequence[JobHandle]) -> bool:
        """Return whether one of these jobs has written down that it began."""
        lines = self.history.read_text().splitlines() if self.history.exists() else []
        return any(int(line.split()[1]) in {job.id for job in jobs} for line in lines)

    def settle(self, job_ids: Sequence[int]) -> list[JobRecord]:
        """Wait until jobs have ended."""

        async def wait(grid: Client) -> list[JobRecord]:
            return [await grid.ended(job_id) for job_id in job_ids]

        found: list[JobRecord] = self.ask(wait)
        return found


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    """Return a cluster of two hosts, with the grid on it."""
    pytest.importorskip("ray")
    made = Hosts(tmp_path)
    try:
        made.start_all()
        made.up()
        yield made
    finally:
        made.close()


def test_every_actor_is_seen_from_any_host_of_the_cluster(hosts: Hosts) -> None:
    """With its host, process and start: where `up` ran, and where nothing of the grid is written down."""
    status, printed = hosts.world.run("whoami")
    assert status == 0, f"without TLS, as grid.toml allows, commands reach the gateway's address: {printed}"
    names = {"grid", "gateway", "site:north", "site:south", "agent:north/m0", "agent:south/m0"}
    elsewhere = dict(hosts.world.environment, XDG_STATE_HOME=str(hosts.folder / "elsewhere"))
    for environment, arguments in ((hosts.world.environment, ["--actors"]), (elsewhere, [])):
        hosts.world.environment = environment
        actors = until(lambda arguments=arguments: hosts.actors_that_are_well(*arguments))
        assert actors.keys() == names
        assert all(actor["host"] and actor["pid"] and actor["since_ms"] for actor in actors.values())
    status, printed = hosts.world.run("up", "grid.toml", "--address", "auto")
    assert (status, "has the actors of another grid" in printed) == (3, True), printed


def test_nothing_is_lost_when_hosts_and_the_head_are(hosts: Hosts) -> None:
    """A host is killed, then all of Ray with its head: after the next `up` what was accepted runs, once and whole."""
    jobs = hosts.submit("first", [5, 2, 3], 1.0)
    hosts.kill("south")
    until(lambda: "waits for a Ray node with the label gridweave.io/site=south" in hosts.world.run("status")[1])
    hosts.start("south")
    hosts.up()
    jobs += hosts.submit("second", [3, 5, 1], 2.0)
    for host in SITES:
        hosts.kill(host)
    status, printed = hosts.world.run("up", "grid.toml", "--address", "auto")
    assert (status, f"--address: no Ray cluster answers at {hosts.address}" in printed) == (3, True), printed
    hosts.start_all()
    hosts.up()
    assert hosts.submit("second", [3, 5, 1], 2.0) == jobs[3:]
    records = hosts.settle(jobs)
    assert [record.outcome for record in records] == ["finished"] * len(jobs)
    status, printed = hosts.world.run("down")
    assert status == 0, printed
    outcomes = check_history(hosts.plan())
    assert outcomes == dict.fromkeys(jobs, "finished")
    check_stories(hosts.history, outcomes, SITES)
