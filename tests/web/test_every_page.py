"""Every page in the browser: it is accessible, executes no text of strangers, and fits on a phone."""

import pytest
from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped]
from playwright.async_api import Browser, expect

from kingdom.bus import LogEntry
from kingdom.court.followups.records import FOLLOWUPS
from kingdom.court.records import ASSIGNMENTS, EVENTS
from kingdom.workflow.model.run.workflow import Placement
from kingdom.workflow.records import WORKFLOWS, load_workflow
from tests.integration.web.court_scene import ASSIGNED, GENERAL, GIVEN
from tests.integration.web.scene import FOLLOWED, RUNS
from tests.integration.web.site import Site
from tests.web.browser import DESK, PHONE, Scheme, collect_errors, signed_in
from tests.web.payloads import PAYLOADS

pytestmark = pytest.mark.web
RUN = "/runs/wf-task-20261118-002"
PAGES = (
    *(
        "/",
        "/inbox",
        "/runs",
        "/followups",
        RUN,
        *(f"{RUN}?tab={tab}" for tab in ("changes", "outside", "cost", "story")),
    ),
    *("/events", f"/events/{GIVEN}", "/assignments", f"/assignments/{ASSIGNED}", "/bus", f"/generals/{GENERAL}"),
    *("/generals", "/costs", "/hosts"),
)


async def rename_runs(site: Site, text: str) -> None:
    """Write a text into each field of all runs whose content may come from strangers."""
    async with site.bus.transaction() as transaction:
        for run_id in RUNS:
            record = await transaction.get(WORKFLOWS.name, run_id)
            assert record
            doc = {**record.doc, "name": text, "reason": text, "general": text}
            await transaction.put(record.replace(doc=doc))
        for kind, found in ((EVENTS.name, GIVEN), (ASSIGNMENTS.name, ASSIGNED)):
            record = await transaction.get(kind, found)
            assert record
            doc = {**record.doc, "reason": text, "repo": text, "payload": {"title": text, "body": text}}
            await transaction.put(record.replace(doc=doc))
        record = await transaction.get(FOLLOWUPS.name, FOLLOWED)
        assert record
        await transaction.put(record.replace(doc={**record.doc, "reason": text, "general": text, "failing": [text]}))


async def write_transcript(site: Site, text: str) -> None:
    """Let the agent of a run fail with a text, which its transcript shows."""
    async with site.bus.transaction() as transaction:
        record, run = await load_workflow(transaction, RUN.rpartition("/")[2])
        work = run.works[0]
        work.agent.session, run.placement = "soldier-1/session-1", Placement(host="gone", epoch=1)
        await transaction.put(record.replace(doc=run.document()))
        started = {"workId": work.id, "session": work.agent.session, "host": "gone"}
        for kind, data in (("AgentStarted", started), ("QueryFailed", {"workId": work.id, "error": text})):
            entry = LogEntry(type=kind, actor="gone", data=data, aggregate_type="Workflow", aggregate_id=run.id)
            await transaction.append(entry)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_no_page_violates_a_rule_of_accessibility(browser: Browser, site: Site, scheme: Scheme) -> None:
    for size in (DESK, PHONE):
        async with signed_in(browser, site, size=size, scheme=scheme) as context:
            page = await context.new_page()
            for path in (*PAGES, "/sign-in", "/no-such-page"):
                await page.goto(f"{site.url}{path}")
                found = await Axe().run(page)
                assert found.violations_count == 0, (path, size, found.generate_report())


async def test_no_page_scrolls_sideways_on_a_phone(browser: Browser, site: Site) -> None:
    await rename_runs(site, "A-very-long-word-without-any-break-" * 12)
    async with signed_in(browser, site, size=PHONE) as context:
        page = await context.new_page()
        for path in PAGES:
            await page.goto(f"{site.url}{path}")
            width = await page.evaluate("document.documentElement.scrollWidth")
            assert width <= PHONE[0], (path, width)


async def test_the_button_of_a_stream_is_in_its_row_on_a_phone(browser: Browser, site: Site) -> None:
    async with signed_in(browser, site, size=PHONE) as context:
        page = await context.new_page()
        await page.goto(f"{site.url}/bus")
        row = page.locator("table.streams tr[data-row]").first
        state = await row.locator(".state").bounding_box()
        button = await row.get_by_role("button", name="Pause").bounding_box()
        name = await row.locator("[data-open]").bounding_box()
        assert state
        assert button
        assert name
        assert abs(state["y"] + state["height"] / 2 - button["y"] - button["height"] / 2) < 2
        assert button["y"] < name["y"]
        assert button["x"] + button["width"] > 0.9 * PHONE[0]


async def test_nothing_that_strangers_write_executes(browser: Browser, site: Site) -> None:
    assert len(PAYLOADS) >= 60
    await rename_runs(site, " ".join(PAYLOADS))
    await write_transcript(site, " ".join(PAYLOADS))
    async with signed_in(browser, site) as context:
        page = await context.new_page()
        errors = collect_errors(page)
        await page.add_init_script("window.alert = () => { window.executed = true; };")
        for path in PAGES:
            await page.goto(f"{site.url}{path}")
            if path == RUN:
                await expect(page.locator(".log .line", has_text="<svg onload=alert(1)>")).to_be_visible()
            await page.wait_for_timeout(100)
            assert await page.evaluate("window.executed === undefined"), path
        assert not [each for each in errors if "Content Security Policy" in each or "Refused" in each], errors
