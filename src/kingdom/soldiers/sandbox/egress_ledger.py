"""The connections of one run through the egress proxy: a log of every attempt, and limits on their total."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

import msgspec
import structlog

from kingdom.clock import utc_now
from kingdom.soldiers.sandbox.egress_rules import EgressRefused

_FIELD_LENGTH_MAX = 300
_REFUSALS_LOGGED = 100
Outcome = Literal["opened", "closed", "refused", "failed"]
_log = structlog.get_logger("kingdom.soldiers.egress")


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressLimits:
    """Limits for all programs of a run together, and time limits for one connection."""

    # Builds upload almost nothing, so a low limit hinders the theft of data.
    sent_bytes: int = 64 << 20
    received_bytes: int = 8 << 30
    connections: int = 64
    log_bytes: int = 4 << 20
    # The time for the request, and the same time again for the ClientHello.
    request_seconds: float = 15
    resolve_seconds: float = 10
    connect_seconds: float = 15
    idle_seconds: float = 120
    lifetime_seconds: float = 3600


class EgressAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the log: a connection was opened, closed, refused, or failed."""

    at: datetime
    host: str
    outcome: Outcome
    reason: str = ""
    address: str = ""
    sent: int = 0
    received: int = 0


class EgressLedger:
    """Counts the open connections and the bytes of one run, including the bytes that an earlier process logged."""

    def __init__(self, file: Path, limits: EgressLimits) -> None:
        self.limits = limits
        self._file = file
        self._open = self._refusals = 0
        attempts = list(read_attempts(file))
        self._sent = sum(attempt.sent for attempt in attempts)
        self._received = sum(attempt.received for attempt in attempts)
        self._size = file.stat().st_size if attempts else 0

    @contextmanager
    def connection(self) -> Iterator[None]:
        """Count a connection while it is open; raises EgressRefused if too many are open."""
        most = self.limits.connections
        if self._open >= most:
            raise EgressRefused(f"this run has {most} open connections, which is the limit")
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    def check_limits(self) -> None:
        """Raise EgressRefused if the run has reached a limit, or if its log has no space for another attempt."""
        if self._size >= self.limits.log_bytes:
            raise EgressRefused("this run has made so many attempts that its connection log is full")
        self.count()

    def count(self, *, sent: int = 0, received: int = 0) -> None:
        """Count bytes; raises EgressRefused once the run exceeds its limit."""
        self._sent += sent
        self._received += received
        if self._sent > self.limits.sent_bytes:
            raise EgressRefused(f"this run has sent more than {self.limits.sent_bytes >> 20} MiB")
        if self._received > self.limits.received_bytes:
            raise EgressRefused(f"this run has received more than {self.limits.received_bytes >> 20} MiB")

    def record(
        self,
        outcome: Outcome,
        host: str,
        reason: str = "",
        *,
        address: str = "",
        sent: int = 0,
        received: int = 0,
    ) -> None:
        """Write a line to the log of the run unless it is full; the first refusals also go to the log of the role."""
        host, reason = host[:_FIELD_LENGTH_MAX], reason[:_FIELD_LENGTH_MAX]
        if outcome == "refused":
            self._refusals += 1
            if self._refusals <= _REFUSALS_LOGGED:
                _log.warning("refused an agent a connection to a host", host=host, reason=reason, log=str(self._file))
        # A closing line is always written, because its opening line was written too.
        if self._size >= self.limits.log_bytes and outcome != "closed":
            return
        attempt = EgressAttempt(
            at=utc_now(),
            host=host,
            outcome=outcome,
            reason=reason,
            address=address,
            sent=sent,
            received=received,
        )
        line = msgspec.json.encode(attempt) + b"\n"
        self._size += len(line)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


def read_attempts(file: Path) -> Iterator[EgressAttempt]:
    """Yield the lines of a log, without lines that a crash cut off."""
    try:
        lines = file.read_bytes().splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            yield msgspec.json.decode(line, type=EgressAttempt)
        except msgspec.MsgspecError:
            continue
