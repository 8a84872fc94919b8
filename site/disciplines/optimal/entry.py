"""The registry entry of the discipline ``optimal``: its options, policy and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from gridweave.site.disciplines.base import Traits
from gridweave.site.disciplines.entry import Entry, Options, SiteOutcome, one_of, refuse_unknown
from gridweave.site.disciplines.optimal.discipline import Optimal
from gridweave.site.disciplines.optimal.instance import METRICS
from gridweave.site.disciplines.optimal.intervals import THREE, cp_model_of
from gridweave.site.disciplines.optimal.policy import NAME, OptimalPolicy


class OptimalTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The options of a site that plans with a solver: the table ``optimal`` in an entry of ``[[sites]]``.

    Attributes
    ----------
    metric, effort_s, most_jobs
        As in `OptimalPolicy`.
    policies : list of str, or str
        As in `OptimalPolicy`; in a single string, the names are joined with ``+``.
    """

    metric: Annotated[str, one_of(tuple(METRICS), "Metric that a plan minimises.")] = "artww"
    policies: list[str] | str = "+".join(THREE)
    effort_s: Annotated[
        float, Meta(description="Limit of the solver's work for each plan, in units of about a second.")
    ] = 1.0
    most_jobs: Annotated[
        int, Meta(description="Number of waiting jobs above which the best policy makes the plan.")
    ] = 30


def read_policy(nodes: int, site_options: Options, usual: Options) -> OptimalPolicy:
    """Return the policy of a site that plans with a solver, read from its only option ``optimal``.

    Raises
    ------
    UnavailableError
        If OR-Tools is not installed.
    """
    refuse_unknown(
        site_options, (NAME,), f"is not for a site with the discipline {NAME}, which plans and chooses the order itself"
    )
    cp_model_of()
    table: OptimalTable = site_options.get(NAME) or OptimalTable()
    policies = table.policies.split("+") if isinstance(table.policies, str) else table.policies
    return OptimalPolicy(
        metric=table.metric, policies=tuple(policies), effort_s=table.effort_s, most_jobs=table.most_jobs
    )


def metrics_of(outcome: SiteOutcome) -> Mapping[str, float]:
    """Return the number of plans that the solver made, the percentage proven optimal, and their average gain.

    Returns
    -------
    mapping from str to float
        ``solved_plans``: number of plans the solver made; ``proven_plans_pct``: percentage of them proven optimal;
        ``plan_gain_pct``: average improvement over the best policy's plan, as a percentage of the policy's value.
    """
    totals = outcome.totals
    plans = max(totals["plans"], 1.0)
    return {
        "solved_plans": totals["plans"],
        "proven_plans_pct": 100.0 * totals["proven"] / plans,
        "plan_gain_pct": totals["gain"] / plans,
    }


ENTRY = Entry(
    name=NAME,
    about="a planning site whose plan of each instant is a solver's, for a few waiting jobs",
    make=Optimal,
    read=read_policy,
    traits=Traits(reserves=True),
    table=OptimalTable,
    table_key=NAME,
    metrics=metrics_of,
)
