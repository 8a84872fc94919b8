"""The command `gridweave scenario`: check and fuzz scenario files, and show those that ship with gridweave."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from gridweave.cli.arguments import Json
from gridweave.cli.options import named_as_typed
from gridweave.cli.output import delayed_progress, print_json, print_table, say
from gridweave.cli.run import Overrides, Source, problems_as_lines
from gridweave.values import counted

if TYPE_CHECKING:
    from gridweave.scenarios.scenario.fuzz import FuzzReport, Violation

app = typer.Typer(help="Check, fuzz and list scenarios.", no_args_is_help=True)

VIOLATION_STATUS = 1


@app.command()
def check(file: Source, overrides: Overrides = None) -> None:
    """Check a scenario, and list all of its problems."""
    from gridweave.scenarios.scenario.build import build_scenario

    with problems_as_lines(), delayed_progress("Reading"):
        built = build_scenario(file, overrides or [])
    for remark in built.remarks:
        say(remark)
    jobs, nodes = counted(len(built.workload), "job"), counted(int(built.nodes.sum()), "node")
    where = f"{nodes} at {counted(len(built.site_names), 'site')}"
    typer.echo(f"{built.scenario.header.name}: can be run; {jobs}, {where}, {built.label}")


@app.command()
def fuzz(
    file: Source,
    runs: Annotated[int, typer.Option(metavar="N", help="Number of worlds to try.")] = 100,
    seed: Annotated[int, typer.Option(metavar="S", help="Seed of all random draws.")] = 1,
    jobs: Annotated[int, typer.Option(metavar="N", help="Jobs in each world.")] = 300,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Search for violations in simulated worlds with bad networks and failing sites.

    Every run checks that no job is lost or run twice, that no part of a job runs alone, that no node has two jobs, and
    that no node is reserved past its lease. The first violation ends the search with status 1, and is printed with the
    command that reproduces it.

    Example: gridweave scenario fuzz two-sites --runs 1000 --seed 7
    """
    from gridweave.scenarios.scenario import fuzz as search
    from gridweave.scenarios.scenario.build import build_scenario

    with problems_as_lines(), delayed_progress("Reading") as report, named_as_typed():
        built = build_scenario(file, overrides or [])
        report(0, max(runs, 1), "Searching for a violation")
        fuzz_report = search.fuzz(search.world_of(built, jobs=jobs), runs, seed, progress=report)
    repeat = _repeating(file, jobs, overrides or [], fuzz_report.violation)
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(fuzz_report) | {"repeat": repeat})
    else:
        _print_tried(fuzz_report)
        if fuzz_report.violation is not None:
            _print_violation(fuzz_report.violation, repeat)
    if fuzz_report.violation is not None:
        raise typer.Exit(VIOLATION_STATUS)


def _repeating(file: str, jobs: int, overrides: list[str], violation: Violation | None) -> str | None:
    if violation is None:
        return None
    changes = [word for override in overrides for word in ("--set", override)]
    words = ["gridweave", "scenario", "fuzz", file, "--runs", "1", "--seed", str(violation.seed), "--jobs", str(jobs)]
    return shlex.join([*words, *changes])


def _print_tried(fuzz_report: FuzzReport) -> None:
    headings = {
        "runs": "runs without a violation",
        "jobs": "jobs",
        "multi_site": "of these on several sites",
        "messages": "messages",
        "lost": "of these lost",
        "crashes": "failures of sites",
        "cuts": "cuts of connections",
        "restarts": "jobs started again",
        "link_changes": "changes of links",
    }
    print_table([(text, f"{getattr(fuzz_report.tried, name):,}") for name, text in headings.items()])


def _print_violation(violation: Violation, repeat: str | None) -> None:
    conditions = violation.conditions
    owners = ", ".join(f"{o.grid_share:.0%}{' own first' if o.own_users_first else ''}" for o in conditions.owners)
    typer.echo(f"violation in run {violation.run + 1}, of seed {violation.seed}: {violation.problem}")
    for name, text in (
        ("network", str(conditions.network)),
        ("faults", str(conditions.faults)),
        ("links", str(conditions.links)),
        ("owners", owners),
        ("to the grid", f"{conditions.to_grid:.0%} of the jobs, from number {conditions.first + 1} on"),
        ("again", repeat),
    ):
        typer.echo(f"  {name}: {text}")


@app.command("list")
def list_catalogue(as_json: Json = False) -> None:
    """List the scenarios and the machine configurations that ship with gridweave."""
    from gridweave.scenarios.scenario.read import machine_configurations, read_scenario, scenario_names

    scenarios = {name: read_scenario(name).header.description for name in scenario_names()}
    machines = machine_configurations()
    if as_json:
        configurations = {
            name: {
                "description": configuration.description,
                "nodes": [site.node_count for site in configuration.sites()],
            }
            for name, configuration in machines.items()
        }
        print_json({"scenarios": scenarios, "machines": configurations})
        return
    print_table(scenarios.items(), headings=("scenario", ""), left=2)
    rows = [(name, str(configuration), configuration.description) for name, configuration in machines.items()]
    print_table(rows, headings=("--set sites=", "sites x nodes", ""), left=3)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a scenario that ships with gridweave.")],
) -> None:
    """Print the file of a scenario that ships with gridweave, to start your own from."""
    from gridweave.scenarios.scenario.read import scenario_text

    typer.echo(scenario_text(name), nl=False)


@app.command()
def schema() -> None:
    """Print the JSON schema of scenario files, for editors that check and complete them."""
    from gridweave.scenarios.scenario.tables import json_schema

    print_json(json_schema())
