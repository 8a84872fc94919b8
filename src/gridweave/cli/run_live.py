"""``gridweave run --on``: a scenario played on Ray, or on a grid that is up, beside what the simulation says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import typer

from gridweave.cli.options import named_as_typed
from gridweave.cli.output import print_json, print_table, say
from gridweave.cli.progress import delayed_progress
from gridweave.errors import OptionError

if TYPE_CHECKING:
    from gridweave.scenarios.live.compare import LiveRun
    from gridweave.scenarios.results.grid import GridRun

SPEED = 1000.0

WHERE = ("simulation", "ray", "grid")
"""Beside the address of a gateway."""


def check_where(on: str, *, speed: float | None, address: str | None, jobs: int | None) -> bool:
    """Return whether a scenario is to be played live.

    Parameters
    ----------
    on : str
        One of `WHERE`, or the address of a gateway.
    speed, address, jobs
        As given by the user; None: not given.

    Raises
    ------
    OptionError
        If `on` is none of them, or an option does not go with it.
    """
    if on not in WHERE and "://" not in on:
        known = ", ".join(WHERE)
        raise OptionError("--on", f"{on!r} is not known; one of {known}, or the address of a gateway")
    if address is not None and on != "ray":
        raise OptionError("--address", "goes with --on ray alone")
    if on != "simulation":
        return True
    for option, value in (("--speed", speed), ("--jobs", jobs)):
        if value is not None:
            raise OptionError(option, "goes with --on ray, --on grid or --on URL")
    return False


def play_live(
    scenario: str, overrides: Sequence[str], *, on: str, speed: float | None, address: str | None, jobs: int | None
) -> LiveRun:
    """Play a scenario, and say what there is to remark."""
    with named_as_typed(url="--on", token="GRIDWEAVE_TOKEN", ca="GRIDWEAVE_CA"), delayed_progress("Reading") as report:
        if on == "ray":
            from gridweave.scenarios.live.play import run_on_ray

            speed = SPEED if speed is None else speed
            done = run_on_ray(scenario, overrides=overrides, speed=speed, address=address, jobs=jobs, progress=report)
        else:
            from gridweave.scenarios.live.play import run_on_gateway

            url = None if on == "grid" else on
            done = run_on_gateway(scenario, url, overrides=overrides, speed=speed, jobs=jobs, progress=report)
    for remark in done.remarks:
        say(remark)
    for warning in done.warnings():
        say(f"warning: {warning}")
    return done


Done = TypeVar("Done", "GridRun", "LiveRun")


def tell(done: Done, show: Callable[[Done], None], *, out: str | None, plots: bool, as_json: bool) -> None:
    """Print what became of a run, and write its files where that is asked for."""
    if as_json:
        print_json(done.summary())
    else:
        show(done)
    if out is not None:
        with delayed_progress("Writing files"):
            files = done.write(out, plots=plots)
        say(f"wrote {len(files)} files to {out}")


def print_live_run(done: LiveRun, *, verdict: bool = True) -> None:
    """Print what became of a live run beside the simulation, and whether that is as it should be."""
    typer.echo(f"{done.live.name}: {done.live.label}, on {done.where} at {done.speed:g} times real time")
    print_table(done.count_rows())
    print_table(done.difference_rows(), headings=("seconds", "least", "5%", "median", "95%", "most"))
    print_table(done.metric_rows(), headings=("whole grid", "simulated", "live", "difference"))
    if verdict:
        typer.echo(done.verdict())
