"""What PostgreSQL's errors mean to us."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors
from psycopg_pool import PoolClosed, PoolTimeout

from kingdom.errors import Conflict, MalformedEvent, Misconfigured, Unavailable

_CONFLICTS = (
    errors.SerializationFailure,
    errors.DeadlockDetected,
    errors.UniqueViolation,
    errors.LockNotAvailable,
)
# psycopg reports a session that was thrown out for idling as an internal error, not as an operational one.
_LOST = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError, PoolTimeout, PoolClosed)


@contextmanager
def translated() -> Iterator[None]:
    """Raise our own errors in place of the driver's."""
    try:
        yield
    except _CONFLICTS as error:
        raise Conflict(f"another transaction was faster: {error}") from error
    except psycopg.DataError as error:
        raise MalformedEvent(f"PostgreSQL cannot store this value: {error}") from error
    except (errors.UndefinedTable, errors.InvalidSchemaName, errors.UndefinedColumn) as error:
        raise Misconfigured(f"{error.diag.message_primary}; run `kingdom bus migrate` first") from error
    except errors.InsufficientPrivilege as error:
        raise Misconfigured(f"{error.diag.message_primary}; grant it to this role, or connect as another") from error
    except _LOST as error:
        raise Unavailable(f"the database does not answer: {error}") from error
