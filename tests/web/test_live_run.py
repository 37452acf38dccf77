"""A person watches a whole court at work: runs appear, an agent and the King are killed, and the run ends, all live."""

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from kingdom.court.questions import HumanQuestion
from kingdom.demo.demo_court import open_demo_court
from kingdom.demo.display import DemoDisplay
from kingdom.demo.narration import NarrationLine
from kingdom.demo.scenario import Scenario
from kingdom.demo.store_watcher import DemoState
from tests.contract.backends import BACKENDS, BackendUnderTest
from tests.integration.web.site import serving
from tests.patience import PATIENCE_SECONDS
from tests.web.browser import signed_in

pytestmark = pytest.mark.web
BUILD = "gen-ticket"


class Watched(DemoDisplay):
    """Shows nothing: the browser does."""

    def begin(self, number: int, total: int, title: str, words: str) -> None:
        """See `DemoDisplay.begin`."""

    def tell(self, line: NarrationLine) -> None:
        """See `DemoDisplay.tell`."""

    def show(self, state: DemoState) -> None:
        """See `DemoDisplay.show`."""

    async def ask(self, ask: HumanQuestion, default: str) -> str | None:
        """See `DemoDisplay.ask`."""
        del ask
        return default


async def watch(page: Page, url: str) -> None:
    """Open the list before anything runs, and follow the run whose agent is killed, without loading a page again."""
    await page.goto(f"{url}/runs")
    link = page.locator("tr[data-row]", has_text=BUILD).first.locator("a[data-open]")
    await expect(link).to_be_visible()
    await link.click()
    await page.evaluate("window.sameDocument = true")
    await expect(page.locator(".log .line").first).to_be_visible()
    await expect(page.locator(".head .state")).to_have_text("Done")
    await expect(page.locator(".timeline .mark.crash").first).to_be_visible()
    await expect(page.locator(".ended")).to_contain_text("crash")
    assert await page.evaluate("window.sameDocument")


async def test_a_run_is_followed_live_from_its_beginning_to_its_result_with_a_kill_in_between(
    browser: Browser, backend: BackendUnderTest, tmp_path: Path
) -> None:
    address = "" if backend.name == "files" else backend.place
    async with open_demo_court(tmp_path, address) as court:
        if backend.name == "files":
            backend = BACKENDS["files"](str(court.realm))
        async with serving(backend, tmp_path) as site, signed_in(browser, site) as context:
            page = await context.new_page()
            scenario = Scenario(court, Watched(), person="anna", timeout_seconds=PATIENCE_SECONDS)
            report, _ = await asyncio.gather(scenario.run(), watch(page, site.url))
        assert report.ok, report.findings
