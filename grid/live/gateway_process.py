"""The process of a local grid's gateway: ``python -m gridweave.grid.live.gateway_process``, told by standard input."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path

import msgspec

from gridweave.errors import GridweaveError
from gridweave.grid.live.local_gateway import GatewayTask
from gridweave.grid.live.local_ray import connected
from gridweave.grid.live.local_state import write_private


def main() -> int:
    """Serve until a signal ends it."""
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=GatewayTask)
    try:
        serve(task)
    except GridweaveError as error:
        print(f"gridweave: {error}", file=sys.stderr)
        return error.exit_status
    return 0


def serve(task: GatewayTask) -> None:
    """Make sure that the user who starts it has a token, and serve.

    Parameters
    ----------
    task : GatewayTask
    """
    from gridweave.grid.gateway.running import run_gateway
    from gridweave.grid.gateway.settings import GatewaySettings

    plan = task.plan
    if plan.tokens:
        make_token(task.tokens, Path(task.token))
    settings = msgspec.convert(
        {
            "host": plan.host,
            "port": plan.port,
            "tokens": task.tokens if plan.tokens else None,
            "cert": plan.cert,
            "key": plan.key,
            **plan.limits,
        },
        GatewaySettings,
    )
    with connected(task.address):
        run_gateway(settings, namespace=task.namespace, say=lambda text: print(text, file=sys.stderr))


def make_token(place: str, file: Path) -> None:
    """Make a token for the user of this process that may do everything, unless there is one that still can be used.

    Parameters
    ----------
    place : str
        Where tokens are kept.
    file : pathlib.Path
        For the token; closed to other users.
    """
    from gridweave.grid.gateway.tokens import TokenStore

    store = TokenStore(place)
    try:
        if file.exists() and store.find(file.read_text(encoding="ascii").strip()) is not None:
            return
        write_private(file, store.create(getpass.getuser(), "operate").token + "\n")
    finally:
        store.close()


if __name__ == "__main__":
    sys.exit(main())
