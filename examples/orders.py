"""Orders: a reaction stores each order, and an effect charges for it once. `docs/bus.md` explains this example."""

import os
from http import HTTPStatus
from typing import Any

import aiohttp

from kingdom import bus

Order = bus.Event[dict[str, Any]]
bank = os.environ.get("BANK_URL", "http://127.0.0.1:8081")  # noqa: TID251 - an example has its own setting
orders = bus.Stream(name="orders", ordered=True, subscribes=frozenset({"OrderPlaced"}))
payments = bus.Stream(name="payments", subscribes=frozenset({"PaymentDue"}))
dispatcher = bus.Dispatcher()


@dispatcher.reaction("OrderPlaced")
async def remember(event: Order, transaction: bus.Transaction) -> None:
    """Store the order and request its payment, in the transaction that completes the event."""
    await transaction.put(bus.Record(kind="order", id=event.payload["id"], state="placed", doc=event.payload))
    await transaction.publish(bus.Envelope(type="PaymentDue", payload=event.payload))


class Charge(bus.Effect[dict[str, Any]]):
    """Charge the customer at a bank that charges each identifier once."""

    target = bus.Target(name="bank", idempotency=bus.Idempotency.IDENTIFIER)

    def key(self, event: Order) -> str:
        """Return a key. The effect happens at most once per key."""
        return f"charge:{event.payload['id']}"

    def request(self, event: Order) -> dict[str, Any]:
        """Return the data that every attempt sends."""
        return {"amount": event.payload["amount"]}

    async def call(self, attempt: bus.Attempt) -> bus.CallResult:
        """Send the charge. After a timeout or a crash, the result of this call is unknown."""
        url = f"{bank}/charges/{attempt.identifier}"
        async with aiohttp.request("PUT", url, json=dict(attempt.request)) as reply:
            return bus.classify_response(reply.status, reply.headers, {"charge": await reply.text()})

    async def reconcile(self, attempt: bus.Attempt) -> bus.ReconcileResult:
        """Ask the bank for the result of a call whose result is unknown."""
        async with aiohttp.request("GET", f"{bank}/charges/{attempt.identifier}") as reply:
            if reply.ok:
                return bus.Present(await reply.json())
            return bus.Absent() if reply.status == HTTPStatus.NOT_FOUND else bus.Unclear(reply.reason or "")


dispatcher.effect("PaymentDue", Charge())
kinds = [bus.RecordKind(name="order", directories={"placed": "orders/placed"})]
app = bus.Application(bus.Topology([orders, payments]), dispatcher, kinds)
