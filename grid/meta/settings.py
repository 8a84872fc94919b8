"""The settings of a live grid, and which settings may change while the grid's journal is in use."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from numpy.random import PCG64, Generator

from gridweave.grid.control.limited import LEASE_MS
from gridweave.grid.control.links import GridNetwork
from gridweave.grid.kernels.resources import counted_grid
from gridweave.grid.meta.core import MetaCore
from gridweave.grid.meta.traffic import KnownTraffic
from gridweave.grid.policy import MAPPINGS, SELECTIONS, GridPolicy
from gridweave.grid.sends import UsualCommunication
from gridweave.settings import Changeable
from gridweave.site.job import JobRecord
from gridweave.site.needs.estimates import UsualNeeds
from gridweave.site.resources.chunks import NodeKind
from gridweave.site.scheduler.contract import ALONE_MS


def changeable_of(policy: GridPolicy) -> Changeable:
    """Return the settings of a grid that may change while its journal is in use.

    Settings that determine the type of the state may not change: the level of control, conservative backfilling, tuning
    and random selection.
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
    """The settings of a live grid; while its journal is in use, only the `changeable` settings may change."""

    sites: tuple[tuple[str, int], ...]  # each site's name and the number of its nodes that the grid may use
    policy: GridPolicy
    seed: int = 0  # for the selection ``random``
    margin_ms: int = 500
    retry_ms: int = 10_000
    lease_ms: int = LEASE_MS
    alone_ms: int = ALONE_MS  # how long ranks may still pass a gate after the order to open it
    network: GridNetwork | None = None  # as for `gridweave.grid.meta.core.MetaCore`
    # The delays of starting processes and of learning of their ends, for forecasts; None to measure the last jobs.
    start_ms: int | None = None
    end_ms: int | None = None
    usual: UsualCommunication = UsualCommunication()  # the communication of jobs that declare none
    needs: UsualNeeds = UsualNeeds()  # the needs per node of jobs that declare none
    # The kinds of each site's nodes; empty for a site that gives out whole nodes, or whose kinds are not known here.
    kinds: tuple[tuple[NodeKind, ...], ...] = ()
    placements: tuple[str, ...] = ()  # which nodes jobs get first at each site with kinds

    @property
    def changeable(self) -> Changeable:
        """The settings that may change while a journal is in use."""
        return changeable_of(self.policy)


def core_of(settings: GridSettings) -> MetaCore:
    """Return a new core for a grid with these settings."""
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
        counted=counted_grid([nodes for _, nodes in settings.sites], settings.kinds, settings.placements),
    )


def delays_ms(settings: GridSettings, ended: Iterable[JobRecord]) -> tuple[int, int] | None:
    """Return the delays [ms] until placed processes are running and until the grid learns of their end, or None.

    Each delay is the configured value, or else the mean over the ended jobs; None without either of them.
    """
    times = []
    for record in ended:
        # A job on several sites starts at the agreed time, any other job when it is placed.
        from_ms = record.start_ms if len(record.places) > 1 else record.placed_ms
        if record.outcome == "finished" and record.ran_ms and from_ms is not None and record.end_ms is not None:
            began_ms, ended_ms = record.ran_ms
            times.append((max(0, began_ms - from_ms), max(0, record.end_ms - ended_ms)))
    if not times and settings.start_ms is None and settings.end_ms is None:
        return None
    start_ms, end_ms = (sum(column) // len(column) for column in zip(*times or [(0, 0)], strict=True))
    return (
        start_ms if settings.start_ms is None else settings.start_ms,
        end_ms if settings.end_ms is None else settings.end_ms,
    )


def traffic_of(settings: GridSettings) -> KnownTraffic:
    """Return a new traffic record for a grid with these settings."""
    moves_data = settings.policy.backfill != "conservative"
    return KnownTraffic([name for name, _ in settings.sites], settings.usual, moves_data=moves_data)
