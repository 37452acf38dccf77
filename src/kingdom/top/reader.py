"""A screen to read on: a document that is looked at again, or lines that are followed."""

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
from kingdom.top.dialogs import Help
from kingdom.top.readers import Read
from kingdom.top.rows import BAD
from kingdom.top.waiting import Alarm

_LINES_MAX = 5000


class Reader(Screen[None]):
    """Shows what is read under a title, again every so many seconds; what `grows` is added to what is there."""

    DEFAULT_CSS = """
    Reader > #title { height: 1; text-style: bold; }
    Reader > #trouble { height: auto; max-height: 3; }
    Reader > RichLog { height: 1fr; scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "back", "back", key_display="q"),
        Binding("u", "again", "look again"),
        Binding("question_mark", "help", "help", key_display="?"),
    ]

    def __init__(self, title: str, read: Read, *, every: float | None, grows: bool = False) -> None:
        super().__init__()
        self._heading = title
        self._read = read
        self._every = every
        self._grows = grows
        self._parts: deque[RenderableType] = deque(maxlen=_LINES_MAX)
        self._alarm = Alarm()
        self._follows = True
        self._seen_at = 0
        self._trouble = Static(id="trouble")
        self._log = RichLog(wrap=True, min_width=1, max_lines=_LINES_MAX * 4)

    def compose(self) -> ComposeResult:
        """See textual."""
        yield Static(Text(plain(self._heading)), id="title")
        yield self._trouble
        yield self._log
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """See textual."""
        self._log.focus()
        self.run_worker(self._watch())

    def on_resize(self, _: events.Resize) -> None:
        """Break the lines anew, once everything has its place."""
        self.call_after_refresh(self._write_all)

    def action_back(self) -> None:
        """Go back to the list."""
        self.dismiss()

    def action_again(self) -> None:
        """Look again at once."""
        self._alarm.ring()

    def action_help(self) -> None:
        """Show every key."""
        self.app.push_screen(Help.of(self))

    async def _watch(self) -> None:
        while self.is_attached:
            trouble = ""
            try:
                self._show(await self._read())
            except (KingdomError, OSError) as error:
                trouble = plain(error)
            self._trouble.update(Text(trouble, style=BAD))
            await self._alarm.wait(self._every)

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
        """Tell whether new lines shall be shown as they come: until a person goes up, and again from the end on.

        Lines that were just written may not be on the screen yet, so being away from the end alone tells nothing.
        """
        place = self._log.scroll_offset.y
        self._follows = self._log.is_vertical_scroll_end or (self._follows and place >= self._seen_at)
        self._seen_at = place
        return self._follows
