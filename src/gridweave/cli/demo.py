"""``gridweave demo``: a whole grid comes up, runs jobs, is set beside the simulation, and is gone again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gridweave.cli.grid_client import places_text, print_forecast
from gridweave.cli.output import check_folder, counted, delayed_progress, print_table, say
from gridweave.cli.run import print_live_run
from gridweave.cli.up import progress

if TYPE_CHECKING:
    from gridweave.scenarios.live.demo import Shown
    from gridweave.site.job import JobRecord

NAME = "demo"


def demo(out: Annotated[str, typer.Argument(metavar="[FOLDER]", help="Folder for the report.")] = "out/demo") -> None:
    """Start a small grid on this machine, run real jobs on it, and stop it again. Takes about a minute.

    The jobs are shaped like those of a trace, and one of them is wider than any site. The report compares what happened
    with what the simulation says. Nothing is left running, even after Ctrl-C.

    Example: gridweave demo out/demo
    """
    folder = check_folder(out)
    folder.mkdir(parents=True, exist_ok=True)
    from gridweave.scenarios.live.demo import grid_of_its_own

    began = time.monotonic()
    with grid_of_its_own(NAME, lambda what: None):
        _show(folder)
    say(f"\nThe grid is down again; all of it took {time.monotonic() - began:.0f} s. The report is in {out}:")
    say(f"  {out}/jobs.csv              every job, simulated and live")
    say(f"  {out}/live/                 how nodes were used and jobs waited; simulated/ as it was simulated")
    say("Next: gridweave up")


def _show(folder: Path) -> None:
    from gridweave.grid.config.reading import grid_of_text
    from gridweave.grid.service.local import bring_up, wanted_grid
    from gridweave.scenarios.live.demo import grid_text, make_demo, play, simulated_by, simulator

    (folder / "GRID.toml").write_text(grid_text(), encoding="utf-8")
    wanted = wanted_grid(grid_of_text(grid_text(), "GRID.toml", ""), name=NAME)
    with progress() as tell:
        brought = bring_up(wanted, tell)
    state = brought.state
    rows = [(f"site {site.name}", counted(site.nodes, "node")) for site in state.sites]
    print_table(
        [*rows, ("gateway", state.url)], title=f"A grid is up after {sum(brought.seconds.values()):.0f} s", left=2
    )
    made = make_demo(folder)
    with simulator() as process:
        typer.echo(f"{len(made.built.workload)} jobs, shaped like those of {made.source}, are submitted.")
        with delayed_progress("Playing") as report:
            shown = play(state, made, report)
        _print_shown(shown)
        with progress() as tell:
            tell("Comparing it with the simulation")
            done = made.compared(simulated_by(process, made.on(shown.live)), shown)
    print_live_run(done, verdict=False)
    for remark in done.remarks:
        say(remark)
    with progress() as tell:
        tell("Drawing the report")
        done.write(folder)


def _print_shown(shown: Shown) -> None:
    if shown.waiting is not None:
        print_table(_sharing(shown.running), headings=("site", "jobs on it"), title="The jobs share the sites:", left=2)
        typer.echo(f"Why does job {shown.waiting.job_id} wait? (gridweave explain {shown.waiting.job_id})")
        print_forecast(shown.waiting)
    split = [
        (f"job {record.job_id}", counted(record.request.nodes, "node"), places_text(record.places))
        for record in shown.split
    ]
    print_table(split, title="Jobs that ran on several sites at once", left=3)


def _sharing(running: list[JobRecord]) -> list[tuple[str, str]]:
    on: dict[str, list[str]] = {}
    for record in sorted(running, key=lambda record: record.job_id):
        for site, nodes in record.places:
            others = " of " + str(record.request.nodes) if len(record.places) > 1 else ""
            on.setdefault(site, []).append(f"job {record.job_id} ({nodes}{others})")
    return [(site, ", ".join(jobs)) for site, jobs in sorted(on.items())]
