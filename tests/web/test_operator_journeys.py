"""What an operator does in the browser: redrive, simulate, resume from a checkpoint; and what others do not see."""

from typing import Any

import pytest
from playwright.async_api import Browser, expect

from kingdom.access.rights import Right
from kingdom.bus.operations import DeadFilter
from kingdom.clock import utc_now
from kingdom.court.petitions.decision import PETITIONS
from kingdom.workflow.model.run.checkpoint import Checkpoint, digest
from kingdom.workflow.model.run.workflow import Placement
from kingdom.workflow.model.status import AgentStatus, CheckpointStatus, WorkflowStatus
from kingdom.workflow.records import load_workflow
from tests.integration.running import eventually
from tests.integration.web.court_scene import ASSIGNED, GENERAL, GIVEN, UNROUTED
from tests.integration.web.scene import PETITION
from tests.integration.web.site import Site
from tests.web.browser import PHONE, signed_in

pytestmark = pytest.mark.web
FAILED, FAILED_TASK = "wf-task-20261118-005", "task-20261118-005"


async def add_checkpoint(site: Site) -> str:
    """Give the failed run a checkpoint after its first Work, and a pull request that was opened after it."""
    async with site.bus.transaction() as transaction:
        record, run = await load_workflow(transaction, FAILED)
        first = run.works[0]
        point = Checkpoint(
            id=f"{FAILED}-w1-c1",
            work_id=first.id,
            commits={},
            definitions=digest(run.works[:1]),
            created_at=utc_now(),
        )
        first.checkpointing.status, first.checkpointing.checkpoint_id = CheckpointStatus.TAKEN, point.id
        run.checkpoints.append(point)
        first.agent.status = run.works[1].agent.status = AgentStatus.STOPPED
        run.placement = Placement(host="anna-desk", epoch=3)
        await transaction.put(record.replace(doc=run.document()))
        petition = await transaction.get(PETITIONS.name, PETITION)
        assert petition
        done: dict[str, Any] = {"id": f"{FAILED_TASK}-1", "root": FAILED_TASK, "state": "performed"}
        done["response"] = {"url": "https://acme.example/pull/1"}
        await transaction.put(
            petition.replace(
                id=done["id"],
                version=0,
                state="performed",
                indexed={"root": FAILED_TASK},
                doc={**petition.doc, **done},
            )
        )
    return point.id


async def test_an_operator_redrives_a_dead_letter(browser: Browser, site: Site) -> None:
    async def is_redriven() -> bool:
        return not await site.operations.dead_letters(DeadFilter(), 1)

    async with signed_in(browser, site) as context:
        page = await context.new_page()
        await page.goto(f"{site.url}/bus")
        await page.locator("tr.letter a[data-open]").click()
        await expect(page.locator(".why")).to_contain_text("cancelled by tester")
        await page.get_by_role("button", name="Redrive").click()
        await expect(page.locator("#message")).to_have_text("Redriven.")
        await eventually(is_redriven)
        await page.goto(f"{site.url}/bus")
        await expect(page.get_by_text("Every event was handled, or is still tried.")).to_be_visible()


async def test_an_operator_simulates_a_rule_on_past_events(browser: Browser, site: Site) -> None:
    async with signed_in(browser, site) as context:
        page = await context.new_page()
        await page.goto(f"{site.url}/generals/{GENERAL}")
        field = page.get_by_label("general.yaml")
        text = await field.input_value()
        await field.fill(text.replace("subscribes:\n", "subscribes:\n  - type: demo.*\n    also: true\n", 1))
        await page.get_by_role("button", name="Simulate").click()
        row = page.locator("#simulated tbody tr", has_text=UNROUTED)
        await expect(row).to_have_count(1)
        await expect(row).to_contain_text("newly routed")
        await expect(page.locator("#message")).to_contain_text("would change")


async def test_an_operator_resumes_from_a_checkpoint_and_sees_what_git_cannot_undo(
    browser: Browser, site: Site
) -> None:
    point = await add_checkpoint(site)
    async with signed_in(browser, site, size=PHONE) as context:
        page = await context.new_page()
        await page.goto(f"{site.url}/runs/{FAILED}")
        await page.get_by_role("button", name="Resume …").tap()
        dialog = page.locator("#resume")
        await expect(dialog.get_by_text("Git cannot undo").first).to_be_visible()
        chosen = dialog.locator(".point", has_text="From the checkpoint after plan")
        await expect(chosen).to_contain_text("Rolled back: build.")
        await expect(chosen).to_contain_text("https://acme.example/pull/1")
        await chosen.get_by_role("radio").check()
        await dialog.get_by_role("button", name="Resume", exact=True).tap()
        await expect(page.locator("#message")).to_contain_text("It resumes")
    async with site.bus.transaction() as transaction:
        _, run = await load_workflow(transaction, FAILED)
    assert run.status is WorkflowStatus.RESUMING
    assert run.resumption
    assert run.resumption.checkpoint_id == point


async def test_an_operator_adds_a_work_to_a_run(browser: Browser, site: Site) -> None:
    async with signed_in(browser, site) as context:
        page = await context.new_page()
        await page.goto(f"{site.url}/runs/{FAILED}")
        await page.get_by_role("button", name="Modify …").click()
        dialog = page.locator("#modify")
        works = dialog.get_by_label("Works")
        await works.fill(await works.input_value() + "- name: check it\n  tasks: [Check it.]\n")
        await dialog.get_by_role("button", name="Modify", exact=True).click()
        await expect(page.locator("#message")).to_contain_text("Modified")
        await expect(dialog).to_be_hidden()
    async with site.bus.transaction() as transaction:
        _, run = await load_workflow(transaction, FAILED)
    assert run.works[-1].definition.name == "check it"


async def test_a_person_who_may_only_look_sees_no_button_on_the_pages_of_the_operator(
    browser: Browser, site: Site
) -> None:
    (letter,) = await site.operations.dead_letters(DeadFilter(), 1)
    lists = ("/events", "/assignments", "/bus", "/generals", "/costs", "/hosts")
    details = (f"/events/{UNROUTED}", f"/events/{GIVEN}", f"/assignments/{ASSIGNED}", f"/generals/{GENERAL}")
    async with signed_in(browser, site, Right.LOOK) as context:
        page = await context.new_page()
        for path in (*lists, *details, f"/runs/{FAILED}", f"/bus/dead-letters/{letter.event_id}"):
            await page.goto(f"{site.url}{path}")
            await expect(page.locator("h1").first).to_be_visible()
            await expect(page.locator("main button:visible")).to_have_count(0)
