"""Chromium of the system, driven by Playwright, on a page that a person is signed in to."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, async_playwright

from kingdom.access.rights import Right
from tests.integration.web.site import Site

Scheme = Literal["light", "dark"]
DESK, PHONE = (1440, 900), (390, 844)
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or "/usr/bin/chromium"


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Start the browser."""
    async with async_playwright() as playwright:
        # Shared memory of a container is often too small for the browser.
        options = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--force-color-profile=srgb"]
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def signed_in(
    browser: Browser,
    site: Site,
    *may: Right,
    name: str = "anna",
    size: tuple[int, int] = DESK,
    scheme: Scheme = "light",
) -> AsyncIterator[BrowserContext]:
    """Open a browser of a person, who signs in with the link of an invite."""
    width, height = size
    is_phone = size == PHONE
    context = await browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, has_touch=is_phone, is_mobile=is_phone
    )
    try:
        page = await context.new_page()
        secret = await site.invite(name, *may)
        await page.goto(f"{site.url}/sign-in#{secret}")
        await page.wait_for_url(f"{site.url}/")
        await page.close()
        yield context
    finally:
        await context.close()


def collect_errors(page: Page) -> list[str]:
    """Return a list that gets every error of the page: of scripts, and of the policy that forbids foreign content."""
    errors: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type == "error":
            errors.append(message.text)

    page.on("console", note)
    page.on("pageerror", lambda error: errors.append(str(error)))
    return errors
