"""The client of the exchange. A call without an answer is Unknown, whatever the reason."""

import aiohttp

from examples.trading.orders import OrderAttempt
from examples.trading.settings import Settings
from kingdom import bus

_NOT_FOUND = 404
_NO_ANSWER = (aiohttp.ClientError, TimeoutError, ValueError)


class ExchangeClient:
    """Places orders and looks them up by their identifier."""

    def __init__(self, settings: Settings, session: aiohttp.ClientSession) -> None:
        self._url = settings.exchange_url
        self._timeout = aiohttp.ClientTimeout(total=settings.answer.total_seconds())
        self._session = session

    async def place(self, attempt: OrderAttempt) -> bus.CallResult:
        """Send the order of an attempt, once."""
        order = {
            "identifier": attempt.identifier,
            "market": attempt.market,
            "side": "bid" if attempt.side == "BUY" else "ask",
            "ord_type": "price",
            "price": str(attempt.krw),
        }
        try:
            async with self._session.post(f"{self._url}/v1/orders", json=order, timeout=self._timeout) as reply:
                return bus.classify_response(reply.status, reply.headers, await reply.json())
        except _NO_ANSWER as error:
            return bus.Unknown(f"no answer: {type(error).__name__} {error}")

    async def look_up(self, identifier: str) -> bus.ReconcileResult:
        """Ask whether the exchange has an order. Only a plain 404 proves that it has not."""
        url, query = f"{self._url}/v1/order", {"identifier": identifier}
        try:
            async with self._session.get(url, params=query, timeout=self._timeout) as reply:
                if reply.status == _NOT_FOUND:
                    return bus.Absent()
                return bus.Present(await reply.json()) if reply.ok else bus.Unclear(f"HTTP {reply.status}")
        except _NO_ANSWER as error:
            return bus.Unclear(f"no answer: {type(error).__name__} {error}")
