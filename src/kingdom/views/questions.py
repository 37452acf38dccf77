"""Questions for people, and their answers."""

from datetime import datetime

import msgspec


class OpenQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A question that waits for a person.

    `about` describes the event behind it, `digest` is a digest of what the person sees, `answer` is an answer that the
    King has not processed yet, and `petition_id` is the petition to approve.
    """

    task_id: str
    general: str
    about: str
    question: str
    choices: tuple[str, ...]
    people: tuple[str, ...]
    asked_at: datetime
    due_at: datetime
    default: str
    digest: str
    answer: str | msgspec.UnsetType = msgspec.UNSET
    petition_id: str | msgspec.UnsetType = msgspec.UNSET


class AnswerResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answered question, and the event that carries the answer."""

    task_id: str
    event_id: str
    question: str
