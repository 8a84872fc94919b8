"""The pages in a real browser: what users do there, and what texts of others, faults and attackers must not do."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, expect

from gridweave.grid.api import KeptNodes
from gridweave.site.launch import UsageCurve, UsagePoint
from gridweave.site.resources.chunks import NodeKind
from gridweave.site.times import span_text
from support.gateway import FakeBackend, Served, make_tokens, serving
from support.web import Window, a_browser, needs_browser, window_of

pytestmark = [needs_browser, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SPANS = Path(__file__).parents[2] / "data" / "spans.json"
HOSTILE = (
    "<script>document.title='taken'</script>",
    "<img src=x onerror=alert(1)>",
    "\u202egnp.exe",
    "x" * 10_000,
    "🧵🪡",
)
PAGES = ("", "schedule", "queue", "jobs", "usage", "what-if", "job/1", "job/2", "job/3", "nothing")


def job(**changes: Any) -> dict[str, Any]:
    """Return a job that can be handed in."""
    return {"request": {"program": {"argv": ["./step"]}, "limit_ms": 600_000} | changes}


async def fill(served: Served, backend: FakeBackend, **headers: Any) -> None:
    """Have three jobs there: one that has ended, one that runs, one that waits."""
    await served.submit(*(job(name=name, nodes=2) for name in ("first", "second", "third")), **headers)
    backend.start(1, (("north", 1), ("south", 1)))
    backend.end(1, "failed")
    backend.start(2)
    backend.write(2, b"step 1\n")
    points = (UsagePoint(backend.now_ms + 1000, 0.5, 1 << 20), UsagePoint(backend.now_ms + 3000, 1.5, 2 << 20))
    curve = UsageCurve(
        site="north", host="n1", first_rank=0, last_rank=0, size=1, start_ms=backend.now_ms, points=points
    )
    backend.write(2, msgspec.json.encode(curve), stream="usage")


@pytest.fixture
def backend() -> FakeBackend:
    """Return a grid in memory."""
    return FakeBackend()


@pytest_asyncio.fixture(loop_scope="module")
async def served(backend: FakeBackend) -> AsyncIterator[Served]:
    """Yield a gateway without tokens."""
    async with serving(backend) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """Yield one browser for all tests."""
    async with a_browser() as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def window(browser: Browser) -> AsyncIterator[Window]:
    """Yield a window in which nothing may go wrong."""
    async with window_of(browser) as found:
        yield found
        assert found.problems == []


async def test_a_job_is_seen_to_wait_run_and_end(served: Served, backend: FakeBackend, window: Window) -> None:
    """What happens to a job is seen as it happens, without loading the page again; its output, too."""
    await window.go(f"{served.url}/#/jobs")
    page = window.page
    await expect(page.get_by_text("No jobs match.")).to_be_visible()
    (job_id,) = await served.submit(job(name="weather"))
    await expect(page.get_by_role("row").filter(has_text="weather")).to_contain_text("waiting")
    await page.get_by_role("link", name=str(job_id), exact=True).click()
    await expect(page.get_by_text("Why it waits")).to_be_visible()
    backend.start(job_id)
    backend.write(job_id, b"step 1\n")
    await expect(page.locator(".s-running").first).to_be_visible()
    await expect(page.locator("pre.output")).to_contain_text("step 1")
    backend.write(job_id, b"step 2\n")
    await expect(page.locator("pre.output")).to_contain_text("step 2")
    backend.end(job_id)
    await expect(page.locator(".s-finished").first).to_be_visible()
    await expect(page.get_by_text("Peak memory")).to_be_visible()


async def test_pages_show_cores_memory_and_gpus(served: Served, backend: FakeBackend, window: Window) -> None:
    """A site card shows what is in use and free; a job's page what it asks for; a site of whole nodes shows neither."""
    backend.kinds["north"] = (NodeKind(name="gpu", count=4, cores=16, memory_mb=64_000, gpus=4, gpu_type="a100"),)
    chunk = {"cores": 4, "memory_mb": 16_000, "gpus": 1, "gpu_type": "a100", "labels": ["ib"], "per_node": 1}
    await served.submit(job(name="parts", nodes=3, chunk=chunk), job(name="whole", nodes=2))
    backend.start(1, (("north", 3),))
    page = window.page
    await window.go(f"{served.url}/#/")
    cards = page.locator("section.site")
    await expect(cards.nth(0)).to_contain_text("12 of 64, 52 free")
    await expect(cards.nth(0)).to_contain_text("48 GB of 256 GB, 208 GB free")
    await expect(cards.nth(0)).to_contain_text("3 of 16, 13 free")
    await expect(cards.nth(1).locator("dl.amounts")).to_have_count(0)
    await window.go(f"{served.url}/#/job/1")
    await expect(page.locator("dl.facts")).to_contain_text("4 cores, 16 GB, 1 a100 GPU with ib, 1 per node")
    await window.go(f"{served.url}/#/jobs")
    await expect(page.get_by_role("row").filter(has_text="parts")).to_contain_text("3 chunks")
    await window.go(f"{served.url}/#/usage")
    await expect(page.get_by_role("columnheader").filter(has_text="GPU-hours")).to_be_visible()


async def test_a_job_without_a_name_is_called_by_what_it_runs(served: Served, window: Window) -> None:
    """That is its command, or its callable."""
    await served.submit(job(), {"request": {"program": {"call": {"function": "stats:mean"}}, "limit_ms": 1000}})
    await window.go(f"{served.url}/#/jobs")
    for text in ("./step", "stats:mean"):
        await expect(window.page.get_by_role("row").filter(has_text=text)).to_be_visible()


async def test_a_job_is_cancelled_after_a_question(served: Served, backend: FakeBackend, window: Window) -> None:
    """The page names the consequences before a job is cancelled; declining changes nothing."""
    await fill(served, backend)
    await window.go(f"{served.url}/#/job/2")
    page = window.page
    await page.get_by_role("button", name="Cancel", exact=True).click()
    await expect(page.get_by_role("dialog")).to_contain_text("1 running job will be terminated")
    await page.get_by_role("button", name="Keep", exact=True).click()
    assert backend.records_by_id[2].state == "running"
    await page.get_by_role("button", name="Cancel", exact=True).click()
    await page.get_by_role("button", name="Cancel 1 job").click()
    await expect(page.locator(".s-cancelled").first).to_be_visible()
    assert backend.records_by_id[2].outcome == "cancelled"


async def test_several_jobs_are_held_and_released(served: Served, backend: FakeBackend, window: Window) -> None:
    """Selected jobs are held and released together; those in another state are passed over."""
    await fill(served, backend)
    await window.go(f"{served.url}/#/jobs")
    page = window.page
    await page.get_by_label("Select all").click()
    await page.get_by_role("button", name="Hold").click()
    await expect(page.locator(".s-held")).to_have_count(1)
    assert [record.state for record in backend.records_by_id.values()] == ["ended", "running", "held"]
    await page.get_by_role("button", name="Release").click()
    await expect(page.locator(".s-waiting")).to_have_count(1)


async def test_what_if_asks_and_changes_nothing(served: Served, backend: FakeBackend, window: Window) -> None:
    """Variants of a waiting job are quoted, its own among them; nothing is submitted by that."""
    await fill(served, backend)
    await window.go(f"{served.url}/#/job/3")
    page = window.page
    await page.get_by_label("Nodes", exact=True).fill("1")
    await page.get_by_role("button", name="Ask", exact=True).click()
    table = page.get_by_role("region", name="What if")
    await expect(table).to_contain_text("On 1 node for 10 min")
    await expect(table).to_contain_text("With a limit of 5 min")
    assert len(backend.records_by_id) == 3


async def test_spans_of_time_are_written_as_by_the_command(served: Served, window: Window) -> None:
    """The pages' JavaScript gives the same text as `span_text` for each span."""
    await window.go(served.url)
    spans_ms = [ms for ms, _ in json.loads(SPANS.read_text(encoding="utf-8"))]
    rng = np.random.default_rng(37)
    spans_ms += [int(ms) for ms in 10 ** rng.uniform(0, 11, 2000)]
    texts = await window.page.evaluate(
        """async (spans) => { const { span } = await import("/web/text.js"); return spans.map(span); }""", spans_ms
    )
    assert texts == [span_text(ms) for ms in spans_ms]


async def test_links_are_on_a_map_and_in_a_table(served: Served, window: Window) -> None:
    """Each link is a line that tells how it is and how many jobs are on it; the table tells the same."""
    await window.go(f"{served.url}/#/")
    page = window.page
    await expect(page.locator("svg.map .link")).to_have_count(2)
    await expect(page.locator("svg.map .link.down title")).to_have_text(
        "south and middle: ✕ down, 1 Gb/s, 2 ms, 0 jobs across"
    )
    north, south = [await page.locator("svg.map .site circle").nth(place).bounding_box() for place in (0, 1)]
    assert north is not None
    assert south is not None
    assert north["y"] < south["y"]
    await expect(page.get_by_role("region", name="Links").get_by_role("row")).to_have_count(3)


async def test_operators_ask_what_would_become_of_the_grid(served: Served, window: Window) -> None:
    """A site that is drained, and one that is new, are asked about; the answer is there as a table and as bars."""
    await window.go(f"{served.url}/#/what-if")
    page = window.page
    await page.get_by_label("drained").first.check()
    await page.get_by_label("Name", exact=True).fill("<b>west</b>")
    await page.get_by_role("button", name="Simulate", exact=True).click()
    table = page.get_by_role("region", name="If each job runs up to its limit")
    await expect(table.get_by_role("row").filter(has_text="Mean wait")).to_contain_text("2 min")
    await expect(page.get_by_text("both simulations yield longer waits")).to_be_visible()
    await expect(page.get_by_label("<b>west</b> now: no such site").first).to_be_attached()
    await expect(page.get_by_label("<b>west</b> then: 50.0% of 4 nodes").first).to_be_attached()


async def test_sites_are_drained_and_nodes_are_cells(served: Served, backend: FakeBackend, window: Window) -> None:
    """Each node is a cell that leads to its job; a site that is drained says so."""
    await fill(served, backend)
    await window.go(f"{served.url}/#/")
    page = window.page
    north = page.locator("section.site").filter(has=page.get_by_role("heading", name="north"))
    await expect(north.locator(".cell.free")).to_have_count(2)
    await expect(north.locator("a.cell")).to_have_count(2)
    await north.get_by_role("button", name="Drain").click()
    await expect(north).to_contain_text("draining")
    assert backend.draining == {"north": True, "south": False}


async def test_the_schedule_tells_and_opens_jobs(served: Served, backend: FakeBackend, window: Window) -> None:
    """Pointing at a rectangle tells its job, a click opens it; what is expected is there, and all of it as a table."""
    backend.now_ms = 1_800_000_000_000
    await fill(served, backend)
    await window.go(f"{served.url}/#/schedule")
    page = window.page
    await page.get_by_label("From").select_option("all")
    await page.get_by_text("As a table").click()
    table = page.get_by_role("region", name="The schedule")
    await expect(table.get_by_role("row")).to_have_count(4)
    # Of 4 and 8 rows, the first at north: job 2 runs longest.
    await page.mouse.move(640, 300)
    box = await page.locator("canvas").bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 28 + 26 + 6)
    await expect(page.locator(".tip")).to_contain_text("Job")
    await page.mouse.down()
    await page.mouse.up()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Job")


async def test_a_schedule_is_shown_whole_again(served: Served, backend: FakeBackend, window: Window) -> None:
    """Keys zoom and move it, and Home shows all of it, as at the beginning."""
    backend.now_ms = 1_800_000_000_000  # far from now, whose line moves
    await fill(served, backend)
    await window.go(f"{served.url}/#/schedule")
    page, canvas = window.page, window.page.locator("canvas[data-drawn]")
    await expect(canvas).to_be_visible()
    picture = "document.querySelector('canvas').toDataURL()"
    frames = f"requestAnimationFrame(() => requestAnimationFrame(() => told({picture})))"
    whole = await page.evaluate(f"new Promise((told) => {frames})")
    for key in ("+", "ArrowRight"):
        before = await page.evaluate(picture)
        await canvas.press(key)
        await page.wait_for_function(f"(before) => {picture} !== before", arg=before)
    await canvas.press("Home")
    await page.wait_for_function(f"(whole) => {picture} === whole", arg=whole)


MOVED = """
async () => {
  const { Painting, Schedule, View } = await import('/web/gantt.js');
  let seed = 1;
  const random = () => (seed = (seed * 48271) % 2147483647) / 2147483647;
  let at = 0;
  const jobs = Array.from({ length: 2000 }, (_, index) => {
    at += random() * 60000;
    const state = index % 9 ? 'finished' : 'reservation';
    const places = [['north', 1 + Math.floor(random() * 40)]];
    return [index + 1, 'u', '', state, at, at, at + 60000 + random() ** 3 * 36e5, places];
  });
  const schedule = new Schedule([['north', 400]], jobs);
  const tones = Array.from({ length: 12 }, (_, index) => `rgb(${20 * index}, 90, ${255 - 20 * index})`);
  const colours = { paper: '#fff', ink: '#000', faint: '#555', line: '#ccc', shade: '#eee', bad: '#a00', tones };
  const painting = () => {
    const canvas = document.createElement('canvas');
    [canvas.width, canvas.height] = [700, 300];
    return new Painting(canvas.getContext('2d'));
  };
  const moved = painting();
  const told = [];
  for (const part of [1, 0.02]) {
    const span = (schedule.finish - schedule.begin) * part;
    let from = schedule.begin + span / 3;
    for (const columns of [0, 7, -3, 11.4, -250, 0.3, 900]) {
      from += (columns / 700) * span;
      const view = new View(schedule, from, from + span, 700, 300);
      const before = moved.drawn;
      moved.paint(view, colours, at / 2);
      const anew = painting();
      anew.paint(view, colours, at / 2);
      const differ = anew.pixels.reduce((sum, pixel, place) => sum + (pixel !== moved.pixels[place]), 0);
      told.push([part, columns, differ, moved.drawn - before, anew.drawn]);
    }
  }
  return told;
}
"""


async def test_a_schedule_that_is_moved_is_the_one_that_is_drawn_anew(served: Served, window: Window) -> None:
    """Pixel by pixel, however far it is moved; for a few columns only what is in them is painted."""
    await window.go(f"{served.url}/#/")
    told = await window.page.evaluate(MOVED)
    assert [row for row in told if row[2]] == []
    assert all(painted < anew / 2 for part, columns, _, painted, anew in told if part == 1 and 0 < abs(columns) < 20)


async def test_numbers_are_read_on_every_colour(served: Served, window: Window) -> None:
    """Numbers on jobs, expected ones too, have a contrast of at least 4.5 with their colour, light and dark."""
    await window.go(f"{served.url}/#/")
    for colours in ("light", "dark"):
        await window.page.emulate_media(color_scheme=colours)  # type: ignore[arg-type]
        assert min(await window.page.evaluate(CONTRASTS)) >= 4.5


CONTRASTS = """
async () => {
  const { coloursOfSheet, inkOn, pixelsOf } = await import('/web/gantt.js');
  const light = (pixel) => [0.2126, 0.7152, 0.0722].reduce((sum, part, place) => {
    const value = ((pixel >>> (8 * place)) & 255) / 255;
    return sum + part * (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  }, 0);
  const kinds = pixelsOf(document.createElement('canvas').getContext('2d'), coloursOfSheet());
  return kinds.slice(0, 24).map((pixel) => {
    const pair = [light(pixel), inkOn(pixel) === '#fff' ? 1 : 0].sort((one, other) => other - one);
    return (pair[0] + 0.05) / (pair[1] + 0.05);
  });
}
"""


async def test_a_wrong_clock_is_told_and_the_grids_counts(served: Served, backend: FakeBackend, window: Window) -> None:
    """A browser whose clock is hours behind says so, and what is counted from now is right all the same."""
    backend.now_ms = round(time.time() * 1000)
    (job_id,) = await served.submit(job())
    page = window.page
    await window.go(f"{served.url}/#/job/{job_id}")
    await expect(page.get_by_text("Why it waits")).to_be_visible()
    await expect(page.locator(".clock")).to_have_count(0)
    await page.clock.set_system_time(time.time() - 3 * 3600)
    await page.reload()
    await expect(page.locator(".clock")).to_contain_text("behind the grid’s")
    waited = page.locator(".facts div").filter(has_text="Waited")
    await expect(waited).to_have_text(re.compile(r"Waited[\d.]+ (ms|s)|Waited\d+ min"))


async def test_what_a_job_uses_over_time_is_drawn(served: Served, backend: FakeBackend, window: Window) -> None:
    """Processors and memory of all machines together, as a picture with words and as a table."""
    (job_id,) = await served.submit(job(nodes=2))
    backend.start(job_id, (("north", 1), ("south", 1)))
    for rank, memory in enumerate((1 << 20, 2 << 20)):
        points = tuple(UsagePoint(second * 1000, 2.0 * second, memory) for second in range(1, 5))
        curve = UsageCurve(site="", host="<b>n1", first_rank=rank, last_rank=rank, size=2, start_ms=0, points=points)
        backend.write(job_id, msgspec.json.encode(curve), rank=rank, stream="usage")
    await window.go(f"{served.url}/#/job/{job_id}")
    said = "at most 4 processors, at the end 4 processors, over 4 s"
    await expect(window.page.get_by_role("img", name=f"Processors busy: {said}")).to_be_visible()
    await expect(window.page.get_by_role("img", name="Memory: at most 3.0 MB")).to_be_visible()
    await expect(window.page.get_by_text("Rank 0 on <b>n1; Rank 1 on <b>n1.")).to_be_visible()
    await window.page.locator("figure.chart ~ details summary").click()
    table = window.page.get_by_role("region", name="Use over time")
    await expect(table.get_by_role("row")).to_have_count(5)
    await expect(table.get_by_role("row").nth(1)).to_contain_text("4.00")


async def test_reservations_and_leases_are_on_the_schedule(
    served: Served, backend: FakeBackend, window: Window
) -> None:
    """What nothing else may have is there with its span; a lease opens its job, a reservation nothing."""
    backend.now_ms = 1_800_000_000_000
    await fill(served, backend)
    spans = backend.now_ms + 60_000, backend.now_ms + 600_000
    backend.kept = {"south": [KeptNodes("reservation", 7, 3, *spans), KeptNodes("lease", 3, 2, *spans)]}
    await window.go(f"{served.url}/#/schedule")
    page = window.page
    await page.get_by_label("From").select_option("all")
    await page.get_by_text("As a table").click()
    rows = page.get_by_role("region", name="The schedule").get_by_role("row")
    await expect(rows.filter(has_text="Reservation 7")).to_contain_text("south (3)")
    await expect(rows.filter(has_text="Kept until the agreed start of job 3")).to_contain_text("south (2)")
    await expect(page.locator("canvas")).to_have_attribute("data-drawn", "6")


async def test_jobs_before_and_behind_a_job_are_a_graph(served: Served, window: Window) -> None:
    """What a job waits for stands before it, what waits for it behind it, with what must have happened."""
    await served.submit(job())
    await served.submit(job(after=[{"job_id": 1, "has": "finished"}]))
    await served.submit(job(after=[{"job_id": 2, "has": "started"}]), job(after=[{"job_id": 2, "has": "ended"}]))
    await window.go(f"{served.url}/#/job/2")
    graph = window.page.locator(".graph")
    await expect(graph.get_by_role("listitem")).to_have_count(3)
    told = " ".join((await graph.inner_text()).split())
    assert told.startswith(
        "Waits for 1 to have finished → job 2, ○ waiting → Waiting for this job 3 to have started: ○ waiting"
    )


async def test_the_queue_is_filtered_by_site(served: Served, window: Window) -> None:
    """The jobs that are expected to start at a site are shown alone, at the places that they have in the queue."""
    await served.submit(job(nodes=2), job(nodes=8), job(nodes=1))
    await window.go(f"{served.url}/#/queue")
    page = window.page
    await expect(page.get_by_role("row")).to_have_count(4)
    await page.get_by_label("Site").select_option("south")
    await expect(page.get_by_role("row")).to_have_count(2)
    await expect(page.get_by_role("row").nth(1)).to_contain_text("south (8)")
    await expect(page.get_by_role("row").nth(1).get_by_role("cell").first).to_have_text("2")


async def test_a_login_by_token_and_by_link(tmp_path: Path, backend: FakeBackend, window: Window) -> None:
    """A token logs in, its end is told calmly where one is, a link logs in once; each user sees their own."""
    tokens = make_tokens(tmp_path / "tokens", anna="submit", bob="submit", root="operate")
    async with serving(backend, tokens=str(tmp_path / "tokens")) as served:
        await fill(served, backend, token=tokens["anna"])
        page = window.page
        await window.go(f"{served.url}/#/jobs")
        await page.get_by_label("Your token").fill("gw_000000000000_" + "x" * 40)
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_role("alert")).to_contain_text("ask an operator for another")
        await page.get_by_label("Your token").fill(tokens["anna"])
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_role("row")).to_have_count(4)
        await expect(page.get_by_text("anna", exact=True).first).to_be_visible()
        assert "gw_" not in await page.evaluate("document.cookie + JSON.stringify(localStorage)")
        kept = await page.evaluate("document.cookie + JSON.stringify(localStorage) + JSON.stringify(sessionStorage)")
        (cookie,) = await page.context.cookies()
        assert not any(secret in kept for secret in (cookie["value"].partition("_")[2], tokens["anna"], "gw_"))
        # A new tab has the cookie, and gets the other half of the login from the first one.
        tab = await page.context.new_page()
        await tab.goto(f"{served.url}/#/jobs")
        await expect(tab.get_by_role("row")).to_have_count(4)
        await tab.close()
        status, _, _ = await served.ask("DELETE", f"/v1/tokens/{tokens['anna'].split('_')[1]}", token=tokens["root"])
        assert status == 200
        await expect(page.get_by_label("Your token")).to_be_visible()
        _, made, _ = await served.ask("POST", "/v1/login/code", token=tokens["bob"])
        await page.goto("about:blank")
        await page.goto(f"{served.url}/#login={made['code']}")
        await expect(page.locator(".who")).to_have_text("bob")
        assert made["code"] not in page.url
        await page.get_by_role("button", name="Log out").click()
        await expect(page.get_by_label("Your token")).to_be_visible()


async def test_hostile_texts_are_shown_as_texts(served: Served, backend: FakeBackend, window: Window) -> None:
    """Names, users and output that are written to do harm do none on any page, and ask nobody else for anything."""
    for text in HOSTILE:
        name = text if text.isprintable() else "plain"
        (job_id,) = await served.submit(job(name=name[:200], user=name[:100], program={"argv": [text]}))
        backend.start(job_id)
        backend.write(job_id, text.encode() + b"\n\x1b[31m\xff\xfe")
    for path in (*PAGES, "jobs?user=%3Cscript%3E", "job/%3Cimg%20src=x%3E"):
        await window.go(f"{served.url}/#/{path}")
        await window.page.wait_for_timeout(300)
        assert "taken" not in await window.page.title()
        assert await window.page.locator("#app script, #app img").count() == 0
    assert all(url.startswith((served.url, "about:")) for url in window.asked)


async def test_megabytes_in_a_line_do_not_stop_the_page(served: Served, backend: FakeBackend, window: Window) -> None:
    """Of ten megabytes in one line the beginning is shown, and how long it is; the page goes on."""
    (job_id,) = await served.submit(job())
    backend.start(job_id)
    backend.write(job_id, b"z" * (10 << 20) + b"\nthe end\n")
    await window.go(f"{served.url}/#/job/{job_id}")
    await expect(window.page.locator("pre.output")).to_contain_text("the end")
    assert len(await window.page.locator("pre.output").inner_text()) < 250_000


async def test_a_gateway_that_goes_and_comes_is_waited_for(backend: FakeBackend, window: Window) -> None:
    """While the gateway is away the page says so and keeps what it has; when it is back the page goes on by itself."""
    async with serving(backend) as served:
        await fill(served, backend)
        await window.go(f"{served.url}/#/jobs")
        port = served.gateway.port
        await expect(window.page.locator(".heard.live")).to_be_visible()
    await expect(window.page.locator(".heard.away")).to_be_visible()
    await expect(window.page.get_by_role("row")).to_have_count(4)
    async with serving(backend, port=port) as served:
        await expect(window.page.locator(".heard.live")).to_be_visible()
        await served.submit(job(name="fourth"))
        await expect(window.page.get_by_role("row")).to_have_count(5)
    window.problems.clear()


async def test_pages_can_be_used_by_everybody(served: Served, backend: FakeBackend, window: Window) -> None:
    """On each page, wide and narrow, light and dark, axe finds nothing that keeps anybody out."""
    await fill(served, backend)
    problems = []
    for path in PAGES:
        await window.go(f"{served.url}/#/{path}")
        for width in (1280, 390):
            await window.page.set_viewport_size({"width": width, "height": 800})
            if await window.page.evaluate("document.documentElement.scrollWidth") > width:
                problems.append(f"{path}: is wider than {width}")
            # Of what axe looks at only contrasts depend on the colours.
            for colours, rules in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
                await window.page.emulate_media(color_scheme=colours)  # type: ignore[arg-type]
                found = await Axe().run(window.page, options={"resultTypes": ["violations"], **rules})
                if found.response["violations"]:
                    problems.append(f"{path}, {width} wide, {colours}: {found.generate_report()}")
    assert problems == []
