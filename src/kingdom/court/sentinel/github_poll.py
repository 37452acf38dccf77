"""One look at the notifications of GitHub: whole or not at all, and nothing there is marked as read."""

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import msgspec
import structlog

from kingdom.bus.port import Bus, Transaction
from kingdom.clock import utc_now
from kingdom.court.outside import Reply, github_headers, next_page, pause_of
from kingdom.court.sentinel.asking import Round, ask
from kingdom.court.sentinel.filters import Refusal, refusal
from kingdom.court.sentinel.github import Said, parse_notification, with_said
from kingdom.court.sentinel.happening import Happening
from kingdom.court.sentinel.heard import EARLY, WITHIN, Heard
from kingdom.court.sentinel.records import HEARD_PLACES, Cursor, Taken, recall, remember, take_in
from kingdom.court.sentinel.settings import GitHubSettings
from kingdom.court.sentinel.untrusted import fitted
from kingdom.errors import MalformedEvent, Misconfigured, Transient
from kingdom.workflow.records import run_transaction

CURSOR = "github"
_OVERLAP = timedelta(hours=1)
# Whatever says that nothing changed is not believed for longer.
_WHOLE_LOOK_EVERY = timedelta(hours=1)
# A time to the second cannot tell what came later in the same one.
_LAST_MODIFIED_COUNTS_AFTER = timedelta(minutes=1)
# For so long everything waits until GitHub tells who did something; one broken comment must not stop us for ever.
_LOOKED_FOR = timedelta(minutes=10)
_PAGE = 50
_PAGES_MAX = 400
_GONE = (301, 302, 307, 308, 404, 410, 451)
_log = structlog.get_logger("kingdom.court.sentinel")


async def poll_github(
    bus: Bus,
    session: aiohttp.ClientSession,
    settings: GitHubSettings,
    clock: Callable[[], datetime] = utc_now,
) -> Round:
    """Look once; the events and how far was read are stored in one transaction."""
    now = clock()
    async with bus.transaction() as transaction:
        _, cursor = await recall(transaction, Cursor, CURSOR)
    start = now - timedelta(hours=settings.look_back_hours)
    since = (cursor.since - _OVERLAP if cursor else start).replace(microsecond=0)
    reply, documents = await _read_all(session, settings, since, _conditions(cursor, since, now))
    happenings = _understood(documents, settings, now)
    known = await _known(bus, happenings)
    for index, happening in enumerate(happenings):
        if refusal(happening, settings) is None and happening.event.id not in known:
            happenings[index] = await _looked_at(session, settings, happening, now)
    newest = max((happening.at for happening in happenings), default=since)

    async def act(transaction: Transaction) -> Counter[Taken]:
        # By id, since two that look at once take the keys of what they saw in one order.
        ordered = sorted(happenings, key=lambda happening: happening.event.id)
        taken = Counter(
            [await take_in(transaction, each, refusal(each, settings), settings.seen_kept) for each in ordered]
        )
        record, stored = await recall(transaction, Cursor, CURSOR)
        moved = _moved(stored or cursor, reply, since, min(newest, now), now)
        await remember(transaction, CURSOR, moved, record)
        return taken

    taken = await run_transaction(bus, act)
    return Round(
        taken[Taken.RECEIVED],
        taken[Taken.SEEN],
        taken[Taken.DROPPED] + len(documents) - len(happenings),
        _pace(settings, reply),
    )


def _conditions(cursor: Cursor | None, since: datetime, now: datetime) -> dict[str, str]:
    """Return the headers that ask for an answer only if something changed."""
    if cursor is None or cursor.asked_since != since or cursor.answered_at is None:
        return {}
    if now - cursor.answered_at > _WHOLE_LOOK_EVERY:
        return {}
    if cursor.etag:
        return {"If-None-Match": cursor.etag}
    return {"If-Modified-Since": cursor.last_modified} if cursor.last_modified else {}


async def _read_all(
    session: aiohttp.ClientSession, settings: GitHubSettings, since: datetime, conditions: Mapping[str, str]
) -> tuple[Reply, list[Any]]:
    """Return the first page's headers and what stands on all pages."""
    root = settings.api_url.rstrip("/")
    url: str | None = f"{root}/notifications"
    params: dict[str, str] | None = {"all": "true", "per_page": str(_PAGE), "since": _written(since)}
    first: Reply | None = None
    documents: list[Any] = []
    for _ in range(_PAGES_MAX):
        headers = {**github_headers(settings.token), **({} if first else conditions)}
        reply = await ask(session, "GET", url or "", headers=headers, params=params)
        if reply is None or (first and reply.is_unchanged):
            raise Transient("GitHub gave no page where it said that there is one")
        first = first or reply
        if reply.is_unchanged:
            return first, []
        if not isinstance(reply.body, list):
            raise Transient("GitHub answered with something else than notifications")
        documents += reply.body
        url, params = next_page(reply, root), None
        if url is None:
            return first, documents
    raise Transient(f"GitHub has more than {_PAGES_MAX} pages of notifications")


def _understood(documents: list[Any], settings: GitHubSettings, now: datetime) -> list[Happening]:
    """Return what can be read and is in repositories that are watched; one that cannot hides no other."""
    happenings = []
    for document in documents:
        try:
            happening = parse_notification(document, now)
        except MalformedEvent as error:
            _log.warning("notification_not_understood", reason=str(error))
            continue
        if refusal(happening, settings) is not Refusal.ELSEWHERE:
            happenings.append(happening)
    return happenings


async def _known(bus: Bus, happenings: list[Happening]) -> set[str]:
    """Return the ids of those that came before."""
    async with bus.transaction() as transaction:
        await transaction.read_ahead([(HEARD_PLACES.name, happening.place) for happening in happenings])
        heard = {each.place: (await recall(transaction, Heard, each.place))[1] for each in happenings}
    return {told.id for each in heard.values() if each for told in each.told}


async def _looked_at(
    session: aiohttp.ClientSession, settings: GitHubSettings, happening: Happening, now: datetime
) -> Happening:
    """Return a happening with who did it and what they said, where GitHub tells."""
    if not happening.look_at.startswith(f"{settings.api_url.rstrip('/')}/repos/"):
        return happening
    try:
        reply = await ask(session, "GET", happening.look_at, headers=github_headers(settings.token), absent=_GONE)
    except Misconfigured:
        return happening
    except Transient:
        if now - happening.at < _LOOKED_FOR:
            raise
        return happening
    if reply is None:
        return happening
    earliest, latest = happening.at - WITHIN, happening.at + EARLY
    try:
        said = [fitted(each, Said) for each in (reply.body if isinstance(reply.body, list) else [reply.body])]
        near = [each for each in said if (each.submitted_at or each.created_at) and earliest <= each.at <= latest]
        return with_said(happening, near[-1] if near else None, (earliest, latest))
    except MalformedEvent as error:
        _log.warning("comment_not_understood", reason=str(error))
        return happening


def _moved(cursor: Cursor | None, reply: Reply, since: datetime, newest: datetime, now: datetime) -> Cursor:
    """Return the cursor after a look; it never goes back, whoever else looks at the same time."""
    if cursor and reply.is_unchanged:
        return msgspec.structs.replace(cursor, polled_at=now)
    etag = reply.headers.get("etag", "")
    return Cursor(
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
    return text if now - at > _LAST_MODIFIED_COUNTS_AFTER else ""


def _pace(settings: GitHubSettings, reply: Reply) -> timedelta:
    asked = reply.headers.get("x-poll-interval", "")
    interval = int(asked) if asked.isdecimal() and len(asked) < 6 else 0  # noqa: PLR2004 - about a day at most
    own = timedelta(seconds=max(settings.poll_seconds, interval))
    return max(own, pause_of(reply.headers) or own)


def _written(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
