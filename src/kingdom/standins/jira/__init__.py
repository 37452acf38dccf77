"""A local server that behaves like Jira Cloud: search by JQL, tickets, comments, transitions."""

from pathlib import Path

from aiohttp import web

from kingdom.standins.book import Book
from kingdom.standins.jira import control, interface
from kingdom.standins.jira.tickets import introduce, nothing
from kingdom.standins.server import new_application

EMAIL = "kingdom@example.com"
TOKEN = "a-jira-token"  # noqa: S105 - opens nothing but a stand-in
ACCOUNT_ID = "712020:kingdom"


def jira(state: Path, *, email: str = EMAIL, token: str = TOKEN) -> web.Application:
    """Return a Jira that keeps what it knows in a file and lets one account in."""
    book = Book(state, nothing())
    if book.state["users"].get(ACCOUNT_ID, {}).get("emailAddress") != email:
        with book.change():
            introduce(book, ACCOUNT_ID, "Kingdom", email)
    application = new_application(book)
    application[interface.ACCOUNT] = interface.Account(ACCOUNT_ID, email, token)
    interface.add_routes(application)
    control.add_routes(application)
    return application
