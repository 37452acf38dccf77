"""Play the demo, show it in `kingdom top`, and draw the screen as an SVG: `python -m bench.top_recording FILE`."""

import argparse
import asyncio
import logging
import re
import tempfile
from pathlib import Path

from kingdom.actions.status import status_sources_of
from kingdom.bootstrap import open_bus
from kingdom.cli.top.commands import run_views_of
from kingdom.court.questions import HumanQuestion
from kingdom.court.status import StatusSources
from kingdom.demo.demo_court import DemoCourt, open_demo_court
from kingdom.demo.display import DemoDisplay
from kingdom.demo.narration import NarrationLine
from kingdom.demo.scenario import STEPS, Scenario
from kingdom.demo.store_watcher import DemoState
from kingdom.log_output import configure_logs
from kingdom.realm import read_realm
from kingdom.roles import declare_application
from kingdom.top.app import Top
from kingdom.top.store_client import StoreClient

_SIZE = (110, 18)
_ANSWER = "No, keep the cents."
# No web fonts, because pages are also read offline.
_FOREIGN = re.compile(r"@font-face\s*\{.*?\}\s*|<!--.*?-->\s*", re.DOTALL)
# Short enough to see a run that takes half a second.
_EVERY_SECONDS = 0.1
# Three runs exist when the last part begins: two have ended, one is running.
_LAST = len(STEPS)


class Photographer(DemoDisplay):
    """Answers the question, and takes a picture when the last part begins."""

    def __init__(self) -> None:
        self.app: Top | None = None
        self.picture = ""

    def begin(self, number: int, total: int, title: str, words: str) -> None:  # noqa: ARG002 - the form of the port
        """See `DemoDisplay.begin`."""
        if number == _LAST and self.app:
            self.picture = self.app.export_screenshot(title="kingdom top", simplify=True)

    def tell(self, line: NarrationLine) -> None:
        """See `DemoDisplay.tell`."""

    def show(self, state: DemoState) -> None:
        """See `DemoDisplay.show`."""

    async def ask(self, ask: HumanQuestion, default: str) -> str | None:  # noqa: ARG002 - the form of the port
        """See `DemoDisplay.ask`."""
        return _ANSWER


async def record() -> str:
    """Play the demo and return the picture."""
    configure_logs(json=True, level=logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="kingdom-top-") as directory:
        async with open_demo_court(Path(directory)) as court:
            return await _photographed(court)


async def _photographed(court: DemoCourt) -> str:
    settings = court.settings
    realm = read_realm(settings.file)

    async def read_sources() -> StatusSources:
        return status_sources_of(settings, realm)

    application, photographer = declare_application(realm), Photographer()
    async with open_bus(settings.database_url, application.topology, application.kinds) as bus:
        views = run_views_of(bus, realm.soldiers, read_sources)
        photographer.app = Top(StoreClient(bus, settings.actor, read_sources), views, every=_EVERY_SECONDS)
        async with photographer.app.run_test(size=_SIZE):
            report = await Scenario(court, photographer, person="anna").run()
    assert report.ok, report.findings
    return _FOREIGN.sub("", photographer.picture)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="the file for the picture")
    file: Path = parser.parse_args().file
    file.write_text(asyncio.run(record()), encoding="utf-8")
