"""Check a database: its version, durability, limits and clock."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial

from kingdom.doctor.check import Check, CheckResult, Status, fail, ok, skipped, warn
from kingdom.doctor.context import CheckContext
from kingdom.doctor.database_facts import DatabaseFacts
from kingdom.doctor.store import check_store
from kingdom.errors import NotFound

# PostgreSQL 15, as in server_version_num.
OLDEST_VERSION = 150_000
# The connections of six roles, when all are idle and when all are busy.
CONNECTIONS_IDLE, CONNECTIONS_BUSY = 25, 60
# The differences between two clocks above which a check warns or fails.
_SKEW_WARN, _SKEW_FAIL = timedelta(seconds=1), timedelta(seconds=5)
_OLD_TRANSACTION_SECONDS = 300
# A shorter timeout interrupts normal work; 0 means no timeout.
_SHORTEST_MS = {
    "statement_timeout": 10_000,
    "lock_timeout": 1_000,
    "idle_in_transaction_session_timeout": 5_000,
    "idle_session_timeout": 60_000,
    "transaction_timeout": 60_000,
}
_SYNC_CLOCK = "sudo timedatectl set-ntp true, here and on the host of the database"
_LOST_FIX = "make commits wait for a standby (synchronous_standby_names); kingdom bus tail shows the work of that time"


def database_checks() -> list[Check]:
    """Return the checks that apply only to a database."""
    judges = {
        "database-version": judge_version,
        "database-durability": judge_durability,
        "database-connections": judge_connections,
        "database-timeouts": judge_timeouts,
        "database-transactions": judge_transactions,
        "database-clock": judge_clock,
    }
    remedy = "read the log of the database server: the server did not answer `kingdom doctor`"
    return [Check(name=name, run=partial(_check_database, judge), remedy=remedy) for name, judge in judges.items()]


def judge_version(facts: DatabaseFacts) -> CheckResult:
    """Judge whether the server has every feature that the store needs."""
    summary = f"PostgreSQL {facts.version_text}, {facts.location} as {facts.role}"
    if facts.version < OLDEST_VERSION:
        return fail(f"{summary}; 15 or newer is needed", "upgrade it with pg_upgrade, or use another server")
    if facts.encoding != "UTF8":
        fix = "createdb --template template0 --encoding UTF8 kingdom, then set database_url to that database"
        return fail(f"{summary}; its encoding is {facts.encoding}, which cannot store every text", fix)
    return ok(summary)


def judge_durability(facts: DatabaseFacts) -> CheckResult:
    """Judge whether commits are possible and survive a crash or a failover."""
    if facts.is_standby or facts.settings.get("default_transaction_read_only") == "on":
        what = "a standby" if facts.is_standby else "read-only"
        allow = f"ALTER ROLE {facts.role} SET default_transaction_read_only = off"
        fix = "name the primary as database_url" if facts.is_standby else allow
        return fail(f"the server is {what}: nothing can be written", fix)
    off = [name for name in ("fsync", "full_page_writes") if facts.settings.get(name) == "off"]
    if off:
        fix = "; ".join([*(f"ALTER SYSTEM SET {name} = on" for name in off), "SELECT pg_reload_conf()"])
        return fail(f"{' and '.join(off)} off: a power loss can destroy all data", fix)
    if facts.settings.get("synchronous_commit") == "off":
        fix = f"ALTER ROLE {facts.role} SET synchronous_commit = on"
        return fail("synchronous_commit is off: a crash of the server loses committed transactions", fix)
    waits = facts.settings.get("synchronous_standby_names") and facts.settings.get("synchronous_commit") != "local"
    if facts.standby_count and not waits:
        fix = (
            f"ALTER SYSTEM SET synchronous_standby_names = '*'; ALTER ROLE {facts.role} SET synchronous_commit = on;"
            " SELECT pg_reload_conf()"
        )
        summary = "1 standby follows" if facts.standby_count == 1 else f"{facts.standby_count} standbys follow"
        return warn(f"{summary} asynchronously: a failover loses the last committed transactions", fix)
    if facts.lost_transactions_at is not None:
        found = f"a worker found at {facts.lost_transactions_at:%F %T} that the server had lost confirmed transactions"
        return warn(f"{found}: the work of that time may be done twice, or not at all", _LOST_FIX)
    if facts.settings.get("autovacuum") == "off":
        fix = "ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf()"
        return warn("autovacuum is off: the tables of the queues grow without limit", fix)
    return ok("committed transactions survive a crash")


def judge_connections(facts: DatabaseFacts) -> CheckResult:
    """Judge whether there are enough connections for all roles."""
    reserved = facts.number("superuser_reserved_connections") + facts.number("reserved_connections")
    limits = {
        "max_connections": facts.number("max_connections") - reserved,
        "the limit of this role": facts.role_limit,
        "the limit of this database": facts.database_limit,
    }
    name, most = min(((name, limit) for name, limit in limits.items() if limit >= 0), key=lambda each: each[1])
    summary = f"{name} allows {most}, {facts.connection_count} are open on the server now"
    fixes = {
        "max_connections": "ALTER SYSTEM SET max_connections = 200, then restart the server, or use PgBouncer",
        "the limit of this role": f"ALTER ROLE {facts.role} CONNECTION LIMIT -1",
        "the limit of this database": f"ALTER DATABASE {facts.database} CONNECTION LIMIT -1",
    }
    if most < CONNECTIONS_IDLE:
        return fail(f"{summary}; six idle roles need {CONNECTIONS_IDLE}", fixes[name])
    if most < CONNECTIONS_BUSY:
        return warn(f"{summary}; six busy roles may need {CONNECTIONS_BUSY}", fixes[name])
    return ok(summary)


def judge_timeouts(facts: DatabaseFacts) -> CheckResult:
    """Judge whether a timeout of the server interrupts normal work."""
    short = {name: facts.number(name) for name, least in _SHORTEST_MS.items() if 0 < facts.number(name) < least}
    if not short:
        return ok("no timeout interrupts normal work")
    summary = ", ".join(f"{name} is {ms} ms" for name, ms in short.items())
    fix = "; ".join(f"ALTER ROLE {facts.role} SET {name} = 0" for name in short)
    return warn(f"{summary}: that interrupts normal work", fix)


def judge_transactions(facts: DatabaseFacts) -> CheckResult:
    """Judge whether a session holds a transaction open so long that vacuum cannot clean up."""
    oldest = facts.oldest_transaction
    if oldest is None or oldest.seconds < _OLD_TRANSACTION_SECONDS:
        return ok("no transaction has been open for long")
    who = f"process {oldest.pid} of {oldest.role or 'another role'} ({oldest.state or 'unknown'})"
    summary = f"{who} has held a transaction open for {oldest.seconds / 60:.0f} min"
    effect = "vacuum cannot remove rows that were deleted or replaced since then"
    return warn(f"{summary}: {effect}", f"SELECT pg_terminate_backend({oldest.pid})")


def judge_clock(facts: DatabaseFacts) -> CheckResult:
    """Judge whether the clocks of the database and of this machine agree."""
    apart = max(abs(facts.clock_ahead) - facts.round_trip / 2, timedelta())
    side = "ahead of" if facts.clock_ahead > timedelta() else "behind"
    summary = f"the clock of the server is {apart.total_seconds():.1f} s {side} the clock of this machine"
    if apart > _SKEW_FAIL:
        return fail(f"{summary}: leases and heartbeats are misjudged", _SYNC_CLOCK)
    return warn(summary, _SYNC_CLOCK) if apart > _SKEW_WARN else ok(summary)


async def _check_database(judge: Callable[[DatabaseFacts], CheckResult], context: CheckContext) -> CheckResult:
    if context.store_directory:
        return skipped("the store is a directory of files")
    if (await check_store(context)).status is not Status.OK:
        return skipped("the store does not open")
    from kingdom.doctor.database import read_facts  # noqa: PLC0415 - its driver is an optional extra

    try:
        return judge(await context.compute_once("facts", lambda: read_facts(context.settings, context.clock)))
    except NotFound:
        return skipped("there is no store yet")
