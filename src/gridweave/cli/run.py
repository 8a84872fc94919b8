"""``gridweave run``: a scenario in simulation, or with ``--on`` on real sites, compared with the simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from gridweave.cli.arguments import Json
from gridweave.cli.options import named_as_typed
from gridweave.cli.output import check_folder, delayed_progress, print_json, print_table, say
from gridweave.errors import OptionError, ScenarioError

if TYPE_CHECKING:
    from gridweave.scenarios.live.compare import LiveRun
    from gridweave.scenarios.results.schedule import SimulationResult


SPEED = 1000.0

WHERE = ("simulation", "ray", "grid")
"""The values of --on, except for addresses of gateways."""


def check_where(on: str, *, speed: float | None, address: str | None, jobs: int | None) -> bool:
    """Whether --on names a live run; OptionError for options that do not work with it."""
    if on not in WHERE and "://" not in on:
        valid_names = ", ".join(WHERE)
        raise OptionError("--on", f"{on!r} is not known; one of {valid_names}, or the address of a gateway")
    if address is not None and on != "ray":
        raise OptionError("--address", "works only with --on ray")
    if on != "simulation":
        return True
    for option, value in (("--speed", speed), ("--jobs", jobs)):
        if value is not None:
            raise OptionError(option, "works only with --on ray, --on grid or --on URL")
    return False


def run_live(
    scenario: str, overrides: Sequence[str], *, on: str, speed: float | None, address: str | None, jobs: int | None
) -> LiveRun:
    """Run a scenario live, and print remarks and warnings."""
    with named_as_typed(url="--on", token="GRIDWEAVE_TOKEN", ca="GRIDWEAVE_CA"), delayed_progress("Reading") as report:
        if on == "ray":
            from gridweave.scenarios.live.runner import run_on_ray

            speed = SPEED if speed is None else speed
            done = run_on_ray(scenario, overrides=overrides, speed=speed, address=address, jobs=jobs, progress=report)
        else:
            from gridweave.scenarios.live.runner import run_on_gateway

            url = None if on == "grid" else on
            done = run_on_gateway(scenario, url, overrides=overrides, speed=speed, jobs=jobs, progress=report)
    for remark in done.remarks:
        say(remark)
    for warning in done.warnings():
        say(f"warning: {warning}")
    return done


Done = TypeVar("Done", "SimulationResult", "LiveRun")


def print_outcome(done: Done, show: Callable[[Done], None], *, out: str | None, plots: bool, as_json: bool) -> None:
    """Print the results of a run, and write its files to `out` if given."""
    if as_json:
        print_json(done.summary())
    else:
        show(done)
    if out is not None:
        with delayed_progress("Writing files"):
            files = done.write(out, plots=plots)
        say(f"wrote {len(files)} files to {out}")


def print_live_run(done: LiveRun) -> None:
    """Print the results of a live run next to those of the simulation, and whether they agree."""
    typer.echo(f"{done.live.name}: {done.live.label}, on {done.where} at {done.speed:g} times real time")
    print_table(done.count_rows())
    print_table(done.difference_rows(), headings=("seconds", "least", "5%", "median", "95%", "most"))
    print_whole_grid(done)
    typer.echo(done.verdict())


def print_whole_grid(done: LiveRun) -> None:
    """Print the metrics of a live run next to those of the simulation."""
    print_table(done.metric_rows(), headings=("whole grid", "simulated", "live", "difference"))


Source = Annotated[
    str, typer.Argument(metavar="SCENARIO", help="Scenario file, or name of a scenario that ships with gridweave.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key, e.g. grid.overhead=0.3 or sites=m256. Repeatable."),
]


Where = Annotated[
    str,
    typer.Option(
        metavar="WHERE",
        help="Where to run: simulation, or live and compared with it: ray, a gateway URL, or grid (the one that "
        "other commands find).",
    ),
]
Speed = Annotated[
    float | None,
    typer.Option(
        metavar="X",
        help="Live runs: seconds of the scenario per real second, e.g. 500. \\[default: 1000 with --on ray; on a "
        "grid, a "
        "speed at which starting processes takes little time]",
    ),
]


_Out = Annotated[
    str | None, typer.Option(metavar="FOLDER", help="Write jobs.csv, summary.json and plots to this folder.")
]
_Address = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="With --on ray: Ray cluster to use, e.g. auto. \\[default: start one]"),
]


def run_scenario(
    scenario: Source,
    overrides: Overrides = None,
    out: _Out = None,
    plots: Annotated[bool, typer.Option(help="Whether --out draws plots.")] = True,
    as_json: Json = False,
    on: Where = "simulation",
    speed: Speed = None,
    address: _Address = None,
    jobs: Annotated[int | None, typer.Option(metavar="N", help="Live runs: run only the first N jobs.")] = None,
) -> None:
    """Run a scenario and print the results for its sites and jobs.

    Example: gridweave run two-sites --set grid.mode=sharing --out result

    With --on ray, run the scenario on real sites on Ray, with time compressed, and compare it with the simulation.

    Example: gridweave run two-sites --on ray --speed 1000 --jobs 300

    With --on URL, run the scenario on a running grid that has its sites and its policy.

    Example: gridweave run three-sites --on http://127.0.0.1:8765
    """
    live = check_where(on, speed=speed, address=address, jobs=jobs)
    if out is not None:
        check_folder(out)
    with problems_as_lines():
        if live:
            result = run_live(scenario, overrides or [], on=on, speed=speed, address=address, jobs=jobs)
            print_outcome(result, print_live_run, out=out, plots=plots, as_json=as_json)
        else:
            print_outcome(_simulated(scenario, overrides or []), _print, out=out, plots=plots, as_json=as_json)


def _simulated(scenario: str, overrides: list[str]) -> SimulationResult:
    from gridweave.scenarios.scenario import run

    with delayed_progress("Reading") as report:
        done = run.run_scenario(scenario, overrides=overrides, progress=report)
    for remark in done.remarks:
        say(remark)
    return done


@contextmanager
def problems_as_lines() -> Iterator[None]:
    """Print all problems of a scenario, one line each, and exit with the status of invalid input."""
    try:
        yield
    except ScenarioError as error:
        for problem in error.problems:
            say(f"gridweave: {problem}")
        raise typer.Exit(error.exit_status) from None


def _print(done: SimulationResult) -> None:
    from gridweave.scenarios.results.tables import SITE_HEADINGS, metric_rows, network_rows, site_rows

    print_table(site_rows(done), headings=SITE_HEADINGS, title=f"{done.name}: {done.label}")
    print_table(metric_rows(done), headings=("whole grid", "", ""))
    if done.site_kinds:
        print_resources(done)
    if done.network is not None:
        print_table(network_rows(done.network), headings=("network", "", ""))


def print_resources(done: SimulationResult) -> None:
    """Print how the sites' cores, memory and GPUs were used, and how long jobs without and with GPUs waited."""
    from gridweave.scenarios.results.tables import GPU_HEADINGS, RESOURCE_HEADINGS, gpu_rows, resource_rows

    print_table(resource_rows(done), headings=RESOURCE_HEADINGS, left=2)
    print_table(gpu_rows(done), headings=GPU_HEADINGS)
