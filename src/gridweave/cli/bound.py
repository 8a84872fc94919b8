"""``gridweave bound``: the least maximum stretch of any schedule, and how near disciplines come to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gridweave.cli.arguments import Json, Needs, Nodes, Trace
from gridweave.cli.options import named_as_typed
from gridweave.cli.output import delayed_progress, interruptible, print_json, print_table, say
from gridweave.errors import InputError, OptionError

if TYPE_CHECKING:
    from gridweave.scenarios.workload.table import Workload

Jobs = Annotated[
    int | None, typer.Option(metavar="N", help="Only the first N jobs: the time it takes grows with their square.")
]
Load = Annotated[
    float | None, typer.Option(metavar="X", help="Multiply all times between submissions so that the load is X.")
]
Against = Annotated[
    str,
    typer.Option(
        metavar="NAME,...",
        help="Compare disciplines with the bound: fcfs, easy, or algorithms of docs/fractional.md such as "
        "GreedyPM*/per/OPT=MIN/MINVT=600.",
    ),
]
Method = Annotated[str, typer.Option(metavar="NAME", help="flow, or lp: the same by a linear program, slowly.")]
Seed = Annotated[int, typer.Option(metavar="N", help="Of what --needs draws.")]


def bound(
    trace: Trace,
    nodes: Nodes = None,
    needs: Needs = None,
    jobs: Jobs = None,
    load: Load = None,
    against: Against = "",
    method: Method = "flow",
    seed: Seed = 1,
    as_json: Json = False,
) -> None:
    """Print the least maximum stretch that any schedule of a trace can have, run times known and memory without end.

    Example: gridweave bound lublin_256.swf --nodes 256 --needs lublin --jobs 1000 --against easy,GreedyPM*/OPT=MIN
    """
    from gridweave.scenarios.results.bound import METHODS, stretch_bound

    if seed < 0:
        raise OptionError("--seed", f"is {seed}; a whole number from 0 up")
    if method not in METHODS:
        raise OptionError("--method", f"{method!r} is not known; one of {', '.join(METHODS)}")
    with named_as_typed(), delayed_progress("Reading") as report:
        names = [name.strip() for name in against.split(",") if name.strip()]
        policies = [_policy(name) for name in names]
        workload, on_nodes = _workload(trace, nodes, needs, jobs, load, seed)
        report(0, 1 + len(names), "Bounding")
        least = interruptible(lambda: stretch_bound(workload, on_nodes, method=method))
        rows = []
        for number, (name, policy) in enumerate(zip(names, policies, strict=True)):
            report(1 + number, 1 + len(names), f"Simulating {name}")
            rows.append({"discipline": name, **_compared(workload, on_nodes, policy, least)})
    if as_json:
        print_json({"trace": workload.name, "jobs": len(workload), "nodes": on_nodes, "bound": least, "against": rows})
        return
    say(f"{workload.name}: {len(workload):,} jobs on {on_nodes:,} nodes")
    typer.echo(f"bound {least:,.3f}")
    if rows:
        typer.echo("")
        print_table([_row(row) for row in rows], headings=_HEADINGS, left=1)


_HEADINGS = (
    "discipline",
    "max. stretch",
    "from bound",
    "underutilization",
    "preemptions/h",
    "migrations/h",
    "nodes' memory moved/h",
)


def _row(row: dict[str, object]) -> tuple[str, ...]:
    texts = [str(row["discipline"])]
    for name, shown in _SHOWN.items():
        value = row.get(name)
        texts.append("-" if value is None else format(value, shown))
    return tuple(texts)


_SHOWN = {
    "need_max_stretch": ",.2f",
    "degradation_from_bound": ",.2f",
    "need_underutilization_normalized": ".1%",
    "preemptions_per_h": ",.1f",
    "migrations_per_h": ",.1f",
    "moved_nodes_per_h": ",.1f",
}


def _policy(name: str) -> object:
    """Return the policy of a name that people write."""
    from gridweave.site.disciplines.fractional.policy import FractionalPolicy
    from gridweave.site.policy import SitePolicy

    queues = {"fcfs": "none", "easy": "easy"}
    if name.lower() in queues:
        return SitePolicy(backfill=queues[name.lower()])
    return FractionalPolicy(algorithm=name)


def _compared(workload: Workload, nodes: int, policy: object, least: float) -> dict[str, float]:
    """Return the metrics of a discipline, with how far it is from the bound."""
    from gridweave.scenarios.batch.simulate import simulate

    result = interruptible(lambda: simulate(workload, nodes, policy))  # type: ignore[arg-type]
    if result.refused:
        job_id, reason = result.refused[0]
        refused = f"{result.label} refuses {len(result.refused)} jobs, and the bound is of all"
        raise InputError(f"{refused}; job {job_id}: {reason}")
    found = dict(result.own_metrics)
    found["degradation_from_bound"] = found["need_max_stretch"] / least
    return found


def _workload(
    trace: str, nodes: int | None, needs: str | None, jobs: int | None, load: float | None, seed: int
) -> tuple[Workload, int]:
    """Read the trace and apply what the options ask for; return it with the number of nodes."""
    import numpy as np

    from gridweave.scenarios.traces.load import columns_of, load_workload
    from gridweave.scenarios.workload.needs import with_load, with_needs

    # Tasks are not processors: which jobs are too wide is known when they have needs.
    workload = load_workload(trace, nodes=None if needs else nodes, columns=columns_of(trace))[0]
    if jobs is not None:
        if jobs < 1:
            raise OptionError("--jobs", f"is {jobs}; at least 1")
        workload = workload.take(np.arange(min(jobs, len(workload))))
    on_nodes = nodes or workload.nodes
    if on_nodes is None:
        raise OptionError("--nodes", "is needed: the trace does not say how many there are")
    workload = with_needs(workload, needs or "whole", np.random.default_rng(seed))
    return (workload if load is None else with_load(workload, on_nodes, load)), on_nodes
