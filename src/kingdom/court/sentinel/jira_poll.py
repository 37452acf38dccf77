"""Poll the tickets of Jira. A poll leaves out what cannot be read or stored."""

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
from kingdom.court.sentinel.records import ACTOR, KnownTicket, PollCursor, accept_each, load_state, save_state
from kingdom.court.sentinel.settings import JiraSettings
from kingdom.court.sentinel.untrusted import time_stamp
from kingdom.errors import MalformedEvent, Misconfigured, Transient

CURSOR = "jira"
# Jira may index a change late, so each poll starts this much before the end of the last one.
_OVERLAP = timedelta(hours=1)
_PAGES_MAX = 400
_PAGE = 50
_COMMENT_PAGES_MAX = 20
_FIELDS = ("summary", "status", "assignee", "reporter", "updated")
_GONE_STATUSES = (404, 410)
_log = structlog.get_logger("kingdom.court.sentinel")


async def poll_jira(
    bus: Bus, session: aiohttp.ClientSession, settings: JiraSettings, clock: Callable[[], datetime] = utc_now
) -> PollResult:
    """Poll once, and store the events, the known tickets and the cursor, in one transaction if all can be stored."""
    now = clock()
    async with bus.transaction() as transaction:
        _, cursor = await load_state(transaction, PollCursor, CURSOR)
    start = now - timedelta(hours=settings.look_back_hours)
    since = cursor.since - _OVERLAP if cursor else start
    reply, documents = await _search(session, settings, _jql(settings, since, now))
    found = _parse_all(documents)
    known = await _known_tickets(bus, found)
    news = [each for each in found if each.has_changed_since(known[each.key])]
    own = settings.own_accounts or (await _own_account(session, settings) if news else ())
    comments = {
        each.key: await _try_read_comments(session, settings, each, ticket.known_until)
        for each in news
        if (ticket := known[each.key])
    }
    unread = [each for each in news if comments.get(each.key, ()) is None]

    async def accept(transaction: Transaction, each: FoundTicket) -> bool | None:
        return await _accept_ticket(transaction, each, comments.get(each.key), own, settings, now)

    async def move_cursor(transaction: Transaction, failed: Sequence[FoundTicket]) -> None:
        record, stored = await load_state(transaction, PollCursor, CURSOR)
        # The cursor stays before a ticket that must be read again, but at most `look_back_hours` ago.
        again = [max(each.updated, start) for each in (*unread, *failed)]
        newest = min([max((min(each.updated, now) for each in found), default=since), *again])
        await save_state(
            transaction,
            CURSOR,
            PollCursor(since=max(newest, stored.since) if stored else newest, polled_at=now),
            record,
        )

    taken = await accept_each(bus, {each.key: each for each in news}, accept, move_cursor)
    received, seen = taken.count(True), taken.count(False)
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
    """Store a ticket and its event. Return True for a new event, False if it was seen before, None without an event."""
    record, known = await load_state(transaction, KnownTicket, found.key)
    if not found.has_changed_since(known):
        return False
    if known and comments is None:
        # The comments could not be read, or another poll stored the ticket first. The next poll finds what is new.
        return None
    ticket, event = detect_news(found, known, comments or (), own_accounts=own_accounts, url=settings.url, now=now)
    await save_state(transaction, found.key, ticket, record)
    if event is None:
        return None
    if await receive_event(transaction, event, ACTOR, settings.seen_kept):
        return True
    if known is None or time_stamp(known.known_until) != time_stamp(found.updated):
        return False
    # The id exists already, because the ticket changed twice within one second.
    again = msgspec.structs.replace(event, id=f"{event.id}-{found.updated.microsecond // 1000:03d}")
    return await receive_event(transaction, again, ACTOR, settings.seen_kept)


def _jql(settings: JiraSettings, since: datetime, now: datetime) -> str:
    """Return the query for changed tickets. It counts minutes, because Jira reads dates in the user's time zone."""
    if re.search(r"\border\s+by\b", settings.jql, re.IGNORECASE):
        raise Misconfigured("jira.jql must not contain ORDER BY: the Sentinel adds its own order")
    minutes = max(1, ceil((now - since) / timedelta(minutes=1)))
    return f"({settings.jql}) AND updated >= -{minutes}m ORDER BY updated ASC"


async def _search(session: aiohttp.ClientSession, settings: JiraSettings, jql: str) -> tuple[HttpReply, list[Any]]:
    """Return the last reply, and the tickets of all pages."""
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
            raise Transient("the reply of Jira is not a list of tickets")
        documents += reply.body["issues"]
        token = reply.body.get("nextPageToken")
        if not isinstance(token, str) or not token or reply.body.get("isLast") is True:
            return reply, documents
    raise Transient(f"Jira has more than {_PAGES_MAX} pages of tickets: narrow jira.jql")


def _parse_all(documents: Sequence[Any]) -> list[FoundTicket]:
    """Parse the tickets, each in its newest version. Skip malformed tickets."""
    found: dict[str, FoundTicket] = {}
    for document in documents:
        try:
            each = parse_issue(document)
        except MalformedEvent as error:
            _log.warning("skipped a ticket that cannot be read", reason=str(error))
            continue
        found[each.key] = max(each, found.get(each.key, each), key=lambda one: one.updated)
    return list(found.values())


async def _known_tickets(bus: Bus, found: Sequence[FoundTicket]) -> dict[str, KnownTicket | None]:
    async with bus.transaction() as transaction:
        return {each.key: (await load_state(transaction, KnownTicket, each.key))[1] for each in found}


async def _own_account(session: aiohttp.ClientSession, settings: JiraSettings) -> tuple[str]:
    """Return the id of our own account."""
    url = f"{settings.url.rstrip('/')}/rest/api/2/myself"
    reply = await send_request(session, "GET", url, headers=jira_headers(settings.email, settings.token))
    account = reply.body.get("accountId") if reply and isinstance(reply.body, dict) else None
    if not isinstance(account, str) or not account:
        raise Transient("Jira does not return our account id")
    return (account,)


async def _try_read_comments(
    session: aiohttp.ClientSession, settings: JiraSettings, found: FoundTicket, known_until: datetime
) -> list[TicketComment] | None:
    """Return the comments on a ticket since a time, or None if Jira does not return them now."""
    try:
        return await _read_comments(session, settings, found.key, known_until)
    except (Misconfigured, Transient) as error:
        if isinstance(error, Transient) and error.after:
            # Jira limits all requests.
            raise
        _log.warning("cannot get the comments of a ticket, trying again", ticket=found.key, reason=str(error))
        return None


async def _read_comments(
    session: aiohttp.ClientSession, settings: JiraSettings, key: str, known_until: datetime
) -> list[TicketComment]:
    """Return the comments since a time, and perhaps some earlier ones, the oldest first."""
    url = f"{settings.url.rstrip('/')}/rest/api/2/issue/{key}/comment"
    found: list[TicketComment] = []
    for page in range(_COMMENT_PAGES_MAX):
        params = {"orderBy": "-created", "maxResults": str(_PAGE), "startAt": str(page * _PAGE)}
        reply = await send_request(
            session,
            "GET",
            url,
            headers=jira_headers(settings.email, settings.token),
            params=params,
            gone_statuses=_GONE_STATUSES,
        )
        if reply is None:
            break
        if not isinstance(reply.body, dict):
            raise Transient("the reply of Jira is not a list of comments")
        documents = reply.body.get("comments")
        comments = parse_comments(documents)
        found += comments
        is_past = any(datetime.fromisoformat(each.created) <= known_until for each in comments)
        if is_past or not isinstance(documents, list) or len(documents) < _PAGE:
            break
    return found[::-1]
