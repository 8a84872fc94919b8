"""What `gridweave serve` does before anything runs, and how it ends: tokens, files of links, signals, failures."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from gridweave.errors import InputError, OptionError, UnavailableError
from gridweave.grid.config.gateway import GatewaySettings
from gridweave.grid.config.reading import service_of_text
from gridweave.grid.config.tables import GatewayTable
from gridweave.grid.gateway.access import TokenStore
from gridweave.grid.gateway.server import Gateway
from gridweave.grid.service.actor import MetaActor
from gridweave.grid.service.gateway_process import prepare_tokens, serve_gateway
from gridweave.grid.service.ray import LOOPBACK
from gridweave.grid.service.serve import (
    grid_service,
    own_address,
    serve_site,
    site_service,
)
from gridweave.site.job import JobRequest, Program
from gridweave.site.service.calls import ActorCalls
from gridweave.site.service.clock import Clock
from support.gateway import FakeBackend

SITE = (
    'folder = "state"\n[site]\nname = "beta"\nnumber = 0\nnodes = 6\n'
    '[uplink]\nurl = "http://127.0.0.1:9"\ntoken_file = "out"\naccepts_file = "in"\n'
)
GRID = (
    'folder = "state"\n[[sites]]\nname = "beta"\nnodes = 6\n'
    'url = "http://127.0.0.1:9"\ntoken_file = "out"\naccepts_file = "in"\n[gateway]\nhost = "127.0.0.1"\nport = 0\n'
)


def test_the_operators_token_is_the_one_in_the_file(tmp_path: Path) -> None:
    """Any long text is taken in, and takes the place of the one before; what others have made stays."""
    file = tmp_path / "operator"
    plan = GatewayTable(operator_token_file=str(file))
    first, second = "a" * 32, "gw_0123456789ab_" + "b" * 40
    for text in (first, second):
        file.write_text(f"{text}\n")
        store = TokenStore(prepare_tokens(plan, tmp_path / "state"))
        found = store.find(text)
        assert found is not None
        assert (found.user, found.scopes) == ("operator", ("operate",))
        store.close()
    store = TokenStore(tmp_path / "state" / "tokens.db")
    assert store.find(first) is None
    made = store.create("anna")
    store.close()
    prepare_tokens(plan, tmp_path / "state")
    store = TokenStore(tmp_path / "state" / "tokens.db")
    assert {info.user for info in store.list()} == {"operator", "anna"}
    assert store.find(made.token) is not None
    assert store.find(second + "x") is None
    store.close()
    for text in ("short", "with blanks " * 5):
        file.write_text(text)
        with pytest.raises(OptionError, match=r"gateway\.operator_token_file: .*openssl rand"):
            prepare_tokens(plan, tmp_path / "state")


def test_without_a_file_a_token_is_made_once(tmp_path: Path) -> None:
    """It is in the folder, closed to others, and the same at the next start."""
    place = prepare_tokens(GatewayTable(), tmp_path / "state")
    token = (tmp_path / "state" / "token").read_text()
    assert prepare_tokens(GatewayTable(), tmp_path / "state") == place
    assert (tmp_path / "state" / "token").read_text() == token
    assert (tmp_path / "state" / "token").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(("missing", "says"), [("out", "uplink: secret: "), ("in", "uplink: secret: ")])
def test_a_site_says_which_secret_is_missing_before_it_starts_anything(tmp_path: Path, missing: str, says: str) -> None:
    """A file of the link that cannot be used ends it at once, and nothing is started."""
    for name in {"in", "out"} - {missing}:
        (tmp_path / name).write_text("s" * 40)
    service = site_service(service_of_text(SITE, "beta.toml", str(tmp_path)))
    with pytest.raises(OptionError, match=f"{says}.*{missing}"):
        serve_site(service, lambda text: None)
    assert not (tmp_path / "state" / "ray.json").exists()


def a_gateway() -> Gateway:
    """Return a gateway at any port of this machine."""
    return Gateway(FakeBackend(), GatewaySettings(port=0))


@pytest.mark.asyncio
async def test_a_signal_ends_it_in_order() -> None:
    """TERM ends what is served; what goes on besides is ended with it."""
    ended: list[str] = []
    said: list[str] = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    await serve_gateway(a_gateway(), [work()], said.append)
    assert ended == ["work"]
    assert said[-1] == "asked to end"


@pytest.mark.asyncio
async def test_a_work_that_fails_ends_it_with_its_error() -> None:
    """Whoever supervises the process sees by its status that it did not end by itself."""

    async def fails() -> None:
        raise UnavailableError("the head of Ray has ended")

    async def is_done() -> None:
        return

    with pytest.raises(UnavailableError, match="the head of Ray"):
        await serve_gateway(a_gateway(), [is_done(), fails()], lambda text: None)


@pytest.mark.asyncio
async def test_a_journal_of_another_grid_ends_the_side_of_the_grid(tmp_path: Path) -> None:
    """A journal that can never be used is an error, not something to be tried forever."""
    for name in ("in", "out"):
        (tmp_path / name).write_text("s" * 40)

    job = JobRequest(program=Program(argv=("true",)), nodes=1, limit_ms=1_000, user="anna")

    async def begin(text: str) -> None:
        service: Any = grid_service(service_of_text(text, "grid.toml", str(tmp_path)))
        (tmp_path / "state").mkdir(exist_ok=True)
        machines = tuple(site.machines for site in service.sites)
        meta = MetaActor(service.settings, service.journal, Clock(), machines, calls=ActorCalls("nowhere"), far=True)
        try:
            await meta.ready()
            await (await meta.queries()).submit([("key", job)], origin="a test")
        finally:
            await meta.stop()

    await begin(GRID)
    await begin(GRID)
    with pytest.raises(InputError, match="its inputs need other settings"):
        await begin(GRID.replace("nodes = 6", "nodes = 7"))


class NoWay(socket.socket):
    """A socket of a machine whose network is away."""

    def connect(self, address: Any) -> None:
        """Find no way."""
        raise OSError("Network is unreachable")


def test_a_site_is_reached_where_it_reaches_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address is that of the way to the grid; without one a site is still there for itself."""
    assert own_address("http://127.0.0.1:8765") == "127.0.0.1"
    assert own_address("http://127.0.0.9:8765") == "127.0.0.1"
    anywhere = own_address("")
    assert own_address("http://no-such-name.invalid:8765") == anywhere, "a name that is not known now"
    monkeypatch.setattr(socket, "socket", NoWay)
    assert own_address("http://127.0.0.1:8765") == LOOPBACK
