"""Pages and the network: they load only from their server, and show the current state after a sleep or an error."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Request, Route, expect

from bench.servers import free_port
from kingdom.access.settings import WebSettings
from kingdom.bus import Bus, LogCursor, Operations
from tests.contract.backends import BackendUnderTest
from tests.integration.running import eventually
from tests.integration.web.scene import fill_realm
from tests.integration.web.site import Site, serving
from tests.web.browser import signed_in
from tests.web.test_every_page import PAGES
from tests.web.test_journeys import RUNNING, change_run

pytestmark = pytest.mark.web
FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 250, 10_000
A_DAY_SECONDS = 86_400


async def test_a_page_asks_no_other_host_for_anything(browser: Browser, site: Site) -> None:
    foreign: list[str] = []

    async def cut(route: Route, request: Request) -> None:
        if urlsplit(request.url).netloc == urlsplit(site.url).netloc:
            await route.continue_()
        else:
            foreign.append(request.url)
            await route.abort()

    async with signed_in(browser, site) as context:
        await context.route("**/*", cut)
        page = await context.new_page()
        for path in PAGES:
            await page.goto(f"{site.url}{path}")
            await expect(page.locator("h1").first).to_be_visible()
            loaded = await page.evaluate("performance.getEntriesByType('resource').map(each => each.name)")
            assert {urlsplit(each).netloc for each in loaded} == {urlsplit(site.url).netloc}, path
    assert foreign == []


class TrimmedLog:
    """Makes the log of a store forget every entry before now, as its retention does after some days."""

    def __init__(self) -> None:
        self.kept_from: LogCursor | None = None

    def wrap(self, bus: Bus, operations: Operations) -> tuple[Bus, Operations]:
        keeps = operations.keeps_log_after

        async def keeps_log_after(cursor: LogCursor) -> bool:
            return (self.kept_from is None or cursor >= self.kept_from) and await keeps(cursor)

        operations.keeps_log_after = keeps_log_after  # type: ignore[method-assign]
        return bus, operations


async def test_a_page_that_slept_longer_than_the_log_is_kept_shows_the_current_state(
    browser: Browser, backend: BackendUnderTest, tmp_path: Path
) -> None:
    log, address = TrimmedLog(), WebSettings(address=f"127.0.0.1:{free_port()}")
    async with serving(backend, tmp_path, address) as site:
        await fill_realm(site.bus)
        context = await browser.new_context()
        secret = await site.invite("anna")
        page = await context.new_page()
        await page.clock.install()
        await page.goto(f"{site.url}/sign-in#{secret}")
        await page.wait_for_url(f"{site.url}/")
        await page.goto(f"{site.url}/runs")
        await expect(page.locator("#live")).to_have_attribute("data-state", "live")
    # The server is away for an hour. Meanwhile a run changes, and the log forgets that it did.
    await expect(page.locator("#live")).to_have_attribute("data-state", "reconnecting")
    async with serving(backend, tmp_path, address, wrap=log.wrap) as site:
        await change_run(site, RUNNING, "Changed during the sleep")
        log.kept_from = await site.operations.log_end()
        await page.clock.fast_forward("01:00:00")
        await expect(page.locator("#live")).to_have_attribute("data-state", "live")
        await expect(page.locator(f'[id="{RUNNING}"]')).to_contain_text("Changed during the sleep")
        await change_run(site, RUNNING, "And it is live again")
        await expect(page.locator(f'[id="{RUNNING}"]')).to_contain_text("And it is live again")
        await context.close()


async def test_a_page_that_the_server_could_not_send_is_loaded_again_after_the_longest_pause(
    browser: Browser, site: Site
) -> None:
    async def fail(route: Route, _: Request) -> None:
        await route.fulfill(status=503, body="The store does not answer.")

    async with signed_in(browser, site) as context:
        page = await context.new_page()

        async def timer() -> int:
            return int(await page.evaluate("refreshing ? 0 : timer"))

        async def will_load() -> bool:
            return await timer() > 0

        async def will_load_again() -> bool:
            return await timer() not in (0, first)

        # The time of the page passes only with run_for.
        await page.clock.install(time=0)
        await page.clock.pause_at(A_DAY_SECONDS)
        await page.goto(f"{site.url}/runs")
        await expect(page.locator("#live")).to_have_attribute("data-state", "live")
        await context.route("**/runs", fail)
        await change_run(site, RUNNING, "Changed meanwhile")
        await eventually(will_load)
        first = await timer()
        await page.clock.run_for(FIRST_PAUSE_MS)
        await eventually(will_load_again)
        second = await timer()
        await page.clock.run_for(LONGEST_PAUSE_MS - 1)
        assert await timer() == second
        await context.unroute("**/runs", fail)
        await page.clock.run_for(1)
        await expect(page.locator(f'[id="{RUNNING}"]')).to_contain_text("Changed meanwhile")
