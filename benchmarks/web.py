"""Measure the web pages: the time to draw 100,000 jobs, and the cost of 1,000 open pages to the gateway.

    python benchmarks/web.py [--jobs 100000] [--pages 1000]

Needs Chromium. The browser draws the schedule while it is moved and zoomed, by software; a graphics processor is
faster. On a busy machine the work of a frame, the processor time of the drawing process, says more than its duration.
An open page is a stream of events; the gateway runs with a grid in memory, in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics

import aiohttp
import psutil
from gateway import BATCH, HEADERS, batch_of, served, submit_batch, watching
from playwright.async_api import Page, async_playwright
from rich.console import Console
from rich.table import Table

TARGET_FPS, TARGET_LESS = 30.0, 10.0
ROUNDS, BATCHES = 5, 40

LAYING_OUT = """
async (jobs) => {
  const { Painting, Schedule, View } = await import('/web/gantt.js');
  let seed = 1;
  const random = () => (seed = (seed * 48271) % 2147483647) / 2147483647;
  const sites = [['north', 430], ['south', 256], ['west', 128]];
  const found = [];
  let at = 0;
  for (let id = 1; id <= jobs; id += 1) {
    at += random() * 60000;
    const [site, nodes] = sites[Math.floor(random() * 3)];
    const width = Math.max(1, Math.floor(nodes * random() ** 4));
    found.push([id, 'u', '', 'finished', at, at, at + 60000 + random() ** 3 * 36e5, [[site, width]]]);
  }
  const began = performance.now();
  const schedule = new Schedule(sites, found);
  const took = performance.now() - began;
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [1600, 900];
  document.body.append(canvas);
  const context = canvas.getContext('2d', { alpha: false });
  const colours = { paper: '#fff', ink: '#000', faint: '#555', line: '#ccc', shade: '#eee', bad: '#a00',
    tones: Array.from({ length: 12 }, (_, index) => `hsl(${index * 30} 50% 50%)`) };
  window.frames = async (part, moved, wider, count) => {
    const painting = new Painting(context);
    const all = schedule.finish - schedule.begin;
    const times = [];
    for (let frame = 0; frame <= count; frame += 1) {
      const span = all * part * (1 + wider * frame);
      const from = schedule.begin + (all - span) / 2 + span * moved * (frame - count / 2);
      const start = await new Promise(requestAnimationFrame);
      painting.draw(new View(schedule, from, from + span, 1600, 900), colours, 0, -1);
      context.getImageData(0, 0, 1, 1); // waits until all is on the canvas
      if (frame) times.push(performance.now() - start);
    }
    return times;
  };
  return [took, schedule.n];
}
"""
FRAMES = 60
MOVES = (("moved by 12 pixels", 12 / 1600, 0.0), ("zoomed by 1%", 0.0, 0.01))


def _renderer_s() -> float:
    """Return the processor time of the process that draws the pages [s]."""
    below = psutil.Process().children(recursive=True)
    drawing = [each.cpu_times() for each in below if "--type=renderer" in each.cmdline()]
    return sum(times.user + times.system for times in drawing)


async def drawn(page: Page, jobs: int, table: Table) -> None:
    """Draw the schedule while it is moved and zoomed, at three widths of the view."""
    took_ms, rectangles = await page.evaluate(LAYING_OUT, jobs)
    table.add_row(f"{rectangles:,} rectangles of {jobs:,} jobs laid out [ms]", f"{took_ms:.0f}", "")
    await page.evaluate("window.frames(1, 0, 0.01, 10)")
    for part in (1.0, 0.1, 0.005):
        for how, moved, wider in MOVES:
            before_s = _renderer_s()
            times = await page.evaluate(f"window.frames({part}, {moved}, {wider}, {FRAMES})")
            work_ms = 1000 * (_renderer_s() - before_s) / (FRAMES + 1)
            middle, worst = statistics.median(times), sorted(times)[int(0.95 * len(times))]
            met = "met" if worst <= 1000 / TARGET_FPS else "NOT MET"
            cells = (
                f"{middle:.1f}, 95% below {worst:.1f}",
                f"target: {1000 / TARGET_FPS:.0f}: {met}; {work_ms:.1f} of work",
            )
            table.add_row(f"a frame, {part:.1%} of the time in view, {how} [ms]", *cells)


async def jobs_per_s(session: aiohttp.ClientSession, url: str) -> float:
    """Return the rate at which jobs are accepted, in batches, one after the other [jobs/s]."""
    body = batch_of(BATCH)
    begin_s = asyncio.get_running_loop().time()
    for _ in range(BATCHES):
        await submit_batch(session, url, body)
    return BATCH * BATCHES / (asyncio.get_running_loop().time() - begin_s)


async def with_pages(url: str, pages: int, table: Table) -> None:
    """Submit jobs with and without open pages, in turn; add the gateway's processor time per job to the table."""
    gateway = next(child for child in psutil.Process().children() if child.num_threads() > 1)
    rates: dict[bool, list[float]] = {False: [], True: []}
    works: dict[bool, list[float]] = {False: [], True: []}
    memory = []

    async def once(session: aiohttp.ClientSession, watched: bool) -> None:
        before = gateway.cpu_times()
        rates[watched].append(await jobs_per_s(session, url))
        after = gateway.cpu_times()
        works[watched].append(1e6 * (after.user + after.system - before.user - before.system) / (BATCH * BATCHES))

    async with aiohttp.ClientSession(headers=HEADERS) as session:
        await jobs_per_s(session, url)
        for _ in range(ROUNDS):
            await once(session, False)
            before = gateway.memory_info().rss
            # A page gets events only of jobs that its user may see; these jobs belong to nobody.
            async with watching(url, [], pages, "user=nobody"):
                memory.append((gateway.memory_info().rss - before) / 1e6)
                await once(session, True)
    (one, other), (alone, beside) = (
        [statistics.median(of[watched]) for watched in (False, True)] for of in (rates, works)
    )
    less, more = 100 * (1 - other / one), 100 * (beside / alone - 1)
    table.add_row(
        "jobs accepted, no page open [1/s]", f"{one:,.0f}", f"{min(rates[False]):,.0f} to {max(rates[False]):,.0f}"
    )
    met = "met" if less < TARGET_LESS else "NOT MET"
    summary = f"{min(rates[True]):,.0f} to {max(rates[True]):,.0f}; {less:.1f}% less; target: 10: {met}"
    table.add_row(f"jobs accepted, {pages:,} pages open [1/s]", f"{other:,.0f}", summary)
    table.add_row(
        "processor time of the gateway for a job [us]", f"{alone:.1f}; {beside:.1f}", f"{more:+.1f}% with pages"
    )
    table.add_row(f"memory of {pages:,} open pages [MB]", f"{max(memory):.0f}", "")


async def measure(jobs: int, pages: int) -> Table:
    """Run all measurements, and return the figures."""
    table = Table("figure", "value", "", title="The pages")
    with served(True) as url:
        async with async_playwright() as playwright:
            chromium = shutil.which("chromium") or shutil.which("google-chrome")
            browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = await browser.new_page()
            await page.goto(url)
            await drawn(page, jobs, table)
            await browser.close()
        if pages:
            await with_pages(url, pages, table)
    return table


def main() -> None:
    """Run all measurements, and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--pages", type=int, default=1_000, help="0: only the drawing is timed")
    options = parser.parse_args()
    Console(width=140).print(asyncio.run(measure(options.jobs, options.pages)))


if __name__ == "__main__":
    main()
