"""Prepare a gateway's tokens, settings and address, and run a gateway in the foreground (`gridweave gateway`)."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import logging
import os
import signal
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gridweave.errors import OptionError, UnavailableError
from gridweave.grid.api import Scope
from gridweave.grid.config.gateway import DEFAULT_PORT, GatewaySettings
from gridweave.grid.config.local_state import LOGS, TOKEN, TOKENS, LocalGridState, make_private, write_private
from gridweave.grid.gateway.access import FROM_FILE, SCRAPER, TokenStore
from gridweave.grid.gateway.audit import PrivateRotation
from gridweave.grid.service.ray import free_port, watch_ray
from gridweave.site.times import span_text

if TYPE_CHECKING:
    from gridweave.grid.config.tables import GatewayTable
    from gridweave.grid.gateway.server import Gateway

Say = Callable[[str], None]
"""Called with progress messages, line by line."""

READY_S = 60.0
REQUESTS = "requests.log"
_LOOK_EVERY_S, _ANSWER_S = 0.05, 5.0


def prepare_tokens(plan: GatewayTable, folder: Path, *, passable: bool = False) -> str:
    """Ensure that an operator's token exists; return the token database's path. `passable` is as in `make_private`."""
    place = str(make_private(folder, passable=passable) / TOKENS)
    if not plan.tokens:
        return place
    with contextlib.closing(TokenStore(place)) as store:
        if plan.operator_token_file is not None:
            _adopt(store, "operator_token_file", plan.operator_token_file, ("operate",), FROM_FILE)
        else:
            make_token(store, folder / TOKEN)
        if plan.scraper_token_file is not None:
            _adopt(store, "scraper_token_file", plan.scraper_token_file, ("read",), SCRAPER)
    return place


def _adopt(store: TokenStore, option: str, file: str, scopes: tuple[Scope, ...], token_id: str) -> None:
    try:
        text = Path(file).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "is not ASCII"
        raise OptionError(f"gateway.{option}", f"{file}: {problem}; name a file with a token") from None
    try:
        store.adopt(text, "operator" if "operate" in scopes else "scraper", scopes, token_id=token_id)
    except OptionError as error:
        raise OptionError(f"gateway.{option}", f"{file}: {error.problem}") from None


def make_token(store: TokenStore, file: Path) -> None:
    """Create an operator's token for the user of this process, unless the file has a valid token."""
    if file.exists() and store.find(file.read_text(encoding="ascii").strip()) is not None:
        return
    # The file is readable by this user only; a user with the token can create others.
    write_private(file, store.create(getpass.getuser(), ("operate",), days=None).token + "\n")


async def serve_gateway(gateway: Gateway, works: Sequence[Awaitable[None]], say: Say) -> None:
    """Serve until SIGINT or SIGTERM, or until a task fails; SIGHUP reloads the certificate.

    A task that ends without an error does not end the gateway.
    """
    loop = asyncio.get_running_loop()
    is_over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, is_over.set)
    loop.add_signal_handler(signal.SIGHUP, gateway.reload_certificate)
    waiting: set[asyncio.Future[object]] = {asyncio.ensure_future(is_over.wait())}
    waiting |= {asyncio.ensure_future(_nothing(work)) for work in works}
    try:
        await gateway.start()
        try:
            say(f"the gateway listens at {gateway.url}")
            if gateway.settings.tokens is None:
                say("there are no tokens: everybody on this machine is an operator, and nobody else can connect")
            while not is_over.is_set():
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            say("asked to end")
        finally:
            await gateway.stop()
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _nothing(work: Awaitable[None]) -> object:
    await work
    return None


def run_gateway(settings: GatewaySettings, *, namespace: str, say: Callable[[str], None]) -> None:
    """Serve a grid on the Ray cluster that this process is connected to, until SIGINT or SIGTERM.

    If the cluster ends, the process exits with status 3, so that a supervisor restarts it and it joins the next one.
    """
    from gridweave.grid.gateway.server import Gateway
    from gridweave.grid.service.backend import RayBackend

    def lost() -> None:
        say("gridweave: the Ray that was joined is gone; start it and the gateway again")
        logging.shutdown()
        os._exit(UnavailableError.exit_status)  # an orderly shutdown would wait for the Ray that is gone

    async def serve() -> None:
        await serve_gateway(Gateway(RayBackend(namespace), settings), [], say)

    log_requests(settings.log)
    watch_ray(lost)
    asyncio.run(serve())


def log_requests(path: str | None = None) -> None:
    """Log to standard error; write the request log to the file `path`, or to standard error without a path."""
    handler = logging.StreamHandler() if path is None else PrivateRotation(path)
    handler.setFormatter(logging.Formatter("%(message)s"))
    requests = logging.getLogger("gridweave.gateway.requests")
    requests.handlers, requests.propagate = [handler], False
    requests.setLevel(logging.INFO)
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")


def settings_of(plan: GatewayTable, state: LocalGridState, folder: Path) -> GatewaySettings:
    """Return the settings of a local grid's gateway, with the port in ``state.url`` if that port is free.

    Raise UnavailableError if another process is listening at the configured port.
    """
    before = int(state.url.rpartition(":")[2]) if state.url else DEFAULT_PORT
    port = free_port(plan.host, before if plan.port is None else plan.port)
    if plan.port and port != plan.port:
        raise UnavailableError(f"gateway.port: another process listens at {plan.host}:{plan.port}; name another port")
    settings = plan.settings(str(folder / TOKENS))
    return msgspec.structs.replace(settings, port=port, log=str(folder / LOGS / REQUESTS))


def url_of(settings: GatewaySettings) -> str:
    """Return the URL by which this machine reaches a gateway.

    Examples
    --------
    >>> url_of(GatewaySettings(host="0.0.0.0", tokens="t", plain_http=True))
    'http://127.0.0.1:8765'
    >>> url_of(GatewaySettings(host="::1", port=443, cert="c", key="k"))
    'https://[::1]:443'
    """
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(settings.host, settings.host)
    scheme = "http" if settings.cert is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.port}"


def wait_until_ready(url: str) -> None:
    """Wait until a gateway answers for its grid; raise UnavailableError if that takes too long."""
    until = time.monotonic() + READY_S
    while not answers(url):
        if time.monotonic() > until:
            raise UnavailableError(
                f"the gateway at {url} does not answer for the grid after {span_text(READY_S * 1000)}"
            )
        time.sleep(_LOOK_EVERY_S)


def answers(url: str) -> bool:
    """Whether the gateway at a URL is running and its grid is responding."""
    # Nothing secret is sent. The certificate is not verified, because it may name this machine differently.
    anybody = ssl._create_unverified_context()
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=_ANSWER_S, context=anybody) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError, ValueError):
        return False
