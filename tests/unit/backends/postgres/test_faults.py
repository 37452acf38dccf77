import psycopg
import pytest
from psycopg import errors

from kingdom.backends.postgres.faults import translate_errors
from kingdom.errors import Conflict, KingdomError, Unavailable


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (psycopg.OperationalError("server closed the connection unexpectedly"), Unavailable),
        (psycopg.InternalError("received 2 results from command 'COMMIT'"), Unavailable),
        (errors.ReadOnlySqlTransaction("cannot execute UPDATE in a read-only transaction"), Unavailable),
        (errors.DeadlockDetected("deadlock detected"), Conflict),
    ],
)
def test_errors_of_the_driver_become_errors_of_the_bus(error: psycopg.Error, meaning: type[KingdomError]) -> None:
    with pytest.raises(meaning), translate_errors():
        raise error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (psycopg.OperationalError("connection refused"), "the database does not answer: connection refused"),
        (errors.ConnectionFailure("it is gone"), "the database does not answer: it is gone"),
        (errors.DiskFull("No space left on device"), "the database cannot be used now: No space left on device"),
        (errors.ReadOnlySqlTransaction("it is a standby"), "the database cannot be used now: it is a standby"),
        (errors.CannotConnectNow("it is starting up"), "the database cannot be used now: it is starting up"),
    ],
)
def test_a_server_that_answers_is_not_called_silent(error: psycopg.Error, message: str) -> None:
    with pytest.raises(Unavailable, match=f"^{message}$"), translate_errors():
        raise error


def test_a_mistake_of_ours_keeps_its_name() -> None:
    with pytest.raises(errors.SyntaxError), translate_errors():
        raise errors.SyntaxError("syntax error")
