"""How log lines look: JSON for machines, or plain text for a person at a terminal."""

import logging
import sys
from collections.abc import Sequence
from contextlib import suppress

import structlog

from kingdom.bus.envelope import current_cause
from kingdom.sentence import printable

_HANDLER = "kingdom"


def configure_logs(*, json: bool, level: int = logging.INFO, also: Sequence[structlog.typing.Processor] = ()) -> None:
    """Send structured log lines to standard error, those of the standard library's loggers in the same form.

    What is in `also` sees each line too.
    """
    every: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        _with_cause,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        *also,
    ]
    console = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), timestamp_key="at")
    # Exceptions become text first, as they may quote what others wrote.
    last = [structlog.processors.JSONRenderer()] if json else [_harmless, console]
    final: list[structlog.typing.Processor] = [structlog.processors.format_exc_info, *last]
    structlog.configure(
        processors=[*every, *final],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )
    _adopt_standard_loggers(every, final, level)


class _Adopted(logging.StreamHandler):  # type: ignore[type-arg]
    """Takes lines of the standard library's loggers; a step that keeps one to itself must not end the one who spoke."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(structlog.DropEvent):
            super().emit(record)


def _adopt_standard_loggers(
    every: list[structlog.typing.Processor], final: list[structlog.typing.Processor], level: int
) -> None:
    formatter = structlog.stdlib.ProcessorFormatter
    handler = _Adopted(sys.stderr)
    handler.set_name(_HANDLER)
    handler.setFormatter(formatter(foreign_pre_chain=every, processors=[formatter.remove_processors_meta, *final]))
    root = logging.getLogger()
    root.handlers = [kept for kept in root.handlers if kept.name != _HANDLER]
    root.addHandler(handler)
    root.setLevel(level)


def _harmless(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Let no text steer the terminal, nor look like a line of its own; the renderer quotes what is no text."""
    return {name: _shown(value) if isinstance(value, str) else value for name, value in event.items()}


def _shown(text: str) -> str:
    return printable(text).replace("\n", "\n    ")


def _with_cause(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Add the event being handled, so that every line of its handler can be found by it."""
    cause = current_cause.get()
    return {**cause.log_fields(), **event} if cause else event
