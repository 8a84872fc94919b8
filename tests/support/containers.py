"""The grid of docker-compose.yml in containers, and failure drills of it.

Use it for tests/compose and for benchmarks that need containers. `ComposeGrid` starts the grid, injects faults and
repairs them. `drilled` runs jobs during a fault, waits for their ends and checks the history.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from rich.table import Table

from gridweave.errors import GridweaveError
from gridweave.grid.client.sync import SyncClient, SyncJobHandle
from gridweave.grid.client.transport import Patience
from gridweave.grid.config.reading import read_service
from gridweave.grid.service.serve import grid_service, site_service
from gridweave.site.job import JobRecord, Program
from gridweave.site.run.runs import SiteSettings
from support.checks import WRITES_ITS_OWN_STORY, check_journals, check_stories
from support.machine import PATIENCE_S

# -- the grid ---------------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]

SITES = {"alpha": 8, "beta": 6, "gamma": 4}
"""The nodes of each site, as in docker/grid.toml."""

SERVICES = ("db", "grid", *SITES)

VERSION_FILES = ("pyproject.toml", "src/gridweave/version.py")
"""The files that name the version of gridweave, once each."""

_PROJECT = "gridweave-drills"
_FIRST_PORT = 18_765
_SMALL_MB = 96

T = TypeVar("T")


class NotYetError(AssertionError):
    """An awaited condition has not become true in time."""


def until(what: str, happened: Callable[[], T | None], timeout_s: float = PATIENCE_S) -> T:
    """Wait until `happened` returns a true value, and return that value.

    Parameters
    ----------
    what : str
        Name of the condition in the error.
    happened : callable
        Checks the condition. An error of the grid or of Docker counts as not true yet.
    timeout_s : float

    Raises
    ------
    NotYetError
    """
    end_s = time.monotonic() + timeout_s
    problem = ""
    while time.monotonic() < end_s:
        try:
            found = happened()
        except (GridweaveError, subprocess.CalledProcessError) as error:
            found, problem = None, f": {error}"
        if found:
            return found
        time.sleep(0.25)
    raise NotYetError(f"within {timeout_s:.0f} s {what} did not happen{problem}")


def docker(*arguments: str, timeout_s: float = 120) -> str:
    """Run a Docker command and return its output; if it fails, CalledProcessError has its standard error."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, f"docker {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def compose_command() -> list[str] | None:
    """Return the command for Compose: ``docker compose`` if installed, else ``docker-compose``; None without either."""
    asked = ["docker", "compose", "version"]
    if shutil.which("docker") and not subprocess.run(asked, capture_output=True, check=False).returncode:
        return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else None


class ComposeGrid:
    """The grid of docker-compose.yml as a separate project, with other ports and the overrides of the drills.

    Parameters
    ----------
    folder : pathlib.Path
        Folder for secrets, for the histories that jobs write, and for the small disk of gamma.
    command : list of str
        The command for Compose.
    image : str
        Tag of the image of all containers.
    project : str
        Name of the Compose project.
    first_port : int
        Port of the grid's gateway on this machine; the ports of the sites' gateways follow.
    files : sequence of pathlib.Path
        More Compose files, which override the others.
    """

    def __init__(
        self,
        folder: Path,
        command: list[str],
        image: str,
        project: str = _PROJECT,
        first_port: int = _FIRST_PORT,
        files: Sequence[Path] = (),
    ) -> None:
        self.folder, self._command, self.project, self._files = folder, command, project, files
        self.ports = {name: first_port + number for number, name in enumerate(("grid", *SITES))}
        self.history = folder / "story" / "lines"
        self._small = folder / "small"
        self._jobs: dict[str, list[int]] = {}
        self._environment = {
            **os.environ,
            **{f"GRIDWEAVE_{name.upper()}_PORT": str(port) for name, port in self.ports.items()},
            "GRIDWEAVE_VERSION": image,
            "GRIDWEAVE_DRILLS_FOLDER": str(folder),
            "GRIDWEAVE_SECRETS": str(folder / "secrets"),
        }

    # -- up and down

    def compose(self, *arguments: str, files: Sequence[Path] = (), timeout_s: float = 600) -> str:
        """Run a Compose command and return its output."""
        chosen = [ROOT / "docker-compose.yml", ROOT / "tests" / "compose" / "drills.yml", *self._files, *files]
        names = [part for file in chosen for part in ("-f", str(file))]
        command = [*self._command, "-p", self.project, "--project-directory", str(ROOT), *names, *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False, env=self._environment, cwd=ROOT
        )
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, f"{' '.join(command)}: {done.stderr.strip()[-2000:]}")
        return done.stdout.strip()

    def prepare(self) -> None:
        """Create the files outside of the containers: secrets, the file of the job histories, and a small disk."""
        subprocess.run([str(ROOT / "docker" / "secrets.sh"), str(self.folder / "secrets")], check=True)
        self.history.parent.mkdir()
        self.history.touch()
        self.history.chmod(0o666)
        self._small.mkdir()
        options = f"size={_SMALL_MB}m,uid=10001,gid=10001,mode=0750"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "drills", str(self._small)], check=True)

    def up(self) -> None:
        """Start all containers and wait until they are healthy."""
        self.compose("up", "-d", "--no-build")
        for service in SERVICES:
            self.wait_healthy(service)

    def clear(self) -> None:
        """Remove all containers and volumes, also after a failed start."""
        self.compose("down", "--volumes", "--timeout", "5", "--remove-orphans")
        if os.path.ismount(self._small):
            subprocess.run(["umount", str(self._small)], check=True)

    # -- containers

    def container(self, service: str) -> str:
        """Return the id of a container."""
        labels = (f"com.docker.compose.project={self.project}", f"com.docker.compose.service={service}")
        filters = [part for label in labels for part in ("--filter", f"label={label}")]
        return docker("ps", "--all", "--quiet", "--no-trunc", *filters)

    def inspect(self, service: str) -> dict[str, Any]:
        """Return Docker's description of a container."""
        found: dict[str, Any] = json.loads(docker("inspect", self.container(service)))[0]
        return found

    def health(self, service: str) -> str:
        """Return a container's health: ``healthy``, ``starting`` or ``unhealthy``; its status if it does not run."""
        state = self.inspect(service)["State"]
        return str(state["Health"]["Status"] if state["Running"] else state["Status"])

    def wait_healthy(self, service: str) -> None:
        """Wait until a container is healthy."""
        try:
            until(f"{service} is healthy", lambda: self.health(service) == "healthy")
        except NotYetError as error:
            raise NotYetError(f"{error}; its log:\n{self.log(service)}") from None

    def log(self, service: str, lines: int = 60) -> str:
        """Return the last lines of a container's log."""
        done = subprocess.run(
            ["docker", "logs", "--tail", str(lines), self.container(service)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.stdout

    def execute(self, service: str, *command: str) -> str:
        """Run a command in a container, as the user of its service, and return its output."""
        user = "postgres" if service == "db" else "gridweave"
        return docker("exec", "--user", user, self.container(service), *command)

    @staticmethod
    def wait(seconds: float) -> None:
        """Sleep while a fault lasts."""
        time.sleep(seconds)

    def address(self, service: str, network: str) -> str:
        """Return the address of a container in a network."""
        networks = self.inspect(service)["NetworkSettings"]["Networks"]
        return str(networks[f"{self.project}_{network}"]["IPAddress"])

    # -- faults

    def kill(self, *services: str) -> None:
        """Kill containers by sending SIGKILL to their first processes, and wait until Docker has restarted them."""
        before = {service: self.inspect(service)["State"] for service in services}
        for service in services:
            os.kill(before[service]["Pid"], signal.SIGKILL)
        for service in services:
            until(
                f"{service} is started again",
                lambda one=service: self.inspect(one)["State"]["StartedAt"] != before[one]["StartedAt"],
            )

    def stop(self, service: str) -> None:
        """Stop a container; Docker does not restart it."""
        self.compose("stop", "--timeout", "10", service)

    def start(self, service: str) -> None:
        """Start a container that was stopped."""
        self.compose("start", service)

    @contextlib.contextmanager
    def disconnected(self, site: str, end: str) -> Iterator[None]:
        """Disconnect one end of a site's network for the duration of the block.

        Parameters
        ----------
        site : str
        end : str
            The end to disconnect: ``grid`` or the site.
        """
        network, container = f"{self.project}_{site}", self.container(end)
        docker("network", "disconnect", network, container)
        try:
            yield
        finally:
            docker("network", "connect", "--alias", end, network, container)

    @contextlib.contextmanager
    def paused(self, service: str) -> Iterator[None]:
        """Pause all processes of a container, including its jobs, for the duration of the block."""
        container = self.container(service)
        docker("pause", container)
        try:
            yield
        finally:
            docker("unpause", container)

    @contextlib.contextmanager
    def cut(self, site: str, direction: str) -> Iterator[None]:
        """Drop the requests in one direction; answers to requests in the other direction still arrive.

        Parameters
        ----------
        site : str
        direction : str
            ``to the grid`` or ``to the site``.
        """
        grid = self.address("grid", site)
        rule = ["OUTPUT", "-d", grid] if direction == "to the grid" else ["INPUT", "-s", grid]
        rule += ["-p", "tcp", "--dport", "8765", "-j", "DROP"]
        inside = ["nsenter", "--net", "--target", str(self.inspect(site)["State"]["Pid"]), "iptables"]
        subprocess.run([*inside, "-I", *rule], check=True)
        try:
            yield
        finally:
            subprocess.run([*inside, "-D", *rule], check=True)

    @contextlib.contextmanager
    def full_disk(self) -> Iterator[None]:
        """Fill the disk of gamma to its last byte for the duration of the block."""
        ballast = self._small / "ballast"
        # Unbuffered, as closing a buffered file would try to write the rest again.
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            os.chown(ballast, 10_001, 10_001)
            while True:
                file.write(b"\0" * 65_536)
        try:
            yield
        finally:
            ballast.unlink()

    # -- users

    @contextlib.contextmanager
    def client(self, service: str = "grid", *, total_s: float = PATIENCE_S) -> Iterator[SyncClient]:
        """Yield an operator's client of a gateway; it retries each request for at most `total_s`."""
        url = f"http://127.0.0.1:{self.ports[service]}"
        token = (self.folder / "secrets" / f"{service}_operator").read_text()
        patience = Patience(total_s=total_s, connect_s=total_s, try_s=min(10.0, total_s))
        with SyncClient(url, token, patience=patience) as client:
            yield client

    def hand_in(self, service: str, jobs: Sequence[tuple[int, float]]) -> list[int]:
        """Submit jobs that write their own history, at the gateway of the grid or of a site.

        Parameters
        ----------
        service : str
        jobs : sequence of (int, float)
            Nodes and sleep time in seconds of each job.

        Returns
        -------
        list of int
            The job numbers.
        """
        with self.client(service) as client:
            handed_in: list[SyncJobHandle] = [
                client.submit(
                    Program(argv=(*WRITES_ITS_OWN_STORY, "/story/lines", f"{sleep_s:.1f}"), grace_ms=500),
                    nodes=nodes,
                    limit="5m",
                    user="operator",
                    site=None if service == "grid" else service,
                )
                for nodes, sleep_s in jobs
            ]
        numbers = [job.id for job in handed_in]
        self._jobs.setdefault(service, []).extend(numbers)
        return numbers

    def hand_in_within(self, site: str, jobs: Sequence[tuple[int, float]]) -> list[int]:
        """Submit jobs like `hand_in`, but by a command in the site's container, for sites that are cut off."""
        handed_in: list[int] = []
        for nodes, sleep_s in jobs:
            program = (*WRITES_ITS_OWN_STORY, "/story/lines", f"{sleep_s:.1f}")
            said = self.within(site, "submit", "--json", "--site", site, "-n", str(nodes), "-t", "5m", "--", *program)
            handed_in += [told["job_id"] for told in json.loads(said)["jobs"]]
        self._jobs.setdefault(site, []).extend(handed_in)
        return handed_in

    def wait_ended_within(self, site: str, numbers: Sequence[int]) -> None:
        """Wait until jobs of a site have ended, by a command in the site's container."""

        def ended() -> bool:
            shown = [json.loads(self.within(site, "show", "--json", str(number))) for number in numbers]
            return all(each["state"] == "ended" for each in shown)

        until(f"the end of jobs {list(numbers)} of {site}, as seen there", ended)

    def within(self, site: str, *command: str) -> str:
        """Run a gridweave command as an operator in the container of a site, and return its output."""
        token = f'export GRIDWEAVE_TOKEN="$(cat /run/secrets/{site}_operator)"'
        line = f'{token}; export GRIDWEAVE_URL=http://127.0.0.1:8765; export LOGNAME=operator; exec gridweave "$@"'
        return self.execute(site, "sh", "-c", line, "sh", *command)

    def records(self, service: str, numbers: Sequence[int], *, total_s: float = PATIENCE_S) -> list[JobRecord]:
        """Return the records of jobs from a gateway."""
        with self.client(service, total_s=total_s) as client:
            return [client.record(number) for number in numbers]

    def wait_ended(self, service: str, numbers: Sequence[int]) -> list[JobRecord]:
        """Wait until jobs have ended."""
        return until(f"the end of jobs {list(numbers)} of {service}", lambda: self._ended(service, numbers))

    def _ended(self, service: str, numbers: Sequence[int]) -> list[JobRecord] | None:
        records = self.records(service, numbers)
        return records if all(record.state == "ended" for record in records) else None

    # -- the history

    def check(self, folder: Path) -> Mapping[int, str]:
        """Check the history so far against all journals and against the histories that the jobs wrote.

        Parameters
        ----------
        folder : pathlib.Path
            Folder for copies of the sites' journals.

        Returns
        -------
        mapping from int to str
            The outcome of each job.

        Raises
        ------
        ViolationError
        """
        sites: list[tuple[SiteSettings, str | Path]] = []
        for site in SITES:
            service = site_service(read_service(str(ROOT / "docker" / f"{site}.toml")))
            sites.append((service.settings, folder / f"{site}.journal"))
            self._copy_journal(site, folder / f"{site}.journal")
        password = (self.folder / "secrets" / "db_password").read_text()
        journal = f"postgresql+psycopg://gridweave:{password}@{self.address('db', 'db')}/gridweave"
        settings = grid_service(read_service(str(ROOT / "docker" / "grid.toml"))).settings
        outcomes = check_journals(sites, (settings, journal))
        check_stories(self.history, outcomes, SITES)
        for service, numbers in self._jobs.items():
            missing = sorted(set(numbers) - set(outcomes))
            assert not missing, f"jobs {missing} of {service} are in no journal"
        return outcomes

    def _copy_journal(self, site: str, place: Path) -> None:
        """Copy a journal with SQLite's backup, which works while the journal is written."""
        code = (
            "import sqlite3, sys\n"
            "source, copy = (sqlite3.connect(name) for name in sys.argv[1:])\n"
            "source.backup(copy)\n"
            "copy.execute('pragma journal_mode = delete')\n"
        )
        self.execute(site, "rm", "-f", "/tmp/copy.journal")
        self.execute(site, "python", "-c", code, journal_of(site), "/tmp/copy.journal")
        docker("cp", f"{self.container(site)}:/tmp/copy.journal", str(place))


def journal_of(site: str) -> str:
    """Return the path of a site's journal in its container."""
    return f"/var/lib/gridweave/{site}/site.journal"


# -- drills -----------------------------------------------------------------------------------------------------------

NOT_BEGUN = "not begun: the time for drills was used up"


@dataclass
class Outcome:
    """The outcome of a drill."""

    name: str
    seed: int
    jobs: int = 0
    again: int = 0
    seconds: float = 0.0
    problem: str = "never came to its end"

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome for a JSON file."""
        return asdict(self) | {"is_good": not self.problem}


@dataclass
class Report:
    """The outcomes of all drills and the durations of other phases; no drill begins after `budget_s`."""

    seed: int
    budget_s: float = float("inf")
    outcomes: list[Outcome] = field(default_factory=list)
    phases: list[tuple[str, float]] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)

    @property
    def is_spent(self) -> bool:
        """Whether the time budget is spent, so that no other drill begins."""
        return time.monotonic() - self.began_s > self.budget_s

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Record how long the block takes."""
        begin_s = time.monotonic()
        yield
        self.phases.append((name, time.monotonic() - begin_s))

    def table(self) -> Table:
        """Return the report as a table."""
        took = ", ".join(f"{name}: {seconds:.0f} s" for name, seconds in self.phases)
        table = Table(title=f"Failure drills, seed {self.seed} ({took})", title_justify="left")
        for name, is_number in (
            ("drill", False),
            ("seed", True),
            ("jobs", True),
            ("run again", True),
            ("s", True),
            ("outcome", False),
        ):
            table.add_column(name, justify="right" if is_number else "left", overflow="fold")
        for one in self.outcomes:
            if one.problem == NOT_BEGUN:
                table.add_row(one.name, str(one.seed), "", "", "", f"[yellow]{NOT_BEGUN}[/]")
                continue
            good = "[green]none lost, none doubled[/]" if not one.problem else f"[red]{one.problem}[/]"
            table.add_row(one.name, str(one.seed), str(one.jobs), str(one.again), f"{one.seconds:.0f}", good)
        return table


class Drill:
    """The jobs of one drill.

    Parameters
    ----------
    grid : ComposeGrid
    seed : int
        Seed of the widths and lengths of the jobs.
    """

    def __init__(self, grid: ComposeGrid, seed: int) -> None:
        self.grid = grid
        self._rng = np.random.default_rng(seed)
        self.jobs: dict[str, list[int]] = {}
        self.records: dict[int, JobRecord] = {}

    def submit(self, service: str, count: int) -> list[int]:
        """Submit jobs to a site or to the grid, where some are wider than any site; return their numbers."""
        return self._took(service, self.grid.hand_in(service, self._shapes(service, count)))

    def submit_within(self, site: str, count: int) -> list[int]:
        """Submit jobs to a site from its own container; return their numbers."""
        return self._took(site, self.grid.hand_in_within(site, self._shapes(site, count)))

    def _shapes(self, service: str, count: int) -> list[tuple[int, float]]:
        most = {"grid": 10, **SITES}[service]
        widths, sleeps_s = self._rng.integers(1, most + 1, count), self._rng.uniform(3.0, 6.0, count)
        return list(zip(widths.tolist(), sleeps_s.tolist(), strict=True))

    def _took(self, service: str, numbers: list[int]) -> list[int]:
        self.jobs.setdefault(service, []).extend(numbers)
        return numbers

    def submit_split(self, sleep_s: float = 10.0) -> int:
        """Submit a job that needs the nodes of all sites; return its number."""
        (number,) = self.grid.hand_in("grid", [(sum(SITES.values()), sleep_s)])
        self.jobs.setdefault("grid", []).append(number)
        return number

    def wait_state(self, service: str, number: int, state: str) -> None:
        """Wait until a job is in a state."""
        until(
            f"job {number} of {service} is {state}",
            lambda: self.grid.records(service, [number])[0].state == state or None,
        )

    def wait_all(self) -> None:
        """Wait until every job has ended; assert that each has finished."""
        for service, numbers in self.jobs.items():
            for record in self.grid.wait_ended(service, numbers):
                self.records[record.job_id] = record
        unwell = {number: one.outcome for number, one in self.records.items() if one.outcome != "finished"}
        assert not unwell, f"jobs that did not finish: {unwell}"

    def run_again(self) -> int:
        """Return the number of the grid's jobs that needed more than one attempt."""
        return sum(record.attempt > 1 for record in self.records.values())


@contextlib.contextmanager
def drilled(grid: ComposeGrid, report: Report, name: str, folder: Path) -> Iterator[Drill]:
    """Run the block as a drill: start jobs on all sites before it, await their ends after it, and check the history.

    Parameters
    ----------
    grid : ComposeGrid
    report : Report
        Gets the outcome.
    name : str
    folder : pathlib.Path
        Folder for copies of the journals.
    """
    outcome = Outcome(name, (report.seed * 1_000_003 + zlib.crc32(name.encode())) % 2**31)
    report.outcomes.append(outcome)
    if report.is_spent:
        outcome.problem = NOT_BEGUN
        pytest.skip(NOT_BEGUN)
    begin_s = time.monotonic()
    drill = Drill(grid, outcome.seed)
    try:
        drill.wait_state("grid", drill.submit_split(), "running")
        drill.submit("grid", 6)
        for site in SITES:
            drill.submit(site, 1)
        yield drill
        drill.submit("grid", 2)
        drill.wait_all()
        grid.check(folder)
        outcome.problem = ""
    except BaseException as error:
        outcome.problem = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        raise
    finally:
        outcome.seconds = time.monotonic() - begin_s
        outcome.jobs = sum(len(numbers) for numbers in drill.jobs.values())
        outcome.again = drill.run_again()
