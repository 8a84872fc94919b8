"""``gridweave simulate``: one site under one or several policies; ``gridweave bound``: a bound for all policies."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated

import typer

from gridweave.cli.arguments import Json, Needs, Nodes, Trace, options_of
from gridweave.cli.optimum import loss_over, print_loss
from gridweave.cli.options import check_seed, named_as_typed, parse_kinds, parse_reservation, policies
from gridweave.cli.output import (
    check_folder,
    delayed_progress,
    give_back_large_arrays,
    interruptible,
    print_json,
    print_table,
    say,
)
from gridweave.cli.run import print_resources
from gridweave.cli.sharing import (
    SHARING,
    SHARING_HELP,
    Cores,
    MaxSlowdown,
    Resources,
    SharingOptions,
    Slowdowns,
    Threads,
    Variants,
    compare_sharing,
    side_by_side,
)
from gridweave.errors import InputError, OptionError, check_known
from gridweave.site.times import parse_time_ms, span_text

if TYPE_CHECKING:
    from gridweave.scenarios.batch.saving import Saving
    from gridweave.scenarios.batch.simulate import SiteInputs
    from gridweave.scenarios.results.schedule import SimulationResult
    from gridweave.scenarios.workload.site_events import NodeEvent, Request, ReservationAnswer
    from gridweave.scenarios.workload.table import Workload
    from gridweave.site.disciplines.entry import Entry, Policy
    from gridweave.site.resources.chunks import NodeKind

_MIN_WIDTH = 80


Discipline = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="queue: start jobs from a queue. planning: plan the start of every job, and plan again when one is "
        f"submitted or ends. {SHARING_HELP} Others: docs/disciplines.md.",
    ),
]
Order = Annotated[
    str,
    typer.Option(
        metavar="NAME,...",
        help="Order of the queue: fcfs, sjf, ljf (by estimate), saf, laf (by area), bfit, wfit (widest, narrowest), "
        "smith (area by weight), weight, priority. Several are compared.",
    ),
]
Backfill = Annotated[
    str,
    typer.Option(
        metavar="NAME,...",
        help="Which jobs may overtake: easy, none, conservative, slack (planning: easy, none). Several are compared.",
    ),
]
Choice = Annotated[
    str,
    typer.Option(
        metavar="NAME,...",
        help="Which job overtakes first under easy or slack: first-fit or best-fit. Several are compared.",
    ),
]
Slack = Annotated[
    float,
    typer.Option(metavar="X", help="For slack: how long the first job may be delayed, in multiples of its estimate."),
]
Aging = Annotated[
    str,
    typer.Option(metavar="TIME", help="For priority: waiting time that raises a job by one level, e.g. 2h; or none."),
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE,...",
        help="An option of the discipline itself, named as in a scenario, or @FILE.toml with such options. "
        "Several values are compared. Repeatable.",
    ),
]
Limits = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE,...",
        help="For planning: limit some jobs (wider-than=75%, longer-than=2h, user=7; by default all): when they "
        "do not start (days=mon-fri, from=8:00, to=18:00), or how much they may use at once (max-nodes=50%, "
        "max-jobs=2). Repeatable.",
    ),
]
Reservations = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE,...",
        help="For planning: nodes reserved in advance, e.g. start=10d,length=2h,nodes=64 (or 50%); requested=9d "
        "is the time of the request. Times count from the start of the trace. Repeatable; the output says which are "
        "accepted.",
    ),
]
NodeEvents = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="For queue and planning: nodes that fail, drain and come back (.csv with at_ms, kind, first_node, nodes; "
        "kind is down, drain or up).",
    ),
]
Kinds = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME:COUNT,KEY=VALUE,...|FILE.toml",
        help="Kinds of nodes, if jobs may share nodes, e.g. gpu:2,cores=32,memory=512GB,gpus=a100:4. Other keys: "
        "gres=fpga:2, labels=ib+ssd, speed. Repeatable; or a TOML file with kinds, as in a scenario.",
    ),
]
Placement = Annotated[
    str,
    typer.Option(metavar="NAME", help="With --kinds: nodes that a job fills first; best-fit, worst-fit or first-fit."),
]
Chunks = Annotated[
    str | None,
    typer.Option(
        metavar="cores|FILE",
        help="With --kinds: what jobs ask for, from a .csv file as written by `gridweave trace convert`; or cores: "
        "each processor of the trace is a chunk of one core with its memory. \\[default: whole nodes]",
    ),
]
Estimates = Annotated[
    str,
    typer.Option(
        metavar="MODEL",
        help="Estimates: keep (those of the trace); perfect; omega:X (uniform, up to 1+X times the run time) or phi:X "
        "(a fraction X is perfect), as in Zhang et al., section 2.1.",
    ),
]
RunTimes = Annotated[
    str,
    typer.Option(
        metavar="MODEL",
        help="Run times: keep (those of the trace), lognormal:X (drawn around those, with a standard deviation of X "
        "times the mean), or experience:FILE.toml (drawn for each job class from its table [\\[experience]]). "
        "Estimates stay the same.",
    ),
]
Priorities = Annotated[
    str,
    typer.Option(
        metavar="MODEL",
        help="Priorities of jobs: keep (those of the trace, if it has any), COLUMN:VALUE=PRIORITY,... (COLUMN is "
        "job_class, the queue in SWF, or user, group or partition; e.g. job_class:3=2,1=1, and 0 for all others), or "
        "shares:PRIORITY=SHARE,... (drawn).",
    ),
]
Shrink = Annotated[float, typer.Option(metavar="X", help="Multiply all submit times by X; below 1, the load rises.")]
Cancelled = Annotated[
    bool,
    typer.Option(
        "--cancelled",
        help="Keep jobs that were cancelled before they started (SWF: status 5); one that is still waiting at that "
        "time leaves the queue.",
    ),
]
Seed = Annotated[int, typer.Option(metavar="N", help="Seed for all random draws.")]
ShowMatrix = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="For gang: print the jobs on each node in each time slice at this time, counted from the start of "
        "the trace, e.g. 10d.",
    ),
]
Save = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Save the simulation to this file regularly, and on Ctrl-C."),
]
SaveEvery = Annotated[str, typer.Option(metavar="TIME", help="Interval at which --save and --resume save.")]
Resume = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Continue from a file written by --save, with the same trace and options."),
]
OptimumEvery = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="For dynp: find the best plan at every Nth submission (10 s each), and print how much worse the best "
        "policy is.",
    ),
]
Out = Annotated[
    str | None,
    typer.Option(metavar="FOLDER", help="Write jobs.csv, summary.json and plots to this folder."),
]
Plots = Annotated[bool, typer.Option(help="Whether --out draws plots.")]


@dataclass(frozen=True)
class _Asked:
    """The options of the command."""

    trace: Trace
    nodes: Nodes = None
    discipline: Discipline = "queue"
    order: Order = "fcfs"
    backfill: Backfill = "easy"
    choice: Choice = "first-fit"
    slack: Slack = 0.5
    aging: Aging = "none"
    option: Options = None
    limit: Limits = None
    reservation: Reservations = None
    node_events: NodeEvents = None
    kinds: Kinds = None
    placement: Placement = "best-fit"
    chunks: Chunks = None
    estimates: Estimates = "keep"
    run_times: RunTimes = "keep"
    priorities: Priorities = "keep"
    shrink: Shrink = 1.0
    cancelled: Cancelled = False
    resources: Resources = "M1"
    needs: Needs = None
    variants: Variants = "PSS,L-U1,L-R"
    cores: Cores = 1
    threads: Threads = 2
    max_slowdown: MaxSlowdown = 1.6
    slowdowns: Slowdowns = None
    seed: Seed = 1
    save: Save = None
    save_every: SaveEvery = "1m"
    resume: Resume = None
    out: Out = None
    plots: Plots = True
    show_matrix: ShowMatrix = None
    optimum_every: OptimumEvery = None
    as_json: Json = False

    @property
    def sharing(self) -> SharingOptions:
        """The options for shared nodes."""
        return SharingOptions(**{field.name: getattr(self, field.name) for field in fields(SharingOptions)})

    def policies(self, nodes: int) -> list[Policy]:
        """Return the policies for a site with this number of nodes: every combination of the listed names."""
        limits, own = list(self.limit or ()), list(self.option or ())
        named = (self.discipline, self.order, self.backfill, self.choice)
        return policies(*named, self.slack, self.aging, limits, own, nodes, self.node_kinds, self.placement)

    @functools.cached_property
    def node_kinds(self) -> tuple[NodeKind, ...]:
        """The kinds of nodes; empty if jobs get whole nodes that are all alike."""
        return parse_kinds(self.kinds) if self.kinds else ()

    @property
    def site_nodes(self) -> int | None:
        """The number of nodes of the site, if an option says so."""
        return sum(kind.count for kind in self.node_kinds) or self.nodes

    @property
    def machine(self) -> int | None:
        """The width of the widest job that the site can run, or None for that of the trace's machine."""
        # Jobs that fit no node are refused by the site; here, a chunk takes at least one core.
        return sum(kind.count * (kind.cores if self.chunks else 1) for kind in self.node_kinds) or self.nodes

    def requests(self, nodes: int) -> list[Request]:
        """Return the reservation requests to a site with this number of nodes."""
        return [parse_reservation(number, text, nodes) for number, text in enumerate(self.reservation or (), start=1)]


@options_of(_Asked)
def simulate(asked: _Asked) -> None:
    """Simulate one site and print its metrics; several orders or backfillings are compared side by side.

    Example: gridweave simulate CTC-SP2-1996-3.1-cln --nodes 430 --discipline planning --order fcfs,sjf,ljf --out result
    """
    run = _simulate_sharing if asked.discipline.strip().lower() == SHARING else _simulate
    run(asked)


WITH_SHARING = frozenset(
    {
        "trace",
        "nodes",
        "discipline",
        "backfill",
        "seed",
        "out",
        "as_json",
        *(one.name for one in fields(SharingOptions)),
    }
)
"""The options that work with shared nodes."""


def _simulate_sharing(asked: _Asked) -> None:
    for option in fields(asked):
        if option.name in WITH_SHARING or getattr(asked, option.name) in (option.default, (), []):
            continue
        typed = ("no-" if option.default is True else "") + option.name.replace("_", "-")
        raise OptionError(f"--{typed}", f"does not work with --discipline {SHARING}; leave it out")
    where = (asked.trace, asked.nodes, asked.sharing, asked.backfill, asked.seed, asked.out)
    compare_sharing(*where, as_json=asked.as_json)


def _simulate(asked: _Asked) -> None:
    entry = _checked_entry(asked)
    give_back_large_arrays()
    with named_as_typed(mix="--resources"), delayed_progress("Reading") as report:
        ready = _made_ready(asked, entry)
        sites = [(asked.site_nodes, policy) for policy in ready.policies]
        of_site: SiteInputs = {"reservations": ready.requests, "node_events": ready.node_events, "saving": ready.saving}
        with _saved_on_interrupt(ready.saving):
            results = side_by_side(ready.workload, sites, report, **of_site)
    made_with = {"estimates": asked.estimates, "shrink": asked.shrink, "seed": asked.seed}
    drawn = {"run_times": asked.run_times, "priorities": asked.priorities}
    made_with |= {name: model for name, model in drawn.items() if model != "keep"}
    results = [replace(result, options={**result.options, **made_with}) for result in results]
    _show(asked, ready, results)
    if asked.out is not None:
        with delayed_progress("Writing files"):
            written = _write(results, asked.out, plots=asked.plots)
        say(f"wrote {written} files to {asked.out}")


def _show(asked: _Asked, ready: _Ready, results: list[SimulationResult]) -> None:
    losses = _losses(results, asked.optimum_every)
    if asked.as_json:
        extra = [{"optimum": loss} for loss in losses] or [{}] * len(results)
        print_json([_as_json(result) | more for result, more in zip(results, extra, strict=True)])
        return
    _print(results)
    if ready.matrix_ms is not None:
        _print_matrices(ready.workload, asked.site_nodes, ready.policies, ready.matrix_ms)
    for result, loss in zip(results, losses, strict=False):
        print_loss(result.label, loss)


def _checked_entry(asked: _Asked) -> Entry:
    """Return the discipline; OptionError if an option is invalid, as far as that is known without the trace."""
    from gridweave.site.disciplines.dictionary import entry_named

    with named_as_typed():
        entry = entry_named(asked.discipline.strip().lower())
    asked.sharing.check_unused(uses_resources=entry.traits.uses_resources)
    _check_kinds(asked)
    if asked.out is not None:
        check_folder(asked.out)
    check_seed(asked.seed)
    _check_optimum(asked.optimum_every, entry.name)
    return entry


def _check_kinds(asked: _Asked) -> None:
    """Raise OptionError if the options for kinds of nodes do not go together."""
    if asked.kinds and asked.nodes is not None:
        raise OptionError("--nodes", "follows from --kinds; leave it out")
    for option, value, default in (("--chunks", asked.chunks, None), ("--placement", asked.placement, "best-fit")):
        if not asked.kinds and value != default:
            raise OptionError(option, "needs --kinds, which says what the nodes have")


@dataclass(frozen=True)
class _Ready:
    """The inputs of the simulation, read and checked; `matrix_ms` is the instant at which --show-matrix prints."""

    workload: Workload
    policies: list[Policy]
    requests: list[Request]
    node_events: list[NodeEvent]
    saving: Saving | None
    matrix_ms: int | None


def _made_ready(asked: _Asked, entry: Entry) -> _Ready:
    """Read and check the inputs, and print remarks about them."""
    from gridweave.scenarios.batch.one_site import check_reserves
    from gridweave.scenarios.traces.convert import check_nodes
    from gridweave.scenarios.traces.outages import read_node_events
    from gridweave.scenarios.workload.table import MAX_WIDTH

    check_nodes(asked.nodes)
    # Invalid names are found before a long trace is read; percentages of the nodes are known only afterwards.
    count = asked.site_nodes
    named = asked.policies(count or MAX_WIDTH)
    for policy in named if asked.requests(count or MAX_WIDTH) else ():
        check_reserves(policy)
    matrix_ms = _check_matrix_option(asked.show_matrix, named)
    saving = _saving(asked, named)
    events = read_node_events(asked.node_events) if asked.node_events is not None else []
    workload, remarks = _prepared(asked, named, entry)
    nodes = count or workload.nodes or MAX_WIDTH
    chosen = asked.policies(nodes)
    requests = asked.requests(nodes)
    for line in [*remarks, *_without_effect(workload, chosen)]:
        say(line)
    return _Ready(workload, chosen, requests, events, saving, matrix_ms)


def _saving(asked: _Asked, chosen: list[Policy]) -> Saving | None:
    """Return where the simulation is saved and continued from, or None."""
    save, resume = asked.save, asked.resume
    if save is not None and resume is not None:
        raise OptionError("--resume", "saves to its file as well; leave --save out")
    if save is None and resume is None:
        return None
    option = "--save" if save is not None else "--resume"
    if len(chosen) > 1:
        raise OptionError(option, f"works with one policy, not {len(chosen)}")
    from gridweave.scenarios.batch.saving import Saving

    every_ms = parse_time_ms("--save-every", asked.save_every)
    return Saving(save or resume or "", every_s=every_ms / 1000, resume=resume is not None)


@contextmanager
def _saved_on_interrupt(saving: Saving | None) -> Iterator[None]:
    """Save a simulation that is interrupted before it ends; a second interrupt ends it at once."""
    try:
        yield
    except KeyboardInterrupt:
        if saving is not None and saving.has_begun:
            saving.ask()
            saving.saved.wait()
            if saving.path.exists():
                say(f"saved; continue with --resume {saving.path}")
        raise


def _check_optimum(every: int | None, discipline: str) -> None:
    """Check --optimum-every, and that a solver is installed, before a long trace is simulated."""
    if every is None:
        return
    from gridweave.site.disciplines.dynp.policy import NAME
    from gridweave.site.disciplines.optimal.intervals import cp_model_of

    if discipline != NAME:
        raise OptionError("--optimum-every", f"works only with --discipline {NAME}")
    if every < 1:
        raise OptionError("--optimum-every", f"is {every}; expected at least 1")
    cp_model_of()


def _columns_for(trace: str, chosen: list[Policy], *, all_of_them: bool) -> tuple[str, ...]:
    """Return the optional columns of a trace to read; each takes 8 MB for a million jobs.

    Disciplines with kernels use none of them, except that a limit for one user needs the users.
    """
    from gridweave.scenarios.traces.load import columns_of
    from gridweave.site.policy import SitePolicy

    columns = columns_of(trace)
    if all_of_them or not all(isinstance(policy, SitePolicy) for policy in chosen):
        return columns
    by_user = any(limit.user is not None for policy in chosen for limit in getattr(policy, "limits", ()))
    return ("user",) if by_user and "user" in columns else ()


def _prepared(asked: _Asked, chosen: list[Policy], entry: Entry) -> tuple[Workload, Sequence[str]]:
    """Read the trace and apply the options to it; return the workload with remarks about it."""
    import numpy as np

    from gridweave.scenarios.traces.load import load_workload
    from gridweave.scenarios.workload import transform
    from gridweave.scenarios.workload.estimates import with_estimates
    from gridweave.scenarios.workload.run_times import is_from_file, with_run_times

    rng = np.random.default_rng(asked.seed)
    by_class = is_from_file(asked.run_times) or asked.priorities != "keep" or asked.chunks is not None
    columns = _columns_for(asked.trace, chosen, all_of_them=asked.needs is not None or by_class)
    # The trace counts processors, not tasks: jobs that are too wide are found once their needs are known.
    nodes = None if asked.needs else asked.machine
    workload, report = load_workload(asked.trace, nodes=nodes, columns=columns, cancelled=asked.cancelled)
    if asked.chunks is not None:
        from gridweave.scenarios.traces.chunk_files import with_chunks_from

        workload = with_chunks_from(workload, asked.chunks)
    if asked.shrink != 1.0:
        workload = transform.shrink(workload, asked.shrink)
    workload = with_run_times(workload, asked.run_times, rng)
    workload = with_estimates(workload, asked.estimates, rng)
    if asked.priorities != "keep":
        from gridweave.scenarios.workload.priorities import with_priorities

        workload = with_priorities(workload, asked.priorities, rng)
    if entry.traits.uses_resources:
        from gridweave.scenarios.traces.resources import with_mix

        workload = with_mix(workload, asked.resources, rng)
    if asked.needs is not None:
        from gridweave.scenarios.traces.resources import with_needs_from

        workload = with_needs_from(workload, asked.needs, rng)
    return workload, report.lines()


def _without_effect(workload: Workload, chosen: list[Policy]) -> list[str]:
    """Return remarks about policies that use values missing in the trace, or for which some jobs are too wide."""
    from gridweave.site.disciplines.dictionary import entry_of

    lines = []
    orders = {getattr(policy, "order", None) for policy in chosen}
    if "priority" not in workload.columns and "priority" in orders:
        lines.append(f"{workload.name} has no priorities: the order priority is the same as fcfs")
    if "priority" not in workload.columns and any(len(getattr(policy, "levels", ())) > 1 for policy in chosen):
        lines.append(f"{workload.name} has no priorities: all jobs have one level; set priorities with --priorities")
    if "weight" not in workload.columns and {"weight", "smith"} & orders:
        lines.append(f"{workload.name} has no weights: all jobs have weight 1")
    if "chunk" not in workload.columns and any(getattr(policy, "kinds", ()) for policy in chosen):
        lines.append(f"{workload.name} does not say what jobs ask for: all jobs get whole nodes; see --chunks")
    limits = getattr(chosen[0], "limits", ())
    if "user" not in workload.columns and any(limit.user is not None for limit in limits):
        lines.append(f"{workload.name} has no users: a limit for one user applies to nobody")
    widest = int(workload.width.max(initial=0))
    for policy in chosen:
        remarks = entry_of(policy).remarks
        lines += remarks(policy, widest) if remarks is not None else ()
    return list(dict.fromkeys(lines))


def _losses(results: list[SimulationResult], every: int | None) -> list[dict[str, float]]:
    """Return how much worse each policy is than the best plans; empty without --optimum-every."""
    if every is None:
        return []
    with delayed_progress("Solving") as report:
        return [loss_over(result, every, report) for result in results]


def _print(results: list[SimulationResult]) -> None:
    from rich.console import Console

    from gridweave.scenarios.results.tables import metrics_table

    for job_id, reason in results[0].refused[:5]:
        say(f"job {job_id} is refused: {reason}")
    if len(results[0].refused) > 5:
        say(f"... and {len(results[0].refused) - 5} more jobs are refused")
    # In a narrow window, long lines are better than numbers broken over lines.
    console = Console(width=max(Console().width, _MIN_WIDTH))
    with console.capture() as printed:
        console.print(metrics_table(results))
    typer.echo(printed.get(), nl=False)
    for result in results:
        if result.site_kinds:
            typer.echo(f"\n{result.label}")
            print_resources(result)
        if result.reservations:
            rows = [_reservation_row(answer) for answer in result.reservations]
            headings = ("reservation", "answer", "requested", "start", "length", "nodes")
            typer.echo("")
            print_table(rows, headings=headings, title=f"Reservations: {result.label}", left=2)


def _reservation_row(answer: ReservationAnswer) -> tuple[str, ...]:
    status = "accepted"
    if not answer.accepted:
        earliest = "" if answer.earliest_ms is None else f"; at the earliest {span_text(answer.earliest_ms)}"
        status = f"refused: {answer.reason}{earliest}"
    times = (span_text(time_ms) for time_ms in (answer.requested_ms, answer.start_ms, answer.length_ms))
    return (str(answer.reservation_id), status, *times, f"{answer.width:,}")


def _as_json(result: SimulationResult) -> dict[str, object]:
    import msgspec

    from gridweave.scenarios.results.files import plain_numbers

    return {
        "label": result.label,
        "options": dict(result.options),
        "refused": [{"job_id": job_id, "reason": reason} for job_id, reason in result.refused],
        "reservations": [msgspec.to_builtins(answer) for answer in result.reservations],
        "metrics": result.metrics().to_dict(),
        **({"resources": result.resources_summary()} if result.site_kinds else {}),
        **({"own_metrics": plain_numbers(result.own_metrics)} if result.own_metrics else {}),
    }


def _write(results: list[SimulationResult], out: str, *, plots: bool) -> int:
    if len(results) == 1:
        return len(results[0].write(out, plots=plots))
    from gridweave.scenarios.results.tables import write_comparison

    return len(write_comparison(results, out, plots=plots))


def _check_matrix_option(text: str | None, chosen: list[Policy]) -> int | None:
    """Return the instant of --show-matrix, or None.

    Raises
    ------
    OptionError
        If the text is not a time, or a policy has no matrix.
    """
    if text is None:
        return None
    from gridweave.site.disciplines.gang.policy import NAME

    if any(policy.discipline != NAME for policy in chosen):
        raise OptionError("--show-matrix", f"works only with --discipline {NAME}; no other has a matrix")
    return parse_time_ms("--show-matrix", text)


def _print_matrices(workload: Workload, nodes: int | None, chosen: list[Policy], at_ms: int) -> None:
    """Print the matrix of each policy at an instant; the slice that is running is marked."""
    from gridweave.scenarios.batch.slices import matrix_at
    from gridweave.site.disciplines.gang.matrix import matrix_rows
    from gridweave.site.disciplines.gang.policy import GangPolicy

    for policy in chosen:
        assert isinstance(policy, GangPolicy), "it was checked that there is a matrix"
        headings, rows = matrix_rows(*matrix_at(workload, nodes or workload.nodes or 1, policy, at_ms))
        typer.echo("")
        print_table(
            rows, headings=headings, title=f"{policy.label} at {span_text(at_ms)} (*: the running slice)", left=1
        )


FirstJobs = Annotated[
    int | None, typer.Option(metavar="N", help="Use only the first N jobs; the computing time grows with N squared.")
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
BoundMethod = Annotated[str, typer.Option(metavar="NAME", help="flow, or lp (the same by linear programming; slow).")]


def bound(
    trace: Trace,
    nodes: Nodes = None,
    needs: Needs = None,
    jobs: FirstJobs = None,
    load: Load = None,
    against: Against = "",
    method: BoundMethod = "flow",
    seed: Seed = 1,
    as_json: Json = False,
) -> None:
    """Print the lowest possible maximum stretch of a trace, with run times known and unlimited memory.

    Example: gridweave bound lublin_256.swf --nodes 256 --needs lublin --jobs 1000 --against easy,GreedyPM*/OPT=MIN
    """
    from gridweave.scenarios.results.bound import METHODS, stretch_bound

    check_seed(seed)
    check_known("--method", method, METHODS)
    with named_as_typed(), delayed_progress("Reading") as report:
        names = [name.strip() for name in against.split(",") if name.strip()]
        policies = [_policy_named(name) for name in names]
        workload, on_nodes = _tasks_of(trace, nodes, needs, jobs, load, seed)
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
        print_table([_bound_row(row) for row in rows], headings=tuple(_BOUND_SHOWN), left=1)


_BOUND_SHOWN = {
    "discipline": ("discipline", ""),
    "max. stretch": ("need_max_stretch", ",.2f"),
    "from bound": ("degradation_from_bound", ",.2f"),
    "underutilization": ("need_underutilization_normalized", ".1%"),
    "preemptions/h": ("preemptions_per_h", ",.1f"),
    "migrations/h": ("migrations_per_h", ",.1f"),
    "nodes' memory moved/h": ("moved_nodes_per_h", ",.1f"),
}
"""Heading to the name of the column's metric and its format."""


def _bound_row(row: dict[str, object]) -> list[str]:
    return ["-" if row.get(name) is None else format(row[name], text) for name, text in _BOUND_SHOWN.values()]


def _policy_named(name: str) -> Policy:
    """Return the policy of a name in --against."""
    from gridweave.site.disciplines.fractional.policy import FractionalPolicy
    from gridweave.site.policy import SitePolicy

    queues = {"fcfs": "none", "easy": "easy"}
    if name.lower() in queues:
        return SitePolicy(backfill=queues[name.lower()])
    return FractionalPolicy(algorithm=name)


def _compared(workload: Workload, nodes: int, policy: Policy, least: float) -> dict[str, float]:
    """Return the metrics of a discipline, including its distance from the bound."""
    from gridweave.scenarios.batch.simulate import simulate_site

    result = interruptible(lambda: simulate_site(workload, nodes, policy))
    if result.refused:
        job_id, reason = result.refused[0]
        refused = f"{result.label} refuses {len(result.refused)} jobs, but the bound is for all"
        raise InputError(f"{refused}; job {job_id}: {reason}")
    metrics = dict(result.own_metrics)
    metrics["degradation_from_bound"] = metrics["need_max_stretch"] / least
    return metrics


def _tasks_of(
    trace: str, nodes: int | None, needs: str | None, jobs: int | None, load: float | None, seed: int
) -> tuple[Workload, int]:
    """Read the trace and apply the options to it; return the workload and the number of nodes."""
    import numpy as np

    from gridweave.scenarios.traces.load import load_workload
    from gridweave.scenarios.traces.resources import with_needs_from
    from gridweave.scenarios.workload.needs import with_load

    # The trace counts processors, not tasks: jobs that are too wide are found once their needs are known.
    workload = load_workload(trace, nodes=None if needs else nodes)[0]
    if jobs is not None:
        if jobs < 1:
            raise OptionError("--jobs", f"is {jobs}; expected at least 1")
        workload = workload.take(np.arange(min(jobs, len(workload))))
    on_nodes = nodes or workload.nodes
    if on_nodes is None:
        raise OptionError("--nodes", "is missing, and the trace does not have the number of nodes")
    workload = with_needs_from(workload, needs or "whole", np.random.default_rng(seed))
    return (workload if load is None else with_load(workload, on_nodes, load)), on_nodes
