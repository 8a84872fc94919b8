"""What the live grid is made of."""

from __future__ import annotations

import msgspec

from gridweave.grid.limited_control import LEASE_MS
from gridweave.grid.net_links import GridNetwork
from gridweave.grid.policy import GridPolicy


class GridSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the live grid is made of; as long as its journal is used, it stays the same.

    Attributes
    ----------
    sites : tuple of (str, int)
        Name of each site, and how many of its nodes the grid may have.
    policy : GridPolicy
    seed : int
        For the selection ``random``.
    margin_ms, retry_ms, lease_ms : int
    network : GridNetwork, optional
        As for `gridweave.grid.meta_core.MetaCore`.
    """

    sites: tuple[tuple[str, int], ...]
    policy: GridPolicy
    seed: int = 0
    margin_ms: int = 500
    retry_ms: int = 10_000
    lease_ms: int = LEASE_MS
    network: GridNetwork | None = None
