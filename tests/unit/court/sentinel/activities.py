"""Activities of one subject on GitHub, from webhooks and notifications. Times are seconds."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from kingdom.court.documents import EventStatus, ExternalEvent
from kingdom.court.sentinel.deduplication import SubjectHistory, record_activity
from kingdom.court.sentinel.github_activity import ActivitySource, GitHubActivity, event_type_of

EPOCH = datetime(2026, 2, 7, 10, 0, 0, tzinfo=UTC)
SUBJECT = "acme/app#7"


def at(seconds: float) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


def _activity(source: ActivitySource, event_id: str, reason: str, seconds: float, comment: str) -> GitHubActivity:
    kind, priority = event_type_of("PullRequest", reason)
    event = ExternalEvent(
        id=event_id,
        type=kind,
        source="github",
        repo="acme/app",
        payload={},
        priority=priority,
        created_at=at(seconds),
        status=EventStatus.PENDING,
    )
    return GitHubActivity(event=event, source=source, subject=SUBJECT, at=at(seconds), reason=reason, comment=comment)


def hook(reason: str, seconds: float, comment: str = "") -> GitHubActivity:
    return _activity(
        ActivitySource.HOOK, f"evt-github-hook-{reason.replace('_', '-')}-{seconds}", reason, seconds, comment
    )


def poll(reason: str, seconds: float, comment: str = "") -> GitHubActivity:
    return _activity(ActivitySource.POLL, f"evt-github-1-{seconds}", reason, seconds, comment)


@dataclass
class ActivityLog:
    """Records activities one after another, and keeps the new ones."""

    history: SubjectHistory = field(default_factory=lambda: SubjectHistory(subject=SUBJECT))
    news: list[GitHubActivity] = field(default_factory=list)

    def record(self, *activities: GitHubActivity) -> int:
        """Return how many of these were new."""
        count = 0
        for each in activities:
            self.history, is_news = record_activity(self.history, each)
            self.news += [each] if is_news else []
            count += is_news
        return count
