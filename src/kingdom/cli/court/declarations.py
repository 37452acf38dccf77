"""What commands about events share: the application of the court, and the rules for the King's decisions."""

from pathlib import Path
from typing import Annotated

import typer

from kingdom.bootstrap import generals_directory_of
from kingdom.bus.app import Application
from kingdom.bus.worker.dispatcher import Dispatcher
from kingdom.cli.framework.command import CommandCall
from kingdom.court import records
from kingdom.court.chamberlain.records import HEALTH
from kingdom.court.king.context import KingContext
from kingdom.court.king.records import KINDS
from kingdom.court.package_files import load_packages
from kingdom.court.streams import TOPOLOGY

COURT = Application(topology=TOPOLOGY, dispatcher=Dispatcher(), kinds=(*records.KINDS, *KINDS, HEALTH))

Rules = Annotated[
    str,
    typer.Option("--rules", help="The folder of the Generals; by default the folder in the settings or in the store."),
]
EventId = Annotated[
    str,
    typer.Argument(
        metavar="EVENT_ID", help="The id of an event, such as evt-github-123, or its beginning; `last` is the newest."
    ),
]


def king_context_of(call: CommandCall, rules: str) -> KingContext:
    """Return the context of the King's decisions. Skip broken Generals with a note."""
    directory = Path(rules) if rules else generals_directory_of(call.settings, call.realm)
    loaded = load_packages(directory, accepts_strangers=call.realm.sentinel.accepts_strangers)
    for broken in loaded.broken:
        call.output.note(f"{broken.name} is broken and gets no events: {broken.reason}")
    return KingContext(packages=lambda: loaded.packages, zone=call.realm.zone, settings=call.realm.king)
