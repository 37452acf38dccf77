"""The documents that the roles hand to each other, exactly as people find them in the queues: snake_case JSON."""

import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from kingdom.errors import MalformedEvent

# An id becomes the name of a file, a word on a command line and a part of a URL.
_EVENT_ID = re.compile(r"evt-[a-z0-9]+-[A-Za-z0-9][A-Za-z0-9._:+-]{0,180}")
EVENT_TYPE = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)*")
_TYPE_LENGTH_MAX = 100
# The type of an assignment that goes on with the answer of a person.
RESUME = "resume"


class Priority(StrEnum):
    """How much something matters beside the others that wait."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class EventStatus(StrEnum):
    """How far an event has come."""

    PENDING = "pending"
    DISPATCHED = "dispatched"
    COMPLETED = "completed"
    FAILED = "failed"


class AssignmentStatus(StrEnum):
    """How far an assignment has come."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    NEEDS_HUMAN = "needs_human"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"


class MessageStatus(StrEnum):
    """Whether people have been told."""

    PENDING = "pending"
    SENT = "sent"


class MessageType(StrEnum):
    """What a message is for."""

    THREAD_START = "thread_start"
    THREAD_UPDATE = "thread_update"
    HUMAN_INPUT_REQUEST = "human_input_request"
    NOTIFICATION = "notification"
    REPORT = "report"


class Urgency(StrEnum):
    """How loud a message is."""

    NORMAL = "normal"
    HIGH = "high"
    URGENT = "urgent"


class Route(msgspec.Struct, frozen=True, kw_only=True, rename={"assignment_id": "task_id"}):
    """One General that an event goes to and the rule that says so; `assignment_id` once it is assigned.

    Until then `waiting` names its place in the waiting room; with neither, a newer event took its place.
    """

    general: str
    rule: str
    assignment_id: str = ""
    waiting: str = ""


class ExternalEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something happened outside; `payload` is untrusted text and never more than data.

    `outcome` tells how it ended where `status` does not say enough: unrouted, superseded, failed.
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
    # A newer event with the same key takes the place of one that still waits.
    key: str = ""
    routes: tuple[Route, ...] = ()

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> "ExternalEvent":
        """Return the event that a document of anybody describes, or say what is wrong with it."""
        try:
            event = msgspec.convert(document, cls)
        except msgspec.ValidationError as error:
            raise MalformedEvent(f"this is no event: {error}") from error
        if not _EVENT_ID.fullmatch(event.id):
            raise MalformedEvent(
                f"{event.id[:200]!r} cannot be the id of an event: write evt-SOURCE-NAME, such as evt-cli-release-1.2"
            )
        if not event.id.startswith(f"evt-{event.source}-"):
            raise MalformedEvent(
                f"the id {event.id!r} names another source than the event does: begin it with evt-{event.source}-,"
                " or leave the source out"
            )
        if len(event.type) > _TYPE_LENGTH_MAX or not EVENT_TYPE.fullmatch(event.type):
            raise MalformedEvent(
                f"{event.type[:60]!r} is no type of event: write words with dots, as github.pr.comment"
            )
        if event.created_at.tzinfo is None:
            raise MalformedEvent("created_at needs a time zone, as in 2026-02-07T10:00:00Z")
        return event

    def as_new(self) -> "ExternalEvent":
        """Return the event as it came, with nothing of what was made of it."""
        return msgspec.structs.replace(self, status=EventStatus.PENDING, outcome="", reason="", key="", routes=())


class Assignment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the King hands to a General because of an event; a resumed one names its `root`."""

    id: str
    event_id: str
    target_general: str
    type: str
    payload: dict[str, Any]
    priority: Priority
    created_at: datetime
    status: AssignmentStatus
    repo: str | None = None
    root: str = ""
    # The event itself, where `event_id` names the schedule that fired it.
    cause: str = ""
    workflow_id: str = ""
    retries: int = 0
    reason: str = ""
    # What was set aside of the day's money when it was given.
    budget_usd: float = 0.0
    # What its run had cost when it last rested.
    cost_usd: float = 0.0
    started_at: datetime | None = None
    ended_at: datetime | None = None

    @property
    def root_id(self) -> str:
        """Return the assignment to which thread, quota, question and result belong."""
        return self.root or self.id

    @property
    def cause_id(self) -> str:
        """Return the id of the event itself, also where a schedule fired it."""
        return self.cause or self.event_id

    @property
    def turn(self) -> tuple[datetime, bool, str]:
        """Return by what the assignments of one root are sorted, the current one last."""
        # Not by id alone: the thousandth of a day would come before the second.
        return self.created_at, self.root != "", self.id


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What the Envoy tells people."""

    id: str
    type: MessageType
    channel: str
    urgency: Urgency
    content: str
    context: dict[str, Any]
    created_at: datetime
    status: MessageStatus
