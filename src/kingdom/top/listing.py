"""A list of rows with a cursor. It draws only visible rows, so a thousand rows cost as much as ten."""

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from kingdom.top.rows import Column, PaneRow, fit_columns


class Listing(ScrollView, can_focus=True, inherit_bindings=False):
    """Rows below a line of column names. The cursor stays on its row when the rows change."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"listing--head", "listing--cursor"}
    DEFAULT_CSS = """
    Listing { height: 1fr; overflow-x: hidden; scrollbar-size-vertical: 1; }
    Listing > .listing--head { color: $text-muted; text-style: bold; }
    Listing > .listing--cursor { background: $primary; color: $text; text-style: bold; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("pageup", "page(-1)", "a page up", show=False),
        Binding("pagedown", "page(1)", "a page down", show=False),
        Binding("home,g", "move(-1000000)", "the first", show=False),
        Binding("end,G", "move(1000000)", "the last", show=False),
    ]

    class Moved(Message):
        """The cursor has moved to another row."""

    class Opened(Message):
        """The user opens the row under the cursor."""

    def __init__(self, columns: Sequence[Column], *, name: str) -> None:
        super().__init__(name=name)
        self._columns = columns
        self._rows: Sequence[PaneRow] = ()
        self._cursor = 0

    @property
    def row(self) -> PaneRow | None:
        """Return the row under the cursor."""
        return self._rows[self._cursor] if self._rows else None

    @property
    def rows(self) -> Sequence[PaneRow]:
        """Return all rows, including those that are not visible."""
        return self._rows

    def fill(self, rows: Sequence[PaneRow]) -> None:
        """Replace the rows."""
        before = self.row
        self._rows = rows
        keys = {row.key: number for number, row in enumerate(rows)}
        # If the row under the cursor is gone, the cursor keeps its position.
        at = keys.get(before.key, self._cursor) if before else 0
        moved = at - self._cursor
        self._cursor = min(max(at, 0), max(len(rows) - 1, 0))
        self.virtual_size = Size(self.size.width, len(rows) + 1)
        if moved and self.scroll_offset.y:
            self.scroll_to(y=self.scroll_offset.y + moved, animate=False)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Draw one line of the screen; the column names stay at the top."""
        width = self.scrollable_content_region.width
        widths = fit_columns(self._columns, width)
        if y == 0:
            style = self.get_component_rich_style("listing--head")
            return self._draw([(column.name, style) for column in self._columns], widths, width, style)
        number = self.scroll_offset.y + y - 1
        if number >= len(self._rows):
            return Strip.blank(width, self.rich_style)
        cells = self._rows[number].cells
        if number == self._cursor:
            style = self.get_component_rich_style("listing--cursor")
            return self._draw([(cell.text, style) for cell in cells], widths, width, style)
        base = self.rich_style
        return self._draw([(cell.text, base + Style.parse(cell.style)) for cell in cells], widths, width, base)

    def action_move(self, by: int) -> None:
        """Move the cursor by some rows, at most to the first or last row."""
        self._cursor = min(max(self._cursor + by, 0), max(len(self._rows) - 1, 0))
        top, height = self.scroll_offset.y, self._height
        if self._cursor < top:
            self.scroll_to(y=self._cursor, animate=False)
        elif self._cursor >= top + height:
            self.scroll_to(y=self._cursor - height + 1, animate=False)
        self.refresh()
        self.post_message(self.Moved())

    def action_page(self, by: int) -> None:
        """Move the cursor by some pages."""
        self.action_move(by * max(self._height - 1, 1))

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the clicked row; a double click opens it."""
        number = self.scroll_offset.y + event.y - 1
        if event.y and 0 <= number < len(self._rows):
            self.action_move(number - self._cursor)
            if event.chain > 1:
                self.post_message(self.Opened())

    @property
    def _height(self) -> int:
        return max(self.scrollable_content_region.height - 1, 1)

    def _draw(self, cells: Sequence[tuple[str, Style]], widths: Sequence[int], width: int, style: Style) -> Strip:
        segments = []
        for (text, cell_style), cell_width in zip(cells, widths, strict=True):
            segments += [Segment(_cut(text, cell_width), cell_style), Segment(" ", style)]
        return Strip(segments).adjust_cell_length(width, style)


def _cut(text: str, width: int) -> str:
    return set_cell_size(text, width - 1) + "…" if cell_len(text) > width else set_cell_size(text, width)
