"""A test user of `kingdom top`: the application runs without a terminal and gets key presses."""

import time
import unicodedata
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.color_triplet import ColorTriplet
from textual import events
from textual.pilot import Pilot
from textual.strip import Strip

from kingdom.actions.status import status_sources_of
from kingdom.bus import Bus
from kingdom.cli.top.commands import run_views_of
from kingdom.court.status import StatusSources
from kingdom.realm import Realm
from kingdom.roles import declare_application
from kingdom.settings import Settings
from kingdom.top.app import Top
from kingdom.top.dashboard import Dashboard
from kingdom.top.listing import Listing
from kingdom.top.rows import PaneRow
from kingdom.top.store_client import StoreClient
from tests.contract.backends import BackendUnderTest
from tests.patience import PATIENCE_SECONDS

ANNA = "anna@desk"
_CHARACTERS = {"slash": "/", "question_mark": "?", "space": " "}
# How many rounds of the event loop pass between a key press and the next screen.
_ROUNDS = 4
_EVERY_SECONDS = 0.2
_LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class TopUser:
    """A user of the screen."""

    app: Top
    pilot: Pilot[None]
    bus: Bus

    @property
    def text(self) -> str:
        """Return the text on the screen."""
        return "\n".join(strip.text for strip in self._strips)

    @property
    def colors(self) -> set[ColorTriplet]:
        """Return every color on the screen."""
        styles = [segment.style for strip in self._strips for segment in strip if segment.style]
        return {colour.get_truecolor() for style in styles for colour in (style.color, style.bgcolor) if colour}

    @property
    def rows(self) -> dict[str, PaneRow]:
        """Return the rows of the pane that is shown."""
        (listing,) = [each for each in self.app.screen_stack[0].query(Listing) if each.display]
        return {row.key: row for row in listing.rows}

    @property
    def _strips(self) -> list[Strip]:
        return self.app.screen._compositor.render_strips()

    async def press(self, *keys: str) -> None:
        """Press keys in order. Unlike Textual's pilot, do not wait after each key until the whole process is idle."""
        for key in keys:
            character = key if len(key) == 1 else _CHARACTERS.get(key)
            is_named = len(key) > 1 or key.isalnum()
            self.app.post_message(events.Key(key if is_named else _name(key), character))
            for _ in range(_ROUNDS):
                await self.pilot.pause(0)

    async def sees(self, *words: str) -> None:
        """Wait until all of these words are on the screen."""
        await self.until(lambda: all(word in self.text for word in words), lambda: self.text)

    async def until(self, is_so: Callable[[], bool], describe: Callable[[], object] = lambda: "") -> None:
        """Wait until a condition holds. Polling more often would slow the application down."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_so():
            assert time.monotonic() < deadline, describe()
            await self.pilot.pause(_LOOK_SECONDS)

    async def opens(self, key: str) -> None:
        """Press a key that opens another screen, and wait for it."""
        await self.press(key)
        await self.until(lambda: not isinstance(self.app.screen, Dashboard))

    async def leaves(self, key: str = "escape") -> None:
        """Go back to the dashboard."""
        await self.press(key)
        await self.is_back()

    async def is_back(self) -> None:
        """Wait until the dashboard is on top again."""
        await self.until(lambda: isinstance(self.app.screen, Dashboard))


def _name(character: str) -> str:
    return unicodedata.name(character).lower().replace(" ", "_")


class TopWithLastingNotifications(Top):
    """An application whose notifications stay until the test has seen them."""

    NOTIFICATION_TIMEOUT = PATIENCE_SECONDS


@asynccontextmanager
async def opened_top(
    backend: BackendUnderTest, folder: Path, *, size: tuple[int, int] = (110, 30)
) -> AsyncIterator[TopUser]:
    """Open the screen on its own bus, as its own process would."""
    settings = Settings(database_url=backend.place, file=folder / "kingdom.yaml", actor=ANNA)
    realm = Realm()

    async def read_sources() -> StatusSources:
        return status_sources_of(settings, realm)

    application = declare_application(realm)
    async with backend.open(application.topology, application.kinds) as bus:
        app = TopWithLastingNotifications(
            StoreClient(bus, ANNA, read_sources), run_views_of(bus, realm.soldiers, read_sources), every=_EVERY_SECONDS
        )
        async with app.run_test(size=size, notifications=True) as pilot:
            yield TopUser(app, pilot, bus)
