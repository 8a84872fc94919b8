"""What a live grid is made of, and which of that may change while its journal is used."""

from __future__ import annotations

import msgspec
from numpy.random import PCG64, Generator

from gridweave.grid.control.limited import LEASE_MS
from gridweave.grid.control.links import GridNetwork
from gridweave.grid.meta.core import MetaCore
from gridweave.grid.meta.traffic import KnownTraffic
from gridweave.grid.policy import MAPPINGS, SELECTIONS, GridPolicy
from gridweave.grid.sends import UsualCommunication
from gridweave.settings import Changeable
from gridweave.site.needs.known import UsualNeeds
from gridweave.site.scheduler.contract import ALONE_MS


def changeable_of(policy: GridPolicy) -> Changeable:
    """Return the settings of a grid that may change while its journal is used.

    Not among them is what decides which state is kept: control, starts that are reserved, tuning, and chance.
    """
    names = ("margin_ms", "retry_ms", "lease_ms", "alone_ms", "usual", "needs")
    links = ("earliest_end", "exact_up_to", "max_split_factor")
    options = ("mode", "head_reservation", "overhead", "lower_bound", "max_fragments", "reserve_after_s")
    order = {} if policy.tuning is not None or policy.backfill == "conservative" else {"policy.order": None}
    return {
        **dict.fromkeys((*names, *(f"network.{name}" for name in links), *(f"policy.{name}" for name in options))),
        **order,
        "policy.selection": MAPPINGS if policy.maps else tuple(name for name in SELECTIONS if name != "random"),
    }


class GridSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the live grid is made of; as long as its journal is used, only what is `changeable` may change."""

    sites: tuple[tuple[str, int], ...]  # name of each site, and how many of its nodes the grid may have
    policy: GridPolicy
    seed: int = 0  # for the selection ``random``
    margin_ms: int = 500
    retry_ms: int = 10_000
    lease_ms: int = LEASE_MS
    alone_ms: int = ALONE_MS  # so long after it was opened a gate that is still closed stays so
    network: GridNetwork | None = None  # as for `gridweave.grid.meta.core.MetaCore`
    # What processes take to start, and their ends to be heard of; None: what the last jobs took. Decides nothing.
    start_ms: int | None = None
    end_ms: int | None = None
    usual: UsualCommunication = UsualCommunication()  # what jobs send that say nothing of it
    needs: UsualNeeds = UsualNeeds()  # what they need of the nodes that they share

    @property
    def changeable(self) -> Changeable:
        """The settings that may change while a journal is used."""
        return changeable_of(self.policy)


def core_of(settings: GridSettings) -> MetaCore:
    """Return the fresh core of a grid with these settings."""
    rng = Generator(PCG64(settings.seed)) if settings.policy.selection == "random" else None
    return MetaCore(
        [nodes for _, nodes in settings.sites],
        settings.policy,
        rng=rng,
        margin_ms=settings.margin_ms,
        retry_ms=settings.retry_ms,
        lease_ms=settings.lease_ms,
        network=settings.network,
        names=[name for name, _ in settings.sites],
    )


def traffic_of(settings: GridSettings) -> KnownTraffic:
    """Return what a grid with these settings knows of what jobs send, before any has run."""
    moves_data = settings.policy.backfill != "conservative"
    return KnownTraffic([name for name, _ in settings.sites], settings.usual, moves_data=moves_data)
