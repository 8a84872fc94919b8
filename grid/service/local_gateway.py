"""The gateway of a local grid, as a process of its own."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import msgspec

from gridweave.errors import UnavailableError
from gridweave.grid.config.tables import GatewayTable
from gridweave.grid.gateway.settings import DEFAULT_PORT
from gridweave.grid.service.ending import MARKER_VARIABLE
from gridweave.grid.service.ray import free_port, token_environment
from gridweave.grid.service.state import GATEWAY, LOGS, TOKEN, TOKENS, LocalGridState, LocalProcess

READY_S = 60.0
LOG = "gateway.log"
_LOOK_EVERY_S = 0.05


class GatewayTask(msgspec.Struct, frozen=True, kw_only=True):
    """What the process of a gateway is told (`gridweave.grid.service.gateway_process`).

    Attributes
    ----------
    plan : GatewayTable
        With its port.
    address : str
        Of Ray.
    namespace : str
        Of the actors of the grid.
    tokens : str
        Where tokens are kept.
    token : str
        The file for the token of the user who starts it.
    """

    plan: GatewayTable
    address: str
    namespace: str
    tokens: str
    token: str


def start_gateway(
    plan: GatewayTable, state: LocalGridState, folder: Path, ray_token: Path | None
) -> tuple[LocalProcess, str]:
    """Start the gateway of a grid; it looks for the actors by itself.

    Parameters
    ----------
    state : LocalGridState
        Its ``url`` is where it listened before, if it did.
    folder : pathlib.Path
        Of the state.
    ray_token : pathlib.Path, optional
        The file of the token of Ray.

    Returns
    -------
    LocalProcess, str
        The process, and the URL at which it will answer.
    """
    before = int(state.url.rpartition(":")[2]) if state.url else DEFAULT_PORT
    port = free_port(plan.host, before if plan.port is None else plan.port)
    if plan.port and port != plan.port:
        raise UnavailableError(f"gateway.port: something else listens at {plan.host}:{plan.port}; name another port")
    task = GatewayTask(
        plan=msgspec.structs.replace(plan, port=port),
        address=state.address,
        namespace=state.namespace,
        tokens=str(folder / TOKENS),
        token=str(folder / TOKEN),
    )
    environment = dict(os.environ) | {MARKER_VARIABLE: state.marker}
    if ray_token is not None:
        environment = {name: value for name, value in environment.items() if not name.startswith("RAY_")}
        environment |= token_environment(ray_token)
    if "PYTHONPATH" in environment:
        paths = environment["PYTHONPATH"].split(os.pathsep)
        environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, paths))
    with (folder / LOGS / LOG).open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "gridweave.grid.service.gateway_process", state.name],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    assert child.stdin is not None
    with child.stdin as orders:
        orders.write(msgspec.json.encode(task))
    process = LocalProcess.of_pid(GATEWAY, child.pid)
    assert process is not None, "a child that was not waited for has a number"
    return process, url_of(plan, port)


def url_of(plan: GatewayTable, port: int) -> str:
    """Return at which URL a gateway is reached from this machine.

    Examples
    --------
    >>> url_of(GatewayTable(host="0.0.0.0"), 8765), url_of(GatewayTable(host="::1", cert="c", key="k"), 443)
    ('http://127.0.0.1:8765', 'https://[::1]:443')
    """
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(plan.host, plan.host)
    return f"{'http' if plan.cert is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"


def wait_until_ready(url: str, process: LocalProcess, logs: Path) -> None:
    """Wait until a gateway answers for the grid behind it.

    Raises
    ------
    UnavailableError
        If it ends before, or takes too long.
    """
    until = time.monotonic() + READY_S
    while not answers(url):
        if not process.is_alive:
            raise UnavailableError(f"the gateway has ended: {last_words(logs / LOG)}")
        if time.monotonic() > until:
            raise UnavailableError(f"the gateway is not ready after {READY_S:.0f} s; see {logs / LOG}")
        time.sleep(_LOOK_EVERY_S)


def answers(url: str, *, timeout_s: float = 5.0) -> bool:
    """Return whether a gateway answers for the grid behind it."""
    # Nothing secret is sent, and who answers is not asked: the certificate may be for another name of this machine.
    anybody = ssl._create_unverified_context()
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=timeout_s, context=anybody) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError, ValueError):
        return False


def last_words(log: Path) -> str:
    """Return the last line that a process has written."""
    try:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    return lines[-1].strip() if lines else f"nothing is told; see {log}"
