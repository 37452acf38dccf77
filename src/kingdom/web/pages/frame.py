"""The frame of every page: the visitor, the cursor of the live stream, the navigation, and the templates."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from typing import Any

from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from kingdom.bus.log import LogCursor
from kingdom.bus.port import Transaction
from kingdom.bus.record import RecordQuery
from kingdom.court.chamberlain.health import describe_reason
from kingdom.court.status import OPEN_QUESTIONS
from kingdom.text import with_noun
from kingdom.web.pages import wording
from kingdom.web.pages.assets import asset_url
from kingdom.web.pages.chart import steps_path
from kingdom.web.route import ApiCall

# The pages in the navigation: address, name, and whether a phone shows it in the bar at the bottom.
NAVIGATION: tuple[tuple[str, str, bool], ...] = (
    ("/", "Overview", True),
    ("/inbox", "Inbox", True),
    ("/runs", "Runs", True),
    ("/events", "Events", False),
    ("/bus", "Bus", False),
    ("/generals", "Generals", False),
    ("/costs", "Costs", False),
    ("/hosts", "Hosts", False),
)
_COMPRESSED_FROM = 2048
# The navigation counts up to this number.
_COUNTED_MAX = 100
_OPEN_QUESTIONS = replace(OPEN_QUESTIONS, limit=_COUNTED_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFrame:
    """A page that is being built. `cursor` was read before everything else, so the live stream misses nothing."""

    call: ApiCall
    transaction: Transaction
    cursor: LogCursor
    now: datetime
    open_questions: int
    here: str

    def render(self, template: str, /, **values: Any) -> web.Response:
        """Return the page."""
        return html_response(
            template,
            visitor=self.call.visitor,
            now=self.now,
            open_questions=self.open_questions if self.open_questions < _COUNTED_MAX else f"{_COUNTED_MAX - 1}+",
            here=self.here,
            cursor=str(self.cursor),
            **values,
        )


@asynccontextmanager
async def open_page(
    call: ApiCall, here: str, queries: Sequence[RecordQuery] = (), *, cursor: LogCursor | None = None
) -> AsyncIterator[PageFrame]:
    """Begin a page: read the cursor, open a transaction, and run the queries of the page with those of the frame.

    `here` is the address in the navigation that the page belongs to. A page that needs the operations of the bus
    reads the cursor, and then what it needs from them, before it calls this function. Otherwise each request would hold
    two connections of the pool.
    """
    cursor = cursor or await call.context.operations.log_end()
    async with call.context.bus.transaction() as transaction:
        await transaction.find_ahead([_OPEN_QUESTIONS, *queries])
        open_questions = len(await transaction.find(_OPEN_QUESTIONS))
        now = call.context.clock()
        yield PageFrame(
            call=call, transaction=transaction, cursor=cursor, now=now, open_questions=open_questions, here=here
        )


def html_response(template: str, /, *, http_status: int = 200, **values: Any) -> web.Response:
    """Render a template as a response."""
    text = render(template, **values)
    response = web.Response(status=http_status, text=text, content_type="text/html", charset="utf-8")
    if len(text) >= _COMPRESSED_FROM:
        response.enable_compression()
    return response


def render(template: str, /, **values: Any) -> str:
    """Render a template. Text is escaped, and characters that could hide something are made visible."""
    return _environment().get_template(template).render(values)


def render_part(macro: str, /, *values: Any) -> Markup:
    """Render a part of a page, which is a macro in parts.html."""
    return Markup(getattr(_environment().get_template("parts.html").module, macro)(*values))  # noqa: S704 - escaped


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("kingdom.web"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        finalize=wording.visible,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    names = ("money", "span", "ago", "left", "since", "clock", "may", "state_of", "coded", "unbroken")
    environment.globals |= {name: getattr(wording, name) for name in names}
    environment.globals |= {"asset": asset_url, "navigation": NAVIGATION, "health_reason": describe_reason}
    environment.globals |= {"count": with_noun, "steps_path": steps_path}
    return environment
