"""Poll new labels of pull requests on GitHub. A label counts if GitHub confirms that a writer set it."""

import hashlib
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import aiohttp
import msgspec
import structlog

from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import Record
from kingdom.clock import utc_now
from kingdom.court.documents import EventStatus, ExternalEvent, Priority
from kingdom.court.followups.rules import is_permitted
from kingdom.court.package import FollowPolicy
from kingdom.court.records import CURRENT, receive_event
from kingdom.court.sentinel.followed_pulls import PullTokens
from kingdom.court.sentinel.pull_api import PullApi
from kingdom.court.sentinel.pull_events import FAILED, failed_run
from kingdom.court.sentinel.records import ACTOR, CURSORS
from kingdom.court.sentinel.settings import GitHubSettings
from kingdom.court.sentinel.untrusted import NAME_MAX, TITLE_MAX, clean_text, convert_untrusted
from kingdom.errors import KingdomError, MalformedEvent, Transient
from kingdom.workflow.records import run_transaction

LABELED = "github.pr.labeled"
_DIGITS = 24
_log = structlog.get_logger("kingdom.court.sentinel")


class LabelCursor(msgspec.Struct, frozen=True, kw_only=True):
    """How far the labels of a repository were read: the id of the newest event, and the tag of the reply."""

    newest: int
    etag: str = ""


class _Labeler(msgspec.Struct):
    login: str


class _LabelName(msgspec.Struct):
    name: str


class _LabeledIssue(msgspec.Struct):
    number: int
    pull_request: dict[str, Any] | None = None


class _IssueEvent(msgspec.Struct):
    """What happened to an issue or a pull request."""

    id: int
    event: str
    actor: _Labeler | None = None
    label: _LabelName | None = None
    issue: _LabeledIssue | None = None


class _PullRepository(msgspec.Struct):
    full_name: str


class _LabeledBranch(msgspec.Struct):
    ref: str
    sha: str
    repo: _PullRepository | None = None


class _LabeledPull(msgspec.Struct):
    state: str
    head: _LabeledBranch
    base: _LabeledBranch
    labels: list[_LabelName]
    title: str | None = None


async def poll_labels(
    bus: Bus,
    session: aiohttp.ClientSession,
    settings: GitHubSettings,
    tokens: PullTokens,
    repos: Collection[str],
    clock: Callable[[], datetime] = utc_now,
) -> int:
    """Read the labels that were set since the last poll, and store their events. Return the number of new events.

    The first poll of a repository only stores where to begin.
    """
    received = 0
    for repo in sorted(repos):
        try:
            received += await _poll_repository(bus, session, settings, tokens, repo, clock())
        except KingdomError as error:
            if isinstance(error, Transient) and error.after:
                # GitHub limits all requests.
                raise
            _log.warning("cannot read the labels of a repository, trying again", repo=repo, reason=str(error))
    return received


async def _poll_repository(
    bus: Bus, session: aiohttp.ClientSession, settings: GitHubSettings, tokens: PullTokens, repo: str, now: datetime
) -> int:
    async with bus.transaction() as transaction:
        record = await transaction.get(CURSORS.name, _cursor_id(repo))
    cursor = msgspec.convert(record.doc, LabelCursor) if record else None
    token = await tokens(repo, with_members=False)
    api = PullApi(session, settings.api_url, token, repo, etags={"events": cursor.etag} if cursor else {})
    documents = await api.issue_events(cursor.newest if cursor else None)
    if documents is None:
        return 0
    listed = _read_events(documents, repo)
    news = [each for each in listed if cursor and each.id > cursor.newest]
    if cursor and listed and len(news) == len(listed) == len(documents):
        _log.warning(
            "labels may have been missed", repo=repo, reason=f"more than {len(news)} events since the last poll"
        )
    events: list[ExternalEvent] = []
    for each in news:
        try:
            if event := await _event(session, settings, token, repo, each, now):
                events.append(event)
        except Transient:
            raise
        except KingdomError as error:
            # Otherwise one label that cannot be read would block all later ones.
            _log.warning("skipped a label that cannot be read", repo=repo, number=each.id, reason=str(error))
    newest = max((each.id for each in listed), default=cursor.newest if cursor else 0)
    moved = LabelCursor(newest=newest, etag=api.etags.get("events", ""))
    return await run_transaction(bus, partial(_store, repo, moved, events, settings))


def _read_events(documents: Sequence[Any], repo: str) -> list[_IssueEvent]:
    """Return the readable events."""
    events = []
    for each in documents:
        try:
            events.append(convert_untrusted(each, _IssueEvent))
        except MalformedEvent as error:
            _log.warning("skipped an event of an issue that cannot be read", repo=repo, reason=str(error))
    return events


async def _store(
    repo: str,
    cursor: LabelCursor,
    events: Collection[ExternalEvent],
    settings: GitHubSettings,
    transaction: Transaction,
) -> int:
    known = await transaction.get(CURSORS.name, _cursor_id(repo))
    if known and msgspec.convert(known.doc, LabelCursor).newest > cursor.newest:
        # Another Sentinel has read further.
        return 0
    version, doc = known.version if known else 0, msgspec.to_builtins(cursor)
    await transaction.put(Record(kind=CURSORS.name, id=_cursor_id(repo), version=version, state=CURRENT, doc=doc))
    ordered = sorted(events, key=lambda event: event.id)
    return sum([await receive_event(transaction, event, ACTOR, settings.seen_kept) for event in ordered])


async def _event(
    session: aiohttp.ClientSession,
    settings: GitHubSettings,
    token: str,
    repo: str,
    labeled: _IssueEvent,
    now: datetime,
) -> ExternalEvent | None:
    """Return the event of a label, or None if the label does not count."""
    actor, label, issue = labeled.actor, labeled.label, labeled.issue
    if labeled.event != "labeled" or not (actor and label and issue and issue.pull_request):
        return None
    if actor.login.lower() in {login.lower() for login in settings.logins}:
        return None
    api = PullApi(session, settings.api_url, token, repo, issue.number)
    pull = convert_untrusted(await api.pull(), _LabeledPull)
    if reason := await _why_ignored(api, repo, pull, actor.login, label.name):
        _log.info("a label starts nothing", pull_request=f"{repo}#{issue.number}", actor=actor.login, reason=reason)
        return None
    failed = [run for run in await api.check_runs(pull.head.sha) if run.conclusion in FAILED]
    details = await api.check_details(failed)
    digest = hashlib.sha256(f"{repo.lower()} {labeled.id}".encode()).hexdigest()
    return ExternalEvent(
        id=f"evt-github-label-{issue.number}-{digest[:_DIGITS]}",
        type=LABELED,
        source="github",
        repo=repo,
        payload={
            "number": issue.number,
            "label": clean_text(label.name, NAME_MAX),
            "actor": clean_text(actor.login, NAME_MAX),
            "title": clean_text(pull.title, TITLE_MAX),
            "branch": clean_text(pull.head.ref, TITLE_MAX),
            "base": clean_text(pull.base.ref, TITLE_MAX),
            "commit": clean_text(pull.head.sha, NAME_MAX),
            "failing": [failed_run(run, details[run.id]) for run in failed],
        },
        priority=Priority.NORMAL,
        created_at=now,
        status=EventStatus.PENDING,
    )


async def _why_ignored(api: PullApi, repo: str, pull: _LabeledPull, login: str, label: str) -> str:
    """Return why a label does not count, or "". Only writers can push to a branch of the repository itself."""
    if pull.state != "open" or label.lower() not in {each.name.lower() for each in pull.labels}:
        return "the pull request is closed, or the label was removed"
    if pull.head.repo is None or pull.head.repo.full_name.lower() != repo.lower():
        return "the branch is in a fork"
    if not is_permitted(FollowPolicy(), login, await api.permission(login)):
        return "only people with write permission can start something by a label"
    return ""


def _cursor_id(repo: str) -> str:
    return f"labels-{repo.lower()}"
