"""What is wrong about users, maps, tokens and issuers is said in one line, through the real commands."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

import gridweave.grid.gateway.issuer
from gridweave.grid.config.gateway import IssuerSettings
from gridweave.site.launch import MachineRules
from support.gateway import FakeBackend, serving
from support.live_grids import GridBehindGateway
from support.machine import unused_port

GRIDWEAVE = [sys.executable, "-m", "gridweave.cli"]


def said(*command: str, **environment: str) -> str:
    """Return the one line that a command fails with."""
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, check=False)
    return one_line(done.returncode, done.stdout, done.stderr)


def one_line(code: int | None, out: str, err: str) -> str:
    """Return what a command has said, if it failed with one line."""
    lines = err.splitlines()
    assert (code != 0, out, len(lines)) == (True, "", 1), (code, out, err)
    return lines[0]


def test_a_user_without_a_mapping_is_told_by_submit(tmp_path: Path) -> None:
    """No site takes the user: nothing is taken in, and each site's reason and what to do stand in the line."""
    rules = {"north": MachineRules(owner="olga"), "south": MachineRules(owner="otto")}
    with GridBehindGateway(tmp_path, rules=rules) as grid:
        while len(grid.grid.driver.grid.state().takes) < len(rules):
            grid.do(asyncio.sleep(0.02))
        line = said(*GRIDWEAVE, "submit", "--url", grid.url, "--", "true")
    assert "no site accepts jobs of '" in line
    assert "north: it only runs jobs of 'olga', and this job is of '" in line
    assert "south: it only runs jobs of 'otto', and this job is of '" in line
    assert "docs/launchers.md says how to run jobs of other users" in line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[users]\nanna = "root"\n', "users.anna is 'root', which is root; map it to an ordinary account"),
        (
            '[users]\nanna = "nobody-here"\n',
            "this machine has no Unix account 'nobody-here'; create it, or name another",
        ),
    ],
)
def test_a_map_to_root_is_refused_by_the_launcher(text: str, line: str) -> None:
    """The launcher does not start with a file that would make anybody root, or that names nobody."""
    if os.getuid() != 0:
        pytest.skip("only root can start a launcher")
    with tempfile.TemporaryDirectory(prefix="gridweave-test-", dir="/run") as folder:
        file = Path(folder) / "launcher.toml"
        file.write_text(f'service = "root"\nsocket = "{folder}/socket"\n{text}')
        assert line in said(sys.executable, "-P", "-m", "gridweave.site.machine.launcher", str(file))


def test_a_scope_that_is_none_is_told_by_token_create(tmp_path: Path) -> None:
    """The line names the option, what was typed, and what is right; no token is made."""
    line = said(*GRIDWEAVE, "token", "create", "anna", "--scope", "sumbit", "--tokens", str(tmp_path / "t.db"))
    assert line.endswith("--scope: 'sumbit' is not known; one or several of read, submit, cancel, operate")


@pytest.mark.asyncio
async def test_an_issuer_that_cannot_be_reached_is_told_to_its_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line says that it is the issuer, and where; tokens of the gateway go on to work."""
    # The command would wait until the gateway asks the issuer again; for an hour it does not.
    monkeypatch.setattr(gridweave.grid.gateway.issuer, "_PAUSE_S", 3600.0)
    url = f"http://127.0.0.1:{unused_port()}"
    issuer = IssuerSettings(url=url, audience="gridweave")
    token = jwt.encode({"iss": url, "sub": "anna"}, ec.generate_private_key(ec.SECP256R1()), algorithm="ES256")
    async with serving(FakeBackend(), tokens=str(tmp_path / "t"), issuer=issuer) as grid:
        command = [*GRIDWEAVE, "queue", "--url", grid.gateway.url]
        environment = os.environ | {"GRIDWEAVE_TOKEN": token}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = await asyncio.create_subprocess_exec(*command, env=environment, **pipes)
        out, err = await process.communicate()
    line = one_line(process.returncode, out.decode(), err.decode())
    assert f"the issuer {url} gives no keys" in line
