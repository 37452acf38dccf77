"""Take the pictures of the documentation while the demo runs: `python -m tests.web.screenshots FOLDER`."""

import asyncio
import logging
import sys
import tempfile
from pathlib import Path

from playwright.async_api import Page, ViewportSize, expect

from kingdom.cli.demo.web_pages import serve_pages
from kingdom.court.questions import HumanQuestion
from kingdom.demo.demo_court import open_demo_court
from kingdom.demo.display import DemoDisplay
from kingdom.demo.narration import NarrationLine
from kingdom.demo.scenario import TICKET, Scenario
from kingdom.demo.store_watcher import DemoState
from kingdom.log_output import configure_logs
from tests.patience import PATIENCE_SECONDS
from tests.web.browser import PHONE, chromium

_DESK = ViewportSize(width=1180, height=900)
_ANSWER = "No, keep the cents."


class Photographer(DemoDisplay):
    """Shows nothing. When the agent asks, it takes a picture of the inbox on a phone, and then answers."""

    def __init__(self, page: Page, folder: Path) -> None:
        self._page = page
        self._folder = folder

    def begin(self, number: int, total: int, title: str, words: str) -> None:
        """See `DemoDisplay.begin`."""

    def tell(self, line: NarrationLine) -> None:
        """See `DemoDisplay.tell`."""

    def show(self, state: DemoState) -> None:
        """See `DemoDisplay.show`."""

    async def ask(self, ask: HumanQuestion, default: str) -> str | None:
        """See `DemoDisplay.ask`."""
        del ask, default
        await self._page.set_viewport_size(ViewportSize(width=PHONE[0], height=PHONE[1]))
        await self._page.goto("/inbox")
        await expect(self._page.locator("article")).to_be_visible()
        await self._page.screenshot(path=self._folder / "web-inbox.png")
        return _ANSWER


async def take_run(page: Page, folder: Path) -> None:
    """Take a picture of the run whose agent was killed twice."""
    await page.set_viewport_size(_DESK)
    await page.goto("/runs")
    await page.locator("tr[data-row]", has_text=TICKET).first.locator("a[data-open]").click()
    await expect(page.locator(".timeline .mark.crash").first).to_be_visible()
    await expect(page.locator(".log .line").first).to_be_visible()
    await page.screenshot(path=folder / "web-run.png")


async def main(folder: Path) -> None:
    """Run the demo with a browser that watches it."""
    configure_logs(json=True, level=logging.ERROR)
    expect.set_options(timeout=PATIENCE_SECONDS * 1000)
    with tempfile.TemporaryDirectory(prefix="kingdom-screenshots-", ignore_cleanup_errors=True) as directory:
        await photograph(Path(directory), folder)


async def photograph(directory: Path, folder: Path) -> None:
    """Take the pictures of a demo in an empty directory."""
    async with (
        chromium() as browser,
        open_demo_court(directory) as court,
        serve_pages(court, "anna") as link,
    ):
        url = link.partition("/sign-in")[0]
        page = await browser.new_page(base_url=url, viewport=_DESK)
        await page.goto(link)
        await page.wait_for_url(f"{url}/")
        report = await Scenario(court, Photographer(page, folder), person="anna").run()
        assert report.ok, report.findings
        await take_run(page, folder)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
