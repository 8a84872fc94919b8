"""`gridweave watch`: show the state of a grid live in a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import typer

from gridweave.cli.grid_client import Reach, at_grid, now_ms, plain
from gridweave.cli.output import print_json
from gridweave.errors import GridweaveError, OptionError
from gridweave.site.lifecycle import PLACED
from gridweave.site.times import parse_time_ms

if TYPE_CHECKING:
    from gridweave.cli.watch_screen import GridSnapshot, WatchView
    from gridweave.grid.client.client import Client
    from gridweave.site.job import JobRecord

_QUEUE_LINES = 50
_PAST_JOBS = 20
_RUNNING = 500
"""Largest number of running jobs to show; the newest ones are shown."""


@at_grid
def watch(
    reach: Reach,
    once: Annotated[bool, typer.Option("--once", help="Print one screen and exit.")] = False,
    every: Annotated[str, typer.Option(metavar="TIME", help="How often to refresh sites and queue.")] = "1s",
) -> None:
    """Watch the grid at work: its sites, running jobs (user, site, time left), the queue, and events.

    Keys: s changes the order, r reverses it, / shows only jobs that match what you type, Esc shows all again, j and k
    (or the arrows) scroll, q or Ctrl-C quits. If the output is not a terminal, it prints one screen.

    Example: gridweave watch
    """
    every_ms = parse_time_ms("--every", every)
    if every_ms < 100:
        raise OptionError("--every", f"{every!r} is too often; at least 100ms")
    if once or reach.as_json or not sys.stdout.isatty():
        reach.ask(lambda grid: _print_once(grid, reach.as_json), waits=True)
        return
    with contextlib.suppress(KeyboardInterrupt):
        # With an event loop, keys are read while a request waits for its answer.
        reach.ask(lambda grid: _live(grid, every_ms / 1000), waits=True)


async def _print_once(grid: Client, as_json: bool) -> None:
    from rich.console import Console

    from gridweave.cli.watch_screen import screen

    seen = await first_look(grid)
    if as_json:
        shown = {"sites": seen.sites, "running": seen.running, "queue": seen.queue, "events": list(seen.events)}
        print_json({"url": seen.url, "now_ms": seen.now_ms, **plain(shown)})
        return
    console = Console(highlight=False)
    with console.capture() as printed:
        console.print(screen(seen, console.width))
    typer.echo(printed.get(), nl=False)


async def _live(grid: Client, every_s: float) -> None:
    from rich.console import Console
    from rich.live import Live

    from gridweave.cli.watch_screen import WatchView, screen

    console = Console(highlight=False)
    seen, view, news = await first_look(grid), WatchView(), asyncio.Event()
    with Live(console=console, screen=True, auto_refresh=False, redirect_stderr=False) as live, _keys(view, news):

        def draw() -> bool:
            seen.now_ms = now_ms()
            live.update(screen(seen, console.width, console.height, view), refresh=True)
            return not view.is_over

        await follow(grid, seen, draw, every_s, news)


@contextlib.contextmanager
def _keys(view: WatchView, news: asyncio.Event) -> Iterator[None]:
    """Apply keys from a terminal to the view and set `news`; restore the terminal's mode at the end."""
    import termios
    import tty

    from gridweave.cli.watch_screen import keys_of

    if not sys.stdin.isatty():
        yield
        return
    handle, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(handle)

    def heard() -> None:
        for key in keys_of(os.read(handle, 64).decode(errors="replace")):
            view.press(key)
        news.set()

    tty.setcbreak(handle)
    loop.add_reader(handle, heard)
    try:
        yield
    finally:
        loop.remove_reader(handle)
        termios.tcsetattr(handle, termios.TCSADRAIN, before)


async def first_look(grid: Client) -> GridSnapshot:
    """Return the present state of the grid, with the last event of each of its newest jobs."""
    from gridweave.cli.watch_screen import GridSnapshot, past_events

    seen = GridSnapshot(url=grid.connection.url)
    await look(grid, seen)
    seen.events.extend(past_events([record async for record in grid.jobs(limit=_PAST_JOBS)]))
    return seen


async def look(grid: Client, seen: GridSnapshot) -> None:
    """Update sites, queue and running jobs in `seen`; raise GridweaveError and change nothing if a request fails."""

    async def running() -> list[JobRecord]:
        return [record async for record in grid.jobs(state=PLACED, limit=_RUNNING)]

    sites, queue, seen.running = await asyncio.gather(grid.sites(), grid.queue(_QUEUE_LINES), running())
    seen.sites, seen.queue, seen.now_ms, seen.problem = sites, queue, now_ms(), ""
    seen.url = grid.transport.connection.url  # changes if the gateway restarts at another address


async def follow(
    grid: Client, seen: GridSnapshot, draw: Callable[[], bool], every_s: float, news: asyncio.Event | None = None
) -> None:
    """Redraw after each event and every `every_s` seconds, until `draw` returns False.

    This keeps `seen` up to date. A caller can set `news` to request a redraw.
    """
    news = news or asyncio.Event()

    async def listen() -> None:
        while True:
            with contextlib.suppress(GridweaveError):  # `ask` records the problem
                async with aclosing(grid.events()) as events:
                    async for event in events:
                        seen.events.append(event)
                        news.set()
            await asyncio.sleep(every_s)

    async def ask() -> None:
        while True:
            try:
                await look(grid, seen)
            except GridweaveError as error:
                seen.problem = str(error)
            news.set()
            await asyncio.sleep(every_s)

    async with asyncio.TaskGroup() as tasks:
        others = [tasks.create_task(work()) for work in (listen, ask)]
        while draw():
            await news.wait()
            news.clear()
            # Draw a burst of events only once.
            await asyncio.sleep(min(0.1, every_s))
        for other in others:
            other.cancel()
