"""The program of the screen."""

from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.screen import Screen

from kingdom.top.board import Board
from kingdom.top.desk import Desk
from kingdom.top.readers import Readers


class Top(App[None]):
    """The board on a terminal, until somebody leaves it; it looks at the store again after so many seconds."""

    TITLE = "kingdom top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "quit", "quit", show=False, priority=True)]

    def __init__(self, desk: Desk, readers: Readers, *, every: float = 1.0) -> None:
        super().__init__()
        # Nothing moves but what changes.
        self.animation_level = "none"
        self._desk = desk
        self._readers = readers
        self._every = every

    def get_default_screen(self) -> Screen[None]:
        """Return the board."""
        return Board(self._desk, self._readers, self._every)
