"""Send hostile inputs to a receiver, and check that it accepts none and keeps running."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from bench.hostile.inputs import BODY_BYTES_MAX, SECRET, SILENCE, US, Input, genuine, inputs
from kingdom.bus import Bus, RecordQuery
from kingdom.court import records
from kingdom.court.sentinel import records as remembered
from kingdom.court.sentinel.receiver import WebhookReceiver
from kingdom.court.sentinel.settings import GitHubSettings, GitHubWebhookSettings

KINDS = (*records.KINDS, *remembered.KINDS)
_PATIENCE_SECONDS = 300.0
# How long to wait for a body that stalls. On a busy machine, a complete body still arrives in this time.
_BODY_SECONDS = 5.0
_AT_ONCE = 8
_TEXTS_MAX = {"subject_title": 500, "subject_url": 2000, "html_url": 2000, "text": 20_000, "actor": 100}


@dataclass(slots=True)
class Outcome:
    """The results of all inputs."""

    sent: Counter[str] = field(default_factory=Counter)
    answers: Counter[int] = field(default_factory=Counter)
    breaches: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_json(self, **facts: Any) -> dict[str, Any]:
        """Return everything as one object."""
        return {
            "bench": "hostile",
            **facts,
            "inputs": self.sent.total(),
            "classes": dict(sorted(self.sent.items())),
            "answers": {str(status): count for status, count in sorted(self.answers.items())},
            "breaches": len(self.breaches),
            "failed": self.breaches[:20],
            "holds": not self.breaches,
            "seconds": round(self.seconds, 1),
        }


class Trusting(WebhookReceiver):
    """A deliberately broken receiver, which accepts every signature."""

    def _is_signed(self, raw: bytes, signature: str) -> bool:  # noqa: ARG002 - that is what is wrong with it
        return True


VARIANTS: dict[str, type[WebhookReceiver]] = {"trusting": Trusting}


async def attack(bus: Bus, count: int, seed: int, kind: type[WebhookReceiver] = WebhookReceiver) -> Outcome:
    """Send this number of inputs to a receiver on a store, then check what it has accepted."""
    webhooks = GitHubWebhookSettings(
        secrets=(SECRET,),
        port=0,
        body_bytes_max=BODY_BYTES_MAX,
        body_seconds=_BODY_SECONDS,
        store_seconds=_PATIENCE_SECONDS,
    )
    settings = GitHubSettings(token="unused", logins=(US,), webhook=webhooks)  # noqa: S106 - it guards nothing
    outcome, began = Outcome(), time.monotonic()
    async with _listening(kind(bus, settings)) as receiver:
        wanted: set[str] = set()
        waiting = inputs(count, seed)
        await asyncio.gather(*(_send_all(receiver, waiting, outcome, wanted) for _ in range(_AT_ONCE)))
        last = genuine(random.Random(seed), 2 * count + 1)
        await _send_all(receiver, iter([last]), outcome, wanted)
    outcome.breaches += await _breaches(bus, wanted)
    outcome.seconds = time.monotonic() - began
    return outcome


@asynccontextmanager
async def _listening(receiver: WebhookReceiver) -> AsyncIterator[WebhookReceiver]:
    await receiver.start()
    try:
        yield receiver
    finally:
        await receiver.stop()


async def _send_all(receiver: WebhookReceiver, waiting: Iterator[Input], outcome: Outcome, wanted: set[str]) -> None:
    for each in waiting:
        outcome.sent[each.kind] += 1
        wanted |= each.events
        for sent in each.requests:
            status = await _send(receiver.url, sent, hangs_up=each.hangs_up)
            outcome.answers[status] += 1
            if status not in each.statuses:
                outcome.breaches.append(f"{each.kind}: answered {status}, not {sorted(each.statuses)}")


async def _send(url: str, sent: bytes, *, hangs_up: bool) -> int:
    """Return the status of the answer, or 0 if the connection was closed without one."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        with suppress(ConnectionError):
            writer.write(sent)
            await writer.drain()
            if hangs_up:
                writer.write_eof()
        with suppress(ConnectionError):
            line = await asyncio.wait_for(reader.readline(), _PATIENCE_SECONDS)
            words = line.split()
            return int(words[1]) if len(words) > 1 and words[1].isdigit() else SILENCE
        return SILENCE
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def _breaches(bus: Bus, wanted: Collection[str]) -> list[str]:
    """Describe events in the store that should not exist, and missing events that should."""
    found: dict[str, Any] = {}
    after = None
    while True:
        async with bus.transaction() as transaction:
            page = await transaction.find(RecordQuery(kind="event", after=after, limit=500))
        found |= {record.id: record.doc for record in page}
        if not page:
            break
        after = page[-1].id
    breaches = [f"{name} was received" for name in sorted(found.keys() - set(wanted))]
    breaches += [f"{name} was not received" for name in sorted(set(wanted) - found.keys())]
    for name, document in found.items():
        texts = {key: text for key, text in document["payload"].items() if isinstance(text, str)}
        if any(len(text) > _TEXTS_MAX.get(key, 100) or "\x00" in text for key, text in texts.items()):
            breaches.append(f"{name} has a text that is unbounded or cannot be stored")
    return breaches
