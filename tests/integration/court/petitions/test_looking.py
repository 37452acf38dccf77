"""How an effect looks up its earlier call, and how it handles an unreachable server."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from kingdom.bus import Absent, Acked, Attempt, Present, Throttled
from kingdom.clock import utc_now
from kingdom.court.petitions.effects import LONGEST_SEND, PetitionEffect
from kingdom.court.petitions.github.access import UserToken
from kingdom.court.petitions.github.api import GithubApi
from kingdom.court.petitions.github.effect import GithubPetitions
from kingdom.errors import Transient
from kingdom.standins.faults import ServerFault
from kingdom.standins.server import FAULTS, RunningServer, start
from tests.integration.court.petitions.scene import (
    LONGEST_CALL,
    REPO,
    SETTLES_AFTER,
    TICKET,
    github_effect,
    jira_effect,
)


def attempt(kind: str, body: dict[str, Any], *, mark: str = "5eed", identifier: str = "one") -> Attempt:
    since = (utc_now() - timedelta(minutes=5)).isoformat()
    return Attempt(1, identifier, {"kind": kind, "body": body, "mark": mark, "since": since}, 1)


@asynccontextmanager
async def at_hand(effect: PetitionEffect) -> AsyncIterator[PetitionEffect]:
    try:
        yield effect
    finally:
        await effect._api.close()


async def people(site: RunningServer, what: str, times: int = 1, **doing: Any) -> None:
    async with aiohttp.ClientSession() as session:
        for _ in range(times):
            async with session.post(f"{site.url}/_control/{what}", json=doing) as answer:
                assert answer.ok, await answer.text()


@pytest.fixture
async def pull_request(github_site: RunningServer) -> RunningServer:
    await people(github_site, "pull_request", repository=REPO, title="Add a fin", head="fin")
    return github_site


@pytest.fixture
async def ticket(jira_site: RunningServer) -> RunningServer:
    await people(jira_site, "tickets", project="QP", summary="It does not fly")
    return jira_site


THREAD = {"repo": REPO, "number": 1, "body": "Hm."}


@pytest.mark.parametrize(
    ("kind", "body", "noise"),
    [
        ("github.comment", THREAD, ("comment", {"body": "Yes?"})),
        ("github.review", {**THREAD, "event": "COMMENT"}, ("review", {"body": "Yes?"})),
    ],
)
async def test_any_attempt_of_a_petition_is_found_among_many_pages(
    pull_request: RunningServer, kind: str, body: dict[str, Any], noise: tuple[str, dict[str, Any]]
) -> None:
    what, doing = noise
    place = {"repository": REPO, "number": 1}
    async with at_hand(github_effect(pull_request.url)) as effect:
        await people(pull_request, what, 110, **place, **doing)
        assert await effect.reconcile(attempt(kind, body)) == Absent()
        sent = await effect.call(attempt(kind, body))
        await people(pull_request, what, 5, **place, **doing)
        assert isinstance(sent, Acked)
        assert await effect.reconcile(attempt(kind, body, identifier="two")) == Present(sent.response)
        assert await effect.reconcile(attempt(kind, body, mark="0ther")) == Absent()


async def test_a_comment_is_found_among_many_in_a_ticket(ticket: RunningServer) -> None:
    wanted = attempt("jira.comment", {"key": TICKET, "body": "It flies."})
    async with at_hand(jira_effect(ticket.url)) as effect:
        assert await effect.reconcile(wanted) == Absent()
        sent = await effect.call(wanted)
        await people(ticket, f"tickets/{TICKET}/comments", 110, body="Hm.")
        assert isinstance(sent, Acked)
        assert await effect.reconcile(wanted) == Present(sent.response)
        assert await effect.reconcile(attempt("jira.comment", wanted.request["body"], mark="0ther")) == Absent()


async def test_a_transition_counts_as_made_if_the_ticket_has_moved_on_since(ticket: RunningServer) -> None:
    wanted = attempt("jira.transition", {"key": TICKET, "to": "In Review"})
    async with at_hand(jira_effect(ticket.url)) as effect:
        assert await effect.reconcile(wanted) == Absent()
        await people(ticket, f"tickets/{TICKET}", status="In Review")
        await people(ticket, f"tickets/{TICKET}", status="Done")
        assert isinstance(await effect.reconcile(wanted), Present)


async def test_a_transition_that_others_made_and_undid_before_the_petition_is_not_ours(ticket: RunningServer) -> None:
    for status in ("In Review", "To Do"):
        await people(ticket, f"tickets/{TICKET}", status=status)
    wanted = attempt("jira.transition", {"key": TICKET, "to": "In Review"})
    async with at_hand(jira_effect(ticket.url)) as effect:
        assert await effect.reconcile(wanted) == Absent()
        assert isinstance(await effect.call(wanted), Acked)
        await people(ticket, f"tickets/{TICKET}", status="Done")
        # If the clock of Jira is behind ours, Jira dates our transition before our call.
        later = {**wanted.request, "since": (utc_now() - timedelta(minutes=4)).isoformat()}
        assert isinstance(await effect.reconcile(Attempt(1, "one", later, 1)), Present)


async def test_a_call_to_an_unreachable_server_was_not_sent_and_is_throttled() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        async with at_hand(github_effect(f"http://127.0.0.1:{free.getsockname()[1]}")) as effect:
            answer = await effect.call(attempt("github.comment", THREAD))
    assert isinstance(answer, Throttled)
    assert answer.after == timedelta(seconds=30)
    assert answer.reason.startswith("GitHub cannot be reached")


async def test_a_call_that_is_answered_too_late_has_no_known_result(pull_request: RunningServer) -> None:
    pull_request.application[FAULTS].add([ServerFault(kind="delay", seconds=3)])
    hasty = GithubPetitions(
        GithubApi(pull_request.url, UserToken("github-token"), timedelta(seconds=1)), ["kingdom-bot"]
    )
    async with at_hand(hasty) as effect:
        with pytest.raises(TimeoutError):
            await effect.call(attempt("github.comment", THREAD))


async def test_a_petition_whose_calls_last_too_long_together_has_no_known_result() -> None:
    async def answer(request: web.Request) -> web.Response:
        await asyncio.sleep(0.1)
        following = f'<http://{request.host}/{request.path}?page=2>; rel="next"'
        return web.Response(body=b"[]", headers={"Link": following})

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    endless = await start(application)
    api = GithubApi(endless.url, UserToken("github-token"))
    hasty = GithubPetitions(api, ["kingdom-bot"], longest_send=timedelta(seconds=1))
    async with at_hand(hasty) as effect:
        # Without the limit, the list is given up after 100 pages, with another error.
        with pytest.raises(TimeoutError):
            await effect.call(attempt("github.summary", THREAD))
    await endless.stop()


@pytest.mark.parametrize("effect", [github_effect("http://127.0.0.1:1"), jira_effect("http://127.0.0.1:1")])
def test_a_call_counts_as_lost_only_after_all_calls_of_its_petition_could_have_ended(effect: PetitionEffect) -> None:
    may_appear_for = effect.target.settles_after - SETTLES_AFTER
    assert may_appear_for == LONGEST_SEND + LONGEST_CALL


@pytest.mark.parametrize(
    ("link", "comments", "outcome"),
    [
        ("", b'[{"body": "half a \\ud83d surrogate"}]', Absent()),
        ('<https://elsewhere.example/comments?page=2>; rel="next"', b"[]", "another server"),
        ("", b" " * (33 << 20), "too large"),
    ],
    ids=["half a surrogate", "elsewhere", "too large"],
)
async def test_an_unusual_list_is_read_or_raises_an_error(link: str, comments: bytes, outcome: Absent | str) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=comments, headers={"Link": link})

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    strange = await start(application)
    async with at_hand(github_effect(strange.url)) as effect:
        if isinstance(outcome, Absent):
            assert await effect.reconcile(attempt("github.comment", THREAD)) == outcome
        else:
            with pytest.raises((Transient, aiohttp.ClientPayloadError), match=outcome):
                await effect.reconcile(attempt("github.comment", THREAD))
    await strange.stop()


async def test_an_answer_that_is_not_a_list_proves_nothing(pull_request: RunningServer) -> None:
    pull_request.application[FAULTS].add([ServerFault(kind="refuse", status=200)])
    async with at_hand(github_effect(pull_request.url)) as effect:
        with pytest.raises(Transient, match="without the expected data"):
            await effect.reconcile(attempt("github.comment", THREAD))
