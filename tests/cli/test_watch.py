"""`gridweave watch`: a screen that fits every window, and follows what happens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from gridweave.cli.watch import first_look, follow
from gridweave.cli.watch_screen import GridSnapshot, WatchView, bar, past_events, screen
from gridweave.grid.api import JobEvent, Queue, QueuedJob, SiteInfo
from gridweave.grid.client.client import Client
from gridweave.grid.client.transport import Patience
from gridweave.site.job import JobRecord, JobRequest, Program
from support.gateway import Elsewhere, GatewayBehindProxy, served
from support.machine import PATIENCE_S

Shell = Callable[..., tuple[int, str, str]]

NOW_MS = 1_700_000_000_000


def drawn(seen: GridSnapshot, width: int, height: int | None = None) -> list[str]:
    """Return the lines of a screen."""
    console = Console(width=width, height=height, color_system=None, legacy_windows=False)
    with console.capture() as captured:
        console.print(screen(seen, width, height))
    return captured.get().splitlines()


def busy(sites: int = 3, jobs: int = 5, events: int = 5) -> GridSnapshot:
    """Return a grid with much to show."""
    seen = GridSnapshot(url="http://127.0.0.1:8750", now_ms=NOW_MS)
    seen.sites = [
        SiteInfo(
            name=f"site-{number}",
            nodes=16,
            for_grid=16,
            free=number % 17,
            running=2,
            waiting=1,
            draining=number == 1,
            answers=number != 2,
        )
        for number in range(sites)
    ]
    seen.queue = Queue(
        waiting=jobs + 7,
        jobs=[
            QueuedJob(
                job_id=10**6 + n, user="a-user-with-a-name", nodes=4, limit_ms=600_000, submit_ms=NOW_MS - n * 61_000
            )
            for n in range(jobs)
        ],
    )
    for number in range(events):
        kind, detail = [("runs", "4 nodes at site-0 and 2 at site-3"), ("ended", "failed: rank 3")][number % 2]
        event = JobEvent(
            number=number, at_ms=NOW_MS, job_id=number, kind=kind, detail=detail, user="anna", name="[bold]x"
        )
        seen.events.append(event)
    return seen


@settings(max_examples=40)
@given(st.integers(40, 200), st.integers(12, 70), st.integers(0, 30), st.integers(0, 50), st.integers(0, 50))
def test_a_screen_fits_its_window(width: int, height: int, sites: int, jobs: int, events: int) -> None:
    """Whatever there is to show, no line is longer than the window is wide, and there are no more than it has."""
    lines = drawn(busy(sites, jobs, events), width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width


def test_what_a_screen_shows() -> None:
    """Sites with their use and state, the first jobs of the queue, and what happened last, the newest first."""
    text = "\n".join(drawn(busy(), 100))
    lines = text.splitlines()
    assert lines[0].startswith("gridweave  http://127.0.0.1:8750  45 of 48 nodes busy")
    assert "16 of 16" in lines[3]
    assert lines[4].split()[-2:] == ["drains", "│"]
    assert "does not answer" in lines[5]
    assert "queue: 12 waiting, 0 held, 0 starting, 0 running" in text
    (row,) = [line.split()[1:-1] for line in lines if "1000001" in line]
    assert row == ["1000001", "a-user-with-a-name", "4", "10", "min", "1", "min", "1", "s", "waiting"]
    events = [line.split("job ")[1].split()[0] for line in lines if "  job " in line and "user" not in line]
    assert events == ["4", "3", "2", "1", "0"]
    assert "[bold]x" in text, "names are no markup"


def with_running(seen: GridSnapshot) -> GridSnapshot:
    """Add jobs that run: one for 40 s still, one on two sites, one that is ending, and one on a time-shared site."""
    places = [(("site-0", 3),), (("site-0", 2), ("site-1", 1)), (("site-1", 4),), (("site-2", 1),), (("site-2", 1),)]
    for number, where in enumerate(places):
        request = JobRequest(
            program=Program(argv=("x",)), nodes=sum(nodes for _, nodes in where), limit_ms=60_000 * (number + 1),
            user=f"user-{'cabed'[number]}", name=f"name-{number}",
        )  # fmt: skip
        record = JobRecord(job_id=number + 1, request=request, submit_ms=0, start_ms=NOW_MS - 20_000, places=where)
        record.state = "ending" if number == 2 else "running"
        seen.running.append(record)
    seen.sites[2] = SiteInfo(name="site-2", nodes=16, for_grid=16, free=14, paused=(5,))
    return seen


@pytest.mark.parametrize(("width", "height"), [(60, 16), (100, 40)])
def test_what_runs_is_shown(width: int, height: int) -> None:
    """Whose each job is, where, how long still, and which slice: in a small window as much as there is room for."""
    lines = drawn(with_running(busy()), width, height)
    assert len(lines) <= height
    shown = [" ".join(line.strip("│ ").split()) for line in lines]
    assert any(line.startswith("5 user-d") and "site-2 1 4 min 40 s waits for its sli" in line for line in shown)
    assert any(line.startswith("4 user-e") and "site-2 1 3 min 40 s in its slice" in line for line in shown)
    assert any(line.startswith("3 user-b") and "2 min 40 s is ending" in line for line in shown)
    assert height < 40 or any("site-0 2 + site-1 1" in line for line in shown)
    assert any(line.startswith("1000000 a-user") for line in shown), "the queue is there, too"


def test_keys_sort_scroll_and_filter() -> None:
    """S sorts by the next thing, r turns it round, / leaves those with what is typed, q ends."""
    seen, view = with_running(busy()), WatchView()

    def numbers() -> list[str]:
        console = Console(width=120, height=50, color_system=None)
        with console.capture() as captured:
            console.print(screen(seen, 120, 50, view))
        lines = [line.strip("│ ").split() for line in captured.get().splitlines()]
        return [line[0] for line in lines if len(line) > 1 and line[1].startswith("user-")]

    assert numbers() == ["5", "4", "3", "2", "1"]
    view.press("s")
    assert (view.sort, numbers()) == ("user", ["2", "3", "1", "5", "4"])
    view.press("s")
    assert (view.sort, numbers()) == ("left", ["1", "2", "3", "4", "5"])
    view.press("r")
    assert numbers() == ["5", "4", "3", "2", "1"]
    view.press("j")
    view.press("\x1b[B")
    assert numbers() == ["3", "2", "1"]
    for key in ["k", "k", "k", "/", *"SITE-1", "0", "\x7f"]:
        view.press(key)
    assert numbers() == ["3", "2"]
    view.press("s")  # it is typed
    assert numbers() == []
    view.press("\x1b")
    view.press("q")
    assert (len(numbers()), view.is_over) == (5, True)


def test_an_empty_grid() -> None:
    """Where there is nothing to show the screen says so."""
    text = "\n".join(drawn(GridSnapshot(url="http://127.0.0.1:1", now_ms=NOW_MS), 80))
    for words in ("no news of the sites yet", "no job waits", "nothing yet"):
        assert words in text


def test_more_sites_than_lines() -> None:
    """Sites that have no room are counted."""
    text = "\n".join(drawn(busy(sites=30), 80, 24))
    assert "site-0" in text
    assert " more" in text


def test_a_problem_is_shown() -> None:
    """What is old is told as such, in a line however long the problem is."""
    seen = busy()
    seen.problem = "no gateway answers at " + "x" * 200
    assert drawn(seen, 80)[0].startswith("old: no gateway answers at xxx")
    assert len(drawn(seen, 80)[0]) <= 80


def test_a_bar_is_never_quite_empty_or_full_unless_it_is() -> None:
    """A little use is seen, and so is a little room."""
    for width in (4, 20, 50):
        assert bar(0, 1000, width).plain == "░" * width
        assert bar(1, 1000, width).plain.count("█") == 1
        assert bar(999, 1000, width).plain.count("░") == 1
        assert bar(1000, 1000, width).plain == "█" * width
        assert bar(0, 0, width).plain == "░" * width


def test_what_went_before() -> None:
    """Of each job the last thing that happened to it is shown, by time."""
    request = JobRequest(program=Program(argv=("x",)), nodes=3, limit_ms=1)
    records = [
        JobRecord(job_id=1, request=request, submit_ms=1, start_ms=2, end_ms=9, outcome="finished"),
        JobRecord(job_id=2, request=request, submit_ms=1, start_ms=5, places=(("north", 2), ("south", 1))),
        JobRecord(job_id=3, request=request, submit_ms=7),
    ]
    assert [(one.job_id, one.kind, one.detail) for one in past_events(records)] == [
        (2, "runs", "2 nodes at north and 1 node at south"),
        (3, "submitted", "3 nodes"),
        (1, "ended", "finished"),
    ]


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0)


async def _watching(gateway: GatewayBehindProxy, grid: Client) -> None:
    pictures: list[Any] = []
    is_over = False
    await grid.submit(["true"], nodes=2, user="anna")
    seen = await first_look(grid)

    def draw() -> bool:
        pictures.append((seen.problem, len(seen.events), [site.draining for site in seen.sites], seen.queue.waiting))
        return not is_over

    watching = asyncio.ensure_future(follow(grid, seen, draw, 0.01))
    await _until(lambda: gateway.proxy.passed > 0)
    assert pictures[0] == ("", 1, [False, False], 1)
    gateway.grid.start(1)
    await gateway.grid.drain("south", True)
    await _until(lambda: pictures[-1] == ("", 2, [False, True], 0))
    gateway.grid.is_away = True
    await _until(lambda: "does not answer" in pictures[-1][0])
    assert pictures[-1][1:] == (2, [False, True], 0), "what was known stays"
    gateway.grid.is_away = False
    gateway.grid.end(1)
    await _until(lambda: pictures[-1][:2] == ("", 3))
    is_over = True
    await watching


@pytest.mark.asyncio
async def test_a_screen_follows_what_happens(no_configuration: None) -> None:
    """Events come as they happen; sites and queue are asked for again; when the grid is away, what was known stays."""
    patience = Patience(total_s=0.02, first_pause_s=0.005)
    async with served() as gateway, Client(gateway.url, patience=patience) as grid:
        await _watching(gateway, grid)


def test_one_screen_is_printed(elsewhere: Elsewhere, shell: Shell) -> None:
    """Where the output is no terminal, or with --once, one screen is printed; with --json what it is made of."""
    shell("submit", "--url", elsewhere.url, "-n", 2, "--", "true")
    for arguments in ((), ("--once",)):
        status, out, err = shell("watch", "--url", elsewhere.url, *arguments)
        assert (status, err) == (0, "")
        assert "0 of 12 nodes busy" in out
        assert "submitted" in out
        assert "\x1b" not in out
    shown = json.loads(shell("watch", "--url", elsewhere.url, "--json")[1])
    assert [event["kind"] for event in shown["events"]] == ["submitted"]
    assert [site["name"] for site in shown["sites"]] == ["north", "south"]
