"""The context of an action: the user, the time and the state."""

from dataclasses import dataclass
from typing import Any

from aiohttp import web

from kingdom.standins.github.api import base_of, caller_of, format_time, not_found
from kingdom.standins.github.bodies import GithubBodies
from kingdom.standins.server import STATE_FILE
from kingdom.standins.state_file import StateFile


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionContext:
    """The user `by` acts at the time `at`. `base` is the server's address in links.

    `reason` replaces the usual reason of our user's notification.
    """

    application: web.Application
    base: str
    by: str
    at: str
    reason: str | None = None

    @property
    def state_file(self) -> StateFile:
        """Return the state of the server."""
        return self.application[STATE_FILE]

    @property
    def bodies(self) -> GithubBodies:
        """Return the JSON documents of the state."""
        return GithubBodies(self.state_file.state, self.base)


def our_context(request: web.Request) -> ActionContext:
    """Return the context of a request of our user, or of our App."""
    by = caller_of(request).login
    return ActionContext(application=request.app, base=base_of(request), by=by, at=format_time())


def find_issue(state: dict[str, Any], repository: str, number: int | str, *, pull: bool = False) -> dict[str, Any]:
    """Return an issue or a pull request. With `pull`, an issue that is no pull request counts as missing."""
    found: dict[str, Any] | None = state["issues"].get(repository, {}).get(str(number))
    if found is None or (pull and not found["pull"]):
        raise not_found()
    return found
