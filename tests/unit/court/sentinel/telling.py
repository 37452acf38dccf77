"""Happenings at one place of GitHub, as webhooks and notifications tell them; times are seconds."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from kingdom.court.documents import EventStatus, ExternalEvent
from kingdom.court.sentinel.happening import Happening, Source, type_of
from kingdom.court.sentinel.heard import Heard, hear

EPOCH = datetime(2026, 2, 7, 10, 0, 0, tzinfo=UTC)
PLACE = "acme/app#7"


def at(seconds: float) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


def _told(source: Source, event_id: str, reason: str, seconds: float, comment: str) -> Happening:
    kind, priority = type_of("PullRequest", reason)
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
    return Happening(event=event, source=source, place=PLACE, at=at(seconds), reason=reason, comment=comment)


def hook(reason: str, seconds: float, comment: str = "") -> Happening:
    return _told(Source.HOOK, f"evt-github-hook-{reason.replace('_', '-')}-{seconds}", reason, seconds, comment)


def poll(reason: str, seconds: float, comment: str = "") -> Happening:
    return _told(Source.POLL, f"evt-github-1-{seconds}", reason, seconds, comment)


@dataclass
class Ear:
    """Somebody who hears one thing after another, and keeps what was news."""

    heard: Heard = field(default_factory=lambda: Heard(place=PLACE))
    news: list[Happening] = field(default_factory=list)

    def hears(self, *happenings: Happening) -> int:
        """Return how many of these were news."""
        count = 0
        for each in happenings:
            self.heard, is_news = hear(self.heard, each)
            self.news += [each] if is_news else []
            count += is_news
        return count
