"""Streams, the event types that each of them subscribes to, and their retries."""

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache
from typing import Literal

from kingdom.bus.envelope import Envelope
from kingdom.bus.transport import ForeignTopic
from kingdom.errors import Misconfigured


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Exponential backoff with jitter, and the number of attempts before an event ends DEAD."""

    base: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    cap: timedelta = timedelta(seconds=300)
    jitter: float = 0.2
    max_attempts: int = 10

    def delay(self, attempt: int, *, chance: float | None = None) -> timedelta:
        """Return the wait after an attempt; the first attempt is 1. `chance` replaces the random number in [0, 1)."""
        # The exponent has a limit, so that a large attempt number causes no overflow.
        growth = self.factor ** min(max(attempt, 1) - 1, 64)
        plain = min(self.base.total_seconds() * growth, self.cap.total_seconds())
        spread = random.random() if chance is None else chance  # noqa: S311 - jitter is no secret
        return timedelta(seconds=plain * (1 + self.jitter * (2 * spread - 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A logical topic with one consumer.

    A name with a `{placeholder}` declares a family: `soldier.{host}` stands for `soldier.a`, `soldier.b`, …
    With a `transport`, such as "kafka", another system carries the events from publishers to workers.
    With a `source`, the events come from a topic of another system.
    In an ordered stream, `on_dead` decides whether a DEAD event blocks the later events of its key. `deadline` is the
    longest time that a handler may take.
    """

    name: str
    subscribes: frozenset[str] = frozenset()
    ordered: bool = False
    on_dead: Literal["block", "skip"] = "block"
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    lease: timedelta = timedelta(seconds=30)
    deadline: timedelta = timedelta(minutes=5)
    transport: str | None = None
    source: ForeignTopic | None = None

    @property
    def is_family(self) -> bool:
        """Return whether the name has a placeholder."""
        return "{" in self.name


class Topology:
    """All declared streams, and the routes of envelopes to streams."""

    def __init__(self, streams: Iterable[Stream]) -> None:
        self._streams: dict[str, Stream] = {}
        for stream in streams:
            if stream.name in self._streams:
                raise Misconfigured(f"stream {stream.name!r} is declared twice: one stream has one consumer")
            if stream.is_family and stream.subscribes:
                raise Misconfigured(f"family {stream.name!r} cannot subscribe: publish to one member by name")
            if stream.is_family and stream.transport:
                raise Misconfigured(f"family {stream.name!r} cannot have a transport: declare its members one by one")
            if stream.source and (stream.subscribes or not stream.transport):
                raise Misconfigured(
                    f"stream {stream.name!r} has a source, so it needs a transport and cannot subscribe"
                )
            self._streams[stream.name] = stream
        self._families = [(_pattern(s.name), s) for s in self._streams.values() if s.is_family]
        self._subscribers: dict[str, tuple[str, ...]] = {}
        for stream in self._streams.values():
            for event_type in stream.subscribes:
                self._subscribers[event_type] = (*self._subscribers.get(event_type, ()), stream.name)
        # The members of families that were used so far.
        self._members: dict[str, Stream] = {}

    def stream(self, name: str) -> Stream:
        """Return the declaration of a stream. A member of a family has the settings of the family."""
        known = self._streams.get(name) or self._members.get(name)
        if known is None:
            family = next((stream for pattern, stream in self._families if pattern.fullmatch(name)), None)
            if family is None:
                known_names = ", ".join(sorted(self._streams)) or "none"
                raise Misconfigured(f"stream {name!r} is not declared; declared: {known_names}")
            known = self._members[name] = replace(family, name=name)
        return known

    def route(self, envelope: Envelope) -> tuple[str, ...]:
        """Return the streams that get a copy: the stream in the envelope, or all streams that subscribe to its type."""
        if envelope.stream is not None:
            named = self.stream(envelope.stream)
            if named.source:
                raise Misconfigured(
                    f"stream {named.name!r} gets its events from topic {named.source.name}: publish there"
                )
            return (named.name,)
        return self._subscribers.get(envelope.type, ())

    def names(self) -> tuple[str, ...]:
        """Return the names of all declared streams. A family has its name with the placeholder."""
        return tuple(self._streams)

    def carried(self) -> tuple[str, ...]:
        """Return the names of the streams whose events leave the store for a transport."""
        return tuple(name for name, stream in self._streams.items() if stream.transport and not stream.source)


class OpenTopology(Topology):
    """Accepts every stream name, with the settings of `like`. Operators use it if the application is not available."""

    def __init__(self, like: Stream) -> None:
        super().__init__(())
        self._like = like

    def stream(self, name: str) -> Stream:
        """Return the assumed declaration of a stream."""
        return replace(self._like, name=name)


@cache
def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\\{\w+\\\}", r"[^.]+", re.escape(name)))
