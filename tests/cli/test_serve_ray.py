"""The real thing: a grid's side and two sites, each a process with a Ray of its own, killed, cut off, and ended."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridweave.grid.client.sync import SyncClient
from gridweave.grid.client.transport import Patience
from gridweave.grid.config.local_state import end_marked
from gridweave.site.machine.processes import strays
from support.machine import PATIENCE_S, until, unused_port

pytestmark = [pytest.mark.ray, pytest.mark.slow]

END_S = 60.0
LEFT = "GRIDWEAVE_TEST_OF_SERVE"
"""In the environment of all that this test starts."""

SITES = {"alpha": 3, "beta": 2}


class Served:
    """The files of a grid's side and its sites, and the processes that run by them.

    Parameters
    ----------
    folder : pathlib.Path
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        self.token = secrets.token_hex(32)
        self.ports = {name: unused_port() for name in ("grid", *SITES)}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = os.environ | {LEFT: self.mark, "GRIDWEAVE_CONFIG": "", "GRIDWEAVE_TOKEN": self.token}
        (folder / "operator").write_text(self.token)
        for site in SITES:
            for name in (f"grid-{site}", f"{site}-grid"):
                (folder / name).write_text(secrets.token_hex(32) + "\n")
        probes = "[probes]\nevery_s = 1\nbandwidth_every_s = 1\n"
        self._write("grid", "".join(self._far(site) for site in SITES) + f"[grid]\nmargin_ms = 3000\n{probes}")
        for number, (site, nodes) in enumerate(SITES.items()):
            self._write(site, self._own(site, number, nodes))

    def _write(self, name: str, text: str) -> None:
        gateway = f'[gateway]\nport = {self.ports[name]}\noperator_token_file = "operator"\n'
        (self.folder / f"{name}.toml").write_text(f'folder = "state-{name}"\n{text}{gateway}')

    def _far(self, site: str) -> str:
        keys = f'name = "{site}"\nnodes = {SITES[site]}\nurl = "{self.url(site)}"\n'
        return f'[[sites]]\n{keys}token_file = "grid-{site}"\naccepts_file = "{site}-grid"\n'

    def _own(self, site: str, number: int, nodes: int) -> str:
        own = f'[site]\nname = "{site}"\nnumber = {number}\nnodes = {nodes}\nlauncher.trust = "all"\n'
        return own + f'[uplink]\nurl = "{self.url("grid")}"\ntoken_file = "{site}-grid"\naccepts_file = "grid-{site}"\n'

    def url(self, name: str) -> str:
        """Return where a gateway listens."""
        return f"http://127.0.0.1:{self.ports[name]}"

    def start(self, name: str) -> None:
        """Start one of them."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "gridweave.cli", "serve", f"{name}.toml"],
                stdout=log,
                stderr=log,
                env=self.environment,
                cwd=self.folder,
            )

    def log(self, name: str) -> str:
        """Return what one of them has said."""
        return (self.folder / f"{name}.log").read_text()

    def kill(self, name: str) -> None:
        """Kill the process of one of them, as nothing can be caught; its Ray and its actors run on."""
        self.running[name].kill()
        self.running[name].wait()

    def kill_all(self, name: str) -> None:
        """Kill all processes of one of them, its Ray and its actors too."""
        self.kill(name)
        end_marked((self.folder / f"state-{name}" / "marker").read_text())

    def is_ready(self, name: str) -> bool:
        """Return whether one of them answers, and what is behind it; fail if it has ended."""
        assert self.running[name].poll() is None, self.log(name)
        try:
            with urllib.request.urlopen(f"{self.url(name)}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def client(self, name: str) -> SyncClient:
        """Return a client of one of them."""
        return SyncClient(self.url(name), self.token, patience=Patience(total_s=PATIENCE_S, connect_s=PATIENCE_S))

    def is_shown(self, name: str, text: str) -> bool:
        """Whether the status of a server has a text and no problem, such as an actor that is slow to answer."""
        done = self.run("serve", "--status", str(self.folder / f"{name}.toml"))
        return done.returncode == 0 and text in done.stdout

    def command(self, *arguments: str, **environment: str) -> str:
        """Run a user's command; return its output."""
        done = self.run(*arguments, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a user's command, which may fail."""
        return subprocess.run(
            [sys.executable, "-m", "gridweave.cli", *arguments],
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """Yield a grid's side and two sites that run; nothing of them is left in the end."""
    world = Served(tmp_path)
    try:
        for name in world.ports:
            world.start(name)
        for name in world.ports:
            until(lambda name=name: world.is_ready(name))  # type: ignore[misc]
        yield world
    finally:
        for process in world.running.values():
            process.kill()
            process.wait()
        for name in world.ports:
            marker = tmp_path / f"state-{name}" / "marker"
            if marker.exists():
                end_marked(marker.read_text())


def test_a_grid_of_processes_that_are_killed(served: Served) -> None:
    """A job runs over both sites; killed in any part all goes on where it stood; told to end, nothing is left."""
    with served.client("grid") as grid:
        until(lambda: all(site.answers for site in grid.sites()))
        job = grid.submit(["sh", "-c", "echo $GRIDWEAVE_RANK"], nodes=5, limit="1h")
        assert job.check(PATIENCE_S).places == (("alpha", 3), ("beta", 2))
        assert job.output(rank=4) == b"4\n"
        until(lambda: any(link.measured and link.bandwidth_bps for link in grid.known_network().links))
        until(lambda: served.is_shown("alpha", "site:alpha"))
        until(lambda: served.is_shown("grid", "grid"))
        ran, go = served.folder / "ran", served.folder / "go"
        line = f"echo x >> {ran}; while [ ! -e {go} ]; do sleep 0.1; done"
        waits = grid.submit(["sh", "-c", line], nodes=4, limit="5h")
        until(lambda: waits.record().state == "running")
        served.kill_all("grid")
    # The grid is away: a site's own users go on, by the site's gateway.
    printed = served.command(
        "submit", "--site", "beta", "--wait", "--", "true",
        GRIDWEAVE_URL=served.url("grid"),
        GRIDWEAVE_SITE_BETA_URL=served.url("beta"),
        GRIDWEAVE_SITE_BETA_TOKEN=served.token,
    )  # fmt: skip
    assert printed == "2000000000001"
    # What serves a site is killed while the grid is away, and finds its Ray and its actors again.
    served.kill("alpha")
    assert urllib.request.urlopen(f"{served.url('alpha')}/healthz", timeout=PATIENCE_S).status == 200
    served.start("alpha")
    served.start("grid")
    until(lambda: "the gateway listens at" in served.log("alpha").partition("Ray runs already")[2])
    go.touch()
    until(lambda: served.is_ready("alpha") and served.is_ready("grid"))
    assert "Ray runs already" in served.log("alpha")
    with served.client("grid") as grid:
        assert grid.ended(waits.id).outcome == "finished"
        assert ran.read_text().split() == ["x"] * 4
        # Once more, with what a kill of the grid left behind.
        assert grid.submit(["true"], nodes=5, limit="1h").check(PATIENCE_S).outcome == "finished"
        assert "gridweave_link_requests_total" in _metrics(served, "grid")
        assert 'gridweave_uplink_up{site="alpha"} 1.0' in _metrics(served, "alpha")
    for process in served.running.values():
        process.send_signal(signal.SIGTERM)
    for name, process in served.running.items():
        assert process.wait(END_S) == 0, served.log(name)
    assert not strays(served.mark, (), variable=LEFT)


def _metrics(served: Served, name: str) -> str:
    request = urllib.request.Request(f"{served.url(name)}/metrics")
    request.add_header("Authorization", f"Bearer {served.token}")
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        text: str = answer.read().decode()
    return text
