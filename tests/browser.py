"""Headless Chromium for tests of the pages; records the errors that the browser reports."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from typing import Any

import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here: apt-get install chromium")


_TIMEOUT_MS = 60_000
"""Long enough for a busy machine; a page that works never takes this long."""

expect.set_options(timeout=_TIMEOUT_MS)


class Window:
    """A page of a browser, and all errors in it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.problems: list[str] = []
        self.asked: set[str] = set()
        page.on("console", lambda said: self._said(said.type, said.text))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda request: self.asked.add(request.url))

    def _said(self, kind: str, text: str) -> None:
        # The browser also logs each answer 401 or 503 there, which the pages expect and handle.
        if kind in ("error", "warning") and not text.startswith("Failed to load resource"):
            self.problems.append(text)

    async def go(self, url: str) -> None:
        """Open a page and wait until it has a heading."""
        await self.page.goto(url)
        await self.page.wait_for_selector("h1")


@contextlib.asynccontextmanager
async def a_browser() -> AsyncIterator[Browser]:
    """Yield a browser, which takes seconds to start; its windows share no cookies or storage."""
    # Chromium's sandbox does not work for root, and tests of the launcher run as root.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        try:
            yield browser
        finally:
            await browser.close()


@contextlib.asynccontextmanager
async def window_of(browser: Browser, **settings: Any) -> AsyncIterator[Window]:
    """Yield a window of a browser; `settings` are options of its context (viewport, color_scheme)."""
    context = await browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings})
    context.set_default_timeout(_TIMEOUT_MS)
    try:
        yield Window(await context.new_page())
    finally:
        await context.close()


@contextlib.asynccontextmanager
async def browsing(**settings: Any) -> AsyncIterator[Window]:
    """Yield the window of a new browser."""
    async with a_browser() as browser, window_of(browser, **settings) as window:
        yield window
