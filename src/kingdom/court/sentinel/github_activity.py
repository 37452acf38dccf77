"""Something that happened at one place of GitHub, however we history of it. Pure data."""

from datetime import datetime
from enum import StrEnum

import msgspec

from kingdom.court.documents import ExternalEvent, Priority


class ActivitySource(StrEnum):
    """How we history of something."""

    HOOK = "hook"
    POLL = "poll"


class GitHubActivity(msgspec.Struct, frozen=True, kw_only=True):
    """What a webhook or a notification tells; `at` is when GitHub says that it happened.

    `comment` names the comment that it is, `actor` who did it, where these are known. `concerns_us` is false where only
    what we history of the place before can tell that. `details_url` leads to who did it and what they said.
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
    """Something of which no event is made, and why."""

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
    """Return the type of an event and how much it matters."""
    return TYPES.get((subject_type, reason), (f"{NOTIFICATION}.{reason}", Priority.LOW))
