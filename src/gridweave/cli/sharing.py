"""``gridweave simulate --discipline lomarc``: compare variants of a site on which jobs share nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import typer

from gridweave.cli.options import check_seed, named_as_typed, split_names
from gridweave.cli.output import Report, check_folder, delayed_progress, interruptible, print_json, print_table, say
from gridweave.errors import InputError, OptionError, not_known

if TYPE_CHECKING:
    from gridweave.scenarios.batch.simulate import SiteInputs
    from gridweave.scenarios.results.metrics import SharedMetrics
    from gridweave.scenarios.results.schedule import SimulationResult
    from gridweave.scenarios.workload.table import Workload
    from gridweave.site.disciplines.sharing.policy import SharingPolicy
    from gridweave.site.disciplines.sharing.slowdown_tables import SlowdownModel
    from gridweave.site.resources.chunks import NodeKind

SHARING = "lomarc"
SHARING_HELP = "lomarc: jobs share nodes; several --variants are compared."

Resources = Annotated[
    str,
    typer.Option(
        metavar="M1|M2|M3|CPU/NETWORK/DISK|FILE",
        help="For lomarc: CPU, network, disk and memory needs of the jobs, drawn from a mix or read from a .csv "
        "file as written by `gridweave trace resources`.",
    ),
]
Variants = Annotated[
    str,
    typer.Option(
        metavar="NAME,...",
        help="For lomarc: PSS (no sharing), AC (always), AM (adjacent), L-U1, L-U2, L-R, L-FM, L-N (standard CPUs). "
        "Several are compared.",
    ),
]
Cores = Annotated[int, typer.Option(metavar="N", help="For lomarc: cores of a node.")]
Threads = Annotated[int, typer.Option(metavar="N", help="For lomarc: hardware threads of a core.")]
MaxSlowdown = Annotated[
    float,
    typer.Option(metavar="X", help="For lomarc: largest factor by which a partner may slow a job down, e.g. 1.5."),
]
Slowdowns = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="For lomarc: a table of measured slowdowns (.csv with labels), instead of the formula."
    ),
]


@dataclass(frozen=True)
class SharingOptions:
    """The options of the command that are for shared nodes."""

    resources: Resources = "M1"
    variants: Variants = "PSS,L-U1,L-R"
    cores: Cores = 1
    threads: Threads = 2
    max_slowdown: MaxSlowdown = 1.6
    slowdowns: Slowdowns = None

    def check_unused(self, *, uses_resources: bool) -> None:
        """Raise OptionError if an option for shared nodes is given; other disciplines may use the resources, too."""
        for field in fields(self):
            if getattr(self, field.name) != field.default and not (uses_resources and field.name == "resources"):
                raise OptionError(f"--{field.name.replace('_', '-')}", "works only with --discipline lomarc")


def compare_sharing(
    trace: str,
    nodes: int | None,
    options: SharingOptions,
    backfill: str,
    seed: int,
    out: str | None,
    *,
    as_json: bool,
) -> None:
    """Simulate one site whose nodes jobs share, and print a line of metrics for each variant."""
    if out is not None:
        check_folder(out)
    check_seed(seed)
    with named_as_typed(mix="--resources"), delayed_progress("Reading") as report:
        chosen = _policies(options.variants, backfill, options.max_slowdown)
        model = _model(options.slowdowns)
        workload, remarks = _prepared(trace, nodes, options.resources, seed)
        for line in remarks:
            say(line)
        results = side_by_side(workload, _sites(workload, nodes, chosen, options), report, model=model)
    for job_id, reason in results[0].refused[:5]:
        say(f"job {job_id} is refused: {reason}")
    if as_json:
        print_json([_as_json(result) for result in results])
    else:
        _print(results)
    if out is not None:
        with delayed_progress("Writing files"):
            written = _write(results, out)
        say(f"wrote {written} files to {out}")


def _policies(variants: str, backfills: str, max_slowdown: float) -> list[SharingPolicy]:
    """Return every combination of the named variants and backfillings."""
    import msgspec

    from gridweave.site.disciplines.sharing.policy import VARIANTS

    names = {name.lower(): name for name in VARIANTS}
    named = [variant.strip() for variant in variants.split(",") if variant.strip()]
    for variant in named:
        if variant.lower() not in names:
            raise OptionError("--variants", not_known(variant, VARIANTS))
    if not named:
        raise OptionError("--variants", f"names no variant; one of {', '.join(VARIANTS)}")
    return [
        msgspec.structs.replace(VARIANTS[names[variant.lower()]], backfill=backfill, max_slowdown=max_slowdown)
        for variant in dict.fromkeys(named)
        for backfill in split_names("--backfill", backfills)
    ]


def _model(slowdowns: str | None) -> SlowdownModel:
    from gridweave.scenarios.traces.resources import read_slowdowns
    from gridweave.site.disciplines.sharing.slowdown_tables import SlowdownModel

    return SlowdownModel() if slowdowns is None else SlowdownModel("measured", table=read_slowdowns(slowdowns))


def _prepared(trace: str, nodes: int | None, resources: str, seed: int) -> tuple[Workload, Sequence[str]]:
    """Read the trace and assign resources to its jobs; return it with remarks."""
    import numpy as np

    from gridweave.scenarios.traces.load import load_workload
    from gridweave.scenarios.traces.resources import with_mix

    workload, report = load_workload(trace, nodes=nodes, columns=())
    return with_mix(workload, resources, np.random.default_rng(seed)), report.lines()


def side_by_side(
    workload: Workload, sites: Sequence[tuple[Any, Any]], report: Report, **inputs: Unpack[SiteInputs]
) -> list[SimulationResult]:
    """Simulate the same jobs at several sites, each given by its nodes and its policy."""
    from gridweave.scenarios.batch.simulate import simulate_site

    def run(number: int, nodes: Any, policy: Any) -> SimulationResult:
        def progress(done: int, total: int) -> None:
            report(number * total + done, len(sites) * total, f"Simulating {policy.label}")

        of_site: SiteInputs = {**inputs, "progress": progress}
        return simulate_site(workload, nodes, policy, **of_site)

    report(0, len(workload) * len(sites), "Compiling and simulating")
    return interruptible(lambda: [run(number, *site) for number, site in enumerate(sites)])


def _sites(
    workload: Workload, nodes: int | None, chosen: list[SharingPolicy], options: SharingOptions
) -> list[tuple[list[NodeKind], SharingPolicy]]:
    import msgspec

    from gridweave.site.resources.chunks import NodeKind

    count = nodes if nodes is not None else workload.nodes
    if count is None:
        raise InputError(f"{workload.name}: the number of nodes is not known; give --nodes")
    kind = NodeKind(count=count, cores=options.cores, threads=options.threads)
    return [([msgspec.structs.replace(kind, cpu=policy.cpu)], policy) for policy in chosen]


def _print(results: list[SimulationResult]) -> None:
    rows = [(result.label, *_figures(result.sharing_metrics()).values()) for result in results]
    headings = ("variant", *_figures(results[0].sharing_metrics()))
    title = f"{results[0].workload.name} on {results[0].nodes:,} nodes"
    print_table(rows, headings=headings, title=title, left=1)


def _figures(metrics: SharedMetrics) -> dict[str, str]:
    return {
        "response [s]": f"{metrics.art_ms / 1000:,.0f}",
        "relative": f"{metrics.relative_response:,.2f}",
        "slowdown": f"{metrics.mean_slowdown:.3f}",
        "shared starts": f"{metrics.shared_starts:,}",
        "UTIL": f"{metrics.util:.2%}",
        "efficiency": f"{metrics.efficiency:.2%}",
        "makespan [h]": f"{metrics.makespan_ms / 3_600_000:,.1f}",
    }


def _as_json(result: SimulationResult) -> dict[str, object]:
    import msgspec

    return {
        "label": result.label,
        "options": dict(result.options),
        "refused": [{"job_id": job_id, "reason": reason} for job_id, reason in result.refused],
        "sharing": msgspec.to_builtins(result.sharing_metrics()),
        "searches": dict(result.own.searches),
    }


def _write(results: list[SimulationResult], out: str) -> int:
    """Write the jobs of each variant, and the metrics of all; return the number of files."""
    import re
    from pathlib import Path

    from gridweave.scenarios.results.files import write_all, write_json

    files = {
        f"jobs-{re.sub(r'[^A-Za-z0-9=._-]+', '-', result.label)}.csv": result.files(plots=False)["jobs.csv"]
        for result in results
    }
    summary = [_as_json(result) for result in results]
    return len(write_all(Path(out), files | {"summary.json": lambda path: write_json(path, summary)}))
