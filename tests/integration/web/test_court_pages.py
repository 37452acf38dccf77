"""The pages about the court and its bus: their content, the actions that they offer to each person, and their cost."""

import re
from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path
from uuid import UUID

import pytest

from kingdom.access.rights import Right
from tests.contract.backends import BackendUnderTest
from tests.integration.web.court_scene import (
    ASSIGNED,
    GENERAL,
    GIVEN,
    TITLE,
    UNROUTED,
    WAITING,
    add_dead_letter,
    fill_court,
    generals_of,
    install_generals,
)
from tests.integration.web.site import Site, serving
from tests.integration.web.test_pages import look

EMPTY = ("/events", "/assignments", "/bus", "/generals", "/costs", "/hosts")
HOSTILE = "<img src=x onerror=alert(1)>\"'><script>alert(2)</script> \u202egnp.exe {{ 7*7 }}"


@pytest.fixture
async def site(backend: BackendUnderTest, tmp_path: Path) -> AsyncIterator[Site]:
    async with serving(backend, tmp_path) as site:
        yield site


@pytest.fixture
def generals(backend: BackendUnderTest, tmp_path: Path) -> Path:
    """Install Generals where the server finds them."""
    directory = generals_of(backend, tmp_path)
    install_generals(directory)
    return directory


def pages(dead: UUID) -> tuple[str, ...]:
    """Return the address of every page about the court."""
    return (
        *EMPTY,
        f"/events/{GIVEN}",
        f"/events/{UNROUTED}",
        f"/assignments/{ASSIGNED}",
        f"/bus/dead-letters/{dead}",
        f"/generals/{GENERAL}",
    )


@pytest.mark.parametrize("path", EMPTY)
async def test_an_empty_page_says_what_to_do_next(site: Site, path: str) -> None:
    page = (await look(site, path)).text
    assert 'class="empty"' in page
    assert "<code>kingdom " in page or "<pre>kingdom " in page


async def test_events_show_the_decision_with_its_rule_and_reason(site: Site, generals: Path) -> None:
    await fill_court(site.bus, site.operations)
    assert generals.exists()
    page = unescape((await look(site, "/events")).text)
    assert page.count(TITLE) == 5
    assert f'{GENERAL} <span class="sub2">by gen-pr#1</span>' in page
    assert "no General subscribes to it" in page
    assert page.index(GIVEN) < page.index(UNROUTED) < page.index(WAITING), "the newest first"
    unrouted = (await look(site, f"/events/{UNROUTED}")).text
    assert f'data-act="/api/v1/events/{UNROUTED}/reroute"' in unrouted
    assert "/reroute" not in (await look(site, f"/events/{GIVEN}")).text
    why = unescape((await look(site, f"/events/{UNROUTED}/why")).text)
    assert "type is 'demo.hello', wanted" in why


async def test_a_story_belongs_to_events_and_assignments(site: Site) -> None:
    await fill_court(site.bus, site.operations)
    for path in (f"/events/{GIVEN}/story", f"/assignments/{ASSIGNED}/story"):
        story = (await look(site, path)).text
        assert "What happened" in story
        assert "the log no longer has" in story
        assert "<thead>" not in story, "a table without rows has no head"


async def test_the_bus_shows_streams_and_dead_letters_with_their_history(site: Site) -> None:
    dead = await fill_court(site.bus, site.operations)
    page = (await look(site, "/bus")).text
    assert "<h1>1 dead letter</h1>" in page
    assert 'data-act="/api/v1/bus/streams/court.event/pause"' in page
    assert f"/bus/dead-letters/{dead}?stream=court.event" in page
    letter = f"/bus/dead-letters/{dead}"
    assert "It has not been patched or redriven" in (await look(site, letter)).text
    assert f"{dead}/patch" in (await look(site, letter, Right.LOOK, Right.ADMINISTER)).text
    assert f"{dead}/patch" not in (await look(site, letter, Right.LOOK, Right.ANSWER, Right.ACT)).text
    program = site.bearing(await site.token("ci"))
    patched = await program.post(f"/api/v1{letter}/patch", {"payload": {"event_id": "evt-patched-1"}})
    assert patched.status == 200, patched.text
    page = unescape((await look(site, letter)).text)
    assert "evt-patched-1" in page
    assert "evt-that-is-gone" in page, "the history keeps the old payload"
    assert (await look(site, "/bus/pins")).status == 200


async def test_the_bus_shows_the_rate_and_the_last_hour_of_each_stream(site: Site) -> None:
    await fill_court(site.bus, site.operations)
    page = (await look(site, "/bus")).text
    assert page.count('class="hour"') == 1, "only a stream that has handled something has a chart"
    assert "2.0<svg" in "".join(page.split())
    assert 'aria-label="120 events in the last hour, at most 2 in a minute"' in page
    overview = (await look(site, "/")).text
    assert 'aria-label="Events handled in the last hour, at most 2 events a minute"' in overview
    assert "<title>60 min ago: 2 events a minute</title>" in overview
    (stream,) = (await site.bearing(await site.token("ci")).get("/api/v1/bus/throughput")).document["items"]
    assert (stream["stream"], stream["minutes"]) == ("court.event", [2] * 60)


async def test_a_letter_that_is_not_dead_is_not_found(site: Site) -> None:
    cookie = await site.signs_in("anna")
    unknown = await site.send("GET", f"/bus/dead-letters/{UUID(int=7)}", Cookie=cookie, Accept="text/html")
    assert (unknown.status, "is not a dead letter" in unknown.text) == (404, True)


async def test_dead_letters_are_listed_in_pages(site: Site) -> None:
    for number in range(5):
        await add_dead_letter(site.bus, site.operations, f"evt-gone-{number}")
    page = (await look(site, "/bus?limit=2")).text
    seen = page.count('class="letter"')
    while following := re.search(r'href="([^"]+)" rel="next"', page):
        page = (await look(site, unescape(following[1]))).text
        seen += page.count('class="letter"')
    assert seen == 5


async def test_generals_show_their_events_rights_costs_and_results(site: Site, generals: Path) -> None:
    await fill_court(site.bus, site.operations)
    assert generals.exists()
    page = unescape((await look(site, "/generals")).text)
    assert "gen-broken" in page
    assert "github.pr" in page
    assert re.search(r"\d+ % <span class=\"sub2\">of \d+</span>", page)
    one = unescape((await look(site, f"/generals/{GENERAL}")).text)
    assert "name: gen-pr" in one
    assert "prompts/" in one
    assert f'data-act="/api/v1/generals/{GENERAL}/simulate"' in one


async def test_a_change_is_simulated_on_past_events(site: Site, generals: Path) -> None:
    await fill_court(site.bus, site.operations)
    program = site.bearing(await site.token("ci"))
    text = (generals / GENERAL / "general.yaml").read_text()
    path = f"/api/v1/generals/{GENERAL}/simulate"
    changed = re.sub(r"(?m)^subscribes:\n", "subscribes:\n  - type: demo.*\n    also: true\n", text, count=1)
    found = (await program.post(path, {"definition": changed})).document
    newly = {each["event_id"]: each["after"] for each in found["differences"] if each["change"] == "newly routed"}
    assert list(newly) == [UNROUTED]
    assert GENERAL in newly[UNROUTED]
    assert (found["forgotten"], found["more"]) == (None, False)
    refused = await program.post(path, {"definition": "name: gen-pr\nsubscribes: 7\n"})
    assert (refused.status, "general.yaml" in refused.document["message"]) == (400, True)
    renamed = await program.post(path, {"definition": text.replace("gen-pr", "gen-other", 1)})
    assert "keep the name gen-pr" in renamed.document["message"]
    limited = site.bearing(await site.token("limited", Right.ACT, generals=("gen-jira",)))
    assert (await limited.post(path, {"definition": text})).status == 403


async def test_costs_show_days_divisions_and_the_month(site: Site) -> None:
    await fill_court(site.bus, site.operations)
    page = (await look(site, "/costs?days=30")).text
    assert page.count("<rect") >= 60
    assert " style=" not in page
    for word in ("gen-jira", "acme/site", "haiku", "expected this month"):
        assert word in page


async def test_hosts_show_slots_leases_thresholds_and_signs_of_life(site: Site) -> None:
    await fill_court(site.bus, site.operations)
    page = unescape((await look(site, "/hosts")).text)
    for word in (
        "builder-2",
        "3 of 4",
        "Health is yellow:</b> processors at 71\u00a0%",
        "60\u00a0%\u00a0yellow",
        "chamberlain",
    ):
        assert word in page, word
    assert 'data-act="/api/v1/hosts/anna-desk/drain"' in page
    assert 'data-act="/api/v1/hosts/builder-2/undrain"' in page
    machines = (await site.bearing(await site.token("ci")).get("/api/v1/health/machines")).document["items"]
    assert [machine["name"] for machine in machines] == ["anna-desk"]


async def test_the_page_says_of_a_lost_host_that_it_may_have_been_retired(site: Site) -> None:
    await fill_court(site.bus, site.operations)
    retired = await site.bearing(await site.token("ci")).post("/api/v1/hosts/anna-desk/retire", {"noLongerRuns": True})
    assert (retired.status, retired.document["status"]) == (200, "LOST")
    [shown] = re.findall(r'id="host-anna-desk">.*?</tr>', (await look(site, "/hosts")).text, re.DOTALL)
    assert "· did not renew its lease or was retired<" in shown


async def test_a_person_without_the_right_sees_no_button(site: Site, generals: Path) -> None:
    dead = await fill_court(site.bus, site.operations)
    assert generals.exists()
    for path in pages(dead):
        assert "data-act=" not in (await look(site, path, Right.LOOK)).text, path


async def test_hostile_texts_stay_texts(site: Site, generals: Path) -> None:
    dead = await fill_court(site.bus, site.operations, title=HOSTILE)
    assert generals.exists()
    for path in (*pages(dead), f"/events/{GIVEN}/why", f"/events/{GIVEN}/story"):
        page = (await look(site, path)).text
        assert "<img src=x" not in page, path
        assert "<script>alert" not in page, path
        assert "\u202e" not in page, path
