"""The part of JQL that the Jira stand-in supports."""

from datetime import UTC, datetime
from typing import Any

import pytest

from kingdom.standins.jira.jql import JqlError, JqlOrder, JqlQuery, parse_jql

ME = "712020:me"
NOW = datetime(2026, 2, 7, 10, 0, 30, 500_000, tzinfo=UTC)


def ticket(**fields: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {"key": "QP-1", "project": "QP", "status": "To Do", "assignee": None}
    return {**usual, "updated": "2026-02-07T10:00:00.000+0000", **fields}


def read(jql: str) -> JqlQuery:
    return parse_jql(jql, me=ME, now=NOW)


def meets(jql: str, **fields: Any) -> bool:
    return all(condition.matches(ticket(**fields)) for condition in read(jql).conditions)


@pytest.mark.parametrize(
    "jql",
    [
        "project = QP",
        "PROJECT = qp",
        'status = "To Do"',
        "status = 'to do'",
        "key = QP-1",
        "(project = QP) AND updated >= -5m ORDER BY updated ASC",
        "((project = QP AND key = QP-1)) and status = 'To Do'",
    ],
)
def test_a_ticket_matches_the_query(jql: str) -> None:
    assert meets(jql)


@pytest.mark.parametrize("jql", ["project = NOPE", "project = QP AND status = Done", "assignee = currentUser()"])
def test_a_ticket_does_not_match_the_query(jql: str) -> None:
    assert not meets(jql)


def test_the_current_user_is_the_owner_of_the_token() -> None:
    assert meets("(assignee = currentUser()) AND updated >= -60m ORDER BY updated ASC", assignee=ME)
    assert meets(f'assignee = "{ME}"', assignee=ME)
    assert not meets("assignee = currentUser()", assignee="712020:other")


@pytest.mark.parametrize(
    ("period", "moment"),
    [
        ("-10m", "2026-02-07T09:50:30.500+0000"),
        ("-2h", "2026-02-07T08:00:30.500+0000"),
        ("-1d", "2026-02-06T10:00:30.500+0000"),
    ],
)
def test_relative_dates_count_from_now(period: str, moment: str) -> None:
    assert meets(f"updated >= {period}", updated=moment)
    assert not meets(f"updated >= {period}", updated=moment.replace(".500", ".499"))


@pytest.mark.parametrize(
    ("jql", "order"),
    [
        ("project = QP", JqlOrder("created", descending=True)),
        ("project = QP order by updated", JqlOrder("updated", descending=False)),
        ("project = QP ORDER BY key DESC", JqlOrder("key", descending=True)),
    ],
)
def test_the_order_is_one_field(jql: str, order: JqlOrder) -> None:
    assert read(jql).order == order


@pytest.mark.parametrize("jql", ["", "ORDER BY updated"])
def test_a_query_without_a_condition_is_refused(jql: str) -> None:
    with pytest.raises(JqlError, match="Unbounded JQL queries are not allowed here"):
        read(jql)


@pytest.mark.parametrize(
    "jql",
    [
        "project =",
        "project = QP OR key = QP-1",
        "NOT project = QP",
        "(project = QP",
        "project in (QP)",
        "labels = urgent",
        "status != Done",
        'updated > "2026-02-07 10:00"',
        "project = QP ORDER BY status",
        "nonsense ~~ (",
    ],
)
def test_an_unsupported_query_is_refused_with_the_supported_syntax(jql: str) -> None:
    with pytest.raises(
        JqlError, match=r"does not support the JQL '.+'\. The stand-in supports: assignee, key, project"
    ):
        read(jql)
