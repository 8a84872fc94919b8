"""How `gridweave explain` and `gridweave quote` print what the grid expects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from gridweave.cli.grid_client import clock, places_text, relative, rounded
from gridweave.cli.output import print_table

if TYPE_CHECKING:
    from gridweave.grid.api import Forecast, SplitReason


def print_forecast(forecast: Forecast) -> None:
    """Print when a job starts and where, the reason of each site, and what a split would cost and gain."""
    for line in _lines(forecast):
        typer.echo(line)
    if forecast.sites:
        rows = [
            (site.site, f"{site.nodes:,}", f"{site.free:,}", _start(site.start_ms, forecast), site.reason)
            for site in forecast.sites
        ]
        print_table(rows, headings=("site", "nodes", "free", "alone there", "why"), right=(1, 2), wrap=True)
    if forecast.split is not None:
        typer.echo(_split_text(forecast.split, forecast))


def _lines(forecast: Forecast) -> list[str]:
    """Return the answer in a few lines."""
    if forecast.job_id is None:
        lines = [f"such a job: {forecast.reason}"] if forecast.reason else []
    else:
        waits = {"waiting": "waits", "starting": "is starting", "running": "runs", "held": "is held"}
        said = f"job {forecast.job_id} {waits.get(forecast.state, f'is {forecast.state}')}"
        lines = [f"{said}: {forecast.reason}" if forecast.reason else said]
    if forecast.start_ms is not None:
        begins = "started" if forecast.state in ("running", "ended") else "starts"
        where = f" on {places_text(forecast.places)}" if forecast.places else ""
        lines.append(f"it {begins} {_start(forecast.start_ms, forecast)}{where}{_length(forecast)}")
    elif forecast.state == "waiting":
        lines.append("when it starts is not known" + _length(forecast))
    if forecast.ahead:
        lines.append(f"{forecast.ahead:,} job{'s stand' if forecast.ahead > 1 else ' stands'} before it in the queue")
    return lines


def _length(forecast: Forecast) -> str:
    return f", for at most {rounded(forecast.length_ms)}" if forecast.length_ms else ""


def _start(start_ms: int | None, forecast: Forecast) -> str:
    if start_ms is None:
        return "never"
    if start_ms - forecast.now_ms < 500 and forecast.state not in ("running", "ended"):
        return "now"
    return f"{relative(start_ms, forecast.now_ms)} ({clock(start_ms)})"


def _split_text(split: SplitReason, forecast: Forecast) -> str:
    """Return in one line what a split would be."""
    if not split.places:
        return f"a split: {split.reason or 'there is none to be had'}"
    text = f"a split: {places_text(split.places)}, {_start(split.start_ms, forecast)}"
    if split.length_ms and split.whole_ms and not split.reason:
        text += f", takes {rounded(split.length_ms)} in place of {rounded(split.whole_ms)}"
    if split.gain_ms is not None:
        end = "sooner" if split.gain_ms > 0 else "later"
        text += f", ends {rounded(abs(split.gain_ms))} {end}" if split.gain_ms else ", ends at the same time"
    return f"{text}: {split.reason}" if split.reason else text
