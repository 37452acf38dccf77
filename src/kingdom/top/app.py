"""The Textual application of `kingdom top`."""

from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.screen import Screen

from kingdom.top.dashboard import Dashboard
from kingdom.top.run_views import RunViews
from kingdom.top.store_client import StoreClient


class Top(App[None]):
    """Shows the dashboard and reads the store again every `every` seconds."""

    TITLE = "kingdom top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "quit", "quit", show=False, priority=True)]

    def __init__(self, client: StoreClient, views: RunViews, *, every: float = 1.0) -> None:
        super().__init__()
        # Animations would distract, because the screen changes every second.
        self.animation_level = "none"
        self._client = client
        self._views = views
        self._every = every

    def get_default_screen(self) -> Screen[None]:
        """Return the dashboard."""
        return Dashboard(self._client, self._views, self._every)
