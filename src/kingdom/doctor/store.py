"""Check the store as the roles use it: whether it opens, its migrations, and the heartbeats of the roles."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta

from kingdom.bootstrap import is_embedded, open_bus, pending_migrations
from kingdom.bus.port import Bus
from kingdom.bus.record import RecordKind
from kingdom.bus.stream import Topology
from kingdom.court.heartbeat import ROLES, last_heartbeats
from kingdom.doctor import files_store
from kingdom.doctor.check import CheckResult, Status, fail, ok, skipped
from kingdom.doctor.context import CheckContext
from kingdom.errors import KingdomError, NotFound
from kingdom.roles import declare_application
from kingdom.text import format_age

_CONNECTIONS = 2
_MIGRATE = "kingdom bus migrate"


async def check_store(context: CheckContext) -> CheckResult:
    """Check whether the store can be opened and read."""
    return await context.compute_once("store", lambda: _check_store(context))


async def check_migrations(context: CheckContext) -> CheckResult:
    """Check whether the store has the schema that this version needs."""
    if context.store_directory:
        return skipped("the store is a directory of files")
    if is_embedded(context.settings.database_url):
        return skipped("an embedded server is migrated when it is opened")
    return await context.compute_once("migrations", lambda: _check_migrations(context))


async def check_roles(context: CheckContext) -> CheckResult:
    """Check for roles whose heartbeats have stopped without a proper exit."""
    heartbeats = await read_heartbeats(context)
    if heartbeats is None:
        return skipped("the store cannot be read")
    threshold = timedelta(seconds=context.realm.chamberlain.heartbeat.threshold_seconds)
    now = context.clock()
    silent = {role: now - at for role, at in heartbeats.items() if now - at > threshold}
    if not heartbeats:
        return skipped("no role of the court runs on this realm")
    if silent:
        summary = ", ".join(f"{role} for {format_age(since.total_seconds())}" for role, since in silent.items())
        return fail(f"no heartbeat from {summary}: killed, or hanging", "kingdom up, which starts them again")
    running = ", ".join(role for role in ROLES if role in heartbeats)
    others = ", ".join(role for role in ROLES if role not in heartbeats)
    return ok(f"{running} send heartbeats{f'; not running: {others}' if others else ''}")


async def read_heartbeats(context: CheckContext) -> Mapping[str, datetime] | None:
    """Return the time of the last heartbeat of each role, or None if the store cannot be read."""
    return await context.compute_once("heartbeats", lambda: _read_heartbeats(context))


async def _read_heartbeats(context: CheckContext) -> Mapping[str, datetime] | None:
    if not await _is_readable(context):
        return None
    application = declare_application(context.realm)
    try:
        async with (
            _open_store(context, application.topology, application.kinds) as bus,
            bus.transaction() as transaction,
        ):
            return await last_heartbeats(transaction, context.store_directory)
    except NotFound:
        return {}


def _open_store(
    context: CheckContext, topology: Topology, kinds: Sequence[RecordKind] = ()
) -> AbstractAsyncContextManager[Bus]:
    settings = context.settings
    return open_bus(
        settings.database_url,
        topology,
        kinds,
        schema=settings.schema,
        connections=_CONNECTIONS,
        through_pgbouncer=settings.through_pgbouncer,
        create=False,
    )


async def _check_store(context: CheckContext) -> CheckResult:
    if context.store_directory:
        if (await files_store.check_directory(context)).status is Status.FAIL:
            return skipped("the directory cannot be written")
        if (await files_store.check_lock(context)).status is Status.FAIL:
            return skipped("another process holds the lock")
    try:
        async with _open_store(context, Topology(())):
            pass
    except NotFound:
        return ok("there is none yet: the first `kingdom up` creates it")
    except KingdomError as error:
        return fail(str(error), _remedy(context, error))
    return ok(f"{context.store_directory.absolute()} opens" if context.store_directory else "the database opens")


async def _check_migrations(context: CheckContext) -> CheckResult:
    if (await check_store(context)).status is not Status.OK:
        return skipped("the store does not open")
    missing = await pending_migrations(context.settings.database_url, schema=context.settings.schema)
    if missing:
        return fail(f"the schema {context.settings.schema!r} lacks {', '.join(missing)}", _MIGRATE)
    return ok(f"the schema {context.settings.schema!r} has all of them")


async def _is_readable(context: CheckContext) -> bool:
    if (await check_store(context)).status is not Status.OK:
        return False
    # The check is skipped for stores that need no `kingdom bus migrate`, so only FAIL means unreadable.
    return (await check_migrations(context)).status is not Status.FAIL


def _remedy(context: CheckContext, error: KingdomError) -> str:
    if isinstance(error.__cause__, ModuleNotFoundError):
        return "pip install 'kingdom[postgres]'"
    if context.store_directory or is_embedded(context.settings.database_url):
        return "fix what the message says, or name another directory as database_url"
    return "start the database, or correct database_url in kingdom.yaml, KINGDOM_DATABASE_URL or DATABASE_URL"
