"""The registry entry for shared nodes: its options, its policy, and its site for the compiled loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from gridweave.errors import InputError, check_known
from gridweave.site.disciplines.base import Traits
from gridweave.site.disciplines.compiled import Compiled, CompiledSite, Ints, Jobs, OwnFigures, enter_jobs, rows_without
from gridweave.site.disciplines.entry import Entry, Options, one_of, refuse_unknown
from gridweave.site.disciplines.sharing.discipline import SharedDiscipline
from gridweave.site.disciplines.sharing.kernels.sharing_pass import SharingRules
from gridweave.site.disciplines.sharing.kernels.state import SharedSite, empty_site
from gridweave.site.disciplines.sharing.policy import (
    CPUS,
    KIND_FIELDS,
    MAX_LANES,
    NAME,
    VARIANTS,
    SharedNodes,
    is_usable,
    kind_array,
)
from gridweave.site.disciplines.sharing.slowdown_tables import FORMULAS, SlowdownModel
from gridweave.site.kernels.limits import WeekClock
from gridweave.site.resources.chunks import NodeKind

MAX_WORK = 2**62
"""Upper bound on a workload's total work, in node milliseconds, so that sums of work fit into 64 bits."""


class SharingTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How jobs share a site's nodes: the table ``sharing`` in an entry of ``[[sites]]``."""

    variant: Annotated[str, one_of(tuple(VARIANTS), "Which jobs share nodes, and how the best match is chosen.")] = (
        "L-U1"
    )
    # Cores per node, and hardware threads per core.
    cores: Annotated[int, Meta(ge=1, le=MAX_LANES)] = 1
    threads: Annotated[int, Meta(ge=1, le=MAX_LANES)] = 2
    # Memory of a node, relative to the memory to which the jobs' memory fractions refer.
    memory: Annotated[float, Meta(gt=0)] = 1.0
    cpu: Annotated[str, one_of(CPUS, "Kind of CPU.")] | None = None  # None: the CPU of the variant
    max_slowdown: Annotated[float, Meta(ge=1)] = 1.6  # the largest slowdown that a match may cause for any job
    formula: Annotated[str, one_of(tuple(FORMULAS), "Slowdown formula.")] = "whole"


def read_policy(nodes: int, site_options: Options, usual: Options) -> SharedNodes:
    """Return the policy of a site with shared nodes, read from its options ``sharing`` and ``backfill``."""
    refuse_unknown(
        site_options, ("sharing", "backfill"), f"is not for a {NAME} site, which orders jobs by class and age"
    )
    table: SharingTable = site_options.get("sharing") or SharingTable()
    check_known("variant", table.variant, VARIANTS)
    variant = VARIANTS[table.variant]
    sharing = msgspec.structs.replace(
        variant,
        backfill=site_options.get("backfill") or usual.get("backfill") or variant.backfill,
        max_slowdown=table.max_slowdown,
        cpu=table.cpu or variant.cpu,
    )
    kind = NodeKind(count=nodes, cores=table.cores, threads=table.threads, memory=table.memory, cpu=sharing.cpu)
    return SharedNodes(sharing=sharing, kinds=(kind,), formula=table.formula)


class SharedUse(NamedTuple):
    """Statistics on the use of shared nodes in a simulation.

    Attributes
    ----------
    beside : numpy.ndarray of int64, shape (n,)
        Number of jobs with which each job shared nodes right after the pass that started it.
    busy_node_ms : int
        Total node time in ms during which nodes had at least one job.
    searches : mapping from str to int
        Statistics of the searches for a match: the number of ``searches`` among the waiting jobs, and the number of
        matches found among waiting jobs (``matches``) and among running jobs (``running_matches``). Summed over all
        ``matches``: the number of jobs behind the host (``waiting``), the number of these jobs that pass each test
        (``long_enough``, ``narrow_enough``, ``fitting``, ``matchable``, ``bearable``), and the rank of the selected
        candidate among the allowed candidates, from 1 (``selected``).
    """

    beside: Ints
    busy_node_ms: int
    searches: Mapping[str, int]


def compiled_site(
    nodes: int,
    policy: SharedNodes,
    jobs: Jobs,
    week: Callable[[], WeekClock],
    *,
    model: SlowdownModel | None = None,
    cores: npt.ArrayLike = 1,
    rows: npt.ArrayLike | None = None,
) -> CompiledSite:
    """Return an idle site for the compiled loop, with its table of jobs filled in; `jobs` must have resource columns.

    Parameters
    ----------
    model : SlowdownModel, optional
        The slowdown model; None: a model with the policy's formula.
    cores : array_like of int, shape () or (n,)
        Number of cores that each job uses on each of its nodes.
    rows : array_like of int, shape (n,), optional
        The row of each job in the model's table of measured slowdowns.

    Raises
    ------
    InputError
        If a column contains an invalid value; the message names the job and the field.
    """
    kinds, model = policy.kinds_of(nodes), model or SlowdownModel(policy.formula)
    state, refused = idle_site(jobs, kinds, policy, model, cores, rows)
    kept = rows_without(jobs, refused)
    busy = np.zeros(2, np.int64)
    busy[1] = state.jobs["submit_ms"][0] if len(kept) else 0
    rules = SharingRules(model.arrays(), policy.sharing.codes(kinds), np.zeros(len(kept), np.int64), busy)

    def figures() -> OwnFigures:
        beside = np.zeros(len(jobs), np.int64)
        beside[kept] = rules.beside
        searches = {name: int(state.searches[0][name]) for name in state.searches.dtype.names or ()}
        return OwnFigures(own=SharedUse(beside, int(busy[0]), searches))

    sharing_options = {
        key: value for key, value in msgspec.to_builtins(policy.sharing).items() if value != float("inf")
    }
    shown = [{name: getattr(kind, name) for name in KIND_FIELDS} for kind in kinds]
    options = {"kinds": shown, "formula": model.formula, **sharing_options}
    return CompiledSite(
        rows=kept,
        refused=refused,
        state=state,
        rules=rules,
        is_paced=True,
        capacity=len(state.running),
        figures=figures,
        options=options,
    )


def idle_site(
    jobs: Jobs,
    kinds: Sequence[NodeKind],
    policy: SharedNodes,
    model: SlowdownModel,
    cores: npt.ArrayLike,
    rows: npt.ArrayLike | None,
) -> tuple[SharedSite, dict[int, str]]:
    """Return an idle site's state with its table of jobs filled in, and the reasons for refusing jobs, by job id."""
    columns = jobs.columns
    per_job = model.sorts_of(columns, rows)
    per_job["cores"] = np.broadcast_to(np.asarray(cores, np.int64), (len(jobs),))
    _refuse(jobs, "cores", per_job["cores"], 1, MAX_LANES)
    _refuse(jobs, "cpu_kind", per_job["cpu_kind"], 0, len(model.cpu_factors.labels) - 1)
    _refuse(jobs, "row", per_job["row"], 0, len(model.table.labels) - 1)
    if float(np.sum(jobs.width * jobs.estimate_ms.astype(np.float64))) >= MAX_WORK:
        raise InputError(f"{jobs.name}: its work exceeds {MAX_WORK:.3g} node milliseconds")
    usable, plans = _usable(jobs, kinds, per_job["cores"]), policy.sharing.backfill == "conservative"
    if plans:
        _check_alike(jobs, kinds, usable)
    refused = _refusals(jobs, usable)
    kept = rows_without(jobs, refused)
    state = empty_site(kind_array(kinds), [kind.count for kind in kinds], slots=len(kept), plans=plans)
    enter_jobs(state.jobs, jobs, kept)
    for name in ("cpu", "network", "disk", "memory"):
        state.jobs[name] = columns[f"{name}_fraction"][kept]
    for name, values in per_job.items():
        state.jobs[name] = values[kept]
    state.jobs["job_class"] = policy.sharing.classes(state.jobs["estimate_ms"])
    return state, refused


def _refuse(jobs: Jobs, name: str, values: Ints, low: int, high: int) -> None:
    if values.shape != (len(jobs),):
        raise InputError(f"{jobs.name}: {name} has shape {values.shape}, job_id has ({len(jobs)},)")
    wrong = (values < low) | (values > high)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(f"{jobs.name}: job {jobs.job_id[row]}: {name} {values[row]} is not within {low} to {high}")


def _usable(jobs: Jobs, kinds: Sequence[NodeKind], cores: Ints) -> Ints:
    """Return the number of nodes that each job can use."""
    usable = np.zeros(len(jobs), np.int64)
    memory = np.asarray(jobs.columns["memory_fraction"], np.float64)
    for kind in kinds:
        usable += np.where(is_usable(kind, cores, memory), kind.count, 0)
    return usable


def _check_alike(jobs: Jobs, kinds: Sequence[NodeKind], usable: Ints) -> None:
    """Raise InputError if any job cannot use every node, because reservations do not distinguish kinds of nodes."""
    wrong = usable < sum(kind.count for kind in kinds)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"{jobs.name}: job {jobs.job_id[row]}: not all nodes have the cores and the memory for it; "
            "conservative backfilling needs nodes that every job may use"
        )


def _refusals(jobs: Jobs, usable: Ints) -> dict[int, str]:
    """Return the reasons for refusing jobs that can never run, by job id."""
    return {
        int(jobs.job_id[row]): f"it needs {jobs.width[row]} nodes; it can use only {usable[row]} of this site"
        for row in np.flatnonzero(jobs.width > usable)
    }


TRAITS = Traits(chooses_nodes=True, shares_nodes=True, uses_resources=True, elastic=True)

ENTRY = Entry(
    name=NAME,
    about="jobs that do not disturb each other run on the same nodes",
    make=SharedDiscipline,
    read=read_policy,
    traits=TRAITS,
    traits_by=lambda policy: replace(TRAITS, threads=policy.threads),
    stay_ms=SharedNodes.longest_stay_ms,
    table=SharingTable,
    table_key="sharing",
    compiled=Compiled(site=compiled_site, inputs=("model", "cores", "rows")),
    variants=VARIANTS,
)
