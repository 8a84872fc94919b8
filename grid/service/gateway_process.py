"""A local grid's gateway as a process: ``python -m gridweave.grid.service.gateway_process``, told by standard input."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from gridweave.errors import GridweaveError
from gridweave.grid.service.local_gateway import GatewayTask
from gridweave.grid.service.ray import connected


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
    """Make sure that the user who starts it has a token, and serve."""
    from gridweave.grid.gateway.access import TokenStore
    from gridweave.grid.gateway.running import run_gateway
    from gridweave.grid.service.serve import make_token

    plan = task.plan
    if plan.tokens:
        store = TokenStore(task.tokens)
        try:
            make_token(store, Path(task.token))
        finally:
            store.close()
    settings = plan.settings(task.tokens)
    with connected(task.address):
        run_gateway(settings, namespace=task.namespace, say=lambda text: print(text, file=sys.stderr))


if __name__ == "__main__":
    sys.exit(main())
