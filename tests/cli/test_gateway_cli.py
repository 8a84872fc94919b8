"""`gridweave gateway` and `gridweave token`: what they print, and how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import platformdirs
import pytest

from gridweave.grid.config.local_state import LocalGridState, LocalProcess, state_folder, write_state
from gridweave.grid.gateway.access import TokenStore
from gridweave.site.machine.processes import boot_id
from support.machine import PATIENCE_S

Shell = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def no_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No grid runs here, and no place of tokens is in the environment."""
    monkeypatch.delenv("GRIDWEAVE_TOKENS", raising=False)
    monkeypatch.setattr(platformdirs, "user_state_path", lambda name: tmp_path / "state" / name)


def test_tokens_are_made_listed_and_revoked(shell: Shell, tmp_path: Path) -> None:
    """A token is printed once, listed without its secret, and revoked by its id or by itself."""
    place = tmp_path / "t"
    status, out, err = shell("token", "create", "anna", "--scope", "operate", "--valid", "30d", "--tokens", place)
    assert (status, out.count("\n")) == (0, 1)
    assert "it is for anna to operate, until" in err
    token = out.strip()
    status, out, _ = shell("token", "list", "--tokens", place)
    assert (status, "anna" in out, token.split("_")[1] in out) == (0, True, True)
    assert token.split("_", 2)[2] not in out
    _, out, _ = shell("token", "create", "bob", "--tokens", place, "--json")
    bob = json.loads(out)
    assert (bob["user"], bob["scopes"]) == ("bob", ["read", "submit", "cancel"])
    assert bob["until_ms"] - bob["made_ms"] == 90 * 86_400_000
    _, out, _ = shell("token", "list", "--tokens", place, "--json")
    assert [one["user"] for one in json.loads(out)] == ["anna", "bob"]
    status, _, err = shell("token", "revoke", token, bob["token_id"], "--tokens", place)
    assert (status, token.split("_", 2)[2] in err) == (0, False)
    status, _, err = shell("token", "revoke", token, "--tokens", place)
    assert (status, token.split("_", 2)[2] in err) == (2, False)
    _, out, err = shell("token", "list", "--tokens", place)
    assert (out, "gridweave token create" in err) == ("", True)
    status, out, err = shell("token", "audit", "--tokens", place)
    assert (status, out) == (0, "")
    assert "audit.log: 4 lines in 1 file, none changed or removed" in err
    log = tmp_path / "audit.log"
    log.write_text(log.read_text().replace("token-revoke", "token-create"))
    status, _, err = shell("token", "audit", log)
    assert (status, f"{log}: line 4 does not follow from the one before" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("create", "anna"), "--tokens: is not given, and no grid runs here"),
        (("create", "", "--tokens", "t"), "USER: '' is not a name"),
        (
            ("create", "anna", "--scope", "king", "--tokens", "t"),
            "--scope: 'king' is not known; one or several of read",
        ),
        (("create", "anna", "--valid", "soon", "--tokens", "t"), "--valid: 'soon' is not a time"),
        (("create", "anna", "--valid", "0", "--tokens", "t"), "--valid"),
        (("create", "anna", "--max-nodes", "0", "--tokens", "t"), "--max-nodes: is 0; a whole number from 1 up"),
        (
            ("create", "anna", "--max-priority", "nan", "--tokens", "t"),
            "--max-priority: is nan; a number that is finite",
        ),
        (("create", "anna", "--sites", "\udcff", "--tokens", "t"), "--sites: '\\udcff' is not a name"),
        (("create", "anna", "--tokens", "nowhere/t"), "nowhere is not a folder"),
        (("list", "--tokens", "none"), "none: there are no tokens there"),
        (("list", "--tokens", "mysql://x/y"), "--tokens"),
    ],
)
def test_bad_input_of_token(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    """What cannot be used ends with 2 and one line that says what would be right."""
    monkeypatch.chdir(tmp_path)
    status, out, err = shell("token", *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_tokens_of_the_grid_that_runs_here(shell: Shell) -> None:
    """Without a place the tokens are those of the grid that runs on this machine, if it has any."""
    me = LocalProcess.of_pid("gateway", os.getpid())
    assert me is not None
    for tokens in (True, False):
        state = LocalGridState(
            name="default",
            marker="m",
            boot=boot_id(),
            since_ms=0,
            folder="",
            namespace="gridweave",
            sites=(),
            processes=(me,),
            url="http://127.0.0.1:8765",
            tokens=tokens,
        )
        write_state(state)
        status, out, err = shell("token", "create", "anna")
        if tokens:
            store = TokenStore(state_folder("default") / "tokens.db")
            found = store.find(out.strip())
            store.close()
            assert (status, found and found.user) == (0, "anna")
        else:
            assert (status, "does not use tokens" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--listen", "everywhere"), "--listen: 'everywhere' is not an address"),
        (("--listen", "127.0.0.1:99999"), "--listen"),
        (("--listen", "0.0.0.0:0"), "gridweave token create"),
        (("--cert", "x.pem"), "--cert: is given without key"),
        (("--address", "127.0.0.1:1"), "no Ray cluster answers at 127.0.0.1:1"),
    ],
)
def test_bad_input_of_gateway(shell: Shell, arguments: tuple[str, ...], message: str) -> None:
    """A gateway that could not be meant, or that finds no cluster, is not started, and one line says why."""
    status, out, err = shell("gateway", *arguments)
    assert (status in (2, 3), out, err.count("\n")) == (True, "", 1)
    assert message in err


SERVE = """
import asyncio, sys
sys.path.insert(0, {tests!r})
from support.gateway import FakeBackend
from gridweave.grid.gateway.server import Gateway
from gridweave.grid.config.gateway import GatewaySettings
from gridweave.grid.service.gateway_process import log_requests, serve_gateway

async def main():
    await serve_gateway(Gateway(FakeBackend(), GatewaySettings(port=0)), [], print_now)

def print_now(text):
    print(text, flush=True)

log_requests()
asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_gateway_serves_until_a_signal(number: signal.Signals) -> None:
    """The process says where it listens and that there are no tokens, writes a line per request, and ends well."""
    tests = str(Path(__file__).parents[1])
    with subprocess.Popen(
        [sys.executable, "-c", SERVE.format(tests=tests)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        url = process.stdout.readline().split()[-1]
        assert "everybody on this machine is an operator" in process.stdout.readline()
        with urllib.request.urlopen(f"{url}/healthz", timeout=PATIENCE_S) as response:
            assert response.status == 200
        process.send_signal(signal.SIGHUP)  # it has no certificate to read again
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 0
        line = json.loads(process.stderr.read())
    assert (line["route"], line["status"]) == ("healthz", 200)
