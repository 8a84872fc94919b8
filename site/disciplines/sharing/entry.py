"""Shared nodes as an entry of the dictionary: the options of such a site, and its policy from them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from gridweave.errors import check_known
from gridweave.site.disciplines.compiled import Compiled
from gridweave.site.disciplines.protocol import Entry, Options, one_of, refuse_unknown
from gridweave.site.disciplines.sharing.compiled import compiled_site
from gridweave.site.disciplines.sharing.discipline import SharedDiscipline
from gridweave.site.disciplines.sharing.policy import (
    BACKFILLS,
    CPUS,
    MAX_LANES,
    NAME,
    VARIANTS,
    NodeKind,
    SharedNodes,
)
from gridweave.site.disciplines.sharing.slowdown_tables import FORMULAS


class SharingTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How the nodes of a site are shared: ``sharing`` of one of ``[[sites]]``."""

    # A variant of docs/sharing.md: who shares nodes, and which match is best.
    variant: Annotated[str, one_of(tuple(VARIANTS), "Who shares nodes, and which match is best.")] = "L-U1"
    # Cores of a node, and hardware threads of a core.
    cores: Annotated[int, Meta(ge=1, le=MAX_LANES)] = 1
    threads: Annotated[int, Meta(ge=1, le=MAX_LANES)] = 2
    # Of a node, in units of the memory that the jobs' fractions are parts of.
    memory: Annotated[float, Meta(gt=0)] = 1.0
    cpu: Annotated[str, one_of(CPUS, "Kind of CPU.")] | None = None  # that of the variant if left out
    max_slowdown: Annotated[float, Meta(ge=1)] = 1.6  # no match may slow a job more
    formula: Annotated[str, one_of(tuple(FORMULAS), "Of the slowdown.")] = "whole"  # of the slowdown


def read_policy(nodes: int, given: Options, usual: Options) -> SharedNodes:
    """Return the policy of a site whose nodes are shared: ``sharing`` and ``backfill`` are its options."""
    refuse_unknown(given, ("sharing", "backfill"), f"is not for a {NAME} site: jobs stand there by class and age")
    table: SharingTable = given.get("sharing") or SharingTable()
    check_known("variant", table.variant, VARIANTS)
    variant = VARIANTS[table.variant]
    sharing = msgspec.structs.replace(
        variant,
        backfill=given.get("backfill") or usual.get("backfill") or variant.backfill,
        max_slowdown=table.max_slowdown,
        cpu=table.cpu or variant.cpu,
    )
    kind = NodeKind(count=nodes, cores=table.cores, threads=table.threads, memory=table.memory, cpu=sharing.cpu)
    return SharedNodes(sharing=sharing, kinds=(kind,), formula=table.formula)


ENTRY = Entry(
    name=NAME,
    about="jobs that do not disturb each other run on the same nodes",
    make=SharedDiscipline,
    read=read_policy,
    backfills=tuple(BACKFILLS),
    table=SharingTable,
    table_key="sharing",
    longest_stay_ms=SharedNodes.longest_stay_ms,
    shares_nodes=True,
    uses_resources=True,
    compiled=Compiled(site=compiled_site, inputs=("model", "cores", "rows")),
    variants=VARIANTS,
)
