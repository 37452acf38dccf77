"""Who does something, when, and what it is done to."""

from dataclasses import dataclass
from typing import Any

from aiohttp import web

from kingdom.standins.book import Book
from kingdom.standins.github.api import base_of, not_found, stamp
from kingdom.standins.github.bodies import Bodies
from kingdom.standins.server import BOOK


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """Somebody does something at a time; `reason` overrides why our user is told of it."""

    application: web.Application
    base: str
    by: str
    at: str
    reason: str | None = None

    @property
    def book(self) -> Book:
        """Return where it is kept."""
        return self.application[BOOK]

    @property
    def bodies(self) -> Bodies:
        """Return what is kept in the words of the API."""
        return Bodies(self.book.state, self.base)


def ours(request: web.Request) -> Happening:
    """Return what our user does now, by the API."""
    login = request.app[BOOK].state["login"]
    return Happening(application=request.app, base=base_of(request), by=login, at=stamp())


def find(state: dict[str, Any], repository: str, number: int | str, *, pull: bool = False) -> dict[str, Any]:
    """Return an issue or a pull request; with `pull` only the latter."""
    found: dict[str, Any] | None = state["issues"].get(repository, {}).get(str(number))
    if found is None or (pull and not found["pull"]):
        raise not_found()
    return found
