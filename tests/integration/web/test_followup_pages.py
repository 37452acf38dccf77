"""Pages about followed pull requests: a list, and the state of the pull request on the pages of its runs."""

from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path

import pytest

from tests.contract.backends import BackendUnderTest
from tests.integration.web.scene import APPROVED, FOLLOWED, ROUND, fill_realm
from tests.integration.web.site import Site, serving
from tests.integration.web.test_pages import look

ASKS = "asks a person: all 5 rounds about reviews are used"


@pytest.fixture
async def site(backend: BackendUnderTest, tmp_path: Path) -> AsyncIterator[Site]:
    async with serving(backend, tmp_path) as site:
        yield site


async def test_the_list_shows_the_rounds_the_cost_and_the_open_question(site: Site) -> None:
    await fill_realm(site.bus)
    page = unescape((await look(site, "/followups")).text)
    assert f'<a href="/runs/wf-{ROUND}" data-open>{FOLLOWED}</a>' in page
    assert "gen-ticket · review 5, checks 1" in page
    assert ASKS.capitalize() in page
    assert f'<a class="btn" href="/inbox#{ROUND}">Answer</a>' in page
    assert FOLLOWED in (await look(site, "/followups?state=waiting")).text
    assert "No pull request matches" in (await look(site, "/followups?state=ended")).text
    assert '<a href="/followups">Pull requests</a>' in (await look(site, "/runs")).text


@pytest.mark.parametrize("task", [APPROVED, ROUND], ids=["opened-it", "newest-round"])
async def test_the_page_of_a_run_shows_the_pull_request_that_it_opened_or_worked_on(site: Site, task: str) -> None:
    await fill_realm(site.bus)
    address = f"/runs/wf-{task}/followups"
    assert f'data-load="{address}"' in (await look(site, f"/runs/wf-{task}")).text
    page = unescape((await look(site, address)).text)
    assert f"<b>{FOLLOWED}</b>: {ASKS}. Rounds: review 5, checks 1, for $1.25." in page
    assert ("The newest round" in page) is (task == APPROVED)
    assert f'href="/inbox#{ROUND}">Answer</a>' in page


async def test_a_run_without_a_pull_request_shows_none(site: Site) -> None:
    await fill_realm(site.bus)
    assert (await look(site, "/runs/wf-task-20261118-003/followups")).text.strip() == ""


async def test_a_program_lists_followups_by_their_state(site: Site) -> None:
    await fill_realm(site.bus)
    program = site.bearing(await site.token("ci"))
    (followup,) = (await program.get("/api/v1/followups?state=waiting")).document["items"]
    assert (followup["id"], followup["question"], followup["waiting"]) == (FOLLOWED, ROUND, {"review": 1})
    assert followup["rounds"]["review"] == {"used": 5, "allowed": None}
    assert (await program.get("/api/v1/followups?state=open")).document["items"] == []
    (listed,) = (await program.get("/api/v1/status")).document["followups"]
    assert listed == followup
