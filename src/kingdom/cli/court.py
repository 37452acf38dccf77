"""What the commands about events have in common: the declarations of the court and the Generals to judge by."""

from pathlib import Path
from typing import Annotated

import typer

from kingdom.bootstrap import generals_directory_of
from kingdom.bus.app import Application
from kingdom.bus.worker.dispatcher import Dispatcher
from kingdom.cli.command import Call
from kingdom.court import records
from kingdom.court.chamberlain.records import HEALTH
from kingdom.court.king.records import KINDS
from kingdom.court.king.terms import Terms
from kingdom.court.package_files import load_packages
from kingdom.court.streams import TOPOLOGY

COURT = Application(topology=TOPOLOGY, dispatcher=Dispatcher(), kinds=(*records.KINDS, *KINDS, HEALTH))

Rules = Annotated[
    str, typer.Option("--rules", help="Where the Generals are; else where the settings or the store have them.")
]
EventId = Annotated[
    str,
    typer.Argument(
        metavar="EVENT_ID", help="The id of an event, such as evt-github-123, or where it begins; `last` is the newest."
    ),
]


def terms_of(call: Call, rules: str) -> Terms:
    """Return what the King decides by; broken Generals are told of and left out."""
    place = Path(rules) if rules else generals_directory_of(call.settings, call.realm)
    loaded = load_packages(place, hears_strangers=call.realm.sentinel.hears_strangers)
    for broken in loaded.broken:
        call.output.note(f"{broken.name} is broken and gets nothing: {broken.reason}")
    return Terms(packages=lambda: loaded.packages, zone=call.realm.zone, settings=call.realm.king)
