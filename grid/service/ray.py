"""Run our own Ray cluster on this machine: a head and a labelled node for each machine of a site, with a token.

Commands can also join a Ray cluster without Ray's messages, and without waiting minutes for a missing cluster.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import logging
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gridweave.errors import UnavailableError, not_installed
from gridweave.grid.config.local_state import (
    HEAD,
    LOGS,
    MARKER_VARIABLE,
    RAY_TOKEN,
    LocalProcess,
    count_running,
    end_jobs,
    end_marked,
    end_processes,
    make_private,
    node_of,
    write_private,
)
from gridweave.grid.service.ray_nodes import Launching, RayNode
from gridweave.grid.service.signals import postponed, uninterrupted
from gridweave.site.machine.processes import boot_id
from gridweave.site.service.calls import MACHINE_LABEL, SITE_LABEL
from gridweave.site.times import span_text

RAY_ERRORS = (ConnectionError, TimeoutError, ValueError, RuntimeError, AssertionError)
"""Errors that `ray.init` raises if there is no cluster, or if none can be started."""

_PATIENCE_S = 5.0
_LOOK_AT_RAY_EVERY_S, _MISSES = 5.0, 3
_QUIET = {
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # A driver prints the raylet's errors whatever log_to_driver is; our own status already reports actors that died.
    "RAY_DEDUP_LOGS_SKIP_REGEX": "A worker died",
}


def resolved(address: str) -> str:
    """Resolve the address ``auto`` to ``$RAY_ADDRESS``, or to the cluster that this host belongs to.

    If neither is known, ``auto`` is left to Ray.
    """
    if address.strip() != "auto":
        return address
    named = os.environ.get("RAY_ADDRESS", "").strip()
    if named and named != "auto":
        return named
    place = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()) / "ray" / "ray_current_cluster"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return place.read_text(encoding="ascii").strip() or address
    return address


def probe(address: str) -> None:
    """Raise UnavailableError within seconds if nothing is listening at an address; Ray itself would take minutes."""
    address = resolved(address)
    host, colon, port = address.strip().removeprefix("ray://").rpartition(":")
    if not colon:
        return  # an address that only Ray understands
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE_S).close()
    except (OSError, ValueError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UnavailableError(f"--address: no Ray cluster answers at {address}: {reason}") from None


@contextlib.contextmanager
def _environment_of_this(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def with_token(token: Path | None) -> contextlib.AbstractContextManager[None]:
    """Authenticate this process to our own Ray with the token in a file; with None, leave the environment unchanged."""
    return contextlib.nullcontext() if token is None else _environment_of_this(token_environment(token))


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Disable Ray's usage reports and messages, unless the user has set them."""
    with _environment_of_this({name: value for name, value in _QUIET.items() if name not in os.environ}):
        yield


@contextlib.contextmanager
def muted() -> Iterator[None]:
    """Suppress output of compiled code on standard error; errors still arrive as exceptions."""
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(nowhere)
        os.close(kept)


def watch_node(
    node: str, nodes: Callable[[], Sequence[Mapping[str, Any]]], lost: Callable[[], None], pause: Callable[[], object]
) -> None:
    """Watch the Ray node through which this process has joined a cluster, until the node is gone.

    A process that is connected to Ray neither ends with it nor connects to a new Ray. `lost` is called once the node
    has been missing, or Ray has not answered, in several checks in a row; `pause` waits between two checks.
    """
    missed = 0
    while missed < _MISSES:
        pause()
        try:
            is_there = any(entry["NodeID"] == node and entry["Alive"] for entry in nodes())
        except Exception:  # whatever Ray raises once it is gone
            is_there = False
        missed = 0 if is_there else missed + 1
    lost()


def watch_ray(lost: Callable[[], None]) -> None:
    """Watch, in a thread, the Ray node through which this process has joined; call `lost` once the node is gone."""
    import ray

    node, pause = ray.get_runtime_context().get_node_id(), threading.Event()
    work = (node, ray.nodes, lost, lambda: pause.wait(_LOOK_AT_RAY_EVERY_S))
    threading.Thread(target=watch_node, args=work, name="gridweave-ray-watch", daemon=True).start()


def join_problem(where: str, error: Exception) -> UnavailableError:
    """Return a one-line error for a cluster that cannot be joined or started."""
    causes = [error] if error.__cause__ is None else [error, error.__cause__]
    text = ": ".join(" ".join(str(cause).split()) or type(cause).__name__ for cause in causes)
    return UnavailableError(f"--address: Ray cannot be used on {where}: {text}")


LOOPBACK = "127.0.0.2"
"""Address of our own Ray, which stays valid if a network interface goes down. Ray would replace 127.0.0.1 by the
address of an interface."""

EXPOSURE = (
    "Ray listens on all interfaces of this host, and only its token keeps others out. To allow only SSH and the "
    'gateway, at their ports here, run: nft add rule inet filter input iifname != "lo" ct state new '
    "tcp dport != { 22, 8765 } drop"
)
"""A remark for operators: our own Ray uses the loopback address, but its ports are open on all interfaces."""

MOST_NODES = 8
"""Maximum number of sites that each get a Ray node; a node takes a few hundred megabytes."""

FIRST_WITH_TOKENS, FIRST_UNTESTED = (2, 52), (3, 0)
"""The first Ray release with tokens, and the first untested release."""

STORE_BYTES = 80 << 20

_NODES_S, _JOBS_S = 4.0, 6.0
"""How long nodes, and then jobs, have to end, in seconds."""

_JOIN_S = 180.0
_TRIES = 3
_LOOK_EVERY_S = 0.05
_LONGEST_PATH = 30
"""Maximum length of the path of Ray's folder: paths of the sockets in its subfolders are limited to 107 bytes."""


class RayMachine(msgspec.Struct, frozen=True):
    """A machine of a site that gets a Ray node."""

    site: str
    name: str
    alone: bool = True  # whether it is the only machine of its site, which needs no label for machines

    @property
    def node(self) -> str:
        """Process name of the Ray node."""
        return node_of(self.site if self.alone else f"{self.site}/{self.name}")

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the Ray node."""
        return {SITE_LABEL: self.site} | ({} if self.alone else {MACHINE_LABEL: self.name})


class Launcher:
    """A process that starts Ray nodes (`gridweave.grid.service.ray_nodes`); it takes a second to load."""

    def __init__(self, token: Path, marker: str) -> None:
        self.problem: str | None = None
        # A file, because a pipe that nobody reads may fill up.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gridweave.grid.service.ray_nodes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=child_environment(marker, token) | _OF_NODES,
            # Ctrl-C should reach only this process, which then ends everything in order.
            start_new_session=True,
        )

    def launch(self, task: Launching) -> Iterator[LocalProcess]:
        """Start nodes and yield their processes; if the head does not start, ``problem`` is its error output."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as orders:
            orders.write(msgspec.json.encode(task))
        for line in process.stdout:
            yield msgspec.json.decode(line, type=LocalProcess)
        if process.wait():
            self._errors.seek(0)
            self.problem = self._errors.read().decode(errors="replace")

    def close(self) -> list[LocalProcess]:
        """End the launcher, but not its nodes; return the nodes that `launch` has not yielded."""
        self._process.terminate()
        self._process.wait()
        output = self._process.stdout
        unread = (
            [] if output is None or output.closed else [msgspec.json.decode(line, type=LocalProcess) for line in output]
        )
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        return unread


class RayState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of our own Ray, with its processes."""

    boot: str = ""  # boot id of the machine at Ray's start
    port: int = 0
    temp: str = ""  # folder of its sockets and logs
    processes: tuple[LocalProcess, ...] = ()


class OwnRay:
    """Our own Ray on this machine, running or to be started.

    Each machine gets a Ray node; without machines, there is only the head. `changed` is called at once with each new
    state, so that a later process finds everything. All processes end with the process `end_with`; if it is 0, they
    outlive their starter. `report` is called with a message when the head has given up and is started again.
    """

    def __init__(
        self,
        folder: Path,
        machines: Sequence[RayMachine],
        *,
        marker: str,
        store_bytes: int = STORE_BYTES,
        port: int = 0,
        state: RayState | None = None,
        changed: Callable[[RayState], None] | None = None,
        end_with: int = 0,
        head_labels: Mapping[str, str] | None = None,
        report: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._head_labels, self._report, self._heads = head_labels or {}, report, 0
        self._folder, self._machines, self._marker, self._store_bytes = folder, machines, marker, store_bytes
        self._port_asked, self._changed, self._end_with = port, changed, end_with
        self.state = RayState() if state is None else state

    @property
    def labelled(self) -> bool:
        """Whether the Ray nodes have labels that name machines."""
        return bool(self._machines)

    @property
    def address(self) -> str:
        """Address of the head."""
        return f"{LOOPBACK}:{self.state.port}"

    def process(self, name: str) -> LocalProcess | None:
        """Return the running process with this name, or None."""
        if self.state.boot != boot_id():
            return None
        return next((process for process in self.state.processes if process.name == name and process.is_alive), None)

    def _change(self, **changes: Any) -> None:
        self.state = msgspec.structs.replace(self.state, **changes)
        if self._changed is not None:
            self._changed(self.state)

    def start(self, launcher: Launcher | None = None) -> None:
        """Start the head and the nodes that are not running, without waiting for them."""
        make_private(self._folder / LOGS)
        if self.process(HEAD) is None:
            check_ray()
            make_ray_token(self._folder / RAY_TOKEN)
            self._start_head(self._port_asked, launcher)
        elif missing := [machine for machine in self._machines if self.process(machine.node) is None]:
            self._launch(missing, head=False, launcher=launcher)

    def _start_head(self, port: int, launcher: Launcher | None = None) -> None:
        """Start a head and all nodes; nodes without a head are useless."""
        while True:
            self.end_nodes()
            self._change(boot=boot_id(), port=free_port(preferred=port), temp=make_temp(), processes=())
            self._heads += 1
            try:
                self._launch(self._machines, head=True, launcher=launcher)
            except UnavailableError:
                if not self._may_try_again():
                    raise
                port, launcher = self.state.port, None
            else:
                return

    def _may_try_again(self) -> bool:
        """Whether to restart a head that has given up; if so, report the restart.

        Ray's head ends itself if one of its parts is not ready within half a minute, which happens on a busy machine.
        """
        if self._heads < _TRIES:
            self._report(f"Ray's head has given up ({self._why_it_gave_up()}); starting it again")
        return self._heads < _TRIES

    def _why_it_gave_up(self) -> str:
        return last_words(self._log(HEAD)).removeprefix("Exception: ").partition(". ")[0]

    def _launch(self, machines: Sequence[RayMachine], *, head: bool, launcher: Launcher | None = None) -> None:
        task = Launching(
            host=LOOPBACK,
            port=self.state.port,
            head=self._head() if head else None,
            nodes=tuple(self._node(machine) for machine in machines),
            end_with=self._end_with,
        )
        try:
            if launcher is None:
                with uninterrupted():
                    launcher = Launcher(self._folder / RAY_TOKEN, self._marker)
            for process in launcher.launch(task):
                self._started(process)
        finally:
            for process in launcher.close() if launcher is not None else ():
                self._started(process)
        if launcher.problem is not None:
            reason = last_words(self._log(HEAD), launcher.problem)
            raise UnavailableError(f"Ray cannot be started on this machine: {reason}")

    def _started(self, process: LocalProcess) -> None:
        others = tuple(other for other in self.state.processes if other.name != process.name)
        self._change(processes=(*others, process))

    @contextlib.contextmanager
    def connected(self) -> Iterator[Any]:
        """Connect this process; retry, and restart the head if necessary, because a busy machine may be slow."""
        until = time.monotonic() + _JOIN_S

        def again() -> bool:
            nonlocal until
            time.sleep(_LOOK_EVERY_S)
            if self.process(HEAD) is not None:
                return time.monotonic() < until
            if not self._may_try_again():
                reason = f"its head has given up {_TRIES} times; {self._why_it_gave_up()}"
                raise UnavailableError(f"Ray cannot be started on this machine: {reason}")
            self._start_head(self.state.port)
            until = time.monotonic() + _JOIN_S
            return True

        token = token_environment(self._folder / RAY_TOKEN)
        with _environment_of_this(token), connected(self.address, again=again) as ray:
            yield ray

    def wait(self) -> None:
        """Wait until all nodes have joined; restart nodes that end in the meantime."""
        tries: Counter[str] = Counter()
        until = time.monotonic() + _JOIN_S
        while missing := self._not_joined():
            for machine in missing:
                if self.process(machine.node) is not None:
                    continue
                # Ray drops a node that is not ready within half a minute, which happens on a busy machine.
                tries[machine.node] += 1
                if tries[machine.node] >= _TRIES:
                    reason = last_words(self._log(machine.node))
                    raise UnavailableError(f"the {machine.node} cannot be started on this machine: {reason}")
                self._launch([machine], head=False)
            if time.monotonic() > until:
                raise UnavailableError(f"the {missing[0].node} has not joined within {span_text(_JOIN_S * 1000)}")
            time.sleep(_LOOK_EVERY_S)

    def _not_joined(self) -> list[RayMachine]:
        ray: Any = importlib.import_module("ray")
        joined = [node["Labels"] for node in ray.nodes() if node["Alive"]]
        return [
            machine
            for machine in self._machines
            if not any(machine.labels.items() <= labels.items() for labels in joined)
        ]

    def repair(self) -> None:
        """Restart nodes that have ended; raise UnavailableError if the head has ended, as nothing works without it."""
        if self.process(HEAD) is None:
            raise UnavailableError("the head of Ray has ended; all of it must be started again")
        self.start()

    def end_nodes(self) -> None:
        """End all Ray processes and delete their folder; jobs continue."""
        if self.state.boot == boot_id():
            end_processes(self.state.processes, patience_s=_NODES_S)
            end_marked(self._marker, within=[process.pid for process in self.state.processes])
        remove_temp(self.state.temp)
        self._change(processes=(), temp="")

    def end(self, jobs: Path, reason: str, *, keep_jobs: bool = False) -> int:
        """End all Ray processes, and all jobs unless they are kept; return how many parts of jobs were running."""
        self.end_nodes()
        count = count_running(jobs)
        if not keep_jobs:
            end_jobs(jobs, reason, patience_s=_JOBS_S)
            end_marked(self._marker)
        return count

    def _head(self) -> RayNode:
        options = (
            "--head",
            f"--port={self.state.port}",
            "--no-monitor",
            "--include-dashboard=false",
            *([f"--labels={_labels(self._head_labels)}"] if self._head_labels else []),
            *([f"--ray-client-server-port={free_port()}"] if importlib.util.find_spec("grpc") else []),
        )
        return RayNode(HEAD, (*options, *self._common("h")), self._log(HEAD))

    def _node(self, machine: RayMachine) -> RayNode:
        options = (f"--address={self.address}", f"--labels={_labels(machine.labels)}")
        return RayNode(machine.node, (*options, *self._common(secrets.token_hex(2))), self._log(machine.node))

    def _common(self, folder: str) -> tuple[str, ...]:
        return (
            "--block",
            f"--node-ip-address={LOOPBACK}",
            "--disable-usage-stats",
            # Start no idle workers: actors without processors get theirs when they are created.
            "--num-cpus=0",
            "--num-gpus=0",
            f"--object-store-memory={self._store_bytes}",
            "--min-worker-port=0",
            "--max-worker-port=0",
            "--dashboard-agent-listen-port=0",
            "--include-log-monitor=false",
            # Nodes that start at the same time in one folder would choose the same socket names.
            f"--temp-dir={self.state.temp}/{folder}",
        )

    def _log(self, name: str) -> str:
        return str(self._folder / LOGS / f"{name.replace(' ', '-').replace('/', '-').lower()}.log")


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in labels.items())


def last_words(log: str | Path, text: str = "") -> str:
    """Return the last line that a process has printed or logged."""
    with contextlib.suppress(OSError):
        text = text.strip() or Path(log).read_text(errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"it printed nothing; see {log}"


def child_environment(marker: str, token: Path | None) -> dict[str, str]:
    """Return the environment for a grid's process; with a token, variables for another Ray are removed."""
    kept = dict(os.environ)
    if token is not None:
        kept = {name: value for name, value in kept.items() if not name.startswith("RAY_")} | token_environment(token)
    if "PYTHONPATH" in kept:
        kept["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, kept["PYTHONPATH"].split(os.pathsep)))
    return kept | {MARKER_VARIABLE: marker}


_OF_NODES = {
    # Ray's monitor would kill actors of the grid for memory that jobs use. Control groups end the job instead.
    "RAY_memory_monitor_refresh_ms": "0",
    # Ray would write process titles over the environment, by which processes are recognised.
    "SPT_NOENV": "1",
    # A terminated node need not wait, because the journals of its actors are consistent at every instant.
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # If memory runs out, the kernel should kill jobs, not actors of the grid.
    "RAY_worker_oom_score_adjustment": "0",
    # Otherwise Ray's workers, with the grid's actors and all jobs, would get a lower priority than other processes.
    "RAY_worker_niceness": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Nobody reads Ray's metrics.
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_enable_timeline": "0",
    "RAY_event_stats": "0",
    # On a busy machine a raylet's own agents may take longer than half a minute to start.
    "RAY_agent_register_timeout_ms": "120000",
    # No work is scheduled by free resources, because actors of the grid request none.
    "RAY_raylet_report_resources_period_milliseconds": "1000",
    "RAY_gcs_pull_resource_loads_period_milliseconds": "10000",
    # Let all threads of a process share one memory arena; otherwise each of dozens of threads would keep its own.
    "MALLOC_ARENA_MAX": "1",
}


def check_ray() -> None:
    """Raise UnavailableError if Ray is missing, or its release has no tokens or is untested."""
    if importlib.util.find_spec("ray") is None:
        raise not_installed("ray")
    version = importlib.metadata.version("ray")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if not FIRST_WITH_TOKENS <= numbers < FIRST_UNTESTED:
        least, most = (".".join(map(str, release)) for release in (FIRST_WITH_TOKENS, FIRST_UNTESTED))
        why = "does not check tokens" if numbers < FIRST_WITH_TOKENS else "is untested with gridweave"
        raise UnavailableError(f"ray {version} {why}; run: pip install 'ray>={least},<{most}'")


def token_environment(token: Path) -> dict[str, str]:
    """Return the environment variables that make Ray require a token."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}


def make_ray_token(path: Path) -> None:
    """Write a new token for Ray to a file that only this user can read."""
    write_private(path, secrets.token_hex(32))


def make_temp() -> str:
    """Create a folder for Ray's sockets and logs that other users cannot enter, with a short enough path."""
    folder = tempfile.mkdtemp(prefix="gridweave-")
    if len(folder) > _LONGEST_PATH:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="gridweave-", dir="/tmp")
    return folder


def remove_temp(temp: str) -> None:
    """Delete a folder made by `make_temp`; ignore any other."""
    if temp and Path(temp).name.startswith("gridweave-"):
        shutil.rmtree(temp, ignore_errors=True)


_PORTS = range(8_800, 10_000)
"""Ports that are neither given to Ray's workers (from 10,002) nor ephemeral ports of the kernel, of which Ray's
processes take dozens while a listener is being started."""


def free_port(host: str = "127.0.0.1", preferred: int = 0) -> int:
    """Return a port on which nothing is listening, namely `preferred` if that port is free."""
    # Concurrent processes begin at different ports.
    first = os.getpid() % len(_PORTS)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in (*([preferred] if preferred else []), *_PORTS[first:], *_PORTS[:first], 0):
        with socket.socket(family) as listener, contextlib.suppress(OSError, OverflowError):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            return int(listener.getsockname()[1])
    raise UnavailableError(f"{host}: no port is free there")


def join(where: str, **options: Any) -> None:
    """Connect this process to Ray, or start a new Ray, without Ray's messages; raise UnavailableError on failure."""
    ray: Any = importlib.import_module("ray")
    with quietly():
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
        except RAY_ERRORS as error:
            raise join_problem(where, error) from None


def own_host(ray: Any) -> str:
    """Return this host's address in the Ray cluster that this process has joined."""
    here = ray.get_runtime_context().get_node_id()
    return next(str(node["NodeManagerAddress"]) for node in ray.nodes() if node["NodeID"] == here)


def _join_problem(address: str, options: dict[str, Any]) -> UnavailableError | None:
    """Connect this process to a Ray cluster; return the problem, or None."""
    with muted(), postponed():
        try:
            join(address, address=address, **options)
        except UnavailableError as error:
            return error
    return None


@contextlib.contextmanager
def connected(address: str, *, again: Callable[[], bool] = lambda: False) -> Iterator[Any]:
    """Connect this process to a Ray cluster; ``again`` decides whether to retry after a failure."""
    try:
        with quietly():
            import ray
    except ImportError:
        raise not_installed("ray") from None
    try:
        own: dict[str, Any] = {"_node_ip_address": LOOPBACK} if address.startswith(f"{LOOPBACK}:") else {}
        while (problem := _join_problem(address, own)) is not None:
            if not again():
                raise problem
        yield ray
    finally:
        with quietly(), postponed():
            ray.shutdown()
