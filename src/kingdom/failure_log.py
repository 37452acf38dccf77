"""Log the failures that a loop survives."""

from structlog.typing import FilteringBoundLogger

from kingdom.errors import KingdomError, describe_error


def log_failure(
    log: FilteringBoundLogger,
    message: str,
    error: Exception,
    *,
    expected: tuple[type[Exception], ...] = (KingdomError,),
    **fields: object,
) -> None:
    """Log a warning for an expected error, and an error with its traceback for any other, because that is a bug."""
    text = describe_error(error)
    if isinstance(error, expected):
        log.warning(message, error=text, **fields)
    else:
        log.error(message, error=text, **fields, exc_info=error)
