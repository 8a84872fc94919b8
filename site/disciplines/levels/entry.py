"""Levels of priority as an entry of the dictionary: the options of such a site, and its policy from them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from gridweave.errors import OptionError, not_known
from gridweave.site.disciplines import queue
from gridweave.site.disciplines.compiled import Compiled
from gridweave.site.disciplines.levels.compiled import compiled_site
from gridweave.site.disciplines.levels.discipline import Levels
from gridweave.site.disciplines.levels.figures import COLUMNS, metrics_of
from gridweave.site.disciplines.levels.policy import NAME, LevelsPolicy
from gridweave.site.disciplines.levels.rights import EVICTED, Level
from gridweave.site.disciplines.protocol import Entry, Options, one_of, until_its_limit
from gridweave.site.policy import BACKFILLS


class LevelsTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Levels of priority: ``levels`` of one of ``[[sites]]``.

    Attributes
    ----------
    under : str
        What has the levels: ``queue`` or ``planning``, with the order and the backfilling of the site.
    levels, evicted, raise_after, least_gain_ms
        As in `gridweave.site.disciplines.levels.policy.LevelsPolicy`.
    """

    under: Annotated[str, one_of(tuple(BACKFILLS), "What has the levels.")] = "queue"
    levels: tuple[Level, ...] = ()
    evicted: Annotated[str, one_of(EVICTED, "What becomes of an evicted job.")] = "restart"
    raise_after: int | None = None
    least_gain_ms: int = 0


def read_policy(nodes: int, given: Options, usual: Options) -> LevelsPolicy:
    """Return the policy of a site with levels: ``levels`` is its option, the others are those of what has them."""
    table: LevelsTable = given.get(NAME) or LevelsTable()
    if table.under not in BACKFILLS:
        raise OptionError(NAME, f"under {not_known(table.under, BACKFILLS)}")
    rest = {name: value for name, value in given.items() if name != NAME}
    options = msgspec.structs.asdict(table) | {"under": queue.read_policy(table.under, rest, usual)}
    return LevelsPolicy(**options)


ENTRY = Entry(
    name=NAME,
    about="a queue or a planning site with levels of priority, of which some may evict jobs of others",
    make=Levels,
    read=read_policy,
    backfills=BACKFILLS["queue"],
    table=LevelsTable,
    table_key=NAME,
    longest_stay_ms=until_its_limit,
    columns=COLUMNS,
    metrics=metrics_of,
    compiled=Compiled(site=compiled_site, piece=20_000),
)
