"""Pages without a browser: their content, the actions that they offer to each person, and their cost."""

import re
from collections.abc import AsyncIterator
from datetime import timedelta
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kingdom.access.rights import Right
from kingdom.bus import LogEntry
from kingdom.clock import utc_now
from kingdom.court.petitions.decision import PETITIONS
from kingdom.court.questions import load_question, save_question
from kingdom.web.pages.table import PAGES
from kingdom.workflow.model.status import WorkflowStatus
from tests.contract.backends import BackendUnderTest
from tests.integration.web.scene import ASKED, PETITION, RUNS, fill_realm, make_run, put_run
from tests.integration.web.site import Reply, Site, serving
from tests.web.payloads import PAYLOADS

WIRE_BYTES_MAX = 100_000
BROWSER = {"Accept": "text/html,*/*"}
LISTS = ("/", "/inbox", "/runs", "/followups")
RUNNING, WAITING, FAILED = (f"/runs/wf-task-20261118-00{number}" for number in (2, 1, 5))
TABS = ("transcript", "changes", "reports", "outside", "cost", "story")

FAILED_TASK = "task-20261118-005"
KNOWN_TAGS = frozenset(
    re.findall(
        r"\w+",
        "html head meta title link script body a div header img nav span button main h1 h2 p section b br svg rect ul"
        " li code table thead tbody tr th td time article details summary form label textarea input datalist option"
        " dialog dl dt dd kbd noscript pre",
    )
)


class Tags(HTMLParser):
    """Collects the tags of a page with the names of their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, list[str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, [name for name, _ in attrs]))


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


async def test_a_run_that_has_not_started_says_when_it_was_created(site: Site) -> None:
    run = make_run("wf-new", WorkflowStatus.CREATED, "gen-pr", title="New", reason="", at=utc_now())
    run.started_at = None
    async with site.bus.transaction() as transaction:
        await put_run(transaction, run)
    for path in ("/runs", "/runs/wf-new"):
        page = (await look(site, path)).text
        assert "created <time" in page
        assert "started <time" not in page


@pytest.mark.parametrize("path", LISTS)
async def test_an_empty_page_says_what_to_do_next(site: Site, path: str) -> None:
    page = (await look(site, path)).text
    assert 'class="empty"' in page
    assert "<code>kingdom " in page


async def test_the_overview_shows_what_needs_a_person_and_what_is_at_work(site: Site) -> None:
    await fill_realm(site.bus)
    page = unescape((await look(site, "/")).text)
    assert "<h1>2 things need a person</h1>" in page
    assert page.index("Needs you") < page.index("Open runs") < page.index("Ended runs")
    assert page.count("Should prices without a currency default to EUR?") >= 2
    assert "the budget of $5.00 is used up" in page
    assert '<span class="badge" aria-label="2 open">2</span>' in page


async def test_the_inbox_shows_a_question_in_full_with_its_answers(site: Site) -> None:
    await fill_realm(site.bus)
    page = (await look(site, "/inbox")).text
    assert f'data-act="/api/v1/questions/{ASKED}/answer"' in page
    assert f'data-act="/api/v1/petitions/{PETITION}/approve"' in page
    assert "head: kingdom/wf-2/shop" in page
    assert "then “EUR”" in page


@pytest.mark.parametrize(
    ("kind", "shows"), [("github.pull_request", True), ("github.push", True), ("github.comment", False)]
)
async def test_an_approval_shows_the_changes_that_it_publishes(site: Site, kind: str, *, shows: bool) -> None:
    await fill_realm(site.bus, kind=kind)
    assert ("Loading the changes" in (await look(site, "/inbox")).text) is shows


async def test_a_person_without_the_right_sees_no_button(site: Site) -> None:
    await fill_realm(site.bus)
    for path in (*LISTS, RUNNING, WAITING, FAILED):
        page = (await look(site, path, Right.LOOK)).text
        assert not re.search(r"data-(act|all|choose|choose-all|opens=\"(resume|modify|cancel|reply))", page), path
    assert "ask an administrator" in (await look(site, "/inbox", Right.LOOK)).text


async def test_a_folded_approval_cannot_be_given_until_all_of_it_was_opened(site: Site) -> None:
    await fill_realm(site.bus, body={"title": "Long", "body": "\n".join(f"line {n}" for n in range(400))})
    page = (await look(site, "/inbox")).text
    assert "line 399" in page
    assert re.search(r"/approve\"[^>]* disabled>", page)
    assert not re.search(r"/reject\"[^>]* disabled>", page)


async def test_a_live_page_replaces_what_was_shown_of_a_question_when_another_one_has_its_id(site: Site) -> None:
    await fill_realm(site.bus, body={"title": "Long", "body": "\n".join(f"line {n}" for n in range(400))})

    async def parts_of(question: str) -> set[str]:
        page = (await look(site, "/inbox")).text
        return set(re.findall(rf' id="((?:rest|changes|decide|words|text)-{question}[^"]*)"', page))

    before, others = await parts_of(PETITION), await parts_of(ASKED)
    async with site.bus.transaction() as transaction:
        found = await load_question(transaction, PETITION)
        assert found
        later = found[1].asked_at + timedelta(minutes=1)
        await save_question(transaction, msgspec.structs.replace(found[1], asked_at=later), found[0])
    after = await parts_of(PETITION)
    assert {each.partition("-")[0] for each in before} == {"rest", "changes", "decide"}
    assert len(after) == len(before)
    assert not after & before
    assert others == await parts_of(ASKED)


async def test_a_run_whose_general_asks_people_offers_no_other_way_to_continue(site: Site) -> None:
    await fill_realm(site.bus)
    offers = {run: 'data-opens="resume"' in (await look(site, f"/runs/{run}")).text for run in RUNS}
    states = {RUNS[run][0]: offer for run, offer in offers.items()}
    assert (states[WorkflowStatus.AWAITING], states[WorkflowStatus.PAUSED], states[WorkflowStatus.FAILED]) == (
        False,
        True,
        True,
    )


async def test_runs_are_filtered_by_state_general_and_repository_and_paged_by_a_cursor(site: Site) -> None:
    await fill_realm(site.bus)

    def runs_on(page: str) -> list[str]:
        return re.findall(r'<tr data-row id="([^"]+)"', page)

    assert runs_on((await look(site, "/runs")).text) == sorted(RUNS, reverse=True)
    assert runs_on((await look(site, "/runs?status=FAILED&status=PAUSED")).text) == [
        "wf-task-20261118-005",
        "wf-task-20261118-003",
    ]
    assert len(runs_on((await look(site, "/runs?general=gen-ticket")).text)) == 3
    assert "No run matches" in (await look(site, "/runs?repository=nothing")).text
    seen, path = [], "/runs?limit=4"
    while path:
        page = (await look(site, path)).text
        seen += runs_on(page)
        following = re.search(r'href="(/runs\?[^"]*after=[^"]+)" rel="next"', page)
        path = unescape(following[1]) + "&limit=4" if following else ""
    assert seen == sorted(RUNS, reverse=True)


async def test_a_run_says_in_one_sentence_why_it_waits(site: Site) -> None:
    await fill_realm(site.bus)
    waiting = (await look(site, WAITING)).text
    assert "It asks: Should prices without a currency default to EUR?" in waiting
    assert f'href="/inbox#{ASKED}"' in waiting
    assert "It failed: the budget of $5.00 is used up." in (await look(site, FAILED)).text
    assert f'data-about="wf-task-20261118-001 {ASKED}"' in waiting


async def test_resuming_from_a_point_shows_what_git_cannot_undo(site: Site) -> None:
    await fill_realm(site.bus)
    async with site.bus.transaction() as transaction:
        record = await transaction.get(PETITIONS.name, PETITION)
        assert record
        done = {**record.doc, "state": "performed", "root": FAILED_TASK, "response": {"url": "https://acme.example/1"}}
        changed: dict[str, Any] = {
            "id": f"{FAILED_TASK}-1",
            "version": 0,
            "state": "performed",
            "indexed": {"root": FAILED_TASK},
        }
        await transaction.put(record.replace(**changed, doc={**done, "id": f"{FAILED_TASK}-1"}))
    page = unescape((await look(site, FAILED)).text)
    assert "From the base" in page
    assert "Git cannot undo: github.pull_request on acme/shop is performed (https://acme.example/1)." in page


@pytest.mark.parametrize("tab", TABS)
async def test_every_part_of_a_run_is_a_page(site: Site, tab: str) -> None:
    await fill_realm(site.bus)
    page = (await look(site, f"{RUNNING}?tab={tab}")).text
    assert 'aria-current="page">' in page
    for part in re.findall(r'data-load="([^"]+)"', page):
        cookie = await site.signs_in("anna")
        reply = await site.send("GET", unescape(part), Cookie=cookie, **BROWSER)
        # A run that was never placed has no changes.
        assert reply.status == (404 if "diff" in part else 200), (part, reply.text)


async def test_texts_of_strangers_are_escaped_on_every_page(site: Site) -> None:
    hostile = " ".join(PAYLOADS)
    await fill_realm(site.bus, title=hostile, text=hostile, body={"title": hostile, "body": hostile})
    for path in (*LISTS, *(f"{RUNNING}?tab={tab}" for tab in TABS), FAILED, WAITING):
        page = (await look(site, path)).text
        assert "<script>alert" not in page, path
        tags = Tags()
        tags.feed(page)
        assert {name for name, _ in tags.found} <= KNOWN_TAGS, path
        assert not [name for _, names in tags.found for name in names if name.startswith("on") or name == "style"], path
        assert not set(page) & set("\u202e\u2066\u200b\x1b\u2028"), path


async def test_a_page_carries_a_cursor_from_before_its_data(site: Site) -> None:
    await fill_realm(site.bus)
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


@pytest.mark.parametrize("path", [*LISTS, RUNNING])
async def test_the_first_page_with_its_files_is_at_most_100_kilobytes_over_the_wire(site: Site, path: str) -> None:
    await fill_realm(site.bus)
    headers = {"Cookie": await site.signs_in("anna"), "Accept-Encoding": "gzip, deflate", **BROWSER}
    page = (await site.send("GET", path, **{name.replace("-", "_"): value for name, value in headers.items()})).text
    files = set(re.findall(r'"(/assets/[^"]+)"', page))
    assert len(files) == 3, files
    sent = 0
    for each in (path, *files):
        async with site.client.get(f"{site.url}{each}", headers=headers, auto_decompress=False) as response:
            sent += len(await response.read())
            assert response.headers.get("Content-Encoding") == "deflate", each
    assert sent <= WIRE_BYTES_MAX, sent


def test_every_page_needs_the_right_to_look_and_changes_nothing() -> None:
    assert {(route.method, route.right) for route in PAGES} == {("GET", Right.LOOK)}
