"""``gridweave gateway``: a gateway in front of a grid that runs on Ray."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from gridweave.cli.options import named_as_typed
from gridweave.cli.output import say
from gridweave.errors import OptionError, not_installed

_LISTEN = re.compile(r"(?:(?P<host>\[[^\]]+\]|[^\[\]:]+):)?(?P<port>\d{1,5})", re.ASCII)


def gateway(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to listen on; port 0 takes any free one.")
    ] = "127.0.0.1:8765",
    namespace: Annotated[str, typer.Option(metavar="NAME", help="Ray namespace of the grid's actors.")] = "gridweave",
    address: Annotated[str, typer.Option(help="Address of the Ray cluster, e.g. auto or HOST:PORT.")] = "auto",
    tokens: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            envvar="GRIDWEAVE_TOKENS",
            help="Token database: a path or a URL (postgresql://USER@HOST/DATABASE). Without it: loopback only.",
        ),
    ] = None,
    cert: Annotated[str | None, typer.Option(metavar="FILE", help="TLS certificate.")] = None,
    key: Annotated[str | None, typer.Option(metavar="FILE", help="TLS key.")] = None,
) -> None:
    """Run the HTTP gateway of a grid on Ray (docs/gateway.md). Requests are logged to standard error, one per line.

    Example: gridweave gateway --listen 0.0.0.0:8765 --tokens tokens.db --cert grid.pem --key grid.key
    """
    host, port = parse_listen(listen)
    try:
        from gridweave.grid.gateway.settings import GatewaySettings
        from gridweave.grid.service.gateway_process import run_gateway
    except ImportError as error:
        raise not_installed(error.name) from None
    with named_as_typed(host="--listen", port="--listen"):
        settings = GatewaySettings(host=host, port=port, tokens=tokens, cert=cert, key=key)
        _join(address, namespace)
        run_gateway(settings, namespace=namespace, say=say)


def parse_listen(text: str) -> tuple[str, int]:
    """Return the host and the port of where to listen; a port alone is on this machine.

    Examples
    --------
    >>> parse_listen("0.0.0.0:8765"), parse_listen("[::1]:0"), parse_listen("8765")
    (('0.0.0.0', 8765), ('::1', 0), ('127.0.0.1', 8765))

    Raises
    ------
    OptionError
        If it is none.
    """
    found = _LISTEN.fullmatch(text.strip())
    if found is None or int(found["port"]) > 65_535:
        raise OptionError("--listen", f"{text!r} is no address; write HOST:PORT, for example 127.0.0.1:8765")
    return (found["host"] or "127.0.0.1").strip("[]"), int(found["port"])


def _join(address: str, namespace: str) -> None:
    """Connect to a Ray cluster that runs."""
    import logging

    import ray

    from gridweave.grid.service.ray import RAY_ERRORS, join_problem, knock, quietly

    knock(address)
    try:
        with quietly():
            ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level=logging.ERROR)
    except RAY_ERRORS as error:
        raise join_problem(f"the cluster at {address}", error) from None
