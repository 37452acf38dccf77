"""Search: one page of the tickets that match a query, and the token of the next page."""

import base64
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from kingdom.standins.jira.jql import JqlError, JqlOrder, JqlQuery, parse_jql
from kingdom.standins.jira.tickets import STATUSES


class PageToken(msgspec.Struct, frozen=True):
    """The sort key of the last ticket of a page, and the order of the query."""

    order: JqlOrder
    sort_key: list[Any]


class SearchRequest(msgspec.Struct, frozen=True, rename="camel"):
    """The parameters of a search. `reconcile_issues` are ids of tickets that must be up to date."""

    jql: str | None = None
    next_page_token: str | None = None
    max_results: int = 50
    fields: tuple[str, ...] = ()
    expand: str | None = None
    reconcile_issues: tuple[int, ...] = ()


def find_page(
    state: dict[str, Any], asked: SearchRequest, *, me: str, limit: int
) -> tuple[list[dict[str, Any]], str | None]:
    """Return a page of tickets, and the token of the next page, or None on the last page.

    A token contains a sort key and not a count, so a ticket that changes between two pages is found at its new place.
    A lagging search finds tickets by their old values, but shows their current values.
    """
    query = parse_jql(asked.jql or "", me=me, now=datetime.now(UTC))
    _refuse_unknown_values(query, state)
    tickets = [
        ticket
        for ticket in _indexed_tickets(state, asked.reconcile_issues)
        if all(condition.matches(ticket) for condition in query.conditions)
    ]
    # Sorting is stable, so tickets with equal values stay in the order of their ids, the newest first.
    tickets.sort(key=lambda ticket: int(ticket["id"]), reverse=True)
    tickets.sort(key=lambda ticket: _sort_value(ticket, query.order.field), reverse=query.order.descending)
    if asked.next_page_token:
        last = _read_token(asked.next_page_token, query.order)
        tickets = [ticket for ticket in tickets if _is_after(ticket, last, query.order)]
    page = tickets[:limit]
    shown = [state["tickets"][ticket["key"]] for ticket in page]
    return shown, _make_token(page[-1], query.order) if len(tickets) > limit else None


def _indexed_tickets(state: dict[str, Any], reconciled_ids: Sequence[int]) -> list[dict[str, Any]]:
    if state["indexed"] is None:
        return list(state["tickets"].values())
    fresh = {key: ticket for key, ticket in state["tickets"].items() if int(ticket["id"]) in reconciled_ids}
    return list({**state["indexed"], **fresh}.values())


def _refuse_unknown_values(query: JqlQuery, state: dict[str, Any]) -> None:
    known: dict[str, Iterable[str]] = {"project": state["projects"], "status": STATUSES, "key": state["tickets"]}
    for condition in query.conditions:
        names = {name.lower() for name in known.get(condition.field, ())}
        if condition.field not in known or condition.value.lower() in names:
            continue
        if condition.field == "key":
            raise JqlError(f"An issue with key '{condition.value}' does not exist for field 'key'.")
        raise JqlError(f"The value '{condition.value}' does not exist for the field '{condition.field}'.")


def _sort_value(ticket: dict[str, Any], field: str) -> Any:
    if field != "key":
        return ticket[field]
    project, _, number = ticket["key"].rpartition("-")
    return [project, int(number)]


def _is_after(ticket: dict[str, Any], last: list[Any], order: JqlOrder) -> bool:
    value, number = _sort_value(ticket, order.field), int(ticket["id"])
    last_value, last_number = last
    if value != last_value:
        return bool(value < last_value) if order.descending else bool(value > last_value)
    return bool(number < last_number)


def _make_token(last: dict[str, Any], order: JqlOrder) -> str:
    token = PageToken(order, [_sort_value(last, order.field), int(last["id"])])
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).decode()


def _read_token(text: str, order: JqlOrder) -> list[Any]:
    try:
        token = msgspec.json.decode(base64.urlsafe_b64decode(text), type=PageToken)
    except ValueError:
        token = None
    if token is None or token.order != order:
        raise JqlError("The provided next page token is invalid or expired.")
    return token.sort_key
