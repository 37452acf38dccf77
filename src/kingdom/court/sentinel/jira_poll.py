"""One look at the tickets of Jira: whole or not at all."""

import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from math import ceil
from typing import Any

import aiohttp
import msgspec
import structlog

from kingdom.bus.port import Bus, Transaction
from kingdom.clock import utc_now
from kingdom.court.records import receive_event
from kingdom.court.remote_http import HttpReply, jira_headers, requested_pause
from kingdom.court.sentinel.http_requests import PollResult, send_request
from kingdom.court.sentinel.jira import FoundTicket, TicketComment, detect_news, parse_comments, parse_issue
from kingdom.court.sentinel.records import ACTOR, KnownTicket, PollCursor, recall, remember
from kingdom.court.sentinel.settings import JiraSettings
from kingdom.errors import MalformedEvent, Misconfigured, Transient
from kingdom.workflow.records import change

CURSOR = "jira"
# What is indexed late is found all the same.
_OVERLAP = timedelta(hours=1)
_PAGES_MAX = 400
_PAGE = 50
_COMMENT_PAGES_MAX = 20
# For so long everything waits for the comments of a ticket; one that is broken must not stop us for ever.
_WAITED_FOR = timedelta(minutes=10)
_FIELDS = ("summary", "status", "assignee", "reporter", "updated")
_GONE = (404, 410)
_log = structlog.get_logger("kingdom.court.sentinel")


async def poll_jira(
    bus: Bus, session: aiohttp.ClientSession, settings: JiraSettings, clock: Callable[[], datetime] = utc_now
) -> PollResult:
    """Look once; the events, what is known of tickets and how far was read are stored in one transaction."""
    now = clock()
    async with bus.transaction() as transaction:
        _, cursor = await recall(transaction, PollCursor, CURSOR)
    start = now - timedelta(hours=settings.look_back_hours)
    since = cursor.since - _OVERLAP if cursor else start
    reply, documents = await _search(session, settings, _jql(settings, since, now))
    found = _parse_all(documents)
    known = await _known_tickets(bus, found)
    news = [each for each in found if each.is_news_to(known[each.key])]
    own = settings.own_accounts or (await _own_account(session, settings) if news else ())
    comments = {
        each.key: await _readable_comments(session, settings, each, ticket.known_until, now)
        for each in news
        if (ticket := known[each.key])
    }
    # What could not be read is looked for again, but not for ever.
    unread = [max(each.updated, start) for each in news if comments.get(each.key, ()) is None]

    async def act(transaction: Transaction) -> tuple[int, int]:
        received = seen = 0
        for each in sorted(news, key=lambda one: one.key):
            taken = await _accept_ticket(transaction, each, comments.get(each.key), own, settings, now)
            received += taken is True
            seen += taken is False
        record, stored = await recall(transaction, PollCursor, CURSOR)
        newest = min([max((min(each.updated, now) for each in found), default=since), *unread])
        await remember(
            transaction,
            CURSOR,
            PollCursor(since=max(newest, stored.since) if stored else newest, polled_at=now),
            record,
        )
        return received, seen

    received, seen = await change(bus, act)
    period = timedelta(seconds=settings.poll_seconds)
    pause = requested_pause(reply.headers) or period
    return PollResult(received, seen, len(documents) - received - seen, max(period, pause))


async def _accept_ticket(
    transaction: Transaction,
    found: FoundTicket,
    comments: Sequence[TicketComment] | None,
    own_accounts: Sequence[str],
    settings: JiraSettings,
    now: datetime,
) -> bool | None:
    """Return whether an event was received, False where it was seen already and None where there is none."""
    record, known = await recall(transaction, KnownTicket, found.key)
    if not found.is_news_to(known):
        return False
    if known and comments is None:
        # They cannot be read, or somebody else met it first while we looked: the next look brings what is new since.
        return None
    ticket, event = detect_news(found, known, comments or (), own_accounts=own_accounts, url=settings.url, now=now)
    await remember(transaction, found.key, ticket, record)
    if event is None:
        return None
    if await receive_event(transaction, event, ACTOR, settings.seen_kept):
        return True
    # The ticket says that this is news, so something else happened to it in the same second.
    again = msgspec.structs.replace(event, id=f"{event.id}-{found.updated.microsecond // 1000:03d}")
    return await receive_event(transaction, again, ACTOR, settings.seen_kept)


def _jql(settings: JiraSettings, since: datetime, now: datetime) -> str:
    """Return the search for what changed; by minutes before now, since a date would be read in the user's zone."""
    if re.search(r"\border\s+by\b", settings.jql, re.IGNORECASE):
        raise Misconfigured("jira.jql must not say ORDER BY: the Sentinel orders by what changed last")
    minutes = max(1, ceil((now - since) / timedelta(minutes=1)))
    return f"({settings.jql}) AND updated >= -{minutes}m ORDER BY updated ASC"


async def _search(session: aiohttp.ClientSession, settings: JiraSettings, jql: str) -> tuple[HttpReply, list[Any]]:
    """Return the last answer and all tickets of all pages."""
    documents: list[Any] = []
    token: str | None = None
    for _ in range(_PAGES_MAX):
        asked = {"jql": jql, "maxResults": _PAGE, "fields": list(_FIELDS), "expand": "changelog"}
        if token:
            asked["nextPageToken"] = token
        url = f"{settings.url.rstrip('/')}/rest/api/2/search/jql"
        reply = await send_request(
            session, "POST", url, headers=jira_headers(settings.email, settings.token), document=asked
        )
        if reply is None or not isinstance(reply.body, dict) or not isinstance(reply.body.get("issues"), list):
            raise Transient("Jira answered with something else than tickets")
        documents += reply.body["issues"]
        token = reply.body.get("nextPageToken")
        if not isinstance(token, str) or not token or reply.body.get("isLast") is True:
            return reply, documents
    raise Transient(f"Jira has more than {_PAGES_MAX} pages of tickets: narrow jira.jql")


def _parse_all(documents: Sequence[Any]) -> list[FoundTicket]:
    """Return what can be read, each ticket as it was last; one that cannot be read hides no other."""
    found: dict[str, FoundTicket] = {}
    for document in documents:
        try:
            each = parse_issue(document)
        except MalformedEvent as error:
            _log.warning("ticket_not_understood", reason=str(error))
            continue
        found[each.key] = max(each, found.get(each.key, each), key=lambda one: one.updated)
    return list(found.values())


async def _known_tickets(bus: Bus, found: Sequence[FoundTicket]) -> dict[str, KnownTicket | None]:
    async with bus.transaction() as transaction:
        return {each.key: (await recall(transaction, KnownTicket, each.key))[1] for each in found}


async def _own_account(session: aiohttp.ClientSession, settings: JiraSettings) -> tuple[str]:
    """Return the id of the account whose token we have."""
    url = f"{settings.url.rstrip('/')}/rest/api/2/myself"
    reply = await send_request(session, "GET", url, headers=jira_headers(settings.email, settings.token))
    account = reply.body.get("accountId") if reply and isinstance(reply.body, dict) else None
    if not isinstance(account, str) or not account:
        raise Transient("Jira does not tell which account is ours")
    return (account,)


async def _readable_comments(
    session: aiohttp.ClientSession, settings: JiraSettings, found: FoundTicket, known_until: datetime, now: datetime
) -> list[TicketComment] | None:
    """Return the comments since a time, or None where Jira does not give those of this very ticket."""
    try:
        return await _comments(session, settings, found.key, known_until)
    except (Misconfigured, Transient) as error:
        if isinstance(error, Transient) and (error.after or now - found.updated < _WAITED_FOR):
            raise
        _log.warning("comments_not_read", ticket=found.key, reason=str(error))
        return None


async def _comments(
    session: aiohttp.ClientSession, settings: JiraSettings, key: str, known_until: datetime
) -> list[TicketComment]:
    """Return the comments since a time, oldest first."""
    url = f"{settings.url.rstrip('/')}/rest/api/2/issue/{key}/comment"
    found: list[TicketComment] = []
    for page in range(_COMMENT_PAGES_MAX):
        params = {"orderBy": "-created", "maxResults": str(_PAGE), "startAt": str(page * _PAGE)}
        reply = await send_request(
            session, "GET", url, headers=jira_headers(settings.email, settings.token), params=params, absent=_GONE
        )
        if reply is None:
            break
        if not isinstance(reply.body, dict):
            raise Transient("Jira answered with something else than comments")
        documents = reply.body.get("comments")
        comments = parse_comments(documents)
        found += comments
        is_past = any(datetime.fromisoformat(each.created) <= known_until for each in comments)
        if is_past or not isinstance(documents, list) or len(documents) < _PAGE:
            break
    return found[::-1]
