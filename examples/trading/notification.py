"""The notification worker: it pushes each event to its owner once."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import aiohttp

from examples.trading.store import TradeStore
from kingdom import bus

_NOT_FOUND = 404


class WebPush(bus.Effect[dict[str, Any]]):
    """Send one push per event. Its Topic is the event id, by which the push service shows whether it arrived."""

    # A push service does not refuse a repeated Topic, so an absent push is sent again only after some time.
    target = bus.Target(
        name="web push",
        idempotency=bus.Idempotency.TIME,
        settles_after=timedelta(seconds=3),
        open_for=timedelta(seconds=2),
    )

    def __init__(self, store: TradeStore, session: aiohttp.ClientSession) -> None:
        self._store = store
        self._url = f"{store.settings.push_url}/push"
        self._session = session
        self._timeout = aiohttp.ClientTimeout(total=store.settings.answer.total_seconds())

    def key(self, event: bus.Event[dict[str, Any]]) -> str:
        """Return the id of the event: one push per event."""
        return f"push:{event.envelope.event_id}"

    def request(self, event: bus.Event[dict[str, Any]]) -> Mapping[str, Any]:
        """Return what is pushed."""
        envelope = event.envelope
        subject = envelope.attributes.get("market", envelope.aggregate_id)
        return {"event_id": str(envelope.event_id), "type": envelope.type, "text": f"{subject}: {envelope.type}"}

    async def call(self, attempt: bus.Attempt) -> bus.CallResult:
        """Log the push, send it, and log that it was sent."""
        push = attempt.request
        if not await self._log_sending(push["event_id"], push["type"]):
            return bus.Acked()
        headers = {"Topic": push["event_id"], "TTL": "86400"}
        async with self._session.post(
            self._url, json={"text": push["text"]}, headers=headers, timeout=self._timeout
        ) as reply:
            result = bus.classify_response(reply.status, reply.headers)
        if isinstance(result, bus.Acked):
            await self._log_sent(push["event_id"])
        return result

    async def reconcile(self, attempt: bus.Attempt) -> bus.ReconcileResult:
        """Ask the push service whether it has the push."""
        event_id = attempt.request["event_id"]
        async with self._session.get(f"{self._url}/{event_id}", timeout=self._timeout) as reply:
            if reply.ok:
                await self._log_sent(event_id)
                return bus.Present()
            return bus.Absent() if reply.status == _NOT_FOUND else bus.Unclear(f"HTTP {reply.status}")

    async def _log_sending(self, event_id: str, event_type: str) -> bool:
        """Return False if the log has the push as sent."""
        async with self._store.transaction() as trade:
            row = await trade.row(
                """INSERT INTO everbit.notification_log AS known (event_id, type) VALUES (%(id)s, %(type)s)
                   ON CONFLICT ON CONSTRAINT notified_once DO UPDATE SET state = 'SENDING' WHERE known.state = 'SENDING'
                   RETURNING event_id""",
                id=event_id,
                type=event_type,
            )
        return row is not None

    async def _log_sent(self, event_id: str) -> None:
        async with self._store.transaction() as trade:
            await trade.rows(
                "UPDATE everbit.notification_log SET state = 'SENT', sent_at = now() WHERE event_id = %(id)s",
                id=event_id,
            )
