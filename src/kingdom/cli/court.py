"""What the commands about events have in common: the declarations of the court and the Generals to judge by."""

from pathlib import Path
from typing import Annotated

import typer

from kingdom.bootstrap import directory_of
from kingdom.bus.app import Application
from kingdom.bus.dispatcher import Dispatcher
from kingdom.cli.command import Call
from kingdom.court import records
from kingdom.court.chamberlain.records import HEALTH
from kingdom.court.king.records import KINDS
from kingdom.court.king.terms import Terms
from kingdom.court.package_files import load_packages
from kingdom.court.streams import TOPOLOGY
from kingdom.realm import FILE, find_realm_file, read_realm

COURT = Application(topology=TOPOLOGY, dispatcher=Dispatcher(), kinds=(*records.KINDS, *KINDS, HEALTH))

ConfigFile = Annotated[
    Path | None, typer.Option("--config", help=f"The file of settings; else {FILE} of this directory, if there is one.")
]
Rules = Annotated[
    str, typer.Option("--rules", help="Where the Generals are; else where the settings or the store have them.")
]
EventId = Annotated[str, typer.Argument(metavar="EVENT_ID", help="The id of an event, such as evt-github-123.")]


def in_court(call: Call, config: Path | None) -> Call:
    """Return the same call in the store of the court that a file of settings describes, if there is one."""
    return call.in_realm(read_realm(config or find_realm_file())[0].database_url)


def terms_of(call: Call, config: Path | None, rules: str) -> Terms:
    """Return what the King decides by; broken Generals are told of and left out."""
    file = config or find_realm_file()
    realm, beside = read_realm(file)
    store = directory_of(call.settings.database_url)
    own = beside / realm.generals if file or not store else store / realm.generals
    loaded = load_packages(Path(rules) if rules else own)
    for broken in loaded.broken:
        call.output.note(f"{broken.name} is broken and gets nothing: {broken.reason}")
    return Terms(packages=lambda: loaded.packages, zone=realm.zone, settings=realm.king)
