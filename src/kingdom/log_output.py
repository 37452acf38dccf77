"""Configure log lines: JSON for machines, plain text for a terminal."""

import logging
import sys
from collections.abc import Sequence
from contextlib import suppress

import structlog

from kingdom.bus.envelope import current_cause
from kingdom.text import printable

_HANDLER = "kingdom"


def configure_logs(*, json: bool, level: int = logging.INFO, also: Sequence[structlog.typing.Processor] = ()) -> None:
    """Write structured log lines to standard error, including those of the standard library's loggers.

    Every line also passes through the processors in `also`.
    """
    every: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        _with_cause,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        *also,
    ]
    console = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), timestamp_key="at")
    # Exceptions are formatted first, so that their text is escaped too.
    last = [structlog.processors.JSONRenderer()] if json else [_escape_texts, console]
    final: list[structlog.typing.Processor] = [structlog.processors.format_exc_info, *last]
    structlog.configure(
        processors=[*every, *final],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )
    _capture_standard_loggers(every, final, level)


class _StandardLogHandler(logging.StreamHandler):  # type: ignore[type-arg]  # generic only for type checkers
    """Handles lines of the standard library's loggers. A processor may drop a line without an error."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(structlog.DropEvent):
            super().emit(record)


def _capture_standard_loggers(
    every: list[structlog.typing.Processor], final: list[structlog.typing.Processor], level: int
) -> None:
    formatter = structlog.stdlib.ProcessorFormatter
    handler = _StandardLogHandler(sys.stderr)
    handler.set_name(_HANDLER)
    handler.setFormatter(formatter(foreign_pre_chain=every, processors=[formatter.remove_processors_meta, *final]))
    root = logging.getLogger()
    root.handlers = [kept for kept in root.handlers if kept.name != _HANDLER]
    root.addHandler(handler)
    root.setLevel(level)


def _escape_texts(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escape control characters in texts, and indent their later lines. The renderer quotes all other values itself."""
    return {name: _escape(value) if isinstance(value, str) else value for name, value in event.items()}


def _escape(text: str) -> str:
    return printable(text).replace("\n", "\n    ")


def _with_cause(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Add the fields of the event being handled, so that all lines of its handler can be found."""
    cause = current_cause.get()
    return {**cause.log_fields(), **event} if cause else event
