"""Draw the picture of the pages in the README, with Chromium: `python docs/draw_pages.py`."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from gridweave.grid.api import KeptNodes
from support.gateway import FakeBackend, serving
from support.web import browsing

PICTURE = Path(__file__).parent / "images" / "pages.png"
MINUTE_MS = 60_000

JOBS = (  # name, user, nodes, minutes; when it starts [min from now], and where
    ("weather", "anna", 6, 90, -55, (("south", 4), ("north", 2))),
    ("fold", "bert", 2, 60, -40, (("north", 2),)),
    ("mesh", "anna", 2, 45, -25, (("south", 2),)),
    ("train", "carla", 2, 120, -10, (("south", 2),)),
    ("sweep", "bert", 3, 30, None, ()),
    ("render", "dora", 1, 40, None, ()),
)


async def draw() -> None:
    """Show a grid with some jobs, and take a picture of its schedule."""
    backend, now_ms = FakeBackend(), time.time_ns() // 1_000_000
    async with serving(backend) as served:
        for number, (name, user, nodes, minutes, start, places) in enumerate(JOBS, start=1):
            backend.now_ms = now_ms + (start or 0) * MINUTE_MS
            program = {"argv": [f"./{name}"]}
            request = {"program": program, "name": name, "user": user, "nodes": nodes, "limit_ms": minutes * MINUTE_MS}
            await served.submit({"request": request})
            if start is not None:
                backend.start(number, places)
        backend.now_ms = now_ms
        spans = now_ms + 50 * MINUTE_MS, now_ms + 95 * MINUTE_MS
        backend.kept = {"south": [KeptNodes("reservation", 1, 4, *spans)]}
        async with browsing(viewport={"width": 1100, "height": 620}) as window:
            await window.go(f"{served.url}/#/schedule")
            await window.page.locator("canvas[data-drawn]").wait_for()
            await window.page.wait_for_timeout(500)
            await window.page.screenshot(path=PICTURE)


if __name__ == "__main__":
    asyncio.run(draw())
