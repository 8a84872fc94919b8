"""What both sides of ``gridweave serve`` have in common: the gateway, its tokens, and how the process ends."""

from __future__ import annotations

import asyncio
import getpass
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from gridweave.errors import OptionError
from gridweave.grid.gateway.server import Gateway
from gridweave.grid.gateway.settings import is_loopback
from gridweave.grid.gateway.tokens import TokenStore
from gridweave.grid.live.local_gateway import GatewayPlan
from gridweave.grid.live.local_state import TOKEN, TOKENS, make_private, write_private
from gridweave.site.service.link import LinkEnd

Say = Callable[[str], None]
"""Hears what is going on, line by line."""

STOP_S = 3.0
"""So long requests may take to come to an end when the process is told to end."""


def prepare_tokens(plan: GatewayPlan, folder: Path) -> str:
    """See to it that there is an operator's token; return where tokens are kept.

    Parameters
    ----------
    plan : GatewayPlan
    folder : pathlib.Path
        Closed to other users.

    Raises
    ------
    OptionError
        If the file with the operator's token cannot be used.
    """
    place = str(make_private(folder) / TOKENS)
    if not plan.tokens:
        return place
    store = TokenStore(place)
    try:
        if plan.operator_token_file is not None:
            _adopt(store, plan.operator_token_file)
        else:
            make_token(store, folder / TOKEN)
    finally:
        store.close()
    return place


def _adopt(store: TokenStore, file: str) -> None:
    try:
        text = Path(file).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "is no ASCII"
        raise OptionError("gateway.operator_token_file", f"{file}: {problem}; name a file with a token") from None
    try:
        store.adopt(text, "operator", "operate")
    except OptionError as error:
        raise OptionError("gateway.operator_token_file", f"{file}: {error.problem}") from None


def make_token(store: TokenStore, file: Path) -> None:
    """Make a token for the user of this process that may do everything, unless there is one that still can be used.

    Parameters
    ----------
    store : TokenStore
    file : pathlib.Path
        For the token; closed to other users.
    """
    if file.exists() and store.find(file.read_text(encoding="ascii").strip()) is not None:
        return
    write_private(file, store.create(getpass.getuser(), "operate").token + "\n")


def warn_of_plain(ends: Sequence[LinkEnd], say: Say) -> None:
    """Tell which secrets go over the network for all to read."""
    for end in ends:
        if end.url.startswith("http:") and not is_loopback(urlsplit(end.url).hostname or ""):
            say(f"warning: {end.url} is not encrypted: whoever is on the way can read the secret of its link")


async def serve_gateway(gateway: Gateway, works: Sequence[Awaitable[None]], say: Say) -> None:
    """Serve until INT or TERM, or until a work fails; at HUP the certificate is read again.

    Parameters
    ----------
    gateway : Gateway
    works : sequence of awaitable
        What goes on besides; one that comes to an end without an error is no reason to end.
    say : callable

    Raises
    ------
    GridweaveError
        Of a work.
    OptionError
        If the gateway cannot listen.
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
            while not is_over.is_set():
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            say("told to end")
        finally:
            await gateway.stop()
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _nothing(work: Awaitable[None]) -> object:
    await work
    return None
