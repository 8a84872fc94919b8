"""A gateway as a process of its own, beside a grid on Ray."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable

from gridweave.errors import UnavailableError
from gridweave.grid.gateway.backend import Backend
from gridweave.grid.gateway.server import Gateway
from gridweave.grid.gateway.settings import GatewaySettings


def run_gateway(settings: GatewaySettings, *, namespace: str, say: Callable[[str], None]) -> None:
    """Serve a grid on the Ray cluster that this process is connected to, until a signal (INT or TERM) ends it.

    When that Ray is gone the process ends with status 3: whoever keeps it going starts one that joins the next.

    Parameters
    ----------
    namespace : str
        Of the actors of the grid.
    say : callable
        Told where it listens.

    Raises
    ------
    OptionError
        If a setting cannot be used.
    """
    from gridweave.grid.service.backend import RayBackend
    from gridweave.grid.service.ray import watch_ray

    def lost() -> None:
        say("gridweave: the Ray that was joined is gone; start it and the gateway again")
        logging.shutdown()
        os._exit(UnavailableError.exit_status)  # to leave it in order would be to wait for it

    log_requests()
    watch_ray(lost)
    asyncio.run(serve(RayBackend(namespace), settings, say))


def log_requests() -> None:
    """Have the lines of requests, and what the gateway has to say, written to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    requests = logging.getLogger("gridweave.gateway.requests")
    requests.handlers, requests.propagate = [handler], False
    requests.setLevel(logging.INFO)
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")


async def serve(backend: Backend, settings: GatewaySettings, say: Callable[[str], None]) -> None:
    """Serve a grid until INT or TERM; at HUP the certificate is read again.

    Parameters
    ----------
    say : callable
        Told where it listens.
    """
    loop = asyncio.get_running_loop()
    is_over = asyncio.Event()
    gateway = Gateway(backend, settings)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, is_over.set)
    loop.add_signal_handler(signal.SIGHUP, gateway.reload_certificate)
    await gateway.start()
    try:
        say(f"the gateway listens at {gateway.url}")
        if settings.tokens is None:
            say("there are no tokens: everybody on this machine is an operator, and nobody else can reach it")
        await is_over.wait()
    finally:
        await gateway.stop()
