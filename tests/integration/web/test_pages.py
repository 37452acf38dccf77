"""Pages without a browser: what they show, to whom they offer what, and what they cost."""

import re
from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path

import pytest

from kingdom.access.rights import Right
from kingdom.bus import LogEntry
from kingdom.web.pages.table import PAGES
from tests.contract.backends import BackendUnderTest
from tests.integration.web.scene import ASKED, PETITION, furnish
from tests.integration.web.site import Reply, Site, serving

BROWSER = {"Accept": "text/html,*/*"}
LISTS = ("/", "/inbox")


@pytest.fixture
async def site(backend: BackendUnderTest, tmp_path: Path) -> AsyncIterator[Site]:
    async with serving(backend, tmp_path) as site:
        yield site


async def look(site: Site, path: str, *may: Right) -> Reply:
    """Open a page as a person with these rights does, by default with all."""
    cookie = await site.signs_in("anna", *may)
    reply = await site.send("GET", path, Cookie=cookie, **BROWSER)
    assert reply.status == 200, reply.text
    return reply


def cursor_of(page: str) -> int:
    found = re.search(r'data-cursor="\d+\.(\d+)"', page)
    assert found
    return int(found[1])


@pytest.mark.parametrize("path", LISTS)
async def test_an_empty_page_says_what_to_do_next(site: Site, path: str) -> None:
    page = (await look(site, path)).text
    assert 'class="empty"' in page
    assert "<code>kingdom " in page


async def test_the_overview_shows_what_needs_a_person_and_what_is_at_work(site: Site) -> None:
    await furnish(site.bus)
    page = unescape((await look(site, "/")).text)
    assert "<h1>2 things need a person</h1>" in page
    assert page.index("Needs you") < page.index("At work") < page.index("Ended")
    assert page.count("Should prices without a currency default to EUR?") >= 2
    assert "the budget of $5.00 is used up" in page
    assert '<span class="badge" aria-label="2 open">2</span>' in page


async def test_the_inbox_shows_a_question_in_full_with_its_answers(site: Site) -> None:
    await furnish(site.bus)
    page = (await look(site, "/inbox")).text
    assert f'data-act="/api/v1/questions/{ASKED}/answer"' in page
    assert f'data-act="/api/v1/petitions/{PETITION}/approve"' in page
    assert "head: kingdom/wf-2/shop" in page
    assert "then “EUR”" in page


async def test_a_person_without_the_right_sees_no_button(site: Site) -> None:
    await furnish(site.bus)
    for path in LISTS:
        assert "data-act=" not in (await look(site, path, Right.LOOK)).text, path
    assert "ask an administrator" in (await look(site, "/inbox", Right.LOOK)).text


async def test_an_approval_that_is_folded_waits_until_all_of_it_was_opened(site: Site) -> None:
    await furnish(site.bus, body={"title": "Long", "body": "\n".join(f"line {n}" for n in range(400))})
    page = (await look(site, "/inbox")).text
    assert "line 399" in page
    assert re.search(r"/approve\"[^>]* disabled>", page)
    assert not re.search(r"/reject\"[^>]* disabled>", page)


async def test_a_page_carries_a_cursor_from_before_its_data(site: Site) -> None:
    await furnish(site.bus)
    first = cursor_of((await look(site, "/")).text)
    async with site.bus.transaction() as transaction:
        await transaction.append(LogEntry(type="seen", actor="tester"))
    assert cursor_of((await look(site, "/")).text) > first


async def test_errors_are_pages_for_browsers_and_documents_for_programs(site: Site) -> None:
    unknown = await site.send("GET", "/no-such-page", **BROWSER)
    assert (unknown.status, "There is no such page" in unknown.text) == (404, True)
    strange = await site.send("GET", "/", **BROWSER)
    assert (strange.status, "Sign in first" in strange.text) == (401, True)
    assert (await site.get("/")).document["code"] == "not_signed_in"


@pytest.mark.parametrize("name", ["kingdom.css", "kingdom.js", "sign-in.js", "crown.svg"])
async def test_assets_are_kept_by_browsers_until_they_change(site: Site, name: str) -> None:
    page = (await site.get("/sign-in")).text + (await look(site, "/")).text
    found = re.search(rf'"(/assets/{re.escape(name)}\?v=\w+)"', page)
    assert found
    assert "immutable" in (await site.get(found[1])).headers["Cache-Control"]
    assert (await site.get(f"/assets/{name}?v=old")).headers["Cache-Control"] == "no-store"


def test_every_page_needs_the_right_to_look_and_changes_nothing() -> None:
    assert {(route.method, route.right) for route in PAGES} == {("GET", Right.LOOK)}
