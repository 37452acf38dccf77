"""The documents that roles pass to each other, stored in the queues as snake_case JSON."""

import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from kingdom.errors import MalformedEvent

# An id becomes a file name, a command-line argument and a part of a URL.
_EVENT_ID = re.compile(r"evt-[a-z0-9]+-[A-Za-z0-9][A-Za-z0-9._:+-]{0,180}")
EVENT_TYPE = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)*")
_TYPE_LENGTH_MAX = 100
# The type of an assignment that continues an earlier one with a person's answer.
RESUME = "resume"
# The type of an assignment that is a round of work on a followed pull request.
FOLLOWUP = "github.followup"
# The fields of a payload that can describe its event, the best first.
_TITLE_FIELDS = ("title", "subject_title", "summary", "text", "key", "tag")
_TITLE_LENGTH_MAX = 200


class Priority(StrEnum):
    """How urgent an event or assignment is compared with others that wait."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class EventStatus(StrEnum):
    """The state of an event."""

    PENDING = "pending"
    DISPATCHED = "dispatched"
    COMPLETED = "completed"
    FAILED = "failed"


class AssignmentStatus(StrEnum):
    """The state of an assignment."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    NEEDS_HUMAN = "needs_human"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"


class MessageStatus(StrEnum):
    """Whether the Envoy has sent a message."""

    PENDING = "pending"
    SENT = "sent"


class MessageType(StrEnum):
    """The purpose of a message."""

    THREAD_START = "thread_start"
    THREAD_UPDATE = "thread_update"
    HUMAN_INPUT_REQUEST = "human_input_request"
    NOTIFICATION = "notification"
    REPORT = "report"


class Urgency(StrEnum):
    """How prominently a message is shown."""

    NORMAL = "normal"
    HIGH = "high"
    URGENT = "urgent"


class Route(msgspec.Struct, frozen=True, kw_only=True, rename={"assignment_id": "task_id"}):
    """One General that an event goes to, and the rule that selected it.

    `assignment_id` is set once the event is assigned. Until then, `waiting` is the id of its entry in the waiting
    queue. Both fields are empty if a newer event superseded the event.
    """

    general: str
    rule: str
    assignment_id: str = ""
    waiting: str = ""


class ExternalEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened outside Kingdom. `payload` is untrusted text and is only ever treated as data.

    `outcome` adds detail to a final `status`, such as unrouted, superseded or failed.
    """

    id: str
    type: str
    source: str
    repo: str | None
    payload: dict[str, Any]
    priority: Priority
    created_at: datetime
    status: EventStatus
    outcome: str = ""
    reason: str = ""
    # A newer event with the same key replaces an event that still waits.
    key: str = ""
    routes: tuple[Route, ...] = ()

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> "ExternalEvent":
        """Return the event that a document from any source describes, or raise MalformedEvent."""
        try:
            event = msgspec.convert(document, cls)
        except msgspec.ValidationError as error:
            raise MalformedEvent(f"this is not an event: {error}") from error
        if not _EVENT_ID.fullmatch(event.id):
            raise MalformedEvent(
                f"{event.id[:200]!r} is not a valid event id: write evt-SOURCE-NAME, such as evt-cli-release-1.2"
            )
        if not event.id.startswith(f"evt-{event.source}-"):
            raise MalformedEvent(
                f"the id {event.id!r} names another source than the event: begin it with evt-{event.source}-,"
                " or leave the source out"
            )
        if len(event.type) > _TYPE_LENGTH_MAX or not EVENT_TYPE.fullmatch(event.type):
            raise MalformedEvent(
                f"{event.type[:60]!r} is not a valid event type: write words with dots, such as github.pr.comment"
            )
        if event.created_at.tzinfo is None:
            raise MalformedEvent("created_at needs a time zone, as in 2026-02-07T10:00:00Z")
        return event

    def as_new(self) -> "ExternalEvent":
        """Return the event without the results of earlier processing."""
        return msgspec.structs.replace(self, status=EventStatus.PENDING, outcome="", reason="", key="", routes=())


class Assignment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The work that the King hands to a General because of an event.

    `root` is the id of the first assignment, if this one continues it with a person's answer.
    """

    id: str
    event_id: str
    target_general: str
    type: str
    payload: dict[str, Any]
    priority: Priority
    created_at: datetime
    status: AssignmentStatus
    repo: str | None = None
    # The subject of the event, which `supersedes` of its subscription defines. For a round, the id of its followup.
    subject: str = ""
    root: str = ""
    # The id of the event, if `event_id` is the schedule that created the event.
    cause: str = ""
    workflow_id: str = ""
    retries: int = 0
    reason: str = ""
    # The amount reserved from the daily budget when the assignment was created.
    budget_usd: float = 0.0
    # The cost of its run when the run last stopped.
    cost_usd: float = 0.0
    started_at: datetime | None = None
    ended_at: datetime | None = None

    @property
    def root_id(self) -> str:
        """Return the id of the assignment that owns the thread, bill, question and result."""
        return self.root or self.id

    @property
    def cause_id(self) -> str:
        """Return the id of the event, even if a schedule created it."""
        return self.cause or self.event_id

    @property
    def followup(self) -> str:
        """Return the id of the followup that this assignment is a round of, or ""."""
        return self.subject if self.type == FOLLOWUP else ""

    @property
    def sort_key(self) -> tuple[datetime, bool, str]:
        """Return the sort key of the assignments of one root. The current assignment sorts last."""
        # Ids do not sort by age: as texts, number 1000 of a day sorts before number 101.
        return self.created_at, self.root != "", self.id


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message that the Envoy sends to people."""

    id: str
    type: MessageType
    channel: str
    urgency: Urgency
    content: str
    context: dict[str, Any]
    created_at: datetime
    status: MessageStatus


def title_of(payload: Mapping[str, Any]) -> str:
    """Return the text of a payload that best describes its event on one line. It is untrusted."""
    texts = (" ".join(text.split()) for name in _TITLE_FIELDS if isinstance(text := payload.get(name), str))
    title = next(filter(None, texts), "")
    return title if len(title) <= _TITLE_LENGTH_MAX else f"{title[: _TITLE_LENGTH_MAX - 1]}…"
