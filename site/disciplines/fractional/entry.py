"""Fractions of nodes as an entry of the dictionary: the options of such a site, and its policy from them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from gridweave.site.disciplines.compiled import Compiled
from gridweave.site.disciplines.fractional.compiled import compiled_site
from gridweave.site.disciplines.fractional.discipline import Fractional
from gridweave.site.disciplines.fractional.policy import BEST, MS_PER_S, NAME, FractionalPolicy
from gridweave.site.disciplines.protocol import Entry, Options, Played, refuse_unknown

MS_PER_H = 3600 * MS_PER_S


class FractionalTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a site gives jobs fractions of its nodes: ``fractional`` of one of ``[[sites]]``.

    Attributes
    ----------
    algorithm : str
        A name of docs/fractional.md.
    period_s, penalty_s : float
        After which time all tasks are placed anew, for an algorithm with ``per``; how long a job does no work that
        runs again after a pause, or of which a task has moved.
    long_s : float
        The share of CPU of a job with more virtual time falls as the inverse of that; 0 for no such bound.
    """

    algorithm: Annotated[str, Meta(description="A name such as " + BEST)] = BEST
    period_s: Annotated[float, Meta(gt=0)] = 600.0
    penalty_s: Annotated[float, Meta(ge=0)] = 300.0
    long_s: Annotated[float, Meta(ge=0)] = 0.0


def read_policy(nodes: int, given: Options, usual: Options) -> FractionalPolicy:
    """Return the policy of a site with fractional nodes: ``fractional`` is its option."""
    refuse_unknown(given, (NAME,), f"is not for a {NAME} site: jobs stand there by flow time and virtual time")
    table: FractionalTable = given.get(NAME) or FractionalTable()
    return FractionalPolicy(
        algorithm=table.algorithm,
        period_ms=round(table.period_s * MS_PER_S),
        penalty_ms=round(table.penalty_s * MS_PER_S),
        long_ms=round(table.long_s * MS_PER_S),
    )


def moves_of(played: Played) -> dict[str, float]:
    """Return how often jobs were paused and moved, and what went over the network for that.

    ``moved_nodes`` of a job is the memory of tasks that was saved, brought back or moved, in memories of a node.
    """
    hours = max(1, int(played.end_ms.max() - played.submit_ms.min())) / MS_PER_H
    found: dict[str, float] = {}
    for name in ("preemptions", "migrations", "moved_nodes"):
        total = float(played.columns[name].sum())
        found |= {f"{name}_per_h": total / hours, f"{name}_per_job": total / len(played.submit_ms)}
    return found


ENTRY = Entry(
    name=NAME,
    about="tasks get parts of a node's CPU and memory, are paused and moved; no estimates are used",
    make=Fractional,
    read=read_policy,
    table=FractionalTable,
    table_key=NAME,
    shares_nodes=True,
    shares_time=True,
    gives_fractions=True,
    needs=("cpu_need", "memory_fraction"),
    columns=("preemptions", "migrations", "moved_nodes"),
    metrics=moves_of,
    compiled=Compiled(site=compiled_site, plays=lambda policy: not policy.averages, piece=500),
)
