"""The screen of `gridweave watch`: draws the state of a grid for a window of any size."""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING

import msgspec
from rich.box import ROUNDED
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from gridweave.cli.grid_client import clock, places_text, shortened
from gridweave.grid.api import JobEvent, Queue, QueuedJob, SiteInfo
from gridweave.site.job import JobRecord
from gridweave.site.resources.text import amount_of, resource_title, size_text
from gridweave.site.times import span_text
from gridweave.values import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

KEPT_EVENTS = 200
_FRAME, _TITLE = 2, 1
"""Lines that a panel, or a part with only a title, needs in addition to its content."""

_LOW = 30
"""In a window with fewer lines, parts have no frames and tables no headings."""

_NARROW = 100
"""In a window with fewer columns, some columns of tables are left out."""

SORTS = ("job", "user", "left", "nodes", "where")
"""The sort orders of running jobs, in the order in which the key s selects them."""

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


class GridSnapshot(msgspec.Struct, kw_only=True):
    """The state of a grid as it was last seen.

    Attributes
    ----------
    running : list of JobRecord
        The jobs that are starting, running or ending.
    events : deque of JobEvent
        The latest events, newest last.
    problem : str
        Why the state may be out of date; empty if it is current.
    """

    url: str
    now_ms: int = 0
    sites: list[SiteInfo] = []
    queue: Queue = Queue()
    running: list[JobRecord] = []
    events: deque[JobEvent] = msgspec.field(default_factory=lambda: deque(maxlen=KEPT_EVENTS))
    problem: str = ""


def past_events(records: Iterable[JobRecord]) -> list[JobEvent]:
    """Return the last event of each job, made from its record, oldest first; shown until the grid sends events."""
    events = []
    for record in records:
        request = record.request
        if record.end_ms is not None:
            at_ms, kind, detail = record.end_ms, "ended", record.outcome
        elif record.start_ms is not None:
            at_ms, kind = record.start_ms, "runs"
            detail = " and ".join(f"{counted(nodes, 'node')} at {name}" for name, nodes in record.places)
        else:
            at_ms, kind, detail = record.submit_ms, "submitted", size_text(request.nodes, request.chunk)
        events.append(
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
    return sorted(events, key=lambda event: (event.at_ms, event.job_id))


def keys_of(text: str) -> list[str]:
    r"""Split the input from a terminal into keys; an arrow key is a sequence of several characters.

    Examples
    --------
    >>> keys_of("sr"), keys_of("\x1b[A\x1b[Bj"), keys_of("\x1b")
    (['s', 'r'], ['\x1b[A', '\x1b[B', 'j'], ['\x1b'])
    >>> keys_of("\x1b[6~\x1b[1;5Cq"), keys_of("\x1bOAq")
    (['\x1b[6~', '\x1b[1;5C', 'q'], ['\x1bOA', 'q'])
    """
    return re.findall(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO.|.", text, re.DOTALL)


class WatchView(msgspec.Struct, kw_only=True):
    """The user's settings for the lists of jobs.

    Attributes
    ----------
    words : str
        Filter: only jobs whose line contains this text are shown.
    is_typing : bool
        Whether keys go into the filter.
    first : int
        Number of running jobs that are scrolled off the top.
    """

    sort: str = SORTS[0]
    is_reversed: bool = False
    words: str = ""
    is_typing: bool = False
    first: int = 0
    is_over: bool = False

    def press(self, key: str) -> None:
        """Apply a key: change a setting, or edit the filter while it is typed."""
        if self.is_typing and key.isprintable():
            self.words += key
        elif self.is_typing and key in ("\x7f", "\b"):
            self.words = self.words[:-1]
        elif key in ("\r", "\n"):
            self.is_typing = False
        elif key == "\x1b":
            self.words, self.is_typing = "", False
        else:
            self._command(key)

    def _command(self, key: str) -> None:
        match key:
            case "s":
                self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]
            case "r":
                self.is_reversed = not self.is_reversed
            case "/":
                self.words, self.is_typing = "", True
            case "j" | "\x1b[B":
                self.first += 1
            case "k" | "\x1b[A":
                self.first = max(0, self.first - 1)
            case "q":
                self.is_over = True


def screen(seen: GridSnapshot, width: int, height: int | None = None, view: WatchView | None = None) -> RenderableType:
    """Return the screen for a window of this size; without a height, everything is shown."""
    is_live, view = view is not None, view or WatchView()
    running, queue = _chosen(seen, view), _chosen_queue(seen, view)
    view.first = max(0, min(view.first, len(running) - 1))
    is_low = height is not None and height < _LOW
    if height is None:
        lines = len(seen.sites), len(running), len(queue), 10
    else:
        left = height - 1 - is_live - 4 * (_TITLE if is_low else _FRAME) - (0 if is_low else 3)
        lines = _shares(left, len(seen.sites), len(running), len(queue))
    is_narrow = width < _NARROW
    parts = (
        ("sites", _sites(seen, lines[0], width, is_low)),
        (_running_title(seen, view), _running(seen, running[view.first :][: lines[1]], is_narrow, is_low)),
        (_queue_title(seen.queue), _queue(seen, queue[: lines[2]], is_narrow, is_low)),
        ("recent events", _events(seen, lines[3], is_narrow)),
    )
    shown = [_titled(*part) if is_low else _panel(*part) for part in parts]
    return Group(_header(seen, width), *shown, *([_footer(view, width)] if is_live else []))


def _shares(left: int, sites: int, running: int, queue: int) -> tuple[int, int, int, int]:
    """Divide the lines that are left among sites, running jobs, the queue and events."""
    of_sites = max(1, min(sites, left - 7, left // 2))
    left -= of_sites
    of_running = max(1, min(running, left // 2))
    left -= of_running
    of_queue = max(1, min(queue, left // 2))
    return of_sites, of_running, of_queue, max(1, left - of_queue)


def _left_ms(record: JobRecord, now_ms: int) -> int | None:
    """Return the time until a job's limit, or None if the job has not started."""
    return None if record.start_ms is None else max(0, record.start_ms + record.request.limit_ms - now_ms)


def _chosen(seen: GridSnapshot, view: WatchView) -> list[JobRecord]:
    """Return the running jobs, filtered and sorted."""

    def key(record: JobRecord) -> tuple[int | str, int]:
        request = record.request
        by: dict[str, int | str] = {
            "job": -record.job_id,
            "user": request.user,
            "left": _left_ms(record, seen.now_ms) or 0,
            "nodes": -request.nodes,
            "where": places_text(record.places),
        }
        return by[view.sort], record.job_id

    words = view.words.lower()
    records = [record for record in seen.running if words in " ".join(_of_running(seen, record)).lower()]
    return sorted(records, key=key, reverse=view.is_reversed)


def _chosen_queue(seen: GridSnapshot, view: WatchView) -> list[QueuedJob]:
    words = view.words.lower()
    return [job for job in seen.queue.jobs if words in f"{job.job_id} {job.user}".lower()]


def _of_running(seen: GridSnapshot, record: JobRecord) -> list[str]:
    """Return the cells of a running job: number, user, name, sites, time left, and its state or time slice."""
    request, left_ms = record.request, _left_ms(record, seen.now_ms)
    states = {"starting": "starts", "ending": "is ending"}
    slices = [site for site in seen.sites if site.paused and site.name in dict(record.places)]
    waits = any(record.job_id in site.paused for site in slices)
    turn = ("waits for its slice" if waits else "in its slice") if slices else ""
    left = "-" if left_ms is None else span_text(left_ms)
    where = places_text(record.places) or "-"
    return [str(record.job_id), request.user or "-", request.name or "-", where, left, states.get(record.state, turn)]


def _running_title(seen: GridSnapshot, view: WatchView) -> str:
    text = f"runs: {counted(len(seen.running), 'job')}, by {view.sort}" + ", backwards" * view.is_reversed
    return text + (f", with {view.words!r}" if view.words else "")


def _running(seen: GridSnapshot, records: Sequence[JobRecord], is_narrow: bool, is_low: bool) -> RenderableType:
    if not records:
        return Text("no job runs" if not seen.running else "no such job runs", style="dim")
    names = [("job", True), ("user", False), ("name", False), ("where", False), ("at most", True), ("", False)]
    shown = [place for place in range(len(names)) if not (is_narrow and place == 2)]
    table = _table(*(names[place] for place in shown), has_heading=not is_low)
    for record in records:
        cells = [shortened(cell, 24) for cell in _of_running(seen, record)]
        table.add_row(*(_cell(cells[place]) for place in shown))
    return table


def _footer(view: WatchView, width: int) -> Text:
    """Return the last line: the filter while it is typed, else the keys."""
    text = f"/{view.words}_" if view.is_typing else "s sort  r backwards  / filter  j k scroll  q quit"
    return Text(shortened(text, width), style="" if view.is_typing else "dim")


def _titled(title: str, content: RenderableType) -> Group:
    return Group(Text(title, style="dim", no_wrap=True, overflow="ellipsis"), content)


def _panel(title: str, content: RenderableType) -> Panel:
    return Panel(content, title=Text(title), title_align="left", box=ROUNDED, border_style="dim", padding=(0, 1))


def _header(seen: GridSnapshot, width: int) -> RenderableType:
    """Return the first line: the grid's address, its busy nodes and the time; or the problem."""
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


def _table(*columns: tuple[str, bool], has_heading: bool = True) -> Table:
    """Return a table without lines; a column has a heading, and True if it contains numbers.

    Rich first narrows the columns that may wrap: those with text, whose cells are cut instead (`_cell`).
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_header=has_heading)
    for heading, is_number in columns:
        table.add_column(heading, justify="right" if is_number else "left", no_wrap=is_number, overflow="ellipsis")
    return table


def _cell(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _sites(seen: GridSnapshot, most: int, width: int, is_low: bool) -> RenderableType:
    """Return a line for each site, with a bar for its busy nodes."""
    if not seen.sites:
        return Text("no news of the sites yet", style="dim")
    bar_width = max(8, min(60, width - 60))
    columns = (("site", False), ("", False), ("busy", True), ("run", True), ("wait", True), ("", False))
    table = _table(*columns, has_heading=not is_low)
    shown = seen.sites if len(seen.sites) <= most else seen.sites[: most - 1]
    for site in shown:
        busy = site.for_grid - site.free
        style = "red" if not site.answers else "yellow" if site.draining else "green"
        state = "does not answer" if not site.answers else "drains" if site.draining else _used_text(site)
        words = ("{:,} run", "{:,} wait") if is_low else ("{:,}", "{:,}")
        numbers = (f"{busy:,} of {site.for_grid:,}", words[0].format(site.running), words[1].format(site.waiting))
        table.add_row(_cell(site.name), bar(busy, site.for_grid, bar_width, style), *numbers, _cell(state, style))
    if len(shown) < len(seen.sites):
        table.add_row(_cell(f"{len(seen.sites) - len(shown)} more", "dim"))
    return table


def _used_text(site: SiteInfo) -> str:
    """Return how much of each resource running jobs hold; empty for a site that gives out whole nodes."""
    return ", ".join(
        f"{resource_title(amount.name)} {amount_of(amount.name, amount.used)} of {amount_of(amount.name, amount.total)}"
        for amount in site.amounts
    )


def bar(part: int, whole: int, width: int, style: str = "green") -> Text:
    """Return a bar filled in proportion; it is empty only for 0, and full only for the whole.

    Examples
    --------
    >>> bar(1, 2, 8).plain, bar(1, 1000, 4).plain, bar(999, 1000, 4).plain
    ('████░░░░', '█░░░', '███░')
    """
    full = round(width * part / whole) if whole else 0
    full = min(max(full, int(part > 0)), width - int(part < whole))
    return Text("█" * full, style=style).append("░" * (width - full), style="dim")


def _queue_title(queue: Queue) -> str:
    return (
        f"queue: {queue.waiting:,} waiting, {queue.held:,} held, {queue.starting:,} starting, {queue.running:,} running"
    ) + (f", {queue.ending:,} ending" if queue.ending else "")


def _queue(seen: GridSnapshot, jobs: Sequence[QueuedJob], is_narrow: bool, is_low: bool) -> RenderableType:
    if not jobs:
        return Text("no job waits" if not seen.queue.jobs else "no such job waits", style="dim")
    columns = [("job", True), ("user", False), ("nodes", True), ("limit", True), ("has waited", True)]
    table = _table(*columns, *([] if is_narrow else [("state", False)]), has_heading=not is_low)
    for job in jobs:
        cells = [
            str(job.job_id),
            job.user or "-",
            counted(job.nodes, "node") if is_low else f"{job.nodes:,}",
            span_text(job.limit_ms),
            span_text(max(0, seen.now_ms - job.submit_ms)),
        ]
        table.add_row(*map(_cell, cells if is_narrow else [*cells, job.state]))
    return table


def _events(seen: GridSnapshot, most: int, is_narrow: bool) -> RenderableType:
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
