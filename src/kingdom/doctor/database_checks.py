"""What a database must be like: its version, its promises, its limits and its clock."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from importlib import import_module

from kingdom.doctor.check import Check, Status, Verdict, fail, ok, skipped, warn
from kingdom.doctor.facts import Facts
from kingdom.doctor.patient import Patient
from kingdom.doctor.store import opens
from kingdom.errors import NotFound

OLDEST = 150_000
# What six roles have open at rest, and what they may have when all of them are busy.
CONNECTIONS_AT_REST, CONNECTIONS_BUSY = 25, 60
# Clocks must agree to a few seconds.
_SKEW_WARN, _SKEW_FAIL = timedelta(seconds=1), timedelta(seconds=5)
_OLD_TRANSACTION_SECONDS = 300
# A shorter one cuts off what is well; 0 is none.
_SHORTEST_MS = {
    "statement_timeout": 10_000,
    "lock_timeout": 1_000,
    "idle_in_transaction_session_timeout": 5_000,
    "idle_session_timeout": 60_000,
    "transaction_timeout": 60_000,
}
_SYNC_CLOCK = "sudo timedatectl set-ntp true, here and on the host of the database"
_LOST_FIX = "let commits wait for a standby (synchronous_standby_names), and look at what ran then: kingdom bus tail"
_DRIVER = "kingdom.doctor.database"


def database_checks() -> list[Check]:
    """Return the checks that only a database needs."""
    judges = {
        "database-version": judge_version,
        "database-durability": judge_durability,
        "database-connections": judge_connections,
        "database-timeouts": judge_timeouts,
        "database-transactions": judge_transactions,
        "database-clock": judge_clock,
        "database-log": judge_log,
    }
    remedy = "look at the log of the server: `kingdom doctor` could not ask it"
    return [Check(name=name, look=partial(_judged, judge), remedy=remedy) for name, judge in judges.items()]


def judge_version(facts: Facts) -> Verdict:
    """Return whether the server knows everything that the store asks of it."""
    words = f"PostgreSQL {facts.version_words}, {facts.where} as {facts.role}"
    if facts.version < OLDEST:
        return fail(f"{words}; 15 or newer is needed", "upgrade it with pg_upgrade, or use another server")
    if facts.encoding != "UTF8":
        fix = "createdb --template template0 --encoding UTF8 kingdom, then name that one as database_url"
        return fail(f"{words}; its encoding is {facts.encoding}, not every text fits", fix)
    return ok(words)


def judge_durability(facts: Facts) -> Verdict:
    """Return whether what was committed survives, and whether anything can be committed at all."""
    if facts.is_standby or facts.settings.get("default_transaction_read_only") == "on":
        what = "a standby" if facts.is_standby else "set to read only"
        fix = f"ALTER ROLE {facts.role} SET default_transaction_read_only = off"
        return fail(
            f"it is {what}: nothing can be written", "name the primary as database_url" if facts.is_standby else fix
        )
    off = [name for name in ("fsync", "full_page_writes") if facts.settings.get(name) == "off"]
    if off:
        fix = "; ".join([*(f"ALTER SYSTEM SET {name} = on" for name in off), "SELECT pg_reload_conf()"])
        return fail(f"{' and '.join(off)} off: a loss of power may destroy everything", fix)
    if facts.settings.get("synchronous_commit") == "off":
        fix = f"ALTER ROLE {facts.role} SET synchronous_commit = on"
        return fail("synchronous_commit is off: a crash of the server takes back what was committed", fix)
    waits = facts.settings.get("synchronous_standby_names") and facts.settings.get("synchronous_commit") != "local"
    if facts.standbys and not waits:
        fix = (
            f"ALTER SYSTEM SET synchronous_standby_names = '*'; ALTER ROLE {facts.role} SET synchronous_commit = on;"
            " SELECT pg_reload_conf()"
        )
        words = "1 standby follows" if facts.standbys == 1 else f"{facts.standbys} standbys follow"
        return warn(f"{words} asynchronously: a failover takes back what was committed last", fix)
    if facts.lost_transactions_at is not None:
        found = (
            f"it had lost transactions that it had confirmed, as a worker found at {facts.lost_transactions_at:%F %T}"
        )
        return warn(f"{found}: what was done then may be done twice, or not at all", _LOST_FIX)
    if facts.settings.get("autovacuum") == "off":
        fix = "ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf()"
        return warn("autovacuum is off: the tables of a queue grow without end", fix)
    return ok("what is committed stays")


def judge_connections(facts: Facts) -> Verdict:
    """Return whether there are connections enough for all roles."""
    reserved = facts.number("superuser_reserved_connections") + facts.number("reserved_connections")
    limits = {
        "max_connections": facts.number("max_connections") - reserved,
        "the limit of this role": facts.role_limit,
        "the limit of this database": facts.database_limit,
    }
    name, most = min(((name, limit) for name, limit in limits.items() if limit >= 0), key=lambda each: each[1])
    words = f"{name} allows {most}, {facts.connected} are open on the server now"
    fixes = {
        "max_connections": "ALTER SYSTEM SET max_connections = 200, then restart the server, or use PgBouncer",
        "the limit of this role": f"ALTER ROLE {facts.role} CONNECTION LIMIT -1",
        "the limit of this database": f"ALTER DATABASE {facts.database} CONNECTION LIMIT -1",
    }
    if most < CONNECTIONS_AT_REST:
        return fail(f"{words}; six roles have {CONNECTIONS_AT_REST} at rest", fixes[name])
    if most < CONNECTIONS_BUSY:
        return warn(f"{words}; six busy roles may want {CONNECTIONS_BUSY}", fixes[name])
    return ok(words)


def judge_timeouts(facts: Facts) -> Verdict:
    """Return whether the server cuts off what is well."""
    short = {name: facts.number(name) for name, least in _SHORTEST_MS.items() if 0 < facts.number(name) < least}
    if not short:
        return ok("none cuts off what is well")
    words = ", ".join(f"{name} is {ms} ms" for name, ms in short.items())
    fix = "; ".join(f"ALTER ROLE {facts.role} SET {name} = 0" for name in short)
    return warn(f"{words}: what is well is cut off", fix)


def judge_transactions(facts: Facts) -> Verdict:
    """Return whether somebody holds a transaction open for so long that nothing can be cleaned up."""
    oldest = facts.oldest
    if oldest is None or oldest.seconds < _OLD_TRANSACTION_SECONDS:
        return ok("nobody holds one open for long")
    who = f"process {oldest.pid} of {oldest.role or 'another role'} ({oldest.state or 'unknown'})"
    words = f"{who} holds one open for {oldest.seconds / 60:.0f} min: nothing newer can be cleaned up"
    return warn(words, f"SELECT pg_terminate_backend({oldest.pid})")


def judge_clock(facts: Facts) -> Verdict:
    """Return whether the clock of the database is ours."""
    apart = max(abs(facts.ahead) - facts.took / 2, timedelta())
    side = "ahead of" if facts.ahead > timedelta() else "behind"
    words = f"it is {apart.total_seconds():.1f} s {side} ours"
    if apart > _SKEW_FAIL:
        return fail(f"{words}: leases and signs of life are misjudged", _SYNC_CLOCK)
    return warn(words, _SYNC_CLOCK) if apart > _SKEW_WARN else ok(words)


def judge_log(facts: Facts) -> Verdict:
    """Return whether readers see all of the log."""
    if not facts.hidden_entries:
        return ok("readers see all of it")
    count = "1 entry is" if facts.hidden_entries == 1 else f"{facts.hidden_entries} entries are"
    return warn(
        f"{count} hidden: the dump of a server that had counted its transactions further", "kingdom bus migrate"
    )


async def _judged(judge: Callable[[Facts], Verdict], patient: Patient) -> Verdict:
    if patient.store:
        return skipped("the store is a directory of files")
    if (await opens(patient)).status is not Status.OK:
        return skipped("the store does not open")
    ask: Callable[..., Awaitable[Facts]] = import_module(_DRIVER).ask
    try:
        return judge(await patient.once("facts", lambda: ask(patient.settings, patient.clock)))
    except NotFound:
        return skipped("there is no store yet")
