"""The results of `kingdom bus` commands."""

from typing import Literal
from uuid import UUID

import msgspec

from kingdom.bus.log import LogEntry
from kingdom.bus.operations import Pin, RetentionReport, Situation, StreamStats
from kingdom.bus.throughput import StreamThroughput
from kingdom.views.camel import camel_case_struct


class MigrationResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The migrations that were applied to a schema, or would be with --dry-run."""

    schema: str
    dry_run: bool
    migrations: list[str]


class PauseResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A paused stream, with the reason and the actor."""

    stream: str
    reason: str
    actor: str


class ResumeResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A resumed stream, and whether it was paused before."""

    stream: str
    was_paused: bool


class CancelResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An event that was cancelled, or whose worker was asked to cancel it."""

    event_id: UUID
    stream: str
    result: Literal["cancelled", "requested"]


class PublishResult(msgspec.Struct, frozen=True, rename="camel"):
    """The streams that stored an event, and in `duplicates` the streams that already had it."""

    event_id: UUID
    type: str
    streams: tuple[str, ...]
    duplicates: tuple[str, ...]


class ListedFault(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An injected fault, and the seconds between the first action and the fault."""

    at_seconds: float
    kind: str
    detail: str


class VerifyResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The result of a verification. `events`, `actions` and `findings` are counts by name."""

    ok: bool
    seed: int
    seconds: float
    drained_seconds: float
    events: dict[str, int]
    actions: dict[str, int]
    faults: list[ListedFault]
    findings: dict[str, int]
    details: list[str]


StreamStatsView = camel_case_struct(StreamStats)
StreamThroughputView = camel_case_struct(StreamThroughput)
ExplainedSituation = camel_case_struct(Situation, "ExplainedSituation", why=str)
RetentionResult = camel_case_struct(RetentionReport)
PinView = camel_case_struct(Pin)
LogEntryView = camel_case_struct(LogEntry)
LoggedEntryView = camel_case_struct(LogEntry, "LoggedEntry", cursor=str)
