"""The dictionary entry of dynP: options, policy and compiled simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from gridweave.site.disciplines.base import Traits
from gridweave.site.disciplines.compiled import Compiled, CompiledSite, Ints, Jobs, OwnFigures, fill_jobs, rows_without
from gridweave.site.disciplines.dynp.discipline import DynP
from gridweave.site.disciplines.dynp.figures import COLUMNS, metrics_of, switches_after, totals_of, tuning_use
from gridweave.site.disciplines.dynp.kernels.state import NO_CANDIDATE
from gridweave.site.disciplines.dynp.kernels.tuning import TuningRules
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
from gridweave.site.disciplines.entry import Entry, Options, one_of, refuse_unknown
from gridweave.site.disciplines.queue import limit_masks, refusals
from gridweave.site.kernels.limits import FROM_MONDAY, WeekClock
from gridweave.site.kernels.state import SiteState, empty_plan, empty_state


class DynPTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The options of a dynP site, given under the key ``dynp`` of a ``[[sites]]`` entry; see `DynPPolicy`.

    Attributes
    ----------
    policies : list of str, or str
        The candidates; in a single string, they are separated by ``+``.
    decider, metric, tuning, reading : str
    preferred : str, optional
    slackness_pct : float
    first_jobs, within_ms : int, optional
    lower_ms, upper_ms : float
    calendar : list of CalendarEntry
    """

    policies: list[str] | str = "+".join(THREE)
    decider: Annotated[str, one_of(tuple(WAYS), "How the policy is chosen.")] = "advanced"
    preferred: Annotated[str, Meta(description="One of the candidates, for the decider preferred.")] | None = None
    metric: Annotated[str, one_of(tuple(METRICS), "Metric by which plans are compared.")] = "artww"
    tuning: Annotated[str, one_of(tuple(TUNINGS), "Events that a tuning step follows.")] = "full"
    slackness_pct: Annotated[float, Meta(description="How much better another plan must be, in per cent.")] = 0.0
    first_jobs: Annotated[int, Meta(description="Number of waiting jobs that count, those submitted first.")] | None = (
        None
    )
    within_ms: Annotated[int, Meta(description="Only jobs planned to start within this time count.")] | None = None
    lower_ms: Annotated[float, Meta(description="SJF up to this average estimate, for the decider bounds.")] = (
        7_200_000.0
    )
    upper_ms: Annotated[float, Meta(description="LJF above this average estimate, for the decider bounds.")] = (
        9_000_000.0
    )
    calendar: list[CalendarEntry] = []
    reading: Annotated[str, one_of(READINGS, "Reading of the points that the thesis leaves open.")] | bool = "true"


def read_policy(nodes: int, site_options: Options, usual: Options) -> DynPPolicy:
    """Return the policy of a dynP site from its options ``dynp``, ``limits`` and ``aging_ms``."""
    why = f"is not for a {NAME} site, which plans and chooses the order itself"
    refuse_unknown(site_options, ("dynp", "limits", "aging_ms"), why)
    table: DynPTable = site_options.get("dynp") or DynPTable()
    options = msgspec.structs.asdict(table)
    policies = table.policies.split("+") if isinstance(table.policies, str) else table.policies
    options["policies"], options["calendar"] = tuple(policies), tuple(table.calendar)
    # In TOML, ``reading = true`` is a boolean.
    options["reading"] = "true" if table.reading is True else str(table.reading)
    options |= {name: site_options[name] for name in ("limits", "aging_ms") if site_options.get(name) is not None}
    return DynPPolicy(**options)


def _asks_week(policy: DynPPolicy) -> bool:
    return bool(policy.calendar) or policy.planning.has_windows


def compiled_site(nodes: int, policy: DynPPolicy, jobs: Jobs, week: Callable[[], WeekClock]) -> CompiledSite:
    """Return an idle site whose job table and whose candidates' job tables are filled in."""
    refused = refusals(jobs, nodes, policy.planning)
    rows = rows_without(jobs, refused)
    state = empty_state(nodes, slots=len(rows))
    fill_jobs(state.jobs, jobs, rows, policy.policies[0], aging_ms=policy.aging_ms)
    state.jobs["limits"] = limit_masks(jobs, policy.planning)[rows]
    rules = _rules(state, jobs, rows, nodes, policy, week() if _asks_week(policy) else FROM_MONDAY)
    memory = rules.tuning.memory

    def figures() -> OwnFigures:
        started_by = np.maximum(memory.started_by, 0).astype(np.float64)
        of_all = np.full(len(jobs), NO_CANDIDATE)
        of_all[rows] = memory.started_by
        own = tuning_use(policy.policies, memory, switches_after(memory, 0), of_all)
        return OwnFigures(dict.fromkeys(COLUMNS, started_by), totals_of(policy.policies, memory), own)

    return CompiledSite(
        rows=rows, refused=refused, state=state, rules=rules, capacity=len(state.running), figures=figures
    )


def _rules(state: SiteState, jobs: Jobs, rows: Ints, nodes: int, policy: DynPPolicy, week: WeekClock) -> TuningRules:
    limits = policy.planning.limit_arrays(week=week)
    plan = empty_plan(state, policy.planning.profile_totals(nodes))
    assert limits is not None, "a planning site without limits"
    # Submissions, ends, cancellations and the resulting starts cause tuning steps; each step switches at most once.
    rules = policy.rules(state, plan, limits, log=6 * len(rows) + 1)
    candidates = rules.tuning.candidates.jobs
    for table, order in zip(candidates, policy.policies, strict=True):
        fill_jobs(table, jobs, rows, order, aging_ms=policy.aging_ms)
    if policy.reading == "thesis":
        candidates["key"][0] = np.arange(len(rows))
    candidates["limits"] = state.jobs["limits"]
    return rules


TRAITS = Traits(reserves=True, elastic=True, columns=COLUMNS)

ENTRY = Entry(
    name=NAME,
    about="a planning site that chooses the order of its plan while it runs",
    make=DynP,
    read=read_policy,
    traits=TRAITS,
    traits_by=lambda policy: replace(TRAITS, week=_asks_week(policy)),
    table=DynPTable,
    table_key="dynp",
    labels=lambda policy: dict.fromkeys(COLUMNS, policy.policies),
    metrics=metrics_of,
    compiled=Compiled(site=compiled_site),
)
