"""The Ray cluster that a scenario is played on: one of its own on this machine, or one that runs."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gridweave.errors import OptionError, UnavailableError, not_installed
from gridweave.grid.service.ending import end_jobs
from gridweave.grid.service.ray import RAY_ERRORS, join_problem, knock, muted, quietly
from gridweave.grid.service.signals import ended_in_order
from gridweave.site.service.calls import SITE_LABEL

MOST_NODES = 8
"""A cluster of its own has no more labelled nodes: each costs some hundred megabytes."""

_STORE_BYTES = 80 << 20
_START_S = 180.0
_TRIES = 3
_END_S = 15.0
# A node ends at once with whoever started it, even if that is killed: it would look for its head for a minute.
_START_NODE = """
import os, sys
from gridweave.site.machine.processes import die_with_parent
die_with_parent(int(sys.argv[1]))
os.execv(sys.executable, [sys.executable, "-m", "ray.scripts.scripts", "start", *sys.argv[2:]])
"""
_LONGEST_PATH = 40
"""Ray makes sockets far below its folder, and the path of a socket has 107 bytes at most."""


class Ground:
    """What a run stands on.

    Attributes
    ----------
    labelled : bool
        Whether each site has Ray nodes of its own.
    folder : str
        For the run alone; the same path on every machine.
    namespace : str
        Of the run alone.
    remarks : list of str
        What people should know.
    """

    def __init__(self, *, labelled: bool, folder: str, remarks: Sequence[str] = ()) -> None:
        self.labelled, self.folder, self.remarks = labelled, folder, list(remarks)
        self.namespace = Path(folder).name


@contextlib.contextmanager
def ground_for(sites: Sequence[str], address: str | None, tell: Callable[[str], None]) -> Iterator[Ground]:
    """Connect this process to a Ray cluster for some sites, and take down afterwards what was put up.

    Parameters
    ----------
    address : str, optional
        Of a cluster: ``auto``, ``ray://host:10001``, ``host:6379``. Without it a cluster is started on this machine,
        with one node for each site. A process that is connected already stays so.
    tell : callable
        Told what is going on.

    Raises
    ------
    OptionError
        If the address is none.
    UnavailableError
        If Ray is not installed, no cluster answers or can be started, or only some of the sites have nodes there.
    """
    if address is not None and not address.strip():
        raise OptionError("address", "is empty; write auto, host:6379, or leave it out for this machine")
    tell("Starting Ray" if address is None else "Joining Ray")
    ray = _imported()
    if ray.is_initialized():
        with _guest(ray, sites) as ground:
            yield ground
    elif address is not None:
        knock(address)
        with _connected(ray, address, address), _guest(ray, sites) as ground:
            yield ground
    else:
        with _own_cluster(ray, sites) as ground:
            yield ground


def _imported() -> Any:
    try:
        with quietly():
            import ray
    except ImportError:
        raise not_installed("ray", "live") from None
    return ray


@contextlib.contextmanager
def _connected(ray: Any, address: str, where: str, **options: Any) -> Iterator[Any]:
    try:
        with quietly(), muted():
            try:
                context = ray.init(address=address, log_to_driver=False, logging_level="ERROR", **options)
            except RAY_ERRORS as error:
                raise join_problem(where, error) from None
        with ended_in_order():
            yield context
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _guest(ray: Any, sites: Sequence[str]) -> Iterator[Ground]:
    """Use a cluster of others; on all of its machines the folder of the run goes in the end."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    labelled = {node["Labels"].get(SITE_LABEL) for node in nodes} - {None}
    missing = [site for site in sites if site not in labelled]
    if labelled and missing:
        raise UnavailableError(f"no node of the Ray cluster has the label {SITE_LABEL}={missing[0]}; add such a node")
    folder = str(Path(tempfile.gettempdir()) / f"gridweave-run-{uuid.uuid4().hex[:12]}")
    remarks = [] if labelled else [f"no node has the label {SITE_LABEL}: the sites are put anywhere"]
    try:
        yield Ground(labelled=bool(labelled), folder=folder, remarks=remarks)
    finally:
        remove = ray.remote(num_cpus=0, max_retries=0)(_remove)
        by_node = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        with contextlib.suppress(ray.exceptions.RayError, TimeoutError):
            ray.get(
                [
                    remove.options(scheduling_strategy=by_node(node["NodeID"], soft=False)).remote(folder)
                    for node in nodes
                ],
                timeout=_END_S,
            )


def _remove(folder: str) -> None:
    """Remove the folder of a run on this machine, after the end of all that runs from it."""
    end_jobs(Path(folder), "the run is over")
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _own_cluster(ray: Any, sites: Sequence[str]) -> Iterator[Ground]:
    """Start a head in this process's care, and a labelled node for each site; end and remove all of it."""
    root = Path(tempfile.mkdtemp(prefix="gridweave-run-"))
    if len(str(root)) > _LONGEST_PATH:
        root.rmdir()
        root = Path(tempfile.mkdtemp(prefix="gridweave-run-", dir="/tmp"))
    labelled = len(sites) <= MOST_NODES
    remarks = (
        [] if labelled else [f"{len(sites)} sites share one Ray node; more than {MOST_NODES} nodes are not started"]
    )
    own: dict[str, Any] = {
        "num_cpus": 1,
        "include_dashboard": False,
        "object_store_memory": _STORE_BYTES,
        "_temp_dir": str(root / "r"),
        # Its workers, and with them all jobs, would give way to every other process.
        "_system_config": {"worker_niceness": 0},
    }
    started: list[subprocess.Popen[bytes]] = []
    try:
        with _connected(ray, "local", "this machine", **own) as context:
            try:
                if labelled:
                    _start_nodes(ray, context.address_info["gcs_address"], sites, root, started)
                yield Ground(labelled=labelled, folder=str(root / root.name), remarks=remarks)
            finally:
                _end(started)
    finally:
        _remove(str(root / root.name))
        shutil.rmtree(root, ignore_errors=True)


def _start_nodes(
    ray: Any, address: str, sites: Sequence[str], root: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    """Start a node for each site, and wait until all have joined."""
    log = root / "nodes.log"
    nodes: dict[str, subprocess.Popen[bytes]] = {}
    tries: Counter[str] = Counter()
    until = time.monotonic() + _START_S
    while missing := set(sites) - {node["Labels"].get(SITE_LABEL) for node in ray.nodes() if node["Alive"]}:
        for site in sorted(missing):
            if site in nodes and nodes[site].poll() is None:
                continue
            # Ray gives up a node that is not there within half a minute, which happens on a busy machine.
            if tries[site] == _TRIES or time.monotonic() > until:
                told = log.read_text(errors="replace").strip().splitlines()[-1:] or ["nothing is told"]
                raise UnavailableError(f"the Ray node of site {site} cannot be started on this machine: {told[0]}")
            tries[site] += 1
            nodes[site] = _start_node(address, site, log)
            started.append(nodes[site])
        time.sleep(0.1)


def _start_node(address: str, site: str, log: Path) -> subprocess.Popen[bytes]:
    options = {
        "address": address,
        "labels": f"{SITE_LABEL}={site}",
        "num-cpus": 1,
        "object-store-memory": _STORE_BYTES,
        "dashboard-agent-listen-port": 0,
        "include-log-monitor": "false",
    }
    words = [f"--{name}={value}" for name, value in options.items()]
    with quietly(), log.open("ab") as file:
        # A session of its own, so that Ctrl-C comes to this process alone, which then ends all in order.
        return subprocess.Popen(
            [sys.executable, "-c", _START_NODE, str(os.getpid()), "--block", "--disable-usage-stats", *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _end(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """End nodes that were started; each takes its own processes with it."""
    for node in started:
        node.terminate()
    until = time.monotonic() + _END_S
    for node in started:
        try:
            node.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGKILL)
            node.wait()
