"""The timeline for people, and its JSON shape for programs. A prompt to an agent is called a query in the JSON."""

from datetime import datetime
from enum import StrEnum

import msgspec

from kingdom.court.followups.summary import FollowupSummary


class MomentKind(StrEnum):
    """The kind of a moment."""

    EVENT = "event"
    DECISION = "decision"
    RUN = "run"
    WORK = "work"
    QUERY = "query"
    QUESTION = "question"
    ANSWER = "answer"
    PETITION = "petition"
    EFFECT = "effect"
    CHECKPOINT = "checkpoint"
    RETRY = "retry"
    FAILURE = "failure"
    CRASH = "crash"
    RECOVERY = "recovery"
    LATE = "late"
    RESULT = "result"


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened: who did what, and why. `strand` is empty if it belongs to no single strand."""

    at: datetime
    kind: MomentKind
    who: str
    what: str
    why: str = ""
    strand: str = ""
    work_id: str = ""
    seconds: float | None = None
    cost_usd: float | None = None


class QueryOutcome(StrEnum):
    """How a prompt ended. `open` means that its end is not known yet."""

    OPEN = "open"
    ANSWERED = "answered"
    ASKED = "asked"
    FAILED = "failed"
    LOST = "lost"


class QuerySpan(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt to an agent. A `lost` prompt was interrupted; `reconciled` is what its transcript showed later."""

    task_id: str
    attempt: int
    sent_at: datetime
    ended_at: datetime | None = None
    outcome: QueryOutcome = QueryOutcome.OPEN
    reconciled: str = ""
    error: str = ""
    cost_usd: float = 0.0

    @property
    def seconds(self) -> float | None:
        """Return how long it took, if its end is known."""
        return seconds_between(self.sent_at, self.ended_at)


class WorkSpan(msgspec.Struct, frozen=True, kw_only=True):
    """One Work, from its first start to its last end. `busy_seconds` is the time its prompts took."""

    id: str
    name: str
    status: str
    started_at: datetime | None = None
    ended_at: datetime | None = None
    seconds: float | None = None
    busy_seconds: float = 0.0
    cost_usd: float = 0.0
    queries: tuple[QuerySpan, ...] = ()


class QuestionSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A question to people, and its answer if there is one."""

    question: str
    asked_at: datetime
    answered_at: datetime | None = None
    answer: str = ""
    answered_by: str = ""
    seconds: float | None = None


class EffectAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One call to an outside system, from the ledger."""

    number: int
    state: str
    sent_at: datetime | None = None
    note: str = ""


class PetitionOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A petition and the calls made for it."""

    id: str
    kind: str
    target: str
    state: str
    reason: str = ""
    attempts: tuple[EffectAttempt, ...] = ()


class Strand(msgspec.Struct, frozen=True, kw_only=True):
    """One assignment with its run, or a run that a person started. `id` is the assignment, or else the run.

    `followups` are the pull requests that it opened or worked on and that were followed afterwards.
    """

    id: str
    general: str = ""
    rule: str = ""
    priority: str = ""
    resumed_as: tuple[str, ...] = ()
    workflow_id: str = ""
    status: str
    reason: str = ""
    summary: str = ""
    waited_seconds: float | None = None
    begun_at: datetime | None = None
    ended_at: datetime | None = None
    cost_usd: float = 0.0
    works: tuple[WorkSpan, ...] = ()
    questions: tuple[QuestionSpan, ...] = ()
    outputs: tuple[PetitionOutput, ...] = ()
    followups: tuple[FollowupSummary, ...] = ()


class EventOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """The event that caused the strands."""

    id: str
    type: str
    source: str
    repo: str | None = None
    subject: str = ""
    priority: str = ""
    created_at: datetime | None = None
    status: str = ""
    outcome: str = ""
    reason: str = ""


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """The whole timeline, with moments in order. `missing` lists what the store no longer has."""

    about: str
    event: EventOrigin | None
    status: str
    begun_at: datetime | None
    ended_at: datetime | None
    seconds: float | None
    cost_usd: float
    crashes: int
    retries: int
    strands: tuple[Strand, ...]
    moments: tuple[Moment, ...]
    missing: tuple[str, ...] = ()


def seconds_between(begun: datetime | None, ended: datetime | None) -> float | None:
    """Return how long something took. It is never negative, even if the clocks of two machines differ."""
    return max((ended - begun).total_seconds(), 0.0) if begun and ended else None
