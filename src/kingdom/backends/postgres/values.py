"""Write the values of parameters as PostgreSQL reads them. This module does no I/O."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg import DataError


def to_parameter(value: Any) -> bytes | None:
    """Return a value as text in UTF-8. The statement decides its type."""
    # Most values are texts.
    if type(value) is str and "\x00" not in value:
        return value.encode()
    return None if value is None else _to_text(value).encode()


def _to_text(value: Any) -> str:
    match value:
        case str():
            # libpq would silently cut the text there.
            if "\x00" in value:
                raise DataError("PostgreSQL cannot store a NUL character")
            return value
        case bool():
            return "true" if value else "false"
        case int() | UUID():
            return str(value)
        case datetime():
            return value.isoformat()
        case timedelta():
            return f"{value.total_seconds():f} seconds"
        case list():
            return f"{{{','.join(map(_element, value))}}}"
    raise TypeError(f"a parameter of a statement cannot be a {type(value).__name__}")


def _element(value: Any) -> str:
    # The longest lists are positions.
    if type(value) is int:
        return str(value)
    if value is None:
        return "NULL"
    text = _to_text(value)
    if isinstance(value, str):
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return text
