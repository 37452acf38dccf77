"""`kingdom role …`: one role of the court in this process."""

import logging
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import structlog
import typer

from kingdom import bootstrap
from kingdom.bus.logs import configure_logs
from kingdom.bus.port import Bus
from kingdom.cli import exit_code
from kingdom.cli.command import Call, command
from kingdom.cli.court import ConfigFile
from kingdom.cli.host import CONNECTIONS, Level, soldier_host
from kingdom.cli.running import refuse_old_store, run_until_stopped
from kingdom.court.heartbeat import Heart, signs_in_files, signs_in_records
from kingdom.court.live_packages import LivePackages
from kingdom.court.text_logs import SYSTEM, TASKS, TextLog, path_of, tee
from kingdom.realm import Realm, find_realm_file, read_realm, secrets_of
from kingdom.roles import ROLES, House, declared
from kingdom.soldiers.host import SoldierHost

app = typer.Typer(add_completion=False)
RoleName = Literal["sentinel", "king", "general", "soldiers", "envoy", "chamberlain"]
# Who writes the log of assignments too.
_OF_ASSIGNMENTS = frozenset({"king", "general"})
_log = structlog.get_logger("kingdom.cli")


@command(app, "role", json_flags=("--json-logs", "--json"))
async def role(
    call: Call,
    name: Annotated[RoleName, typer.Argument(help="Which role this process plays.")],
    *,
    config: ConfigFile = None,
    log_level: Level = "info",
) -> int | None:
    """Play one role of the court until SIGTERM or SIGINT; any number of processes may play the same one.

    The sentinel watches GitHub and Jira, the king decides, general has assignments done, soldiers runs agents, the
    envoy tells people, the chamberlain watches over all of it. The second signal ends it at once.

    Example: kingdom role king --config kingdom.yaml

    JSON: log lines, one object each, on standard error.
    """
    realm, beside = read_realm(config or find_realm_file())
    call = call.in_realm(realm.database_url)
    level = logging.getLevelNamesMapping()[log_level.upper()]
    directory = bootstrap.directory_of(call.settings.database_url) or beside / "realm"
    logs = [TextLog(path_of(directory, SYSTEM))]
    if name in _OF_ASSIGNMENTS:
        logs.append(TextLog(path_of(directory, TASKS)))
    configure_logs(json=call.output.json, level=level, also=[tee(log, name) for log in logs])
    await refuse_old_store(call.settings)
    application = declared(realm)
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(call.bus(application, connections=CONNECTIONS))
        house = House(
            bus=bus,
            realm=realm,
            packages=LivePackages(beside / realm.generals),
            host=partial(_host, call, realm, directory, bus),
            directory=directory,
        )
        if bootstrap.directory_of(call.settings.database_url):
            signs = signs_in_files(directory, name)
        else:
            signs = signs_in_records(lambda: call.bus(application), name)
        cast = ROLES[name](house, stack)
        await stack.enter_async_context(Heart(signs, every=timedelta(seconds=realm.heartbeat_seconds)))
        _log.info("role started", role=name)
        cut_off = await run_until_stopped(cast.parts, cast.beside)
    return exit_code.FAILED if cut_off else None


def _host(call: Call, realm: Realm, realm_directory: Path, bus: Bus) -> SoldierHost:
    settings = realm.soldiers
    # So transcripts lie in logs/sessions of the realm, where people and the Chamberlain look for them.
    directory = Path(settings.directory) if settings.directory else realm_directory
    return soldier_host(bus, call.settings, settings, directory, secrets_of(realm))
