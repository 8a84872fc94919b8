"""dynP as an entry of the dictionary: the options of such a site, and its policy from them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from gridweave.site.disciplines.compiled import Compiled
from gridweave.site.disciplines.dynp.compiled import compiled_site
from gridweave.site.disciplines.dynp.discipline import DynP
from gridweave.site.disciplines.dynp.figures import COLUMNS, metrics_of
from gridweave.site.disciplines.dynp.policy import (
    METRICS,
    NAME,
    READINGS,
    THREE,
    TUNINGS,
    WAYS,
    CalendarEntry,
    DynPPolicy,
)
from gridweave.site.disciplines.protocol import Entry, Options, one_of, refuse_unknown, until_its_limit


class DynPTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a site tunes itself: ``dynp`` of one of ``[[sites]]``; as `DynPPolicy`.

    Attributes
    ----------
    policies : list of str, or str
        The candidates; as one text with a plus between them.
    decider, metric, tuning, reading : str
    preferred : str, optional
    slackness_pct : float
    first_jobs, within_ms : int, optional
    lower_ms, upper_ms : float
    calendar : list of CalendarEntry
    """

    policies: list[str] | str = "+".join(THREE)
    decider: Annotated[str, one_of(tuple(WAYS), "Who chooses the policy.")] = "advanced"
    preferred: Annotated[str, Meta(description="For the decider preferred: one of the candidates.")] | None = None
    metric: Annotated[str, one_of(tuple(METRICS), "By which plans are judged.")] = "artww"
    tuning: Annotated[str, one_of(tuple(TUNINGS), "After what there is a tuning step.")] = "full"
    slackness_pct: Annotated[float, Meta(description="By how much another plan must be better.")] = 0.0
    first_jobs: Annotated[int, Meta(description="Only so many waiting jobs count.")] | None = None
    within_ms: Annotated[int, Meta(description="Only jobs count that start within this time.")] | None = None
    lower_ms: Annotated[float, Meta(description="For the decider bounds.")] = 7_200_000.0
    upper_ms: Annotated[float, Meta(description="For the decider bounds.")] = 9_000_000.0
    calendar: list[CalendarEntry] = []
    reading: Annotated[str, one_of(READINGS, "Of what the thesis leaves open.")] | bool = "true"


def read_policy(nodes: int, given: Options, usual: Options) -> DynPPolicy:
    """Return the policy of a site that tunes itself: ``dynp`` is its option."""
    why = f"is not for a {NAME} site, which chooses the order itself and plans"
    refuse_unknown(given, ("dynp", "limits", "aging_ms"), why)
    table: DynPTable = given.get("dynp") or DynPTable()
    options = msgspec.structs.asdict(table)
    policies = table.policies.split("+") if isinstance(table.policies, str) else table.policies
    options["policies"], options["calendar"] = tuple(policies), tuple(table.calendar)
    # TOML takes the bare word for a truth value.
    options["reading"] = "true" if table.reading is True else str(table.reading)
    options |= {name: given[name] for name in ("limits", "aging_ms") if given.get(name) is not None}
    return DynPPolicy(**options)


ENTRY = Entry(
    name=NAME,
    about="a planning site that chooses the order of its plan while it runs",
    make=DynP,
    read=read_policy,
    backfills=("easy",),
    table=DynPTable,
    table_key="dynp",
    longest_stay_ms=until_its_limit,
    keeps_reservations=True,
    columns=COLUMNS,
    metrics=metrics_of,
    compiled=Compiled(site=compiled_site),
)
