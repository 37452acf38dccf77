"""An application whose stream is on Kafka, for processes that tests kill."""

from typing import Any

from kingdom.bus import (
    Application,
    Dispatcher,
    Envelope,
    Event,
    Record,
    RecordKind,
    Retry,
    Stream,
    Topology,
    Transaction,
)

SHELVES = RecordKind(name="shelf", directories={"open": "shelves"})
dispatcher = Dispatcher()


@dispatcher.reaction("Placed")
async def place(event: Event[dict[str, Any]], transaction: Transaction) -> Retry | None:
    """Append the number of an event to the shelf of its key. Every fiftieth event fails at first."""
    if event.payload["number"] % 50 == 7 and event.attempt == 1:
        return Retry()
    key = event.envelope.partition_key or ""
    shelf = await transaction.get("shelf", key) or Record(kind="shelf", id=key, state="open", doc={"numbers": []})
    numbers = [*shelf.doc["numbers"], event.payload["number"]]
    await transaction.put(Record(kind="shelf", id=key, state="open", version=shelf.version, doc={"numbers": numbers}))
    return None


def placed(number: int, key: str) -> Envelope:
    """Return an event of a key."""
    return Envelope(type="Placed", payload={"number": number}, partition_key=key)


app = Application(
    topology=Topology([Stream(name="shop", ordered=True, transport="kafka", subscribes=frozenset({"Placed"}))]),
    dispatcher=dispatcher,
    kinds=[SHELVES],
)
