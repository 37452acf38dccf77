"""The part of JQL that the Jira stand-in understands."""

from datetime import UTC, datetime
from typing import Any

import pytest

from kingdom.standins.jira.query import BadQuery, Query, Sort, holds, parse

ME = "712020:me"
NOW = datetime(2026, 2, 7, 10, 0, 30, 500_000, tzinfo=UTC)


def ticket(**fields: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "key": "QP-1",
        "project": "QP",
        "issuetype": "Task",
        "status": "To Do",
        "assignee": None,
        "labels": [],
    }
    moments = {"created": "2026-02-07T09:00:00.000+0000", "updated": "2026-02-07T10:00:00.000+0000"}
    return {**usual, **moments, **fields}


def read(jql: str) -> Query:
    return parse(jql, me=ME, now=NOW)


def meets(jql: str, **fields: Any) -> bool:
    where = read(jql).where
    assert where is not None
    return holds(where, ticket(**fields))


@pytest.mark.parametrize(
    "jql",
    [
        "project = QP",
        "PROJECT = qp",
        'status = "To Do"',
        "status = 'to do'",
        "status != Done",
        "statusCategory != Done",
        'statusCategory in (new, "In Progress")',
        "type = Task AND issuetype in (Bug, Task)",
        "key in (QP-1, QP-2)",
        "issuekey = QP-1",
        "assignee is EMPTY",
        "assignee = EMPTY",
        "assignee in (currentUser(), EMPTY)",
        "labels is empty",
        "project = NOPE OR project = QP",
        "NOT project = NOPE",
        "project not in (NOPE, NEITHER)",
        "not (project = NOPE or status = Done)",
        "project = NOPE AND status = Done OR key = QP-1",
    ],
)
def test_a_ticket_meets(jql: str) -> None:
    assert meets(jql)


@pytest.mark.parametrize(
    "jql",
    [
        "project = NOPE",
        "project = QP AND status = Done",
        "project = NOPE AND (status = Done OR key = QP-1)",
        "NOT (project = QP)",
        "key not in (QP-1)",
        "assignee = currentUser()",
        "assignee is not EMPTY",
        "statusCategory = Done",
        "labels in (urgent)",
    ],
)
def test_a_ticket_does_not_meet(jql: str) -> None:
    assert not meets(jql)


def test_the_current_user_is_the_one_who_asks() -> None:
    assert meets("assignee = currentUser()", assignee=ME)
    assert meets(f'assignee in ("{ME}", other)', assignee=ME)
    assert not meets("assignee = currentUser()", assignee="712020:other")


@pytest.mark.parametrize("jql", ["assignee != currentUser()", "NOT assignee = currentUser()", "labels != urgent"])
def test_a_field_without_value_is_not_unequal_to_anything(jql: str) -> None:
    assert not meets(jql)
    assert meets(jql, assignee="712020:other", labels=["later"])


def test_one_label_of_several_is_enough() -> None:
    assert meets("labels = urgent", labels=["urgent", "later"])
    assert not meets("labels != urgent", labels=["urgent", "later"])


def test_dates_have_the_precision_of_a_minute_and_are_in_utc() -> None:
    updated = "2026-02-07T10:00:00.001+0000"
    assert meets('updated > "2026-02-07 10:00"', updated=updated)
    assert meets('updated >= "2026/02/07 10:00"', updated=updated)
    assert not meets('updated <= "2026-02-07 10:00"', updated=updated)
    assert not meets('updated >= "2026-02-07 10:01"', updated=updated)
    assert meets('updated < "2026-02-08"', updated=updated)
    assert not meets("NOT updated >= 2026-02-07", updated=updated)


@pytest.mark.parametrize(
    ("period", "moment"),
    [
        ("-10m", "2026-02-07T09:50:30.500+0000"),
        ("-2h", "2026-02-07T08:00:30.500+0000"),
        ("-1d", "2026-02-06T10:00:30.500+0000"),
        ("'-1w 1d'", "2026-01-30T10:00:30.500+0000"),
        ("now()", "2026-02-07T10:00:30.500+0000"),
    ],
)
def test_relative_dates_count_from_now(period: str, moment: str) -> None:
    assert meets(f"updated >= {period}", updated=moment)
    assert not meets(f"updated > {period}", updated=moment)


def test_the_order_is_read_field_by_field() -> None:
    order = read("project = QP order by updated DESC, key, created asc").order
    assert order == (Sort("updated", descending=True), Sort("key", descending=False), Sort("created", descending=False))


def test_an_order_alone_restricts_nothing() -> None:
    assert read("ORDER BY updated").where is None
    assert read("").where is None


def test_quoted_words_lose_their_meaning_and_keep_their_quotes() -> None:
    assert meets('project = "order"', project="order")
    assert meets(r'labels = "say \"no\""', labels=['say "no"'])


@pytest.mark.parametrize(
    ("jql", "complaint"),
    [
        ("project", "Expecting an operator before the end of the query"),
        ("project =", "Expecting either a value, list or function before the end of the query"),
        ("project = QP status = Done", "Expecting either 'OR' or 'AND' but got 'status'. (line 1, character 14)"),
        ("(project = QP", "Expecting ')' before the end of the query"),
        ("project in QP", "Expecting '(' but got 'QP'"),
        ("project not QP", "Expecting an operator but got 'QP'"),
        ("project = order", "'order' is a reserved JQL word"),
        ('project = "QP', "The quoted string 'QP' has not been completed"),
        ("project = Q.P", "The character '.' is a reserved JQL character"),
        ("color = red", "Field 'color' does not exist or you do not have permission to view it."),
        ("assignee = membersOf()", "Unable to find JQL function 'membersOf()'."),
        ("status > Done", "The operator '>' is not supported by the 'status' field."),
        ("updated in (now())", "The operator 'in' is not supported by the 'updated' field."),
        ("updated is now()", "The operator 'is' is not supported by the 'updated' field."),
        ("assignee is currentUser()", "Expecting 'EMPTY' or 'NULL' but got 'currentUser'"),
        ('updated > "2026-02-07T10:00:00Z"', "Date value '2026-02-07T10:00:00Z' for field 'updated' is invalid."),
        ('updated > "2026-02-07 10:00:00"', "Date value '2026-02-07 10:00:00' for field 'updated' is invalid."),
        ("project = QP order by status", "Not able to sort using field 'status'."),
        ("project = QP order updated", "Expecting 'by' but got 'updated'"),
    ],
)
def test_what_is_wrong_is_said_in_the_words_of_jira(jql: str, complaint: str) -> None:
    with pytest.raises(BadQuery) as refused:
        read(jql)
    assert complaint in str(refused.value)
