"""The screen of `gridweave watch`: what is known of a grid, drawn for a window of any size."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec
from rich.box import ROUNDED
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from gridweave.cli.grid_client import clock, rounded
from gridweave.cli.output import counted
from gridweave.grid.api import JobEvent, Queue, SiteInfo
from gridweave.site.job import JobRecord

if TYPE_CHECKING:
    from collections.abc import Iterable

KEPT_EVENTS = 200
_LEAST_QUEUE, _LEAST_EVENTS = 3, 3
_FRAME = 2
"""Lines of a panel beside its content."""

_NARROW = 100
"""In a window with fewer columns some cells are left out."""

_KINDS = {
    "submitted": "cyan",
    "waits": "yellow",
    "starting": "blue",
    "runs": "green",
    "ended": "bold",
    "refused": "red",
    "cancelled": "magenta",
    "retried": "yellow",
    "delayed": "yellow",
}


class Seen(msgspec.Struct, kw_only=True):
    """What is known of a grid."""

    url: str
    now_ms: int = 0
    sites: list[SiteInfo] = []
    queue: Queue = Queue()
    events: deque[JobEvent] = msgspec.field(default_factory=lambda: deque(maxlen=KEPT_EVENTS))  # the newest last
    problem: str = ""  # why what is shown may be old; empty if it is not


def past_events(records: Iterable[JobRecord]) -> list[JobEvent]:
    """Return the last thing that happened to each of some jobs, the oldest first: what went before the first event."""
    found = []
    for record in records:
        if record.end_ms is not None:
            at_ms, kind, detail = record.end_ms, "ended", record.outcome
        elif record.start_ms is not None:
            at_ms, kind = record.start_ms, "runs"
            detail = " and ".join(f"{counted(nodes, 'node')} at {name}" for name, nodes in record.places)
        else:
            at_ms, kind, detail = record.submit_ms, "submitted", counted(record.request.nodes, "node")
        request = record.request
        found.append(
            JobEvent(
                number=0,
                at_ms=at_ms,
                job_id=record.job_id,
                kind=kind,
                detail=detail,
                user=request.user,
                name=request.name,
            )
        )
    return sorted(found, key=lambda event: (event.at_ms, event.job_id))


def screen(seen: Seen, width: int, height: int | None = None) -> RenderableType:
    """Return the screen for so many columns and lines; without a height it has as many lines as there are to show."""
    is_narrow = width < _NARROW
    parts: list[RenderableType] = [_header(seen, width)]
    if height is None:
        queue_lines, event_lines = len(seen.queue.jobs), 10
        site_lines = len(seen.sites)
    else:
        left = height - 2 - 3 * _FRAME - 1
        least = _LEAST_QUEUE + _LEAST_EVENTS
        site_lines = max(1, min(len(seen.sites), left - least))
        left = max(least, left - site_lines)
        queue_lines = min(len(seen.queue.jobs), max(_LEAST_QUEUE, left // 2))
        event_lines = max(_LEAST_EVENTS, left - max(1, queue_lines))
    parts.append(_panel("sites", _sites(seen, site_lines, width)))
    parts.append(_panel(_queue_title(seen.queue), _queue(seen, queue_lines, is_narrow)))
    parts.append(_panel("what just happened", _events(seen, event_lines, is_narrow)))
    return Group(*parts)


def _panel(title: str, content: RenderableType) -> Panel:
    return Panel(content, title=Text(title), title_align="left", box=ROUNDED, border_style="dim", padding=(0, 1))


def _header(seen: Seen, width: int) -> RenderableType:
    """Return the first line: which grid, how busy it is, and the time; or what is wrong."""
    nodes = sum(site.for_grid for site in seen.sites)
    busy = nodes - sum(site.free for site in seen.sites)
    text = Text("gridweave", style="bold")
    text.append(f"  {seen.url}", style="dim")
    text.append(f"  {busy:,} of {nodes:,} nodes busy" if nodes else "")
    right = Text(clock(seen.now_ms), style="dim")
    if seen.problem:
        text = Text(f"old: {seen.problem}", style="bold red")
    text.truncate(width - len(right) - 2, overflow="ellipsis")
    grid = Table.grid(expand=True)
    grid.add_column()
    grid.add_column(justify="right")
    grid.add_row(text, right)
    return grid


def _table(*columns: tuple[str, bool]) -> Table:
    """Return a table without lines; of each column its heading, and whether it holds numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading, is_number in columns:
        table.add_column(heading, justify="right" if is_number else "left", no_wrap=True, overflow="ellipsis")
    return table


def _sites(seen: Seen, most: int, width: int) -> RenderableType:
    """Return a line for each site, with a bar of its use."""
    if not seen.sites:
        return Text("nothing is known of the sites yet", style="dim")
    bar_width = max(10, min(60, width - 60))
    table = _table(("site", False), ("", False), ("busy", True), ("run", True), ("wait", True), ("", False))
    shown = seen.sites if len(seen.sites) <= most else seen.sites[: most - 1]
    for site in shown:
        busy = site.for_grid - site.free
        style = "red" if not site.answers else "yellow" if site.draining else "green"
        state = "does not answer" if not site.answers else "drains" if site.draining else ""
        numbers = (f"{busy:,} of {site.for_grid:,}", f"{site.running:,}", f"{site.waiting:,}")
        table.add_row(Text(site.name), bar(busy, site.for_grid, bar_width, style), *numbers, Text(state, style=style))
    if len(shown) < len(seen.sites):
        table.add_row(Text(f"{len(seen.sites) - len(shown)} more", style="dim"))
    return table


def bar(part: int, whole: int, width: int, style: str = "green") -> Text:
    """Return a bar that is as full as a part of the whole; what is not nothing is seen.

    Examples
    --------
    >>> bar(1, 2, 8).plain, bar(1, 1000, 4).plain, bar(999, 1000, 4).plain
    ('████░░░░', '█░░░', '███░')
    """
    full = round(width * part / whole) if whole else 0
    full = min(max(full, int(part > 0)), width - int(part < whole))
    return Text("█" * full, style=style).append("░" * (width - full), style="dim")


def _queue_title(queue: Queue) -> str:
    return f"queue: {queue.waiting:,} wait, {queue.held:,} held, {queue.starting:,} starting, {queue.running:,} run"


def _queue(seen: Seen, most: int, is_narrow: bool) -> RenderableType:
    if not seen.queue.jobs:
        return Text("no job waits", style="dim")
    columns = [("job", True), ("user", False), ("nodes", True), ("limit", True), ("has waited", True)]
    table = _table(*columns, *([] if is_narrow else [("state", False)]))
    for job in seen.queue.jobs[:most]:
        cells = [
            str(job.job_id),
            job.user or "-",
            f"{job.nodes:,}",
            rounded(job.limit_ms),
            rounded(max(0, seen.now_ms - job.submit_ms)),
        ]
        table.add_row(*map(Text, cells if is_narrow else [*cells, job.state]))
    return table


def _events(seen: Seen, most: int, is_narrow: bool) -> RenderableType:
    if not seen.events:
        return Text("nothing yet", style="dim")
    table = Table.grid(expand=True, padding=(0, 2))
    widths = (8, None, None, None) if is_narrow else (8, None, None, None, None)
    for place, _ in enumerate(widths):
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1 if place == len(widths) - 1 else None)
    for event in list(seen.events)[::-1][:most]:
        kind = Text(event.kind, style=_KINDS.get(event.kind, ""))
        who = [] if is_narrow else [Text(f"{event.user} {event.name}".strip()[:24], style="dim")]
        table.add_row(
            Text(clock(event.at_ms)[-8:], style="dim"), Text(f"job {event.job_id}"), *who, kind, _detail(event)
        )
    return table


def _detail(event: JobEvent) -> Text:
    style = "" if event.kind != "ended" else "green" if event.detail.startswith("finished") else "red"
    return Text(event.detail, style=style)
