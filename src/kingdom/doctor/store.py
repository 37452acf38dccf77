"""The store as the roles meet it: whether it opens, what it lacks, and which of them are silent."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta

from kingdom.bootstrap import is_embedded, open_bus, pending_migrations
from kingdom.bus.port import Bus
from kingdom.bus.record import RecordKind
from kingdom.bus.stream import Topology
from kingdom.court.heartbeat import ROLES, last_heartbeats
from kingdom.doctor import files_store
from kingdom.doctor.check import Status, Verdict, fail, ok, skipped
from kingdom.doctor.patient import Patient
from kingdom.errors import KingdomError, NotFound
from kingdom.roles import declared

_FEW = 2
_MIGRATE = "kingdom bus migrate"


async def opens(patient: Patient) -> Verdict:
    """Look whether the store can be opened and read."""
    return await patient.once("store", lambda: _opens(patient))


async def migrations(patient: Patient) -> Verdict:
    """Look whether the store has the form that this version needs."""
    if patient.store:
        return skipped("the store is a directory of files")
    if is_embedded(patient.settings.database_url):
        return skipped("whoever opens an embedded server brings it up to date")
    return await patient.once("migrations", lambda: _migrations(patient))


async def roles(patient: Patient) -> Verdict:
    """Look for roles that have stopped giving signs of life without saying that they end."""
    signs = await signs_of_life(patient)
    if signs is None:
        return skipped("the store cannot be read")
    threshold = timedelta(seconds=patient.realm.chamberlain.heartbeat.threshold_seconds)
    now = patient.clock()
    silent = {role: now - at for role, at in signs.items() if now - at > threshold}
    if not signs:
        return skipped("no role of the court runs on this realm")
    if silent:
        words = ", ".join(f"{role} for {since.total_seconds():.0f} s" for role, since in silent.items())
        return fail(f"no sign of life from {words}: killed, or hanging", "kingdom up, which starts them again")
    absent = ", ".join(role for role in ROLES if role not in signs)
    given = ", ".join(role for role in ROLES if role in signs)
    return ok(f"{given} give signs of life{f'; not seen: {absent}' if absent else ''}")


async def signs_of_life(patient: Patient) -> Mapping[str, datetime] | None:
    """Return when each role was last heard of, or None where the store cannot be read."""
    return await patient.once("signs", lambda: _signs(patient))


async def _signs(patient: Patient) -> Mapping[str, datetime] | None:
    if not await _can_be_read(patient):
        return None
    application = declared(patient.realm)
    try:
        async with (
            _opened(patient, application.topology, application.kinds) as bus,
            bus.transaction() as transaction,
        ):
            return await last_heartbeats(transaction, patient.store)
    except NotFound:
        return {}


def _opened(patient: Patient, topology: Topology, kinds: Sequence[RecordKind] = ()) -> AbstractAsyncContextManager[Bus]:
    settings = patient.settings
    return open_bus(
        settings.database_url,
        topology,
        kinds,
        schema=settings.schema,
        connections=_FEW,
        through_pgbouncer=settings.through_pgbouncer,
        create=False,
    )


async def _opens(patient: Patient) -> Verdict:
    if patient.store:
        if (await files_store.directory(patient)).status is Status.FAIL:
            return skipped("the directory cannot be written")
        if (await files_store.lock(patient)).status is Status.FAIL:
            return skipped("another process holds it")
    try:
        async with _opened(patient, Topology(())):
            pass
    except NotFound:
        return ok("there is none yet: the first `kingdom up` makes it")
    except KingdomError as error:
        return fail(str(error), _remedy(patient, error))
    return ok(f"{patient.store.absolute()} opens" if patient.store else "the database opens")


async def _migrations(patient: Patient) -> Verdict:
    if (await opens(patient)).status is not Status.OK:
        return skipped("the store does not open")
    missing = await pending_migrations(patient.settings.database_url, schema=patient.settings.schema)
    if missing:
        return fail(f"the schema {patient.settings.schema!r} lacks {', '.join(missing)}", _MIGRATE)
    return ok(f"the schema {patient.settings.schema!r} has all of them")


async def _can_be_read(patient: Patient) -> bool:
    if (await opens(patient)).status is not Status.OK:
        return False
    # Skipped where no migration waits for a person.
    return (await migrations(patient)).status is not Status.FAIL


def _remedy(patient: Patient, error: KingdomError) -> str:
    if isinstance(error.__cause__, ModuleNotFoundError):
        return "pip install 'kingdom[postgres]'"
    if patient.store or is_embedded(patient.settings.database_url):
        return "do what it says, or name another directory as database_url"
    return "start the database, or correct database_url in kingdom.yaml, KINGDOM_DATABASE_URL or DATABASE_URL"
