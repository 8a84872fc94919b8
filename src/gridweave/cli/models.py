"""`gridweave trace learn` and `gridweave trace generate`: workload models, and workloads drawn from them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from gridweave.cli.options import named_as_typed
from gridweave.cli.output import print_json, say
from gridweave.errors import InputError, OptionError

if TYPE_CHECKING:
    from gridweave.scenarios.generators.moments import Moments
    from gridweave.scenarios.workload import Workload

DEFAULT_MODEL = "ctc-sp2"

_MODEL_FILE = re.compile(r".\.json(\.(gz|xz))?$", re.IGNORECASE)
_DAY_MS = 86_400_000

Json = Annotated[bool, typer.Option("--json", help="Print for machines.")]


def register(app: typer.Typer) -> None:
    """Add the two commands to an application.

    Parameters
    ----------
    app : typer.Typer
        The one behind `gridweave trace`.
    """
    app.command("learn")(learn)
    app.command("generate")(generate)


def learn(
    file: Annotated[str, typer.Argument(metavar="FILE", help="SWF or MuPSiE file, or the name of a trace.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="File to write: .json, with .gz or .xz behind.")],
    nodes: Annotated[
        int | None, typer.Option("--nodes", help="Nodes of the machine; the file tells if left out.")
    ] = None,
    model: Annotated[
        str, typer.Option("--model", metavar="histogram|hyper-erlang", help="What kind of model to learn.")
    ] = "histogram",
    weibull: Annotated[
        str | None,
        typer.Option(
            "--weibull",
            metavar="fit|table:NAME",
            help="Interarrival times of a histogram model: fitted (the default), or as published, such as table:CTC.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Learn a workload model from a trace and keep it as a small file."""
    from gridweave.scenarios.generators.model_file import save_model
    from gridweave.scenarios.generators.registry import GENERATORS
    from gridweave.scenarios.load import load_workload

    entry = GENERATORS.get(model)
    if entry is None or entry.learn is None:
        known = ", ".join(name for name, one in GENERATORS.items() if one.learn is not None)
        raise OptionError("--model", f"{model!r} is not a kind of model that is learnt; these are {known}")
    options = {} if weibull is None else {"weibull": weibull}
    for option in options:
        if option not in entry.learn_options:
            raise OptionError(f"--{option}", f"a {model} model has no such parameter; leave it out")
    if not _MODEL_FILE.search(out):
        raise InputError(f"{out}: a model is written as .json, .json.gz or .json.xz; give such a name")
    with named_as_typed():
        workload, report = load_workload(file, nodes=nodes)
        learnt = entry.learn(workload, nodes=nodes, **options)
    save_model(learnt, out)
    moments: Moments = learnt.moments
    if as_json:
        figures = {"jobs": moments.jobs, "nodes": learnt.nodes, "offered_load": moments.offered_load}
        print_json({"out": out, "model": model, **figures, "conversion": report.to_dict()})
        return
    say(str(report))
    typer.echo(
        f"{model} model of {moments.jobs:,} jobs, offered load {moments.offered_load:.3f} on {learnt.nodes:,} nodes, "
        f"written to {out}"
    )


def generate(
    out: Annotated[str, typer.Argument(metavar="OUT", help="File to write: .swf, .mupsie or .txt, with .gz or .xz.")],
    model: Annotated[
        str, typer.Option("--model", metavar="NAME|FILE", help="A model that comes with gridweave, or a learnt one.")
    ] = DEFAULT_MODEL,
    jobs: Annotated[int, typer.Option("--jobs", help="Number of jobs.")] = 10_000,
    seed: Annotated[int, typer.Option("--seed", help="Same seed, same jobs.")] = 1,
    nodes: Annotated[
        int | None, typer.Option("--nodes", help="Nodes of the machine, the model's if left out; no job is wider.")
    ] = None,
    load: Annotated[
        float | None,
        typer.Option(
            "--load", help="Offered load to reach by the interarrival times, before --shrink and --run-factor."
        ),
    ] = None,
    shrink: Annotated[
        float, typer.Option("--shrink", help="Multiplies interarrival times; below 1 raises the load.")
    ] = 1.0,
    run_factor: Annotated[float, typer.Option("--run-factor", help="Multiplies run times and estimates.")] = 1.0,
    estimates: Annotated[
        str,
        typer.Option(
            "--estimates", metavar="keep|perfect|omega:X|phi:X", help="Estimates: the model's, or of a model."
        ),
    ] = "keep",
    to: Annotated[
        str | None, typer.Option("--to", metavar="swf|mupsie", help="Format of OUT, whatever its suffix.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Generate a workload from a model."""
    import numpy as np

    from gridweave.scenarios.estimates import with_estimates
    from gridweave.scenarios.generators.model_file import load_model
    from gridweave.scenarios.generators.registry import generate as generate_from
    from gridweave.scenarios.load import save_workload

    if seed < 0:
        raise OptionError("--seed", f"{seed} is negative; give 0 or more")
    source = load_model(model)
    # Two streams: the jobs do not change with the model of their estimates.
    for_jobs, for_estimates = np.random.default_rng(seed).spawn(2)
    with named_as_typed(interarrival_factor="--shrink", file_format="--to"):
        workload = generate_from(
            source, jobs, for_jobs, nodes=nodes, load=load, run_factor=run_factor, interarrival_factor=shrink
        )
        workload = with_estimates(workload, estimates, for_estimates)
        written = save_workload(workload, out, file_format=to)
    _tell(workload, out, written, {"model": model, "seed": seed}, as_json)


def _tell(workload: Workload, out: str, written: str, origin: dict[str, object], as_json: bool) -> None:
    """Print what was generated."""
    from gridweave.scenarios.generators.moments import measure

    span_ms = int(workload.submit_ms[-1])
    load = measure(workload).offered_load if span_ms else None
    if as_json:
        figures = {"jobs": len(workload), "nodes": workload.nodes, "span_ms": span_ms, "offered_load": load}
        print_json({"out": out, "format": written, **figures, **origin})
        return
    offered = f", offered load {load:.3f} on {workload.nodes:,} nodes" if load is not None else ""
    jobs = f"{len(workload):,} job{'s' if len(workload) > 1 else ''}"
    typer.echo(f"{jobs} over {span_ms / _DAY_MS:.1f} days{offered}, written to {out} ({written})")
