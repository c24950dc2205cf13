"""A real browser, without a window."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, ConsoleMessage, Error, Page, Playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


async def launched(driver: Playwright) -> Browser:
    """The Chromium of this machine, or else the one that Playwright has installed."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    sandbox = ("--no-sandbox",) if hasattr(os, "geteuid") and os.geteuid() == 0 else ()
    try:
        return await driver.chromium.launch(executable_path=found, args=[*QUIET, *sandbox])
    except Error as error:
        pytest.fail(f"there is no browser: run .ci/browser, which installs one\n{error}")


class Watched:
    """A page of a site, and what it did that it should not."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.wrong: list[str] = []
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.wrong.append(f"dialog: {dialog.message}"))
        page.on("console", self._said)
        page.on("request", lambda request: self._asked(request.url))

    def _said(self, said: ConsoleMessage) -> None:
        if said.type in ("error", "warning"):
            self.wrong.append(f"console: {said.text}")

    def _asked(self, url: str) -> None:
        if urlsplit(url).netloc != urlsplit(self.url).netloc:
            self.wrong.append(f"left the site: {url}")

    async def open(self, path: str) -> Page:
        """Go somewhere on the site."""
        await self.page.goto(f"{self.url}{path}")
        return self.page


@asynccontextmanager
async def watched(browser: Browser, url: str) -> AsyncIterator[Watched]:
    """A new page, which must have done nothing wrong by the end."""
    context = await browser.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
    context.set_default_timeout(10_000)
    seen = Watched(await context.new_page(), url)
    try:
        yield seen
        await asyncio.sleep(0)
        assert seen.wrong == []
    finally:
        await context.close()
