"""A Ray of one's own on this machine: a head, and a labelled node for each machine of a site, behind a token.

How commands join a Ray cluster: quietly, and without waiting minutes for one that is not there.
"""

from __future__ import annotations

import contextlib
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
from gridweave.grid.service.ending import MARKER_VARIABLE
from gridweave.grid.service.ray_nodes import Launched, Launching, RayNode
from gridweave.grid.service.signals import postponed, uninterrupted
from gridweave.grid.service.state import HEAD, LocalProcess, node_of, write_private
from gridweave.site.service.calls import MACHINE_LABEL, SITE_LABEL

RAY_ERRORS = (ConnectionError, TimeoutError, ValueError, RuntimeError, AssertionError)
"""What `ray.init` raises where there is no cluster, or none can be started."""

_PATIENCE_S = 5.0
_LOOK_AT_RAY_EVERY_S, _MISSES = 5.0, 3
_QUIET = {"RAY_BACKEND_LOG_LEVEL": "fatal", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def knock(address: str) -> None:
    """Find out in a few seconds that nothing listens at an address; Ray would take many minutes.

    Raises
    ------
    UnavailableError
        If nothing listens there.
    """
    host, colon, port = address.strip().removeprefix("ray://").rpartition(":")
    if not colon:
        return  # auto, or what Ray knows better
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE_S).close()
    except (OSError, ValueError, OverflowError) as error:
        told = getattr(error, "strerror", None) or error
        raise UnavailableError(f"--address: no Ray cluster answers at {address}: {told}") from None


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Let Ray start without a report to its makers, and without remarks of its own, unless the user says so."""
    added = [name for name in _QUIET if name not in os.environ]
    os.environ.update({name: _QUIET[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextlib.contextmanager
def muted() -> Iterator[None]:
    """Let nobody see what compiled code says on standard error; what is wrong comes as an exception."""
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
    """Watch the Ray node by which this process has joined a cluster, until it is gone.

    A process that is connected to Ray does not end with it, nor does it find its way to the Ray in its place.

    Parameters
    ----------
    node : str
        Its id.
    nodes : callable
        Returns the nodes of the cluster, as `ray.nodes` does.
    lost : callable
        Called when it was not there several times on end, or nobody could tell.
    pause : callable
        Waits until it is time to look.
    """
    missed = 0
    while missed < _MISSES:
        pause()
        try:
            is_there = any(one["NodeID"] == node and one["Alive"] for one in nodes())
        except Exception:  # whatever Ray raises where there is none any more
            is_there = False
        missed = 0 if is_there else missed + 1
    lost()


def watch_ray(lost: Callable[[], None]) -> None:
    """Have it heard when the Ray node by which this process has joined is gone; a thread of its own looks."""
    import ray

    node, pause = ray.get_runtime_context().get_node_id(), threading.Event()
    work = (node, ray.nodes, lost, lambda: pause.wait(_LOOK_AT_RAY_EVERY_S))
    threading.Thread(target=watch_node, args=work, name="gridweave-ray-watch", daemon=True).start()


def join_problem(where: str, error: Exception) -> UnavailableError:
    """Return the error for a cluster that cannot be joined or started, in one line.

    Parameters
    ----------
    error : Exception
        One of `RAY_ERRORS`.
    """
    told = " ".join(str(error).split()) or type(error).__name__
    return UnavailableError(f"--address: Ray cannot be used on {where}: {told}")


LOOPBACK = "127.0.0.2"
"""By which a Ray of one's own finds itself: it does not go with an interface that is taken away. In the place of
127.0.0.1 Ray would put the address of one."""

MOST_NODES = 8
"""A site has a Ray node of its own if there are no more than so many; each costs some hundred megabytes."""

FIRST_WITH_TOKENS = (2, 52)
"""The first release of Ray that asks who connects for a token."""

_JOIN_S = 180.0
_TRIES = 3
_LOOK_EVERY_S = 0.05
_LONGEST_PATH = 30
"""Ray makes sockets far below its folder, and the path of a socket has 107 bytes at most."""


class Machine(msgspec.Struct, frozen=True):
    """A machine of a site, for which there is to be a Ray node.

    Attributes
    ----------
    site, name : str
    alone : bool
        Whether it is the only one of its site, and so needs no label of its own.
    """

    site: str
    name: str
    alone: bool = True

    @property
    def node(self) -> str:
        """What its process is called."""
        return node_of(self.site if self.alone else f"{self.site}/{self.name}")

    @property
    def labels(self) -> dict[str, str]:
        """The labels of its Ray node."""
        return {SITE_LABEL: self.site} | ({} if self.alone else {MACHINE_LABEL: self.name})


Told = Callable[[LocalProcess], None]
"""Hears of each process at once when it is started."""


class Launcher:
    """A process that starts Ray nodes (`gridweave.grid.service.ray_nodes`): it takes a second to be ready.

    Parameters
    ----------
    token : pathlib.Path
        The file of the token of Ray.
    marker : str
        For the environment of all that it starts.
    """

    def __init__(self, token: Path, marker: str) -> None:
        self.problem: str | None = None
        # A pipe that nobody reads meanwhile could be full.
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gridweave.grid.service.ray_nodes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=_environment_of_nodes(token, marker),
            # Ctrl-C comes to this process alone, which then ends all in order.
            start_new_session=True,
        )

    def launch(self, task: Launching) -> Iterator[Launched]:
        """Yield the nodes as they are started; ``problem`` is then what was said if the head has not come up."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as orders:
            orders.write(msgspec.json.encode(task))
        for line in process.stdout:
            yield msgspec.json.decode(line, type=Launched)
        if process.wait():
            self._said.seek(0)
            self.problem = self._said.read().decode(errors="replace")

    def close(self) -> list[Launched]:
        """End it; what it has started goes on. Return those of them that were not yielded."""
        self._process.terminate()
        self._process.wait()
        told = self._process.stdout
        untold = [] if told is None or told.closed else [msgspec.json.decode(line, type=Launched) for line in told]
        for pipe in (self._process.stdin, self._process.stdout, self._said):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        return untold


class LocalRay:
    """A Ray of one's own, as it is to be or as it runs.

    Parameters
    ----------
    temp : str
        Folder of its sockets and logs.
    port : int
        Of its head.
    token : pathlib.Path
        The file of its token.
    logs : pathlib.Path
        Folder for what its processes say beyond Ray's own logs.
    marker : str
        For the environment of its processes.
    store_bytes : int
        Memory of each node for objects.
    """

    def __init__(self, temp: str, port: int, token: Path, logs: Path, marker: str, store_bytes: int) -> None:
        self._temp, self._port, self._token, self._logs = temp, port, token, logs
        self._marker, self._store_bytes = marker, store_bytes

    @property
    def address(self) -> str:
        """Where its head answers."""
        return f"{LOOPBACK}:{self._port}"

    def launch(self, machines: Sequence[Machine], told: Told, *, head: bool, launcher: Launcher | None = None) -> None:
        """Start the head, unless it runs, and nodes for machines; return when they are on their way.

        Parameters
        ----------
        launcher : Launcher, optional
            One that is ready, or nearly so.

        Raises
        ------
        UnavailableError
            If the head does not come up.
        """
        task = Launching(
            host=LOOPBACK,
            port=self._port,
            head=self._head() if head else None,
            nodes=tuple(self._node(machine) for machine in machines),
        )
        try:
            if launcher is None:
                with uninterrupted():
                    launcher = Launcher(self._token, self._marker)
            for one in launcher.launch(task):
                told(LocalProcess(one.name, one.pid, one.start_ticks))
        finally:
            for one in launcher.close() if launcher is not None else ():
                told(LocalProcess(one.name, one.pid, one.start_ticks))
        if launcher.problem is not None:
            raise UnavailableError(f"Ray cannot be started on this machine: {self._last_words(HEAD, launcher.problem)}")

    def wait_for(self, machines: Sequence[Machine], processes: dict[str, LocalProcess], told: Told) -> None:
        """Wait until the nodes of all machines have joined; start anew those that have ended meanwhile.

        Parameters
        ----------
        processes : dict from str to LocalProcess
            As far as it was told of them; the caller adds those it hears of.

        Raises
        ------
        UnavailableError
            If one does not join.
        """
        import ray

        tries: Counter[str] = Counter()
        until = time.monotonic() + _JOIN_S
        while missing := self._missing(ray, machines):
            for machine in missing:
                process = processes.get(machine.node)
                if process is not None and process.is_alive:
                    continue
                # Ray gives up a node that is not there within half a minute, which happens on a busy machine.
                tries[machine.node] += 1
                if tries[machine.node] >= _TRIES:
                    raise UnavailableError(
                        f"the {machine.node} cannot be started on this machine: {self._last_words(machine.node)}"
                    )
                self.launch([machine], told, head=False)
            if time.monotonic() > until:
                raise UnavailableError(f"the {missing[0].node} has not joined within {_JOIN_S:.0f} s")
            time.sleep(_LOOK_EVERY_S)

    def missing(self, machines: Sequence[Machine]) -> list[Machine]:
        """Return the machines that have no Ray node now."""
        import ray

        return self._missing(ray, machines)

    @staticmethod
    def _missing(ray: Any, machines: Sequence[Machine]) -> list[Machine]:
        there = [node["Labels"] for node in ray.nodes() if node["Alive"]]
        return [one for one in machines if not any(one.labels.items() <= labels.items() for labels in there)]

    @contextlib.contextmanager
    def connected(self) -> Iterator[Any]:
        """Connect this process to it.

        Yields
        ------
        module
            Of Ray.

        Raises
        ------
        UnavailableError
            If that fails.
        """
        with _environment_of_this(token_environment(self._token)), connected(self.address) as ray:
            yield ray

    def _head(self) -> RayNode:
        options = (
            "--head",
            f"--port={self._port}",
            "--no-monitor",
            "--include-dashboard=false",
            *([f"--ray-client-server-port={free_port()}"] if importlib.util.find_spec("grpc") else []),
        )
        return RayNode(HEAD, (*options, *self._common("h")), self._log(HEAD))

    def _node(self, machine: Machine) -> RayNode:
        labels = ",".join(f"{name}={value}" for name, value in machine.labels.items())
        options = (f"--address={self.address}", f"--labels={labels}")
        return RayNode(machine.node, (*options, *self._common(secrets.token_hex(2))), self._log(machine.node))

    def _common(self, folder: str) -> tuple[str, ...]:
        return (
            "--block",
            f"--node-ip-address={LOOPBACK}",
            "--disable-usage-stats",
            # No workers are started in stock: actors that need no processor get theirs when they are made.
            "--num-cpus=0",
            "--num-gpus=0",
            f"--object-store-memory={self._store_bytes}",
            "--min-worker-port=0",
            "--max-worker-port=0",
            "--dashboard-agent-listen-port=0",
            "--include-log-monitor=false",
            # Nodes that start at the same time in one folder would choose the same names for their sockets.
            f"--temp-dir={self._temp}/{folder}",
        )

    def _log(self, name: str) -> str:
        return str(self._logs / f"{name.replace(' ', '-').replace('/', '-').lower()}.log")

    def _last_words(self, name: str, said: str = "") -> str:
        """Return the last line that a process has said."""
        with contextlib.suppress(OSError):
            said = said.strip() or Path(self._log(name)).read_text(errors="replace")
        lines = [line for line in said.splitlines() if line.strip()]
        return lines[-1].strip() if lines else f"nothing is told; see {self._logs}"


def _environment_of_nodes(token: Path, marker: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    kept |= token_environment(token)
    kept[MARKER_VARIABLE] = marker
    # Ray would write the titles of its processes over their environment, by which they are known.
    kept["SPT_NOENV"] = "1"
    # A node that is told to end has nothing to wait for: the journals of its actors are whole at every instant.
    kept["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] = "0"
    kept["RAY_USAGE_STATS_ENABLED"] = "0"
    # Its workers, and with them the actors of the grid and all jobs, would give way to every other process.
    kept["RAY_worker_niceness"] = "0"
    kept["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    if "PYTHONPATH" in kept:
        kept["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, kept["PYTHONPATH"].split(os.pathsep)))
    return kept


def check_ray() -> None:
    """Raise UnavailableError if there is no Ray, or one that knows no tokens."""
    try:
        version = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        raise not_installed("ray", "live") from None
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < FIRST_WITH_TOKENS:
        right = ".".join(map(str, FIRST_WITH_TOKENS))
        raise UnavailableError(f"ray {version} asks nobody for a token; run: pip install 'ray>={right}'")


def token_environment(token: Path) -> dict[str, str]:
    """Return by which variables Ray knows that it is to ask for a token, and which one."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}


def make_ray_token(path: Path) -> None:
    """Write a new token for Ray into a file that only this user can read."""
    write_private(path, secrets.token_hex(32))


def make_temp() -> str:
    """Make a folder for the sockets and logs of Ray, closed to other users, with a path that is short enough."""
    folder = tempfile.mkdtemp(prefix="gridweave-")
    if len(folder) > _LONGEST_PATH:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="gridweave-", dir="/tmp")
    return folder


def remove_temp(temp: str) -> None:
    """Remove that folder; nothing if it is none of ours."""
    if temp and Path(temp).name.startswith("gridweave-"):
        shutil.rmtree(temp, ignore_errors=True)


def free_port(host: str = "127.0.0.1", wanted: int = 0) -> int:
    """Return a port at which nothing listens: the one that is wanted, if that is free.

    Parameters
    ----------
    wanted : int
        0: any.
    """
    for port in dict.fromkeys((wanted, 0)):
        with socket.socket() as one, contextlib.suppress(OSError, OverflowError):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((host, port))
            return int(one.getsockname()[1])
    raise UnavailableError(f"{host}: no port can be had there")


@contextlib.contextmanager
def _environment_of_this(values: dict[str, str]) -> Iterator[None]:
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


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """Connect this process to a Ray cluster, quietly.

    Yields
    ------
    module
        Of Ray.

    Raises
    ------
    UnavailableError
        If that fails.
    """
    try:
        with quietly():
            import ray
    except ImportError:
        raise not_installed("ray", "live") from None
    try:
        with quietly(), muted(), postponed():
            try:
                own: dict[str, Any] = {"_node_ip_address": LOOPBACK} if address.startswith(f"{LOOPBACK}:") else {}
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
            except RAY_ERRORS as error:
                raise join_problem(address, error) from None
        yield ray
    finally:
        with quietly(), postponed():
            ray.shutdown()
