"""The registry entry of the discipline levels: its options, its policy, and its site for the compiled loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import msgspec
import numpy as np

from gridweave.errors import OptionError, not_known
from gridweave.site.disciplines import queue
from gridweave.site.disciplines.base import Traits
from gridweave.site.disciplines.compiled import Compiled, CompiledSite, Jobs, OwnFigures
from gridweave.site.disciplines.entry import Entry, Options, one_of
from gridweave.site.disciplines.levels.discipline import Levels, totals_of
from gridweave.site.disciplines.levels.kernels.levels import LevelRules
from gridweave.site.disciplines.levels.policy import NAME, LevelsPolicy
from gridweave.site.disciplines.levels.rights import COLUMNS, EVICTED, Level, level_of, metrics_of, why_not_allowed
from gridweave.site.kernels.limits import WeekClock
from gridweave.site.policy import BACKFILLS


class LevelsTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Priority levels: the table ``levels`` in an entry of ``[[sites]]``.

    Attributes
    ----------
    under : str
        The discipline to which levels are added: ``queue`` or ``planning``, with the site's order and backfilling.
    levels, evicted, raise_after, least_gain_ms
        As in `gridweave.site.disciplines.levels.policy.LevelsPolicy`.
    """

    under: Annotated[str, one_of(tuple(BACKFILLS), "The discipline that gets the levels.")] = "queue"
    levels: tuple[Level, ...] = ()
    evicted: Annotated[str, one_of(EVICTED, "Effect of an eviction on a job.")] = "restart"
    raise_after: int | None = None
    least_gain_ms: int = 0


def read_policy(nodes: int, site_options: Options, usual: Options) -> LevelsPolicy:
    """Return the policy of a site with levels; all options except ``levels`` apply to the queue or planning site."""
    table: LevelsTable = site_options.get(NAME) or LevelsTable()
    if table.under not in BACKFILLS:
        raise OptionError(NAME, f"under {not_known(table.under, BACKFILLS)}")
    rest = {name: value for name, value in site_options.items() if name != NAME}
    options = msgspec.structs.asdict(table) | {"under": queue.read_policy(table.under, rest, usual)}
    return LevelsPolicy(**options)


def compiled_site(nodes: int, policy: LevelsPolicy, jobs: Jobs, week: Callable[[], WeekClock]) -> CompiledSite:
    """Return an idle site for the compiled loop, with its tables of jobs and levels filled in."""
    priority = np.broadcast_to(jobs.columns.get("priority", 0.0), len(jobs)).tolist()
    user = jobs.columns["user"].tolist() if "user" in jobs.columns else [None] * len(jobs)
    asked = zip(jobs.job_id.tolist(), priority, user, strict=True)
    refused = {job_id: why for job_id, p, who in asked if (why := why_not_allowed(policy.levels, p, who))}
    site = queue.compiled_site(nodes, policy.under, jobs, week, refused)
    table = policy.table(len(site.rows), site.capacity)
    table.base[:] = [level_of(policy.levels, priority[row]) for row in site.rows.tolist()]

    def figures() -> OwnFigures:
        columns = {"level": table.base.astype(np.float64), "evictions": table.times.astype(np.float64)}
        return OwnFigures(columns, totals_of(table))

    rules = LevelRules(site.rules, table, site.nodes)
    return replace(site, rules=rules, figures=figures, evictions=table.evictions, keys_at=None)


TRAITS = Traits(evicts=True, saves_work=True, elastic=True, columns=COLUMNS)


def _traits(policy: LevelsPolicy) -> Traits:
    reserves = policy.under.discipline == "planning" and not policy.evicts
    traits = queue.traits_on(TRAITS, policy.under)
    return replace(traits, saves_work=policy.evicted == "checkpoint", reserves=reserves, week=policy.under.has_windows)


ENTRY = Entry(
    name=NAME,
    about="a queue or a planning site with levels of priority, of which some may evict jobs of others",
    make=Levels,
    read=read_policy,
    reads_kinds=True,
    traits=TRAITS,
    traits_by=_traits,
    table=LevelsTable,
    table_key=NAME,
    metrics=metrics_of,
    compiled=Compiled(site=compiled_site, counts_resources=True, chunk=20_000),
)
