"""What a shell completes: states and outcomes of jobs, and the sites of the grid, as far as it answers at once."""

from __future__ import annotations

from gridweave.errors import GridweaveError

WAIT_S = 1.0
"""Nobody waits longer for a completion."""


def complete_states(incomplete: str) -> list[str]:
    """Return the states of jobs that begin so."""
    from gridweave.cli.job_commands import states

    return [state for state in states() if state.startswith(incomplete)]


def complete_outcomes(incomplete: str) -> list[str]:
    """Return how jobs end, where that begins so."""
    from gridweave.cli.job_commands import OUTCOMES

    return [outcome for outcome in OUTCOMES if outcome.startswith(incomplete)]


def complete_sites(incomplete: str) -> list[str]:
    """Return the sites of the grid whose names begin so; none if it does not answer at once, or there is none."""
    import asyncio

    from gridweave.grid.client.client import Client
    from gridweave.grid.client.transport import Patience

    async def names() -> list[str]:
        patience = Patience(total_s=WAIT_S, connect_s=0.0, try_s=WAIT_S)
        async with asyncio.timeout(WAIT_S), Client(patience=patience) as grid:
            return [site.name for site in await grid.sites()]

    try:
        return [name for name in asyncio.run(names()) if name.startswith(incomplete)]
    except (GridweaveError, OSError, TimeoutError):
        return []
