"""Searching: one page of the tickets that a query finds, and the token for the next one."""

import base64
import functools
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from kingdom.standins.jira.query import BadQuery, Condition, Sort, comparisons, holds, parse
from kingdom.standins.jira.tickets import CATEGORIES, ISSUE_TYPES, STATUSES

UNBOUNDED = "Unbounded JQL queries are not allowed here. Please add a search restriction to your query."
# Without an order of its own a query finds the newest first.
USUAL_ORDER = (Sort("created", descending=True),)


class Bookmark(msgspec.Struct, frozen=True):
    """Behind which ticket of an order a page ended, by the place that the ticket had then."""

    order: tuple[Sort, ...]
    place: list[Any]


class SearchRequest(msgspec.Struct, frozen=True, rename="camel"):
    """What a search may ask; `reconcile_issues` are the ids of tickets that must not be out of date."""

    jql: str | None = None
    next_page_token: str | None = None
    max_results: int = 50
    fields: tuple[str, ...] = ()
    expand: str | None = None
    reconcile_issues: tuple[int, ...] = ()


def find(
    state: dict[str, Any], asked: SearchRequest, *, me: str, limit: int
) -> tuple[list[dict[str, Any]], str | None]:
    """Return a page of tickets, and the token of the next page unless this is the last one.

    A token is a place in the order and not a count: a ticket that changes between two pages is found where it went.
    While the search lags behind, tickets are found by what they were, and shown as they are.
    """
    query = parse(asked.jql or "", me=me, now=datetime.now(UTC))
    if query.where is None:
        raise BadQuery(UNBOUNDED)
    _refuse_unknown_values(query.where, state)
    order = query.order or USUAL_ORDER
    tickets = [ticket for ticket in _indexed(state, asked.reconcile_issues) if holds(query.where, ticket)]
    if asked.next_page_token:
        behind = _opened(asked.next_page_token, order)
        tickets = [ticket for ticket in tickets if _compare(order, _place(ticket, order), behind) > 0]
    compare = functools.partial(_compare, order)
    tickets.sort(key=lambda ticket: functools.cmp_to_key(compare)(_place(ticket, order)))
    page = tickets[:limit]
    shown = [state["tickets"][ticket["key"]] for ticket in page]
    return shown, _token(page[-1], order) if len(tickets) > limit else None


def _indexed(state: dict[str, Any], current: Sequence[int]) -> list[dict[str, Any]]:
    if state["indexed"] is None:
        return list(state["tickets"].values())
    fresh = {key: ticket for key, ticket in state["tickets"].items() if int(ticket["id"]) in current}
    return list({**state["indexed"], **fresh}.values())


def _refuse_unknown_values(where: Condition, state: dict[str, Any]) -> None:
    categories = [name for key, category in CATEGORIES.items() for name in (key, category["name"])]
    known: dict[str, Iterable[str]] = {
        "project": state["projects"],
        "status": STATUSES,
        "statuscategory": categories,
        "issuetype": ISSUE_TYPES,
        "key": state["tickets"],
    }
    for comparison in comparisons(where):
        names = {name.lower() for name in known.get(comparison.field, ())}
        for value in comparison.values:
            if value is None or comparison.field not in known or value.lower() in names:
                continue
            if comparison.field == "key":
                raise BadQuery(f"An issue with key '{value}' does not exist for field 'key'.")
            raise BadQuery(f"The value '{value}' does not exist for the field '{comparison.field}'.")


def _place(ticket: dict[str, Any], order: Sequence[Sort]) -> list[Any]:
    project, _, number = ticket["key"].rpartition("-")
    values = {"created": ticket["created"], "updated": ticket["updated"], "key": [project, int(number)]}
    # The id decides between equals, the newest first: pages need one order.
    return [*(values[field] for field, _ in order), -int(ticket["id"])]


def _compare(order: Sequence[Sort], one: list[Any], other: list[Any]) -> int:
    directions = (*(-1 if descending else 1 for _, descending in order), 1)
    for direction, here, there in zip(directions, one, other, strict=True):
        if here != there:
            return direction if here > there else -direction
    return 0


def _token(last: dict[str, Any], order: tuple[Sort, ...]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(Bookmark(order, _place(last, order)))).decode()


def _opened(token: str, order: tuple[Sort, ...]) -> list[Any]:
    try:
        bookmark = msgspec.json.decode(base64.urlsafe_b64decode(token), type=Bookmark)
    except ValueError:
        bookmark = None
    if bookmark is None or bookmark.order != order:
        raise BadQuery("The provided next page token is invalid or expired.")
    return bookmark.place
