"""Parameters of statements arrive in PostgreSQL as they were given."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.integration.running import open_bus, stream

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("text", 'a "quoted" \\ {text}, NULL\n'),
        ("text", ""),
        ("text", None),
        ("bigint", -(2**62)),
        ("boolean", False),
        ("uuid", UUID(int=7)),
        ("timestamptz", NOON),
        ("interval", timedelta(days=2, microseconds=1)),
        ("text[]", ["", "null", 'a "b"\\', "{1,2}", " c ", None]),
        ("text[]", [None, "a"]),
        ("bigint[]", [1, -2, None]),
        ("boolean[]", [True, False]),
        ("timestamptz[]", [None, NOON]),
        ("text[]", []),
    ],
)
async def test_a_parameter_arrives_as_it_was_given(dsn: str, kind: str, value: Any) -> None:
    async with open_bus(dsn, stream("jobs", "Job")) as bus, bus.pool.connection() as connection:
        (rows,) = await connection.fetch((f"SELECT %(value)s::{kind} AS value", {"value": value}))
    assert rows == [{"value": value}]
