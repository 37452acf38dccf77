"""The applications of two stores. Each publishes to its own topic, and reads the topic of the other one."""

import json
from typing import Any

from kingdom.bus import (
    Application,
    Dispatcher,
    Envelope,
    Event,
    ForeignMessage,
    ForeignTopic,
    Record,
    RecordKind,
    Stream,
    Topology,
    Transaction,
)

NORTH, SOUTH = "north.", "south."
OUT, IN = "out", "in"
HANDED = "Handed"
# What a store has received: a list of numbers per key.
RECEIVED = RecordKind(name="received", directories={"open": "received"})


def application(other: str) -> Application:
    """Return the application of a store. The topics of the other store begin with `other`."""
    dispatcher = Dispatcher()
    dispatcher.reaction(HANDED)(_receive)
    streams = [
        Stream(name=OUT, ordered=True, transport="kafka", subscribes=frozenset({HANDED})),
        Stream(name=IN, ordered=True, transport="kafka", source=ForeignTopic(f"{other}{OUT}", _read)),
    ]
    return Application(topology=Topology(streams), dispatcher=dispatcher, kinds=[RECEIVED])


def _read(message: ForeignMessage) -> Envelope:
    envelope = json.loads(message.value or b"")
    return Envelope(type=HANDED, payload=envelope["payload"], partition_key=envelope["partitionKey"])


async def _receive(event: Event[Any], transaction: Transaction) -> None:
    """Append the number of an event to the record of its key."""
    key = event.envelope.partition_key or ""
    known = await transaction.get(RECEIVED.name, key)
    numbers = [*(known.doc["numbers"] if known else []), event.payload["number"]]
    version = known.version if known else 0
    await transaction.put(Record(kind=RECEIVED.name, id=key, state="open", version=version, doc={"numbers": numbers}))


north, south = application(SOUTH), application(NORTH)
