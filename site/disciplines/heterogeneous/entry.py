"""The registry entry of the discipline heterogeneous: its options, policy, traits and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from gridweave.errors import OptionError
from gridweave.site.disciplines.base import Traits
from gridweave.site.disciplines.entry import Entry, Options, SiteOutcome, one_of, refuse_unknown
from gridweave.site.disciplines.heterogeneous.discipline import Heterogeneous
from gridweave.site.disciplines.heterogeneous.machines import Cluster, Form
from gridweave.site.disciplines.heterogeneous.mapping import ALGORITHMS, PROFITS
from gridweave.site.disciplines.heterogeneous.policy import NAME, PREDICTIONS, HeterogeneousPolicy
from gridweave.site.disciplines.levels.rights import EVERYBODY, EVICTED, PAUSE, Level, times_by_level
from gridweave.site.known_times import KnownTimes
from gridweave.site.resources.chunks import NodeKind


class HeterogeneousTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A site's machines and how jobs are mapped to them: the table ``heterogeneous`` in an entry of ``[[sites]]``.

    Attributes
    ----------
    classes, clusters, forms, algorithm, profit, seed, predict, levels, evicted, raise_after, least_gain_ms
    out_of_service, experience, deviations
        As in `gridweave.site.disciplines.heterogeneous.policy.HeterogeneousPolicy`.
    """

    classes: tuple[NodeKind, ...] = ()
    clusters: tuple[Cluster, ...] = ()
    forms: tuple[Form, ...] = ()
    algorithm: Annotated[str, one_of(tuple(ALGORITHMS), "How jobs are mapped to machines.")] = "pjs"
    profit: Annotated[str, one_of(tuple(PROFITS), "How the gain of a team is computed, for pjs and gsa.")] = "end"
    seed: Annotated[int, Meta(description="Seed of the random numbers of gsa.")] = 0
    predict: Annotated[str, one_of(PREDICTIONS, "Basis of expected run times.")] = "experience"
    levels: tuple[Level, ...] = ()
    evicted: Annotated[str, one_of((*EVICTED, PAUSE), "Effect of an eviction on a job.")] = "restart"
    raise_after: int | None = None
    least_gain_ms: int = 0
    out_of_service: str = ""
    experience: tuple[KnownTimes, ...] = ()
    deviations: float = 0.0


def read_policy(nodes: int, site_options: Options, usual: Options) -> HeterogeneousPolicy:
    """Return the policy of a site with different machines, read from its options ``heterogeneous`` and ``kinds``.

    Raises
    ------
    OptionError
        If any other option is given, or unless exactly one of the site's kinds and the table's classes is given.
    """
    refuse_unknown(
        site_options, (NAME, "kinds"), f"is not for a site with the discipline {NAME}, which has its own algorithms"
    )
    table: HeterogeneousTable = site_options.get(NAME) or HeterogeneousTable()
    kinds: tuple[NodeKind, ...] = site_options.get("kinds") or ()
    if kinds and table.classes:
        raise OptionError(NAME, "names classes of machines, and the site has kinds of nodes; leave one of them out")
    if not kinds and not table.classes:
        raise OptionError(NAME, "names no classes of machines; give at least one, or the site's kinds of nodes")
    options = msgspec.structs.asdict(table) | {
        "classes": kinds or table.classes,
        "levels": table.levels or (EVERYBODY,),
    }
    return HeterogeneousPolicy(nodes=nodes, **options)


def metrics_of(outcome: SiteOutcome) -> Mapping[str, float]:
    """Return the paper's metrics for a schedule.

    Returns
    -------
    dict from str to float
        ``job_time_ms``: mean time from submission to completion; ``parallel_pct``: percentage of jobs that ended on a
        team (Table 1); both also per level if there are several levels; ``evictions``: number of evictions;
        ``lost_machine_ms``: machine time of the work lost when jobs restarted.
    """
    level, on_team = outcome.columns["level"], outcome.columns["team"]
    metrics = times_by_level(outcome) | {"parallel_pct": 100.0 * float(on_team.mean())}
    for number in np.unique(level).astype(int).tolist() if len(np.unique(level)) > 1 else ():
        metrics[f"parallel_level_{number + 1}_pct"] = 100.0 * float(on_team[level == number].mean())
    return metrics | {
        "evictions": int(outcome.totals["evictions"]),
        "lost_machine_ms": outcome.totals["lost_machine_ms"],
    }


TRAITS = Traits(
    chooses_nodes=True,
    pauses=True,
    evicts=True,
    saves_work=True,
    forms=True,
    learns=True,
    columns=("level", "machines", "team", "evictions"),
)

ENTRY = Entry(
    name=NAME,
    about="machines that differ, jobs on one of them or on a cluster, levels of priority",
    make=Heterogeneous,
    read=read_policy,
    reads_kinds=True,
    traits=TRAITS,
    traits_by=lambda policy: replace(TRAITS, pauses=policy.pauses_jobs, saves_work=policy.evicted == "checkpoint"),
    table=HeterogeneousTable,
    table_key=NAME,
    metrics=metrics_of,
)
