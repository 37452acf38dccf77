"""What commands about events share: the application of the court, and the rules for the King's decisions."""

import logging
from pathlib import Path
from typing import Annotated

import structlog
import typer

from kingdom.bootstrap import data_directory_of, directory_of, generals_directory_of
from kingdom.bus.app import Application
from kingdom.bus.worker.dispatcher import Dispatcher
from kingdom.cli.framework.command import CommandCall
from kingdom.court import records
from kingdom.court.chamberlain.records import HEALTH
from kingdom.court.king.context import KingContext
from kingdom.court.king.records import KINDS
from kingdom.court.package_files import load_packages
from kingdom.court.petitions.decision import PETITIONS
from kingdom.court.streams import TOPOLOGY
from kingdom.court.text_logs import TASKS, TextLog, log_path, tee
from kingdom.log_output import configure_logs

COURT = Application(topology=TOPOLOGY, dispatcher=Dispatcher(), kinds=(*records.KINDS, *KINDS, PETITIONS, HEALTH))

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


def log_to_tasks(call: CommandCall) -> None:
    """Write log lines about events and assignments to `logs/tasks.log`, and show only warnings.

    Do nothing if there is no realm on this machine, because then there is no such file.
    """
    settings = call.settings
    if settings.file is None and directory_of(settings.database_url) is None:
        return
    tasks = TextLog(log_path(data_directory_of(settings), TASKS))
    also = [tee(tasks, settings.actor, only_tasks=True), _drop_below_warning]
    configure_logs(json=call.output.json, level=logging.INFO, also=also)


def _drop_below_warning(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    if event["level"] == "info":
        raise structlog.DropEvent
    return event


def king_context_of(call: CommandCall, rules: str) -> KingContext:
    """Return the context of the King's decisions. Skip broken Generals with a note."""
    directory = Path(rules) if rules else generals_directory_of(call.settings, call.realm)
    loaded = load_packages(directory, accepts_strangers=call.realm.sentinel.accepts_strangers)
    for broken in loaded.broken:
        call.output.note(f"{broken.name} is broken and gets no events: {broken.reason}")
    return KingContext(packages=lambda: loaded.packages, zone=call.realm.zone, settings=call.realm.king)
