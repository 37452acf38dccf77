"""Turn errors of PostgreSQL and its driver into errors of the bus."""

from contextlib import AbstractContextManager

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import PoolClosed, PoolTimeout

from kingdom.errors import Conflict, KingdomError, MalformedEvent, Misconfigured, Transient, Unavailable

_CONFLICTS = (
    errors.SerializationFailure,
    errors.DeadlockDetected,
    errors.UniqueViolation,
    errors.LockNotAvailable,
)
# The SQLSTATE class of a lost connection.
_CONNECTION_CLASS = "08"
# SQLSTATE classes of other temporary errors: resources, system.
_UNUSABLE_CLASSES = frozenset({"53", "58"})
# SQLSTATE codes of a server that shuts down, starts, has ended this session, or is read-only.
_UNUSABLE_STATES = frozenset({"57P01", "57P02", "57P03", "57P04", "57P05", "25P03", "25P04", "25006"})
# The SQLSTATE class of a server limit, such as the size of an index entry. A later attempt would fail as well.
_LIMIT_CLASS = "54"


class _Translation:
    """Translates the error of a block. It is a class, because a generator costs more and every statement needs one."""

    def __enter__(self) -> None:
        """Enter the block."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, psycopg.Error) and (meaning := _translate(error)):
            raise meaning from error


def translate_errors() -> AbstractContextManager[None]:
    """Raise errors of the bus instead of errors of the driver. Programming errors stay as they are."""
    return _Translation()


def _translate(error: psycopg.Error) -> KingdomError | None:
    if isinstance(error, PoolTimeout | PoolClosed):
        return Unavailable(f"cannot get a connection to the database: {error}")
    # Without an SQLSTATE the error comes from the driver: a broken connection, a partial answer, or an invalid value.
    state = error.sqlstate or ""
    primary = error.diag.message_primary or str(error)
    of_driver = psycopg.OperationalError | psycopg.InterfaceError | psycopg.InternalError
    unreachable = state[:2] == _CONNECTION_CLASS or (not state and isinstance(error, of_driver))
    # The partition of a day was created while this statement wrote a row of that day to the default partition.
    misplaced = isinstance(error, errors.CheckViolation) and "partition constraint" in primary
    if misplaced or isinstance(error, _CONFLICTS):
        return Conflict(f"another transaction was faster: {error}")
    if unreachable:
        return Unavailable(f"the database does not answer: {error}")
    if state in _UNUSABLE_STATES or state[:2] in _UNUSABLE_CLASSES:
        return Unavailable(f"the database cannot be used now: {error}")
    if isinstance(error, psycopg.DataError) or state[:2] == _LIMIT_CLASS:
        return MalformedEvent(f"PostgreSQL cannot store this value: {error}")
    if isinstance(error, errors.UndefinedTable | errors.InvalidSchemaName | errors.UndefinedColumn):
        return Misconfigured(f"{primary}; run `kingdom bus migrate` first")
    if isinstance(error, errors.InsufficientPrivilege):
        return Misconfigured(f"{primary}; grant the privilege to this role, or connect as another role")
    if isinstance(error, errors.QueryCanceled | errors.InFailedSqlTransaction):
        return Transient(f"the database cancelled the statement: {primary}")
    return None


def check_url(url: str) -> None:
    """Refuse a URL that the driver cannot read. The message omits the URL, because it may contain a password."""
    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise Misconfigured(
            "cannot read the database URL: use postgresql://user@host/database, with special characters as %-codes"
        ) from None
