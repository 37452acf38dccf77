"""The shape of what commands print with --json: each declares it, so that it stands in one place for everybody."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from types import GenericAlias
from typing import Any, get_type_hints

import msgspec


class Form(StrEnum):
    """How many documents a command prints, and where."""

    ONE = "one document"
    ARRAY = "one array"
    LINES = "one document per line"
    LOG = "one document per line, on standard error"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command prints with --json; of an array `kind` is the type of what stands in it."""

    form: Form
    kind: Any

    @property
    def document(self) -> Any:
        """Return the type of a whole line."""
        return GenericAlias(list, (self.kind,)) if self.form is Form.ARRAY else self.kind


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a log; it has further fields, as many as there is to say."""

    at: datetime
    level: str
    event: str


def one(kind: Any) -> Answer:
    """Declare one document."""
    return Answer(Form.ONE, kind)


def array(kind: Any) -> Answer:
    """Declare one array of such documents, which may be empty."""
    return Answer(Form.ARRAY, kind)


def lines(kind: Any) -> Answer:
    """Declare any number of documents, each on a line of its own."""
    return Answer(Form.LINES, kind)


LOG_LINES = Answer(Form.LOG, LogLine)


def camel(kind: type[Any], name: str = "", *, without: tuple[str, ...] = (), **more: Any) -> type[msgspec.Struct]:
    """Return the type of a dataclass as `output.shape` prints it, under another name if it has less or more."""
    hints = get_type_hints(kind)
    own = [(each.name, hints[each.name]) for each in fields(kind) if each.name not in without]
    return msgspec.defstruct(
        name or kind.__name__,
        [*more.items(), *own],
        rename="camel",
        namespace={"__doc__": kind.__doc__},
        module=kind.__module__,
    )


def answer_of(run: Callable[..., Any]) -> Answer | None:
    """Return what the function behind a command has declared, if it can answer in JSON at all."""
    return getattr(run, "answer", None)
