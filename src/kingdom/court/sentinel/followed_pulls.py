"""Poll the followed pull requests on GitHub. A webhook only makes the next poll due now; the poll reads the facts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol

import aiohttp
import msgspec
import structlog

from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import RecordQuery
from kingdom.clock import utc_now
from kingdom.court.documents import ExternalEvent
from kingdom.court.followups.polls import PULL_POLLS, PullPollState, put_poll
from kingdom.court.followups.records import (
    FOLLOWUPS,
    Followup,
    end_followup,
    find_followup,
    followup_id,
    load_followup,
    record_branch_head,
)
from kingdom.court.followups.rules import end_reason, is_permitted
from kingdom.court.followups.summary import FollowPolicies
from kingdom.court.package import FollowPolicy
from kingdom.court.records import CURRENT, receive_event
from kingdom.court.sentinel.pull_api import PullApi, convert_all
from kingdom.court.sentinel.pull_events import (
    CheckRun,
    CheckSuite,
    CommitStatus,
    FollowedPull,
    PullReview,
    checks_event,
    review_event,
    state_events,
)
from kingdom.court.sentinel.records import ACTOR
from kingdom.court.sentinel.settings import GitHubSettings
from kingdom.court.sentinel.untrusted import NAME_MAX, clean_text, convert_untrusted
from kingdom.errors import KingdomError, Transient
from kingdom.workflow.records import each_record, run_transaction

# With webhooks, a poll is needed only for changes that no webhook reported.
_EVERY_WITH_WEBHOOKS = timedelta(minutes=5)
# GitHub starts to compute whether there are conflicts when it is asked, so the answer is ready later.
_RECHECK_AFTER = timedelta(seconds=10)
# How many polls one pass makes, one after another. The others follow in the next pass.
_POLLS_AT_ONCE = 100
_COMPLETED, _PENDING = "completed", "pending"
_log = structlog.get_logger("kingdom.court.sentinel")


class PullTokens(Protocol):
    """Provides tokens for polls."""

    async def __call__(self, repo: str, /, *, with_members: bool) -> str:
        """Return a token that may read the pull requests of a repository, and the members of teams if needed."""
        ...


@dataclass(frozen=True, slots=True)
class _DuePoll:
    followup: Followup
    state: PullPollState


@dataclass(slots=True)
class _Findings:
    """What a poll found: the events, and the state that the next poll starts from."""

    events: list[ExternalEvent]
    state: PullPollState
    # GitHub is still computing whether the pull request has conflicts.
    is_incomplete: bool = False


async def poll_followed_pulls(
    bus: Bus,
    session: aiohttp.ClientSession,
    settings: GitHubSettings,
    tokens: PullTokens,
    policies: FollowPolicies,
    clock: Callable[[], datetime] = utc_now,
) -> int:
    """Poll each followed pull request that is due, and store what happened. Return the number of new events."""
    now = clock()
    received = 0
    for due in await run_transaction(bus, partial(_claim_due, now, now + poll_interval(settings))):
        policy = policies(due.followup.general)
        if policy is None:
            continue
        try:
            token = await tokens(due.followup.repo, with_members=bool(policy.teams))
        except Transient as error:
            found = _Findings([], msgspec.structs.replace(due.state, problem=str(error)))
            _log.warning(
                "cannot read a followed pull request, trying again", pull_request=due.followup.id, reason=str(error)
            )
        else:
            followup = due.followup
            api = PullApi(session, settings.api_url, token, followup.repo, followup.number, due.state.etags)
            found = await _poll(api, due, policy, settings, now)
        again_at = now + _RECHECK_AFTER if found.is_incomplete else None
        received += await run_transaction(bus, partial(_store, due.followup.id, found, settings, again_at))
    return received


async def hint_pull_requests(transaction: Transaction, repo: str, numbers: Sequence[int], now: datetime) -> int:
    """Make the next poll of followed pull requests due now: of the given ones, or of all in a repository.

    Return their number. Pull requests that are not followed are ignored.
    """
    if numbers:
        keys = [(PULL_POLLS.name, followup_id(repo, number)) for number in numbers]
        records = [record for key in keys if (record := await transaction.get(*key))]
    else:
        query = RecordQuery(kind=PULL_POLLS.name, state=CURRENT, index="repo", value=repo.lower())
        records = [record async for record in each_record(transaction, query)]
    later = [record for record in records if record.state == CURRENT and record.due_at and record.due_at > now]
    for record in later:
        await put_poll(transaction, record.id, record, msgspec.convert(record.doc, PullPollState), now)
    return len(later)


def hinted_pulls(event: str, document: Mapping[str, Any]) -> tuple[str, tuple[int, ...]] | None:
    """Return the repository and the pull requests that a webhook is about, or None if it is about none.

    A status names no pull request, so it is about all of its repository.
    """
    repository = document.get("repository")
    repo = repository.get("full_name") if isinstance(repository, dict) else None
    if not isinstance(repo, str):
        return None
    pull, part = document.get("pull_request"), document.get(event)
    if event.startswith("pull_request") and isinstance(pull, dict):
        pulls: Any = [pull]
    elif event in ("check_run", "check_suite") and isinstance(part, dict):
        pulls = part.get("pull_requests")
    elif event == "status":
        return repo, ()
    else:
        return None
    numbers = [each.get("number") for each in pulls if isinstance(each, dict)] if isinstance(pulls, list) else []
    found = tuple(number for number in numbers if isinstance(number, int))
    return (repo, found) if found else None


async def _claim_due(now: datetime, again_at: datetime, transaction: Transaction) -> list[_DuePoll]:
    """Return the polls that are due, and postpone them, so that no other Sentinel polls the same pull requests.

    The polls of a followup that has ended or whose time is over end too.
    """
    due = []
    records = await transaction.find(RecordQuery(kind=PULL_POLLS.name, state=CURRENT, due_by=now, limit=_POLLS_AT_ONCE))
    await transaction.read_ahead([(FOLLOWUPS.name, record.id) for record in records])
    for record in records:
        known = await find_followup(transaction, record.id)
        if known is None or known[1].is_over or known[1].ends_at <= now:
            await put_poll(transaction, record.id, record, PullPollState(), None)
            continue
        state = msgspec.convert(record.doc, PullPollState)
        await put_poll(transaction, record.id, record, state, again_at)
        due.append(_DuePoll(known[1], state))
    return due


async def _poll(
    api: PullApi, due: _DuePoll, policy: FollowPolicy, settings: GitHubSettings, now: datetime
) -> _Findings:
    """Read a pull request with four requests. More requests follow only for parts that changed since the last poll.

    A part that cannot be read does not stop the other parts. The next poll reads it again.
    """
    followup = due.followup
    found = _Findings([], msgspec.structs.replace(due.state, problem=""))
    parts = (
        partial(_read_pull, api, followup, found, now),
        partial(_read_reviews, api, followup, policy, settings, found, now),
        partial(_read_checks, api, followup, found, now),
    )
    problems = []
    for part in parts:
        etags = api.etags.copy()
        try:
            await part()
        except KingdomError as error:
            if isinstance(error, Transient) and error.after:
                # GitHub limits all requests.
                raise
            _log.warning(
                "cannot read a part of a followed pull request, trying again",
                pull_request=followup.id,
                reason=str(error),
            )
            problems.append(str(error))
            api.etags = etags
    found.state = msgspec.structs.replace(found.state, etags=api.etags, problem="; ".join(problems))
    return found


async def _read_pull(api: PullApi, followup: Followup, found: _Findings, now: datetime) -> None:
    """Add the events of a merge, a close and a conflict."""
    document = await api.pull()
    if document is None:
        return
    pull = convert_untrusted(document, FollowedPull)
    found.is_incomplete = pull.state == "open" and pull.mergeable is None
    found.events += state_events(followup, pull, now)
    if pull.head.sha != found.state.head:
        # The ETags of checks belong to the earlier head.
        api.etags = {name: tag for name, tag in api.etags.items() if name not in ("suites", "status")}
        found.state = PullPollState(head=pull.head.sha, seen=found.state.seen)


async def _read_reviews(
    api: PullApi,
    followup: Followup,
    policy: FollowPolicy,
    settings: GitHubSettings,
    found: _Findings,
    now: datetime,
) -> None:
    """Add the events of new reviews."""
    reviews = await api.reviews()
    if reviews is not None:
        seen = found.state.seen
        news = [each for each in convert_all(reviews, PullReview) if each.is_submitted and each.id not in seen]
        found.events += await _review_events(api, followup, policy, settings, news, now)
        found.state = msgspec.structs.replace(found.state, seen=(*seen, *(each.id for each in news)))


async def _review_events(
    api: PullApi,
    followup: Followup,
    policy: FollowPolicy,
    settings: GitHubSettings,
    reviews: Sequence[PullReview],
    now: datetime,
) -> list[ExternalEvent]:
    """Return the events of reviews by permitted people. What others write becomes no event."""
    ours = {login.lower() for login in settings.logins}
    authors = {review.author for review in reviews if review.author and review.author.lower() not in ours}
    permitted_authors = {author for author in authors if await _is_permitted(api, policy, author)}
    for author in authors - permitted_authors:
        _log.info("ignored a review of a person who is not permitted", pull_request=followup.id, author=author)
    permitted = [review for review in reviews if review.author in permitted_authors]
    comments = await api.comments() if permitted else []
    return [review_event(followup, review, comments, now) for review in permitted]


async def _is_permitted(api: PullApi, policy: FollowPolicy, author: str) -> bool:
    """Return whether the reviews of a person can begin a round. GitHub is asked only if the policy depends on it."""
    permission = "" if policy.people else await api.permission(author)
    teams = [team for team in policy.teams if await api.is_member(team, author)]
    return is_permitted(policy, author, permission, teams)


async def _read_checks(api: PullApi, followup: Followup, found: _Findings, now: datetime) -> None:
    """Add the event of the checks of the head once all of them have ended."""
    state = found.state
    suites, statuses = await api.suites(state.head), await api.statuses(state.head)
    if suites is not None:
        used = [each for each in convert_all(suites, CheckSuite) if each.has_runs]
        unfinished = sum(each.status != _COMPLETED for each in used)
        state = msgspec.structs.replace(state, suites=len(used), open_suites=unfinished)
    if statuses is not None:
        pending = sum(each.state == _PENDING for each in convert_all(statuses, CommitStatus))
        state = msgspec.structs.replace(state, statuses=len(statuses), open_statuses=pending)
    has_checks = state.suites or state.statuses
    if (suites is not None or statuses is not None) and has_checks and not (state.open_suites or state.open_statuses):
        runs = await api.check_runs(state.head) if state.suites else []
        if all(run.conclusion is not None for run in runs):
            found.events += await _checks_events(api, followup, state, runs, statuses, now)
    found.state = state


async def _checks_events(
    api: PullApi, followup: Followup, state: PullPollState, runs: Sequence[CheckRun], statuses: Any, now: datetime
) -> list[ExternalEvent]:
    details = await api.check_details([run for run in runs if run.is_failed])
    repaired = [run for run in runs if not run.is_failed and clean_text(run.name, NAME_MAX) in followup.tests]
    details |= {run.id: await api.counted_tests(run) for run in repaired}
    if statuses is None and state.statuses:
        api.etags.pop("status", None)
        statuses = await api.statuses(state.head)
    event = checks_event(followup, state.head, runs, convert_all(statuses or (), CommitStatus), details, now)
    return [event] if event else []


async def _store(
    followup: str, found: _Findings, settings: GitHubSettings, again_at: datetime | None, transaction: Transaction
) -> int:
    """Store the events and the state of a poll, and end a followup that is over.

    If a webhook has made the next poll due meanwhile, that poll stays due.
    """
    known = await transaction.get(PULL_POLLS.name, followup)
    due = [each for each in (known.due_at if known else None, again_at) if each]
    await put_poll(transaction, followup, known, found.state, min(due, default=None))
    await record_branch_head(transaction, followup, found.state.head)
    events = sorted(found.events, key=lambda event: event.id)
    for reason in filter(None, (end_reason(event.type) for event in events)):
        record, current = await load_followup(transaction, followup)
        await end_followup(transaction, record, current, reason, at=events[0].created_at, actor=ACTOR)
    return sum([await receive_event(transaction, event, ACTOR, settings.seen_kept) for event in events])


def poll_interval(settings: GitHubSettings) -> timedelta:
    """Return the time between two polls."""
    own = timedelta(seconds=settings.poll_seconds)
    return max(own, _EVERY_WITH_WEBHOOKS) if settings.webhook else own
