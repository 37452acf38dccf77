"""Turn GitHub's replies about a followed pull request into events. This module does no I/O.

The id of an event depends only on facts in a reply, so the same facts always have the same id.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kingdom.court.documents import EventStatus, ExternalEvent, Priority
from kingdom.court.followups.records import Followup
from kingdom.court.followups.rules import CHECKS_COMPLETED, CLOSED, CONFLICT, FAILURE, MERGED, REVIEW_SUBMITTED, SUCCESS
from kingdom.court.sentinel.untrusted import NAME_MAX, TEXT_MAX, URL_MAX, clean_text

# The conclusions of a check that found a problem in the commit.
FAILED = frozenset({"failure", "timed_out", "startup_failure", "error"})
# The conclusions of a check that did not run to its end. It is run again once before it counts as failed.
INTERRUPTED = frozenset({"cancelled", "timed_out"})
# The conclusions of a check that does not show whether the commit has a problem.
UNDECIDED = frozenset({"action_required", "stale", "pending"})
COMMENTS_MAX = 50
# The bytes of all logs of an event together.
LOG_BYTES_MAX = 16 * 1024
_SKIPPED = "skipped"
_REVIEW_STATES = {"APPROVED": "approved", "CHANGES_REQUESTED": "changes_requested", "COMMENTED": "commented"}
_COMMENT_LENGTH_MAX = 4_000
_SUMMARY_LENGTH_MAX = 2_000
_DIGITS = 24
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x01-\x08\x0b-\x1f\x7f]")
_Number = Annotated[int, Meta(ge=1, lt=10**18)]
_Sha = Annotated[str, Meta(pattern=r"^[0-9a-f]{40,64}$")]


class _Author(msgspec.Struct):
    login: str


class _PullRef(msgspec.Struct):
    sha: _Sha


class FollowedPull(msgspec.Struct):
    """The parts of a pull request that a followup depends on."""

    number: _Number
    state: str
    head: _PullRef
    base: _PullRef
    merged: bool = False
    mergeable: bool | None = None
    closed_at: str | None = None


class PullReview(msgspec.Struct):
    """A review of a pull request."""

    id: _Number
    state: str
    user: _Author | None = None
    body: str | None = None
    html_url: str | None = None
    commit_id: str | None = None

    @property
    def author(self) -> str:
        """Return the login of the author, or "" if the account no longer exists."""
        return self.user.login if self.user else ""

    @property
    def is_submitted(self) -> bool:
        """Return whether the review was submitted and not dismissed."""
        return self.state in _REVIEW_STATES


class PullComment(msgspec.Struct):
    """A comment on a line of a pull request."""

    id: _Number
    path: str
    pull_request_review_id: int | None = None
    in_reply_to_id: int | None = None
    line: int | None = None
    original_line: int | None = None
    side: str | None = None
    body: str | None = None
    user: _Author | None = None


class CheckSuite(msgspec.Struct):
    """The checks of one App for a commit. A suite without runs never ends."""

    id: _Number
    status: str | None = None
    latest_check_runs_count: int = 1

    @property
    def has_runs(self) -> bool:
        """Return whether the App has created checks."""
        return self.latest_check_runs_count > 0


class _CheckOutput(msgspec.Struct):
    title: str | None = None
    summary: str | None = None


class _CheckApp(msgspec.Struct):
    slug: str = ""


class _SuiteRef(msgspec.Struct):
    id: _Number


class CheckRun(msgspec.Struct):
    """One check of a commit."""

    id: _Number
    name: str
    conclusion: str | None = None
    output: _CheckOutput = msgspec.field(default_factory=_CheckOutput)
    app: _CheckApp | None = None
    check_suite: _SuiteRef | None = None

    @property
    def is_failed(self) -> bool:
        """Return whether the check found a problem in the commit, or did not run to its end."""
        return self.conclusion in FAILED | INTERRUPTED

    @property
    def has_log(self) -> bool:
        """Return whether the check is a job of GitHub Actions, which has a log."""
        return self.app is not None and self.app.slug == "github-actions"


class CommitStatus(msgspec.Struct):
    """A status of a commit, which older systems report instead of a check."""

    id: _Number
    context: str
    state: str
    description: str | None = None


class CheckDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a check besides its result. `tests` is how many tests it ran, or None if unknown."""

    annotations: tuple[str, ...] = ()
    log: str = ""
    tests: int | None = None


def state_events(followup: Followup, pull: FollowedPull, now: datetime) -> list[ExternalEvent]:
    """Return the event of a merged or closed pull request, or of one that conflicts with its base branch."""
    about = {"commit": pull.head.sha}
    if pull.merged:
        return [_event(followup, MERGED, "merged", ("merged",), about, now)]
    if pull.state == "closed":
        return [_event(followup, CLOSED, "closed", (pull.closed_at,), about, now)]
    if pull.mergeable is False:
        facts = (pull.head.sha, pull.base.sha)
        conflict = {**about, "base": followup.base, "base_commit": pull.base.sha}
        return [_event(followup, CONFLICT, "conflict", facts, conflict, now)]
    return []


def review_event(
    followup: Followup, review: PullReview, comments: Iterable[PullComment], now: datetime
) -> ExternalEvent:
    """Return the event of a review with its comments on lines."""
    own = [each for each in comments if each.pull_request_review_id == review.id and _author(each) == review.author]
    payload = {
        "review_id": review.id,
        "state": _REVIEW_STATES[review.state],
        "actor": clean_text(review.author, NAME_MAX),
        "text": clean_text(review.body, TEXT_MAX),
        "html_url": clean_text(review.html_url, URL_MAX),
        "commit": clean_text(review.commit_id, NAME_MAX),
        "comments": [_comment(each) for each in own[:COMMENTS_MAX]],
    }
    return _event(followup, REVIEW_SUBMITTED, "review", (review.id,), payload, now)


def checks_event(
    followup: Followup,
    commit: str,
    runs: Sequence[CheckRun],
    statuses: Sequence[CommitStatus],
    details: Mapping[int, CheckDetails],
    now: datetime,
) -> ExternalEvent | None:
    """Return the event of the completed checks of a commit, or None if some are undecided and none failed."""
    results = sorted([(f"run {run.id}", run.conclusion or "") for run in runs])
    results += sorted((f"status {each.id}", each.state) for each in statuses)
    failing = [failed_run(run, details.get(run.id, CheckDetails())) for run in runs if run.is_failed]
    failing += [_failed_status(each) for each in statuses if each.state in FAILED]
    if not failing and any(result in UNDECIDED for _, result in results):
        return None
    payload = {
        "commit": commit,
        "conclusion": FAILURE if failing else SUCCESS,
        "failing": failing,
        "interrupted": [_interrupted_run(run) for run in runs if run.conclusion in INTERRUPTED],
        "tests": _tests_by_name(followup, runs, details),
    }
    return _event(followup, CHECKS_COMPLETED, "checks", (commit, results), payload, now)


def _tests_by_name(followup: Followup, runs: Sequence[CheckRun], details: Mapping[int, CheckDetails]) -> dict[str, int]:
    """Return how many tests each check ran: 0 if it failed before, and now was skipped or does not exist.

    A name that several checks have tells nothing.
    """
    names = Counter(clean_text(run.name, NAME_MAX) for run in runs)
    used = {clean_text(run.name, NAME_MAX) for run in runs if run.conclusion != _SKIPPED}
    tests = dict.fromkeys(followup.tests.keys() - used, 0)
    for run in runs:
        name, known = clean_text(run.name, NAME_MAX), details.get(run.id)
        if known and known.tests is not None:
            tests[name] = known.tests
    return {name: count for name, count in sorted(tests.items()) if names[name] <= 1}


def clean_log(text: str, bytes_max: int) -> str:
    """Return the end of a log without escape sequences and control characters."""
    cleaned = clean_text(_ESCAPES.sub("", text), len(text))
    tail = cleaned.encode()[-bytes_max:] if bytes_max else b""
    return tail.decode(errors="ignore")


def _event(
    followup: Followup, kind: str, word: str, facts: Sequence[Any], payload: dict[str, Any], now: datetime
) -> ExternalEvent:
    whole = msgspec.json.encode([followup.id, word, facts])
    return ExternalEvent(
        id=f"evt-github-{word}-{followup.number}-{hashlib.sha256(whole).hexdigest()[:_DIGITS]}",
        type=kind,
        source="github",
        repo=followup.repo,
        payload={"number": followup.number, **payload},
        priority=Priority.NORMAL,
        created_at=now,
        status=EventStatus.PENDING,
    )


def _comment(comment: PullComment) -> dict[str, Any]:
    return {
        "id": comment.id,
        "thread": str(comment.in_reply_to_id or comment.id),
        "path": clean_text(comment.path, URL_MAX),
        "line": comment.line or comment.original_line,
        "side": clean_text(comment.side, NAME_MAX),
        "text": clean_text(comment.body, _COMMENT_LENGTH_MAX),
        "actor": clean_text(_author(comment), NAME_MAX),
    }


def _author(comment: PullComment) -> str:
    return comment.user.login if comment.user else ""


def failed_run(run: CheckRun, details: CheckDetails) -> dict[str, Any]:
    """Return what an event tells about a failed check."""
    summary = "\n".join(filter(None, (run.output.title, run.output.summary)))
    return {
        "name": clean_text(run.name, NAME_MAX),
        "conclusion": run.conclusion,
        "summary": clean_text(summary, _SUMMARY_LENGTH_MAX),
        "annotations": list(details.annotations),
        "log": details.log,
    }


def _interrupted_run(run: CheckRun) -> dict[str, Any]:
    """Return what running a check again needs."""
    suite = run.check_suite.id if run.check_suite else None
    return {"id": run.id, "name": clean_text(run.name, NAME_MAX), "suite": suite, "is_job": run.has_log}


def _failed_status(status: CommitStatus) -> dict[str, Any]:
    return {
        "name": clean_text(status.context, NAME_MAX),
        "conclusion": status.state,
        "summary": clean_text(status.description, _SUMMARY_LENGTH_MAX),
        "annotations": [],
        "log": "",
    }
