"""Make untrusted text safe to store: limit its length and check its form. Pure functions."""

import re
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from kingdom.errors import MalformedEvent
from kingdom.workflow.model.resources.git import REPOSITORY

# The numbers of characters that are kept.
TITLE_MAX = 500
TEXT_MAX = 20_000
URL_MAX = 2_000
NAME_MAX = 100
_YEARS = range(2000, 2200)
_T = TypeVar("_T", bound=msgspec.Struct)


def convert_untrusted(document: Any, kind: type[_T]) -> _T:
    """Convert a document to a type, or raise MalformedEvent. The error does not quote the document."""
    try:
        return msgspec.convert(document, kind)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise MalformedEvent(
            f"this is not a valid {kind.__name__.lstrip('_')}: {clean_text(str(error), TITLE_MAX)}"
        ) from error


def clean_text(text: str | None, most: int) -> str:
    """Return at most `most` characters of a text, in a form that every store can keep."""
    kept = (text or "")[:most].encode("utf-8", "replace").decode()
    return kept.replace("\x00", "\N{REPLACEMENT CHARACTER}")


def parse_time(text: str) -> datetime:
    """Return a time in UTC, or raise MalformedEvent. A time without a zone is malformed."""
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo is None or at.year not in _YEARS:
            raise MalformedEvent("this is not a time with a zone")
        return at.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise MalformedEvent("this is not a time with a zone") from error


def time_stamp(at: datetime) -> str:
    """Return a time as it is written in ids: YYYYMMDDHHMMSS in UTC."""
    return at.astimezone(UTC).strftime("%Y%m%d%H%M%S")


def repository_name(name: str) -> str:
    """Check the full name of a repository, because it becomes a part of paths and URLs. Return the name."""
    if not re.fullmatch(REPOSITORY, name):
        raise MalformedEvent("this is not a repository name")
    return name
