"""The command `gridweave scenario`: check scenario files, and look at those that ship."""

from __future__ import annotations

from typing import Annotated

import typer

from gridweave.cli.output import print_json, print_table, say
from gridweave.cli.progress import delayed_progress
from gridweave.cli.run import Overrides, problems_as_lines

app = typer.Typer(help="Check scenario files, and look at those that ship.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print for machines.")]


@app.command()
def check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A scenario file, or the name of one that ships.")],
    overrides: Overrides = None,
) -> None:
    """Say all that is wrong with a scenario, or that it can be run."""
    from gridweave.scenarios.scenario.build import build_scenario

    with problems_as_lines(), delayed_progress("Reading"):
        built = build_scenario(file, overrides or [])
    for remark in built.remarks:
        say(remark)
    jobs, nodes, sites = len(built.workload), int(built.nodes.sum()), len(built.site_names)
    where = f"{nodes:,} nodes at {sites:,} sites" if sites > 1 else f"{nodes:,} nodes at 1 site"
    typer.echo(f"{built.scenario.header.name}: can be run; {jobs:,} jobs, {where}, {built.policy.label}")


@app.command("list")
def list_catalogue(as_json: Json = False) -> None:
    """List the scenarios and the machine configurations that ship."""
    from gridweave.scenarios.scenario.catalogue import machine_configurations, scenario_names
    from gridweave.scenarios.scenario.reader import read_scenario

    scenarios = {name: read_scenario(name).header.description for name in scenario_names()}
    machines = machine_configurations()
    if as_json:
        configurations = {
            name: {"description": one.description, "nodes": [site.nodes for site in one.sites()]}
            for name, one in machines.items()
        }
        print_json({"scenarios": scenarios, "machines": configurations})
        return
    print_table(scenarios.items(), headings=("scenario", ""), left=2)
    rows = [(name, str(one), one.description) for name, one in machines.items()]
    print_table(rows, headings=("--set sites=", "sites x nodes", ""), left=3)


@app.command()
def show(name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a scenario that ships.")]) -> None:
    """Print the file of a scenario that ships, for a start of one's own."""
    from gridweave.scenarios.scenario.catalogue import scenario_text

    typer.echo(scenario_text(name), nl=False)


@app.command()
def schema() -> None:
    """Print the JSON schema of scenario files, with which editors check and complete them."""
    from gridweave.scenarios.scenario.structs import json_schema

    print_json(json_schema())
