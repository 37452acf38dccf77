"""What commands print with --json; each command declares it as a type."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from types import GenericAlias
from typing import Any

from kingdom.views.log_lines import LogLine


class JsonForm(StrEnum):
    """How many documents a command prints, and on which output."""

    ONE = "one document"
    ARRAY = "one array"
    LINES = "one document per line"
    LOG = "one document per line, on standard error"


@dataclass(frozen=True, slots=True)
class JsonResult:
    """What a command prints with --json. `kind` is the type of a document, or of the items of an array."""

    form: JsonForm
    kind: Any

    @property
    def document(self) -> Any:
        """Return the type of a printed document."""
        return GenericAlias(list, (self.kind,)) if self.form is JsonForm.ARRAY else self.kind


def one(kind: Any) -> JsonResult:
    """Declare one document."""
    return JsonResult(JsonForm.ONE, kind)


def array(kind: Any) -> JsonResult:
    """Declare one array of documents, which can be empty."""
    return JsonResult(JsonForm.ARRAY, kind)


def lines(kind: Any) -> JsonResult:
    """Declare any number of documents, one per line."""
    return JsonResult(JsonForm.LINES, kind)


LOG_LINES = JsonResult(JsonForm.LOG, LogLine)


def json_result_of(run: Callable[..., Any]) -> JsonResult | None:
    """Return what the function of a command prints with --json, or None."""
    return getattr(run, "json_result", None)
