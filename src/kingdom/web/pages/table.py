"""The table of pages: every address for browsers, its right and its function."""

from collections.abc import Awaitable, Callable
from typing import Any

from kingdom.access.rights import Right
from kingdom.web.api.transcripts import DiffQuery
from kingdom.web.pages import diffs, inbox, overview, sign_in
from kingdom.web.pages.assets import ASSETS
from kingdom.web.route import ApiCall, ApiRoute, PageQuery


def _page(path: str, run: Callable[[ApiCall], Awaitable[Any]], query: Any = None) -> ApiRoute:
    return ApiRoute(method="GET", path=path, right=Right.LOOK, run=run, result=None, query=query, media="text/html")


PAGES: tuple[ApiRoute, ...] = (
    _page("/", overview.show_overview),
    _page("/inbox", inbox.show_inbox, PageQuery),
    _page("/runs/{id}/diff", diffs.show_diff, DiffQuery),
)
OPEN_PAGES = {"/sign-in": sign_in.show_sign_in, **ASSETS}
