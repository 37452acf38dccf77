"""How log lines look: JSON for machines, or plain text for a person at a terminal."""

import logging
import sys

import structlog

from kingdom.bus.envelope import current_cause


def configure_logs(*, json: bool, level: int = logging.INFO) -> None:
    """Send structured log lines to standard error."""
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if json
        else structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _with_cause,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
            *([structlog.processors.format_exc_info] if json else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )


def _with_cause(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Add the event being handled, so that every line of its handler can be found by it."""
    cause = current_cause.get()
    return {**cause.log_fields(), **event} if cause else event
