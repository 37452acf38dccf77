"""The notices that roles send each other over the bus. Most notices have only the id of a record with the details."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from kingdom.bus.envelope import Envelope
from kingdom.bus.payload import EventType
from kingdom.bus.stream import RetryPolicy, Stream, Topology
from kingdom.workflow import streams as workflow_streams

_RETRY = RetryPolicy(cap=timedelta(seconds=60))


class _Notice(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A notice from one role to another."""


class ExternalEventReceived(_Notice, frozen=True, kw_only=True):
    """An event waits for the King."""

    event_id: str


class AssignmentGiven(_Notice, frozen=True, kw_only=True):
    """An assignment waits for its General."""

    assignment_id: str = msgspec.field(name="taskId")


class RetryDue(_Notice, frozen=True, kw_only=True):
    """It is time to retry the failed run of an assignment."""

    assignment_id: str = msgspec.field(name="taskId")


class SlotReleaseDue(_Notice, frozen=True, kw_only=True):
    """An assignment has ended or waits, so the King books its cost and releases its slots."""

    assignment_id: str = msgspec.field(name="taskId")


class MessageQueued(_Notice, frozen=True, kw_only=True):
    """A message waits for the Envoy."""

    message_id: str


class PetitionGranted(_Notice, frozen=True, kw_only=True):
    """A petition was granted and should be performed. The notice contains all data for that."""

    petition_id: str
    assignment_id: str = msgspec.field(name="taskId")
    kind: str
    body: dict[str, Any]
    # The idempotency key.
    key: str
    created_at: datetime
    # The petition is not performed after this time.
    expires_at: datetime | None = None
    # Globs of the mentions and commands to bots that the texts of the petition may contain. All others are disabled.
    commands: tuple[str, ...] = ()


class CheckRerunDue(_Notice, frozen=True, kw_only=True):
    """A check of a followed pull request was cancelled or timed out, and should be run again.

    `event_id` is the event that reported it, and `suite` the id of its suite, if it is known.
    """

    event_id: str
    repo: str
    check_id: int
    name: str
    suite: int | None
    is_job: bool


class PetitionSettled(_Notice, frozen=True, kw_only=True):
    """A petition has ended: it was performed or refused, or it failed permanently.

    `root` is the id of the assignment that requested it, or of the first assignment if that one continues another.
    """

    petition_id: str
    root: str


class PetitionsDue(_Notice, frozen=True, kw_only=True):
    """The General should check the petitions of an assignment again.

    The petition `petition_id` may no longer have to wait for a person's answer or for earlier petitions.
    """

    petition_id: str
    root: str


# The King reads outside events and the results of assignments from these streams.
EVENT_STREAM = Stream(name="court.event", retry=_RETRY)
RESULT_STREAM = Stream(name="court.result", retry=_RETRY)
# Each General has its own stream.
ASSIGNMENT_STREAM = Stream(name="court.task.{general}", retry=_RETRY)
# Messages of one thread are sent in order. A message that cannot be sent does not block the others.
# The attempts last longer than an hour, in case Slack is unavailable.
MESSAGE_STREAM = Stream(
    name="court.message",
    ordered=True,
    on_dead="skip",
    retry=RetryPolicy(cap=timedelta(minutes=1), max_attempts=80),
)
# The attempts last longer than an hour and a half, in case of a rate limit.
PETITION_STREAM = Stream(
    name="court.petition",
    ordered=True,
    on_dead="skip",
    retry=RetryPolicy(cap=timedelta(minutes=5), max_attempts=30),
)
SETTLED_STREAM = Stream(name="court.settled", ordered=True, retry=_RETRY)

EXTERNAL_EVENT_RECEIVED = EventType(name="ExternalEventReceived", payload=ExternalEventReceived)
ASSIGNMENT_GIVEN = EventType(name="AssignmentGiven", payload=AssignmentGiven)
RETRY_DUE = EventType(name="RetryDue", payload=RetryDue)
# Stores of earlier versions contain events with this name.
SLOT_RELEASE_DUE = EventType(name="AssignmentRested", payload=SlotReleaseDue)
MESSAGE_QUEUED = EventType(name="MessageQueued", payload=MessageQueued)
# Each outside system has its own event type, and so its own effect with its own rate limit and circuit breaker.
PETITION_GRANTED = {
    "github": EventType(name="GithubPetitionGranted", payload=PetitionGranted),
    "jira": EventType(name="JiraPetitionGranted", payload=PetitionGranted),
}
CHECK_RERUN_DUE = EventType(name="CheckRerunDue", payload=CheckRerunDue)
PETITION_SETTLED = EventType(name="PetitionSettled", payload=PetitionSettled)
PETITIONS_DUE = EventType(name="PetitionsDue", payload=PetitionsDue)

STREAMS = (
    *workflow_streams.STREAMS,
    *(EVENT_STREAM, RESULT_STREAM, ASSIGNMENT_STREAM, MESSAGE_STREAM, PETITION_STREAM, SETTLED_STREAM),
)
TOPOLOGY = Topology(STREAMS)
# The streams that exist once. The others are families: each General, host or requester of runs has its own.
SINGLE_STREAMS = tuple(stream.name for stream in STREAMS if not stream.is_family)


def assignment_stream(general: str) -> str:
    """Return the name of a General's assignment stream."""
    return f"court.task.{general}"


def event_received(event_id: str) -> Envelope:
    """Return the notice to the King that an event waits."""
    return EXTERNAL_EVENT_RECEIVED.envelope(
        ExternalEventReceived(event_id=event_id),
        stream=EVENT_STREAM.name,
        aggregate_type="ExternalEvent",
        aggregate_id=event_id,
    )


def assignment_given(assignment_id: str, general: str) -> Envelope:
    """Return the notice to a General that an assignment waits."""
    return ASSIGNMENT_GIVEN.envelope(
        AssignmentGiven(assignment_id=assignment_id),
        stream=assignment_stream(general),
        aggregate_type="Assignment",
        aggregate_id=assignment_id,
    )


def retry_due(assignment_id: str, general: str) -> Envelope:
    """Return the notice to a General that an assignment should be retried."""
    return RETRY_DUE.envelope(
        RetryDue(assignment_id=assignment_id),
        stream=assignment_stream(general),
        aggregate_type="Assignment",
        aggregate_id=assignment_id,
    )


def slot_release_due(assignment_id: str) -> Envelope:
    """Return the notice to the King that an assignment has ended or waits, so its slots can be released."""
    return SLOT_RELEASE_DUE.envelope(
        SlotReleaseDue(assignment_id=assignment_id),
        stream=RESULT_STREAM.name,
        aggregate_type="Assignment",
        aggregate_id=assignment_id,
    )


def message_queued(message_id: str, thread: str) -> Envelope:
    """Return the notice to the Envoy that a message waits. Messages of one thread stay in order."""
    return MESSAGE_QUEUED.envelope(
        MessageQueued(message_id=message_id),
        stream=MESSAGE_STREAM.name,
        partition_key=thread,
        aggregate_type="Message",
        aggregate_id=message_id,
    )


def petition_granted(granted: PetitionGranted) -> Envelope:
    """Return the notice that a petition should be performed. Petitions of one assignment stay in order."""
    return PETITION_GRANTED[granted.kind.partition(".")[0]].envelope(
        granted,
        stream=PETITION_STREAM.name,
        partition_key=granted.assignment_id,
        aggregate_type="Petition",
        aggregate_id=granted.petition_id,
    )


def check_rerun_due(event_id: str, repo: str, check: Mapping[str, Any]) -> Envelope:
    """Return the notice that a check should be run again."""
    return CHECK_RERUN_DUE.envelope(
        CheckRerunDue(
            event_id=event_id,
            repo=repo,
            check_id=check["id"],
            name=check["name"],
            suite=check["suite"],
            is_job=check["is_job"],
        ),
        stream=PETITION_STREAM.name,
        partition_key=f"{repo}/{check['id']}",
        aggregate_type="ExternalEvent",
        aggregate_id=event_id,
    )


def petition_settled(petition_id: str, root: str) -> Envelope:
    """Return the notice to a General that a petition has ended."""
    return PETITION_SETTLED.envelope(
        PetitionSettled(petition_id=petition_id, root=root),
        stream=SETTLED_STREAM.name,
        partition_key=root,
        aggregate_type="Petition",
        aggregate_id=petition_id,
    )


def petitions_due(petition_id: str, root: str) -> Envelope:
    """Return the notice to a General to check the petitions of an assignment again."""
    return PETITIONS_DUE.envelope(
        PetitionsDue(petition_id=petition_id, root=root),
        stream=SETTLED_STREAM.name,
        partition_key=root,
        aggregate_type="Petition",
        aggregate_id=petition_id,
    )
