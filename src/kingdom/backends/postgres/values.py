"""Write the values of parameters as PostgreSQL reads them. This module does no I/O."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg import DataError


def to_parameter(value: Any) -> str | None:
    """Return the text of a value. The statement decides its type."""
    match value:
        case None:
            return None
        case str():
            return _text(value)
        case bool():
            return "true" if value else "false"
        case int() | UUID():
            return str(value)
        case datetime():
            return value.isoformat()
        case timedelta():
            return f"{value.total_seconds():f} seconds"
        case list():
            return _array(value)
    raise TypeError(f"no parameter of a statement: {type(value).__name__}")


def _array(values: Sequence[Any]) -> str:
    return f"{{{','.join(map(_element, values))}}}"


def _element(value: Any) -> str:
    text = to_parameter(value)
    if text is None:
        return "NULL"
    if isinstance(value, str):
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return text


def _text(text: str) -> str:
    # libpq would silently cut the text there.
    if "\x00" in text:
        raise DataError("PostgreSQL cannot store a NUL character")
    return text
