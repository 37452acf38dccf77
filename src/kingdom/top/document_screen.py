"""A screen for one document, which is read again periodically, or to which new lines are appended."""

from collections import deque
from collections.abc import Sequence
from typing import ClassVar

from rich.console import RenderableType
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Footer, RichLog, Static

from kingdom.errors import KingdomError
from kingdom.text import plain
from kingdom.top.dialogs import HelpDialog
from kingdom.top.refresh_timer import RefreshTimer
from kingdom.top.rows import BAD
from kingdom.top.run_views import ReadContent

_LINES_MAX = 5000


class DocumentScreen(Screen[None]):
    """Shows a document under a title. It is read again every `every` seconds, or for None only when the user asks.

    With `grows`, `read` returns only new lines, which are appended.
    """

    DEFAULT_CSS = """
    DocumentScreen > #title { height: 1; text-style: bold; }
    DocumentScreen > #error { height: auto; max-height: 3; }
    DocumentScreen > RichLog { height: 1fr; scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "back", "back", key_display="q"),
        Binding("u", "refresh_now", "refresh"),
        Binding("question_mark", "help", "help", key_display="?"),
    ]

    def __init__(self, title: str, read: ReadContent, *, every: float | None, grows: bool = False) -> None:
        super().__init__()
        self._heading = title
        self._read = read
        self._every = every
        self._grows = grows
        self._parts: deque[RenderableType] = deque(maxlen=_LINES_MAX)
        self._timer = RefreshTimer()
        self._follows = True
        self._seen_at = 0
        self._error = Static(id="error")
        self._log = RichLog(wrap=True, min_width=1, max_lines=_LINES_MAX * 4)

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        yield Static(Text(plain(self._heading)), id="title")
        yield self._error
        yield self._log
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Start refreshing."""
        self._log.focus()
        self.run_worker(self._refresh_forever())

    def on_resize(self, _: events.Resize) -> None:
        """Wrap the lines again after the layout has changed."""
        self.call_after_refresh(self._write_all)

    def action_back(self) -> None:
        """Go back to the list."""
        self.dismiss()

    def action_refresh_now(self) -> None:
        """Refresh at once."""
        self._timer.trigger()

    def action_help(self) -> None:
        """Show every key."""
        self.app.push_screen(HelpDialog.of(self))

    async def _refresh_forever(self) -> None:
        while self.is_attached:
            message = ""
            try:
                self._show(await self._read())
            except (KingdomError, OSError) as error:
                message = plain(error)
            self._error.update(Text(message, style=BAD))
            await self._timer.wait(self._every)

    def _show(self, parts: Sequence[RenderableType]) -> None:
        if not self._grows:
            self._parts = deque(parts, maxlen=_LINES_MAX)
            self._write_all()
            return
        follows = self._is_followed()
        self._parts.extend(parts)
        for part in parts:
            self._log.write(part, width=self._log.scrollable_content_region.width, scroll_end=follows)

    def _write_all(self) -> None:
        log = self._log
        place, follows = log.scroll_offset.y, self._grows and self._is_followed()
        log.clear()
        for part in self._parts:
            log.write(part, width=log.scrollable_content_region.width, scroll_end=follows)
        self._seen_at = 0
        if not follows:
            log.scroll_to(y=place, animate=False)

    def _is_followed(self) -> bool:
        """Return whether to scroll to new lines. This stops when the user scrolls up, and starts again at the end.

        New lines may not be drawn yet, so a position before the end does not mean that the user has scrolled up.
        """
        place = self._log.scroll_offset.y
        self._follows = self._log.is_vertical_scroll_end or (self._follows and place >= self._seen_at)
        self._seen_at = place
        return self._follows
