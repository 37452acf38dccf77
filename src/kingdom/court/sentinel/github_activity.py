"""An activity on a GitHub issue or pull request, from a webhook or a notification. Pure data."""

from datetime import datetime
from enum import StrEnum

import msgspec

from kingdom.court.documents import ExternalEvent, Priority


class ActivitySource(StrEnum):
    """How an activity was received."""

    HOOK = "hook"
    POLL = "poll"


class GitHubActivity(msgspec.Struct, frozen=True, kw_only=True):
    """One activity. `at` is its time according to GitHub. `subject` identifies the issue or pull request.

    `comment` and `actor` are set if known. If `concerns_us` is False, the activity is relevant only if the subject has
    a history. `details_url` is where the author and the text can be read.
    """

    event: ExternalEvent
    source: ActivitySource
    subject: str
    at: datetime
    reason: str
    actor: str = ""
    comment: str = ""
    concerns_us: bool = True
    details_url: str = ""


class DroppedActivity(msgspec.Struct, frozen=True):
    """An activity that becomes no event, and why."""

    reason: str


NOTIFICATION = "github.notification"
TYPES: dict[tuple[str, str], tuple[str, Priority]] = {
    ("PullRequest", "review_requested"): ("github.pr.review_requested", Priority.NORMAL),
    ("PullRequest", "assign"): ("github.pr.assigned", Priority.NORMAL),
    ("PullRequest", "mention"): ("github.pr.mentioned", Priority.NORMAL),
    ("PullRequest", "comment"): ("github.pr.comment", Priority.LOW),
    ("PullRequest", "state_change"): ("github.pr.state_change", Priority.LOW),
    ("Issue", "assign"): ("github.issue.assigned", Priority.NORMAL),
    ("Issue", "mention"): ("github.issue.mentioned", Priority.LOW),
    ("Issue", "comment"): ("github.issue.comment", Priority.LOW),
    ("Issue", "state_change"): ("github.issue.state_change", Priority.LOW),
}


def event_type_of(subject_type: str, reason: str) -> tuple[str, Priority]:
    """Return the type and the priority of an event."""
    return TYPES.get((subject_type, reason), (f"{NOTIFICATION}.{reason}", Priority.LOW))
