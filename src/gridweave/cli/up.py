"""``gridweave up``, ``down``, ``status`` and ``demo``: run a whole grid on this machine, or a demonstration of one."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gridweave.cli.arguments import Json
from gridweave.cli.grid_client import places_text, plain, print_forecast
from gridweave.cli.output import check_folder, delayed_progress, print_json, print_table, say
from gridweave.cli.run import print_whole_grid, problems_as_lines
from gridweave.errors import OptionError, UnavailableError
from gridweave.site.times import span_text
from gridweave.values import counted

if TYPE_CHECKING:
    from gridweave.grid.config.local_state import LocalGridState
    from gridweave.grid.config.reading import ReadGrid
    from gridweave.grid.service.actor_status import ActorStatus
    from gridweave.grid.service.local import GridSpec, StartReport, StopReport
    from gridweave.grid.service.status import LocalStatus
    from gridweave.scenarios.live.compare import LiveRun
    from gridweave.scenarios.live.demo import Shown

Name = Annotated[
    str | None,
    typer.Option(
        "--grid",
        "--name",
        metavar="NAME",
        help="Name of the grid; several can run side by side. \\[default: GRIDWEAVE_GRID, else default]",
    ),
]


_File = Annotated[
    str | None,
    typer.Argument(metavar="[GRID.toml]", help="Description of the grid. \\[default: three small sites]"),
]
_Address = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Ray cluster to use, e.g. auto. \\[default: start one here]")
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start with an empty state; all earlier jobs are forgotten.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="With --fresh: do not ask, even if jobs have not ended.")]
_CHECK = "Only check the file, whether the journals match it, and the Slurm of its sites."
_Check = Annotated[bool, typer.Option("--check", help=_CHECK)]
_Example = Annotated[bool, typer.Option("--example", help="Print an example file and exit.")]
_SHOW = "Print the cores, memory and GPUs of this machine, as a site of a GRID.toml, and exit."
_ShowMachine = Annotated[bool, typer.Option("--show-machine", help=_SHOW)]


def up(
    file: _File = None,
    name: Name = None,
    address: _Address = None,
    fresh: Fresh = False,
    yes: Yes = False,
    check: _Check = False,
    example: _Example = False,
    show_machine: _ShowMachine = False,
    as_json: Json = False,
) -> None:
    """Start a whole grid on this machine: a local Ray, the sites, the meta-scheduler and the gateway.

    Parts that already run are left alone, and missing ones are started. Earlier jobs are remembered.

    Example: gridweave up

    Example: gridweave up --example > GRID.toml; gridweave up GRID.toml --grid campus

    Example: gridweave up --address auto GRID.toml
    """
    if example:
        from gridweave.grid.config.reading import default_text

        typer.echo(default_text(), nl=False)
        return
    if show_machine:
        _show_machine(as_json)
        return
    if yes and not fresh:
        raise OptionError("--yes", "works only with --fresh")
    if address is not None and not address.strip():
        raise OptionError("--address", "is empty; write auto, HOST:PORT, or leave it out for this machine")
    if file is None and name is not None and name.endswith(".toml"):
        raise OptionError("--grid", f"is the name of the grid; give the file without it: gridweave up {name}")
    name = _name_of(file, name)
    if check:
        _check(file, name, address, fresh)
        return
    done = _start(file, name, address, fresh, yes)
    for remark in done.remarks:
        say(remark)
    if as_json:
        print_json(_plain_report(done))
    else:
        _print_report(done)


def _show_machine(as_json: bool) -> None:
    from gridweave.grid.config.hardware_kinds import kinds_of_machines, site_text
    from gridweave.site.machine.hardware.find import find_hardware

    hardware = find_hardware()
    if hardware.problem:
        say(hardware.problem)
    kinds = kinds_of_machines([hardware])
    if as_json:
        print_json({"machine": plain(hardware), "kinds": [plain(kind) for kind in kinds]})
        return
    typer.echo(f"# {hardware.text}\n{site_text(kinds)}")


def _start(file: str | None, name: str, address: str | None, fresh: bool, yes: bool) -> StartReport:
    from gridweave.grid.service.local import bring_up

    spec, last = _spec(file, name, address, fresh)
    if fresh:
        _begin_anew(name, last, yes)
    with progress() as show_step:
        return bring_up(spec, show_step)


_KeepJobs = Annotated[
    bool, typer.Option("--keep-jobs", help="Keep the processes of jobs running; the next `up` finds them again.")
]


def down(name: Name = None, keep_jobs: _KeepJobs = False, as_json: Json = False) -> None:
    """Stop what `gridweave up` started, and nothing else.

    Running jobs are stopped, and run again after the next `up`; waiting jobs stay in the queue.

    Example: gridweave down --keep-jobs
    """
    from gridweave.grid.service.local import take_down
    from gridweave.grid.service.signals import signals_held

    name = _name_of(None, name)
    with progress() as show_step, signals_held():
        done = take_down(name, keep_jobs=keep_jobs, report=show_step)
    if as_json:
        print_json({"name": name, "ended": done.ended if done else [], "jobs": done.jobs if done else 0})
        return
    for remark in done.remarks if done else ():
        say(remark)
    typer.echo(_end_text(name, done, keep_jobs))


def _end_text(name: str, done: StopReport | None, keep_jobs: bool) -> str:
    if done is None:
        return f"the grid {name} is not running"
    text = (
        (f"the grid {name} is down: ended {', '.join(done.ended)}")
        if done.ended
        else f"the grid {name} was already down"
    )
    if done.jobs:
        what = "still running" if keep_jobs else "ended; the next `gridweave up` runs them again"
        text += f"; {counted(done.jobs, 'part')} of jobs {what}"
    return text


def _name_of(file: str | None, name: str | None) -> str:
    """Return the grid's name from the option, GRIDWEAVE_GRID or the file, in this order; else the default name.

    Raise OptionError if GRIDWEAVE_GRID and the file disagree. Ignore an unreadable file, which is reported later.
    """
    from gridweave.grid.client.configuration import GRID_VARIABLE, named_grid
    from gridweave.grid.config.local_state import DEFAULT_NAME, check_name

    in_file: object = None
    if name is None and file is not None:
        with suppress(OSError, ValueError, RecursionError):
            in_file = tomllib.loads(Path(file).read_text(encoding="utf-8-sig")).get("name")
    named = named_grid(name)
    if isinstance(in_file, str) and in_file and named not in (None, in_file):
        raise OptionError("--grid", f"is not given: {GRID_VARIABLE} is {named!r}, and {file} says name = {in_file!r}")
    return check_name(named or (in_file if isinstance(in_file, str) else "") or DEFAULT_NAME)


def _check(file: str | None, name: str, address: str | None, fresh: bool) -> None:
    """Check a GRID.toml, and whether its journals and batch systems would let its grid start."""
    from gridweave.grid.service.local import check_start

    spec, last = _spec(file, name, address, fresh)
    read = spec.read
    for change in [] if fresh else check_start(spec, last):
        say(change)
    say_batch_notes(read)
    nodes = sum(site.node_count for site in read.sites)
    typer.echo(f"{read.source} is valid: {counted(len(read.sites), 'site')} with {counted(nodes, 'node')}")


def say_batch_notes(read: ReadGrid) -> None:
    """Print notes on the sites' batch systems; InputError if a batch system cannot provide nodes for its site."""
    from gridweave.grid.service.cluster import batch_notes, site_plan

    for site in read.sites:
        for note in batch_notes(site_plan(site, read.grid)):
            say(note)


def _spec(file: str | None, name: str, address: str | None, fresh: bool) -> tuple[GridSpec, LocalGridState | None]:
    """Return the grid to start, and the recorded state of the last grid of this name, if any.

    Without a file, start the last grid of this name again; without one, or with `fresh`, start the default grid.
    """
    from gridweave.grid.config.local_state import read_grid_state
    from gridweave.grid.config.reading import grid_of_text, read_grid
    from gridweave.grid.service.local import grid_spec, hardware_notes
    from gridweave.site.machine.cgroups import memory_problem

    last = read_grid_state(name)
    if address is None and last is not None and last.runs and not last.own_ray:
        address = last.address
    again = last if file is None and not fresh else None
    with problems_as_lines():
        read = read_grid(file) if again is None else grid_of_text(again.text, again.file, again.base)
    for remark in read.remarks:
        say(remark)
    nodes = {site.name: (site.node_count, site.launcher.limits.memory_bytes) for site in read.sites}
    if address is None and (problem := memory_problem(nodes)):
        say(problem)
    kept = {} if last is None or fresh else last.found_kinds
    spec = grid_spec(read, name=name, address=address, found_kinds=kept)
    for note in hardware_notes(spec):
        say(note)
    return spec, last


def _begin_anew(name: str, last: LocalGridState | None, yes: bool) -> None:
    from gridweave.grid.service.local import begin_anew

    if last is None:
        return
    if last.runs:
        raise OptionError("--fresh", f"the grid {name!r} runs; run `gridweave down` first")
    check_forgetting(Path(last.folder), yes)
    begin_anew(name)


def check_forgetting(folder: Path, yes: bool) -> None:
    """Raise OptionError if the journals in a folder have jobs that have not ended, unless `yes`."""
    from gridweave.grid.config.journals import open_jobs

    count = open_jobs(folder)
    if count and not yes:
        raise OptionError("--fresh", f"would forget {counted(count, 'open job')}; add --yes to do so")


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Show the current step on standard error, and yield a function that sets its text.

    On a terminal, show one line with a spinner and the elapsed time; otherwise print a line for each step.
    """
    from rich.console import Console

    console = Console(stderr=True)
    began = time.monotonic()
    if not console.file.isatty():
        yield lambda what: say(f"{what} ...") if what else None
        return
    from gridweave.grid.service.signals import for_the_main_thread

    step = _Step(began)
    status = console.status(step)
    with for_the_main_thread():
        status.start()
    try:
        yield lambda what: setattr(step, "what", what)
    finally:
        status.stop()


def _elapsed_text(began_s: float) -> str:
    """Return the time since `began_s` on the monotonic clock, in whole seconds."""
    return span_text(1000 * round(time.monotonic() - began_s))


class _Step:
    """The line with the current step and the time since the start; rich redraws it regularly."""

    def __init__(self, began: float) -> None:
        self.what, self._began = "", began

    def __rich__(self) -> str:
        return f"{self.what} [dim]({_elapsed_text(self._began)})[/dim]" if self.what else ""


def _plain_report(done: StartReport) -> dict[str, Any]:
    state = done.state
    return {
        "name": state.name,
        "was_up": done.was_up,
        "started": done.started,
        "url": state.url,
        "folder": state.folder,
        "ray": state.address,
        "sites": [{"name": site.name, "nodes": site.nodes, "machines": site.machines} for site in state.sites],
        "processes": {process.name: process.pid for process in state.processes},
        "seconds": done.seconds,
        "remarks": done.remarks,
    }


def _print_report(done: StartReport) -> None:
    from gridweave.grid.config.local_state import GATEWAY, HEAD, node_of

    state = done.state
    gateway = state.process(GATEWAY)
    pids = {process.name: str(process.pid) for process in (*state.processes, *([gateway] if gateway else []))}
    if done.was_up and not done.started:
        title = f"The grid {state.name} runs already"
    elif done.was_up:
        title = f"The grid {state.name} runs; started again: {', '.join(done.started)}"
    else:
        title = f"The grid {state.name} is up after {span_text(sum(done.seconds.values()) * 1000)}"
    rows = [
        (f"site {site.name}", counted(site.nodes, "node"), pids.get(node_of(site.name), "–")) for site in state.sites
    ]
    rows.append(("meta-scheduler", f"journal in {state.folder}", "–"))
    rows.append(("Ray", state.address, pids.get(HEAD, "–")))
    if state.url:
        rows.append(("gateway", state.url, pids.get(GATEWAY, "–")))
    print_table(rows, headings=("runs", "what, where", "process"), title=title, left=2)
    _print_next(state)


def _print_next(state: LocalGridState) -> None:
    """Print commands to try with a running grid."""
    named = "" if state.name == "default" else f" --grid {state.name}"
    if state.url:
        from gridweave.grid.config.local_state import TOKEN, state_folder

        token = state_folder(state.name) / TOKEN
        if state.name != "default":
            typer.echo(f"Reach it with --grid {state.name}, or: export GRIDWEAVE_GRID={state.name}")
        if state.tokens:
            typer.echo(f"Your token is in {token}; your commands find it automatically.")
        else:
            typer.echo("There are no tokens: everybody on this machine may do everything.")
        typer.echo("\nWhat next:")
        typer.echo(f"  gridweave open                              see the grid in a browser, at {state.url}")
        typer.echo("  gridweave submit -n 4 -t 10m -- hostname    submit a job")
        typer.echo("  gridweave jobs                              see its state")
        typer.echo("  gridweave watch                             see the sites at work")
    typer.echo(f"  gridweave status{named}".ljust(46) + "check its health")
    typer.echo(f"  gridweave down{named}".ljust(46) + "stop it; submitted jobs are still there after the next up")


_Actors = Annotated[bool, typer.Option("--actors", help="Ask Ray for each actor: its host, process and start.")]


def status(name: Name = None, actors: _Actors = False, as_json: Json = False) -> None:
    """Show whether the grid on this machine is healthy; exit with status 3 if a part of it is missing.

    On another host of the grid's Ray cluster, show the actors as Ray knows them.

    Example: gridweave status --actors
    """
    from gridweave.grid.config.local_state import known_grids
    from gridweave.grid.service.status import look, parts_run

    name = _name_of(None, name)
    local_status = look(name, ask_ray=actors)
    if as_json:
        print_json(plain(local_status) | {"well": local_status.well})
    elif local_status.up:
        _print_status(local_status)
    else:
        say(f"the grid {name} is not running; start it with: gridweave up" + f" --grid {name}" * (name != "default"))
        if local_status.kept:
            say(f"{parts_run(local_status.kept)} on; the next `gridweave up` adopts them, `gridweave down` ends them")
        others = [other for other in known_grids() if other != name]
        if others:
            say(f"other grids of yours: {', '.join(others)}")
    if not local_status.well:
        raise typer.Exit(UnavailableError.exit_status)


def _word(local_status: LocalStatus) -> str:
    """Return the health of a grid in a few words."""
    if local_status.well:
        return "is healthy"
    if local_status.missing == ("gateway",):
        return "has no gateway; its sites still run"
    if local_status.missing == ("watchdog",):
        return "runs, but has no watchdog"
    return "is not healthy: " + ", ".join(local_status.missing)


def _since(ms: int | None) -> str:
    from datetime import datetime

    return "" if ms is None else datetime.fromtimestamp(ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _health(well: bool) -> str:
    return "healthy" if well else "MISSING"


def _print_status(local_status: LocalStatus) -> None:
    title = f"The grid {local_status.name} {_word(local_status)}"
    if local_status.parts:
        rows = [
            (part.name, _health(part.well), str(part.pid or ""), _since(part.since_ms), part.detail)
            for part in local_status.parts
        ]
        print_table(rows, headings=("", "", "process", "since", ""), title=title, left=5)
    if local_status.actors:
        print_actors(local_status.actors, "Actors on Ray" if local_status.parts else title)
    if local_status.folder:
        typer.echo(f"journals, jobs and output: {local_status.folder}")


def print_actors(actors: Sequence[ActorStatus], title: str) -> None:
    """Print a table of actors with their state in Ray."""
    listed = [
        (actor.name, _health(actor.well), actor.host, str(actor.pid or ""), _since(actor.since_ms), actor.detail)
        for actor in actors
    ]
    print_table(listed, headings=("actor", "", "host", "process", "since", ""), title=title, left=6)


DEMO = "demo"


def demo(out: Annotated[str, typer.Argument(metavar="[FOLDER]", help="Folder for the report.")] = "out/demo") -> None:
    """Start the grid that ships on this machine, run seven real jobs on it, and stop it again. Takes about a minute.

    It shows a split that is worth its cost, one that is not, a job that starts on nodes that another job uses, and a
    job that is wider than any site. The report compares the real run with the simulation. Nothing is left running, even
    after Ctrl-C.

    Example: gridweave demo out/demo
    """
    folder = check_folder(out)
    folder.mkdir(parents=True, exist_ok=True)
    from gridweave.scenarios.live.demo import grid_of_its_own

    began = time.monotonic()
    with grid_of_its_own(DEMO, lambda what: None):
        _show(folder)
    say(f"\nThe grid is down again; all of it took {_elapsed_text(began)}. The report is in {out}:")
    say(f"  {out}/jobs.csv              every job, simulated and live")
    say(f"  {out}/live/                 how nodes were used and jobs waited; simulated/ as it was simulated")
    say("Next: gridweave up")


def _show(folder: Path) -> None:
    from gridweave.grid.config.reading import default_text, read_grid
    from gridweave.grid.service.local import bring_up, grid_spec
    from gridweave.scenarios.live.demo import JOBS, make_demo, run_demo, simulated_by, simulator

    (folder / "GRID.toml").write_text(default_text(), encoding="utf-8")
    spec = grid_spec(read_grid(None), name=DEMO)
    with progress() as show_step:
        start_report = bring_up(spec, show_step)
    state = start_report.state
    rows = [(f"site {site.name}", counted(site.nodes, "node")) for site in state.sites]
    print_table(
        [*rows, ("gateway", state.url)],
        title=f"A grid is up after {span_text(sum(start_report.seconds.values()) * 1000)}",
        left=2,
    )
    demo = make_demo()
    with simulator() as process:
        typer.echo(f"{len(JOBS)} jobs are submitted; they take half a minute.")
        with delayed_progress("Playing") as report:
            shown = run_demo(state, demo, report)
        _print_shown(shown)
        with progress() as show_step:
            show_step("Comparing it with the simulation")
            done = demo.compared(simulated_by(process, demo.on(shown.live)), shown)
    _print_jobs(done)
    print_whole_grid(done)
    for remark in done.remarks:
        say(remark)
    with progress() as show_step:
        show_step("Drawing the report")
        done.write(folder)


def _print_shown(shown: Shown) -> None:
    """Print where the grid placed the jobs of the demo, and the reasons it gave."""
    from gridweave.scenarios.live.demo import PAIR, SPLIT, STAYS, WIDE

    typer.echo("\nA split that is worth its cost:")
    _print_placed(shown, SPLIT)
    typer.echo("\nA split that is not. The job waits instead:")
    if (waited := shown.waiting.get(STAYS)) is not None:
        print_forecast(waited)
    _print_placed(shown, STAYS)
    typer.echo(
        "\nA job that communicates a lot starts on the hyperthreaded nodes of one that computes, and neither waits:"
    )
    for name in PAIR:
        print_shared(shown, name)
    typer.echo("\nA job that is wider than any site:")
    _print_placed(shown, WIDE)


def _print_placed(shown: Shown, name: str) -> None:
    """Print where a job ran, the expected cost of its split, and the job it shared its nodes with."""
    record = shown.record(name)
    why = "; ".join(cost.text for cost in (record.split, record.sharing) if cost is not None)
    nodes = counted(record.request.nodes, "node")
    typer.echo(f"{name} (job {record.job_id}, {nodes}) ran on {places_text(record.places)}" + f": {why}" * bool(why))


def print_shared(shown: Shown, name: str) -> None:
    """Print where a job ran on shared nodes, with the expected and the measured slowdown."""
    from gridweave.scenarios.live.demo import JOBS

    _print_placed(shown, name)
    ran_ms = shown.record(name).ran_ms
    (work_s,) = (job.run_s for job in JOBS if job.name == name)
    if ran_ms is not None:
        took_ms = ran_ms[1] - ran_ms[0]
        factor = took_ms / (work_s * 1000)
        typer.echo(f"  {span_text(work_s * 1000)} of work really took {span_text(took_ms)} (factor {factor:.2f})")


def _print_jobs(done: LiveRun) -> None:
    """Print the sites, start and end of each job, simulated and live."""
    from gridweave.scenarios.live.demo import JOBS

    rows = []
    for row, job in enumerate(JOBS):
        cells = [job.name, str(job.nodes)]
        for run in (done.simulated, done.live):
            fragments = [(run.site_names[site], nodes) for site, nodes in run.fragments_of(row)]
            cells += [places_text(fragments), f"{run.start_ms[row] / 1000:.1f}", f"{run.end_ms[row] / 1000:.1f}"]
        rows.append(tuple(cells))
    headings = ("job", "nodes", "simulated", "from", "to", "live", "from", "to")
    typer.echo("\nEach job, simulated and live, in seconds from the first submission:")
    print_table(rows, headings=headings, right=(1, 3, 4, 6, 7), left=2)
