"""People in the browser: they answer and approve on a phone, watch and change runs, and navigate by keys."""

from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from playwright.async_api import Browser, Request, Route, expect

from kingdom.access.rights import Right
from kingdom.bus import LogEntry
from kingdom.bus.record import read_document
from kingdom.court.questions import QUESTIONS, HumanQuestion, QuestionStatus, load_question, save_question
from kingdom.workflow.model.run.workflow import Placement, Workflow
from kingdom.workflow.records import load_workflow
from tests.contract.backends import BackendUnderTest
from tests.integration.running import eventually
from tests.integration.web.scene import ASKED, PETITION, fill_realm
from tests.integration.web.site import Site, serving
from tests.web.browser import PHONE, collect_errors, signed_in

pytestmark = pytest.mark.web
RUNNING = "wf-task-20261118-002"


async def question_of(site: Site, question_id: str) -> HumanQuestion:
    async with site.bus.transaction() as transaction:
        record = await transaction.get(QUESTIONS.name, question_id)
    assert record
    return read_document(record.doc, HumanQuestion)


async def run_of(site: Site, run_id: str) -> Workflow:
    async with site.bus.transaction() as transaction:
        return (await load_workflow(transaction, run_id))[1]


async def change_run(site: Site, run_id: str, name: str) -> None:
    """Change a run as another process does, with an entry in the log."""
    async with site.bus.transaction() as transaction:
        record, run = await load_workflow(transaction, run_id)
        run.name = name
        await transaction.put(record.replace(doc=run.document()))
        entry = LogEntry(type="seen", actor="tester", aggregate_type="Workflow", aggregate_id=run_id)
        await transaction.append(entry)


async def test_a_person_approves_a_petition_on_a_phone(browser: Browser, site: Site) -> None:
    async with signed_in(browser, site, size=PHONE) as context:
        page = await context.new_page()
        errors = collect_errors(page)
        await page.goto(f"{site.url}/inbox")
        card = page.locator(f'article[id="{PETITION}"]')
        await card.get_by_role("button", name="Approve").tap()
        await expect(page.locator("#message")).to_have_text("Approved.")
        await expect(card).to_have_count(0)
        assert errors == [] or all("404" in each or "409" in each for each in errors), errors
    answered = await question_of(site, PETITION)
    assert (answered.status, answered.answered_by, answered.answer) == (QuestionStatus.ANSWERED, "anna", "approve")


async def ask_again(site: Site, question_id: str) -> None:
    """Replace a question by another one with its id, as a later call of the same petition does."""
    async with site.bus.transaction() as transaction:
        found = await load_question(transaction, question_id)
        assert found
        later = found[1].asked_at + timedelta(minutes=1)
        await save_question(transaction, msgspec.structs.replace(found[1], asked_at=later), found[0])
        entry = LogEntry(type="seen", actor="tester", aggregate_type="Question", aggregate_id=question_id)
        await transaction.append(entry)


async def test_a_question_that_was_opened_must_be_opened_again_when_another_one_has_its_id(
    browser: Browser, backend: BackendUnderTest, tmp_path: Path
) -> None:
    async with serving(backend, tmp_path) as site, signed_in(browser, site) as context:
        await fill_realm(site.bus, body={"title": "Long", "body": "\n".join(f"line {n}" for n in range(400))})
        page = await context.new_page()
        await page.goto(f"{site.url}/inbox")
        await expect(page.locator("#live")).to_have_attribute("data-state", "live")
        card = page.locator(f'article[id="{PETITION}"]')
        approve, opened = card.get_by_role("button", name="Approve"), card.locator("details.rest[open]")
        await expect(approve).to_be_disabled()
        await card.locator("details.rest summary").click()
        await expect(opened).to_have_count(1)
        await expect(approve).to_be_enabled()
        await ask_again(site, PETITION)
        await expect(opened).to_have_count(0)
        await expect(approve).to_be_disabled()


async def test_a_person_answers_a_question_with_a_choice_and_in_words(browser: Browser, site: Site) -> None:
    async with signed_in(browser, site) as context:
        page = await context.new_page()
        await page.goto(f"{site.url}/inbox")
        card = page.locator(f'article[id="{ASKED}"]')
        await card.get_by_text("Answer in your own words").click()
        await card.get_by_role("textbox").fill("Ask the reporter, please.")
        await card.get_by_role("button", name="Send").click()
        await expect(card).to_contain_text("Answered")
        await expect(card).to_contain_text("Ask the reporter, please.")
        await expect(card.get_by_role("button", name="EUR")).to_have_count(0)
    assert (await question_of(site, ASKED)).given


async def test_two_tabs_share_one_stream_and_the_leader_hands_over_without_a_gap(browser: Browser, site: Site) -> None:
    async def has_one_stream() -> bool:
        return site.registry.get_sample_value("kingdom_web_stream_clients") == 1

    async with signed_in(browser, site) as context:
        leader = await context.new_page()
        await leader.goto(f"{site.url}/runs")
        await expect(leader.locator("#live")).to_have_attribute("data-state", "live")
        follower = await context.new_page()
        await follower.goto(f"{site.url}/runs")
        await expect(follower.locator("#live")).to_have_attribute("data-state", "live")
        assert await has_one_stream()
        await change_run(site, RUNNING, "Seen by the follower")
        await expect(follower.locator(f'[id="{RUNNING}"]')).to_contain_text("Seen by the follower")
        # The change falls between the two leaders.
        await leader.close()
        await change_run(site, RUNNING, "Between two leaders")
        await expect(follower.locator(f'[id="{RUNNING}"]')).to_contain_text("Between two leaders")
        await change_run(site, RUNNING, "After the handover")
        await expect(follower.locator(f'[id="{RUNNING}"]')).to_contain_text("After the handover")
        await eventually(has_one_stream)


async def test_a_paused_page_does_not_change_and_a_resumed_page_shows_the_current_state(
    browser: Browser, site: Site
) -> None:
    async with signed_in(browser, site) as context:
        page = await context.new_page()
        await page.goto(f"{site.url}/runs")
        await expect(page.locator("#live")).to_have_attribute("data-state", "live")
        await page.locator("#live").click()
        await change_run(site, RUNNING, "Changed meanwhile")
        await expect(page.locator("#live")).to_contain_text("1 new")
        await expect(page.locator(f'[id="{RUNNING}"]')).not_to_contain_text("Changed meanwhile")
        await page.locator("#live").click()
        await expect(page.locator(f'[id="{RUNNING}"]')).to_contain_text("Changed meanwhile")


async def test_a_person_cancels_several_runs_at_once_and_sees_each_result(browser: Browser, site: Site) -> None:
    async with signed_in(browser, site) as context:
        page = await context.new_page()
        await page.goto(f"{site.url}/runs")
        for run in ("wf-task-20261118-003", "wf-task-20261118-004"):
            await page.locator(f'[id="{run}"] input').check()
        await page.get_by_role("button", name="Cancel …").click()
        await page.get_by_role("button", name="Cancel them").click()
        await expect(page.locator('[id="wf-task-20261118-003"] .outcome')).to_have_text("Cancelled.")
        # A run that is done cannot be cancelled.
        await expect(page.locator('[id="wf-task-20261118-004"] .outcome')).to_contain_text("cannot cancel")
        await expect(page.locator("#message")).to_contain_text("1 of 2")
    assert (await run_of(site, "wf-task-20261118-003")).status == "CANCELLED"


async def test_an_act_whose_answer_is_lost_is_repeated_with_its_key_and_another_act_has_another_key(
    browser: Browser, site: Site
) -> None:
    sent: list[tuple[str, str]] = []

    async def lose(route: Route, request: Request) -> None:
        sent.append((request.url.rpartition("/")[2], request.headers["idempotency-key"]))
        await route.fetch()
        await route.abort()

    async with signed_in(browser, site) as context:
        page = await context.new_page()
        await page.goto(f"{site.url}/runs")
        row = page.locator(f'[id="{RUNNING}"]')
        await row.locator("input").check()
        await context.route(f"**/api/v1/runs/{RUNNING}/pause", lose)
        for name in ("Changed once", "Changed twice"):
            await page.get_by_role("button", name="Pause", exact=True).click()
            await expect(row.locator(".outcome")).to_contain_text("cannot be reached")
            # The page is refreshed between the two attempts.
            await change_run(site, RUNNING, name)
            await expect(row).to_contain_text(name)
        await page.get_by_role("button", name="Cancel …").click()
        await page.get_by_role("button", name="Cancel them").click()
        await expect(row.locator(".outcome")).to_have_text("Cancelled.")
    assert len(sent) == 2
    assert sent[0] == sent[1]


async def test_everything_is_reachable_by_keys(browser: Browser, site: Site) -> None:
    async with signed_in(browser, site) as context:
        page = await context.new_page()
        await page.goto(f"{site.url}/runs")
        await page.keyboard.press("j")
        await page.keyboard.press("j")
        second = page.locator("tr[data-row]").nth(1)
        await expect(second.locator("a[data-open]")).to_be_focused()
        await page.keyboard.press("k")
        first = await page.locator("tr[data-row] a[data-open]").first.get_attribute("href")
        await page.keyboard.press("?")
        await expect(page.locator("#help")).to_be_visible()
        await page.keyboard.press("Escape")
        await page.keyboard.press("/")
        await page.keyboard.type("gen-fix")
        await expect(page.locator("tr[data-row]:visible")).to_have_count(1)
        await page.keyboard.press("Escape")
        await expect(page.locator("tr[data-row]:visible")).to_have_count(6)
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"{site.url}{first}")


async def test_a_person_who_may_only_look_sees_no_button_that_acts(browser: Browser, site: Site) -> None:
    async with signed_in(browser, site, Right.LOOK) as context:
        page = await context.new_page()
        for path in ("/", "/inbox", "/runs", f"/runs/{RUNNING}"):
            await page.goto(f"{site.url}{path}")
            await expect(page.locator("main button, main input[type=checkbox]").locator("visible=true")).to_have_count(
                await page.locator("main .filters button").count()
            )


async def test_typed_words_stay_when_the_page_changes(browser: Browser, site: Site) -> None:
    async with signed_in(browser, site) as context:
        page = await context.new_page()
        await page.goto(f"{site.url}/inbox")
        await expect(page.locator("#live")).to_have_attribute("data-state", "live")
        await page.get_by_text("Answer in your own words").click()
        await page.get_by_role("textbox").fill("Half a sent")
        other = await question_of(site, PETITION)
        async with site.bus.transaction() as transaction:
            record = await transaction.get(QUESTIONS.name, other.id)
            assert record
            await transaction.put(record.replace(state=QuestionStatus.EXPIRED, doc={**record.doc, "status": "expired"}))
            await transaction.append(LogEntry(type="seen", actor="tester"))
        await expect(page.locator("article")).to_have_count(1)
        await expect(page.get_by_role("textbox")).to_have_value("Half a sent")
        await expect(page.get_by_role("textbox")).to_be_focused()


async def test_the_transcript_appears_when_the_first_agent_starts(browser: Browser, site: Site) -> None:
    async with signed_in(browser, site) as context:
        page = await context.new_page()
        await page.goto(f"{site.url}/runs/{RUNNING}")
        await expect(page.get_by_text("No agent has started yet.")).to_be_visible()
        await expect(page.locator("#live")).to_have_attribute("data-state", "live")
        async with site.bus.transaction() as transaction:
            record, run = await load_workflow(transaction, RUNNING)
            run.works[0].agent.session, run.placement = "soldier-1/session-1", Placement(host="soldiers", epoch=1)
            await transaction.put(record.replace(doc=run.document()))
            await transaction.append(LogEntry(type="seen", actor="tester", aggregate_id=RUNNING))
        await expect(page.locator(".log")).to_be_visible()
