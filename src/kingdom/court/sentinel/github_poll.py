"""Poll the notifications of GitHub. A poll leaves out what cannot be read or stored, and marks nothing as read."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import msgspec
import structlog

from kingdom.bus.port import Bus, Transaction
from kingdom.clock import utc_now
from kingdom.court.remote_http import HttpReply, github_headers, next_page, requested_pause
from kingdom.court.sentinel.deduplication import EARLY_MAX, LATE_MAX, SubjectHistory
from kingdom.court.sentinel.filters import FilterReason, why_filtered
from kingdom.court.sentinel.github import CommentOrReview, parse_notification, with_comment
from kingdom.court.sentinel.github_activity import GitHubActivity
from kingdom.court.sentinel.http_requests import PollResult, send_request
from kingdom.court.sentinel.records import (
    SUBJECT_HISTORIES,
    IntakeResult,
    PollCursor,
    accept_activity,
    accept_each,
    load_state,
    save_state,
)
from kingdom.court.sentinel.settings import GitHubSettings
from kingdom.court.sentinel.untrusted import convert_untrusted
from kingdom.errors import MalformedEvent, Misconfigured, Transient

CURSOR = "github"
# GitHub may list a notification late, so each poll starts this much before the end of the last one.
_OVERLAP = timedelta(hours=1)
# A poll after this time sends no cache headers, in case "not modified" is wrong.
_FULL_POLL_EVERY = timedelta(hours=1)
# Last-Modified has a resolution of one second, so a recent value may hide later changes. Only older values are used.
_LAST_MODIFIED_AGE_MIN = timedelta(minutes=1)
# If GitHub does not return a comment, polls leave out its activity for this long, and then accept it without the text.
_COMMENT_RETRIES_FOR = timedelta(minutes=10)
_PAGE = 50
_PAGES_MAX = 400
_GONE_STATUSES = (301, 302, 307, 308, 404, 410, 451)
_log = structlog.get_logger("kingdom.court.sentinel")


async def poll_github(
    bus: Bus,
    session: aiohttp.ClientSession,
    settings: GitHubSettings,
    clock: Callable[[], datetime] = utc_now,
) -> PollResult:
    """Poll once, and store the events and the cursor, in one transaction if all events can be stored."""
    now = clock()
    async with bus.transaction() as transaction:
        _, cursor = await load_state(transaction, PollCursor, CURSOR)
    start = now - timedelta(hours=settings.look_back_hours)
    since = (cursor.since - _OVERLAP if cursor else start).replace(microsecond=0)
    reply, documents = await _read_all(session, settings, since, _conditions(cursor, since, now))
    activities = _parse_all(documents, settings, now)
    known = await _known_ids(bus, activities)
    detailed: list[GitHubActivity] = []
    left_out: list[GitHubActivity] = []
    for activity in activities:
        is_news = why_filtered(activity, settings) is None and activity.event.id not in known
        found = await _with_details(session, settings, activity, now) if is_news else activity
        (detailed if found else left_out).append(found or activity)
    newest = max((activity.at for activity in activities), default=since)

    async def accept(transaction: Transaction, each: GitHubActivity) -> IntakeResult:
        return await accept_activity(transaction, each, why_filtered(each, settings), settings.seen_kept)

    async def move_cursor(transaction: Transaction, failed: Sequence[GitHubActivity]) -> None:
        record, stored = await load_state(transaction, PollCursor, CURSOR)
        # The cursor stays before an activity that must be read again, but at most `look_back_hours` ago.
        again = [max(each.at, start) for each in (*left_out, *failed)]
        moved = _advance_cursor(stored or cursor, reply, since, min(newest, now, *again), now)
        if again:
            # "Not modified" would hide it.
            moved = msgspec.structs.replace(moved, etag="", last_modified="")
        await save_state(transaction, CURSOR, moved, record)

    taken = Counter(await accept_each(bus, {each.event.id: each for each in detailed}, accept, move_cursor))
    received, seen = taken[IntakeResult.RECEIVED], taken[IntakeResult.SEEN]
    return PollResult(received, seen, len(documents) - received - seen, _next_poll_after(settings, reply))


def _conditions(cursor: PollCursor | None, since: datetime, now: datetime) -> dict[str, str]:
    """Return the headers that request a reply only if something changed."""
    if cursor is None or cursor.asked_since != since or cursor.answered_at is None:
        return {}
    if now - cursor.answered_at > _FULL_POLL_EVERY:
        return {}
    if cursor.etag:
        return {"If-None-Match": cursor.etag}
    return {"If-Modified-Since": cursor.last_modified} if cursor.last_modified else {}


async def _read_all(
    session: aiohttp.ClientSession, settings: GitHubSettings, since: datetime, conditions: Mapping[str, str]
) -> tuple[HttpReply, list[Any]]:
    """Return the first reply, and the notifications of all pages."""
    root = settings.api_url.rstrip("/")
    url: str | None = f"{root}/notifications"
    params: dict[str, str] | None = {"all": "true", "per_page": str(_PAGE), "since": _time_text(since)}
    first: HttpReply | None = None
    documents: list[Any] = []
    for _ in range(_PAGES_MAX):
        headers = {**github_headers(settings.token), **({} if first else conditions)}
        reply = await send_request(session, "GET", url or "", headers=headers, params=params)
        if reply is None or (first and reply.is_unchanged):
            raise Transient("GitHub announced a page that it did not return")
        first = first or reply
        if reply.is_unchanged:
            return first, []
        if not isinstance(reply.body, list):
            raise Transient("the reply of GitHub is not a list of notifications")
        documents += reply.body
        url, params = next_page(reply, root), None
        if url is None:
            return first, documents
    raise Transient(f"GitHub has more than {_PAGES_MAX} pages of notifications")


def _parse_all(documents: list[Any], settings: GitHubSettings, now: datetime) -> list[GitHubActivity]:
    """Parse the notifications of watched repositories. Skip malformed notifications."""
    activities = []
    for document in documents:
        try:
            activity = parse_notification(document, now)
        except MalformedEvent as error:
            _log.warning("skipped a notification that cannot be read", reason=str(error))
            continue
        if why_filtered(activity, settings) is not FilterReason.ELSEWHERE:
            activities.append(activity)
    return activities


async def _known_ids(bus: Bus, activities: list[GitHubActivity]) -> set[str]:
    """Return the ids of activities that were received before."""
    async with bus.transaction() as transaction:
        await transaction.read_ahead([(SUBJECT_HISTORIES.name, activity.subject) for activity in activities])
        history = {
            each.subject: (await load_state(transaction, SubjectHistory, each.subject))[1] for each in activities
        }
    return {item.id for each in history.values() if each for item in each.seen}


async def _with_details(
    session: aiohttp.ClientSession, settings: GitHubSettings, activity: GitHubActivity, now: datetime
) -> GitHubActivity | None:
    """Return an activity with its author and text, if GitHub returns them. Return None if it may return them soon."""
    if not activity.details_url.startswith(f"{settings.api_url.rstrip('/')}/repos/"):
        return activity
    try:
        reply = await send_request(
            session, "GET", activity.details_url, headers=github_headers(settings.token), gone_statuses=_GONE_STATUSES
        )
    except Misconfigured:
        return activity
    except Transient as error:
        if error.after:
            # GitHub limits all requests.
            raise
        if now - activity.at < _COMMENT_RETRIES_FOR:
            _log.warning(
                "cannot get the comment of an event, trying again", event_id=activity.event.id, reason=str(error)
            )
            return None
        return activity
    if reply is None:
        return activity
    earliest, latest = activity.at - LATE_MAX, activity.at + EARLY_MAX
    try:
        comments = [
            convert_untrusted(each, CommentOrReview)
            for each in (reply.body if isinstance(reply.body, list) else [reply.body])
        ]
        near = [each for each in comments if (each.submitted_at or each.created_at) and earliest <= each.at <= latest]
        return with_comment(activity, near[-1] if near else None, (earliest, latest))
    except MalformedEvent as error:
        _log.warning("ignored a comment that cannot be read", reason=str(error))
        return activity


def _advance_cursor(
    cursor: PollCursor | None, reply: HttpReply, since: datetime, newest: datetime, now: datetime
) -> PollCursor:
    """Return the cursor after a poll. It never moves back, even with concurrent polls."""
    if cursor and reply.is_unchanged:
        return msgspec.structs.replace(cursor, polled_at=now)
    etag = reply.headers.get("etag", "")
    return PollCursor(
        since=max(newest, cursor.since) if cursor else newest,
        polled_at=now,
        asked_since=since,
        answered_at=now,
        etag=etag if etag.strip('W/" ') else "",
        last_modified=_last_modified(reply.headers.get("last-modified", ""), now),
    )


def _last_modified(text: str, now: datetime) -> str:
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return ""
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return text if now - at > _LAST_MODIFIED_AGE_MIN else ""


def _next_poll_after(settings: GitHubSettings, reply: HttpReply) -> timedelta:
    asked = reply.headers.get("x-poll-interval", "")
    interval = int(asked) if asked.isdecimal() and len(asked) < 6 else 0  # noqa: PLR2004 - about a day at most
    own = timedelta(seconds=max(settings.poll_seconds, interval))
    return max(own, requested_pause(reply.headers) or own)


def _time_text(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
