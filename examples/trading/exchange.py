"""A stand-in for an exchange, with a book on disk: `python -m examples.trading.exchange --book DIRECTORY`.

It executes each identifier once, as the pipeline needs it from a real exchange. `PUT /faults` makes it misbehave:

    {"script": ["throttle", "answer"], "weights": {"time_out": 0.1}, "blind_markets": ["KRW-XRP"]}

The next orders get the faults of the script, one each; later ones a random fault. A blind market books orders, but
neither answers nor shows them.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import time
import uuid
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

PORT = 8082
# The faults of an order. `weights` may also have `lookup`, for a lookup that fails with 503.
FAULTS = {
    "reject": "400, and the identifier is used up",
    "throttle": "429 with Retry-After, before the order is looked at",
    "ban": "418 with a longer Retry-After",
    "time_out": "booked, but the answer comes too late",
    "book_late": "no answer, and booked seconds later",
    "drop": "the connection is closed, not booked",
    "book_and_drop": "booked, and the connection is closed",
    "fail": "503, not booked",
    "book_and_fail": "booked, and 500",
}


class Book:
    """Everything that happened, one JSON object per line. An order is on disk before it is answered as booked."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / "book.jsonl"
        lines = read_book(directory)
        self.orders = {line["identifier"]: line for line in lines if line["what"] in ("order", "rejected")}
        # The market of each identifier that was ever sent.
        self.markets = {line["identifier"]: line["market"] for line in lines if line["what"] == "post"}
        # Without the last line, if a crash has cut it off.
        self._path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        self._file = self._path.open("a")

    def write(self, what: str, **facts: Any) -> dict[str, Any]:
        """Append a line. An order or a rejection is also synced to the disk."""
        line = {"what": what, "at": time.time(), **facts}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        if what == "post":
            self.markets[line["identifier"]] = line["market"]
        if what in ("order", "rejected"):
            os.fsync(self._file.fileno())
            self.orders[line["identifier"]] = line
        return line


def read_book(directory: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a book."""
    path = directory / "book.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


class Exchange:
    """The HTTP interface: orders, lookups and faults."""

    def __init__(self, directory: Path, seed: int, fill_seconds: float, late_seconds: float) -> None:
        self._book = Book(directory)
        self._faults_path = directory / "faults.json"
        self._faults: dict[str, Any] = {}
        if self._faults_path.exists():
            self._faults = json.loads(self._faults_path.read_text())
        self._random = random.Random(seed + len(self._book.orders))  # noqa: S311 - repeatable faults, no secret
        self._fill_seconds = fill_seconds
        self._late_seconds = late_seconds

    def application(self) -> web.Application:
        """Return the routes."""
        application = web.Application()
        application.router.add_post("/v1/orders", self.place)
        application.router.add_get("/v1/order", self.look_up)
        application.router.add_put("/faults", self.set_faults)
        return application

    async def set_faults(self, request: web.Request) -> web.Response:
        """Replace the faults. They outlive a restart."""
        self._faults = await request.json()
        self._faults_path.write_text(json.dumps(self._faults))
        return web.json_response(self._faults)

    async def place(self, request: web.Request) -> web.StreamResponse:
        """Place an order, or misbehave."""
        order = await request.json()
        blind = order["market"] in self._faults.get("blind_markets", ())
        fault = "book_and_drop" if blind else self._next_fault()
        self._book.write("post", identifier=order["identifier"], market=order["market"], fault=fault)
        match fault:
            case "throttle":
                return _error(429, "too_many_requests", {"Retry-After": "1"})
            case "ban":
                return _error(418, "blocked", {"Retry-After": "2"})
            case "drop":
                return _drop(request)
            case "fail":
                return _error(503, "maintenance")
            case "book_late":
                await asyncio.sleep(self._late_seconds)
                self._book.write("late", identifier=order["identifier"])
        answer = self._execute(order, refused=fault == "reject")
        match fault:
            case "time_out":
                await asyncio.sleep(self._late_seconds)
            case "book_and_drop" | "book_late":
                return _drop(request)
            case "book_and_fail":
                return _error(500, "internal_error")
        return answer

    async def look_up(self, request: web.Request) -> web.Response:
        """Show an order, or say that there is none."""
        identifier = request.query["identifier"]
        known = self._book.orders.get(identifier)
        if self._is_blind(identifier):
            self._book.write("lookup_failed", identifier=identifier)
            return _error(503, "maintenance")
        self._book.write("lookup", identifier=identifier, found=known is not None)
        if known is None:
            return _error(404, "order_not_found")
        return web.json_response(self._shown(known))

    def _is_blind(self, identifier: str) -> bool:
        """Return whether this lookup fails: always in a blind market, sometimes in any."""
        is_blind = self._book.markets.get(identifier) in self._faults.get("blind_markets", ())
        return is_blind or self._random.random() < self._faults.get("weights", {}).get("lookup", 0.0)

    def _execute(self, order: dict[str, Any], *, refused: bool) -> web.Response:
        identifier = order["identifier"]
        if identifier in self._book.orders:
            return _error(409, "identifier_already_used")
        if refused or float(order["price"]) <= 0:
            self._book.write("rejected", identifier=identifier, market=order["market"], reason="insufficient_funds")
            return _error(400, "insufficient_funds")
        booked = self._book.write("order", **order, uuid=str(uuid.uuid4()))
        return web.json_response(self._shown(booked), status=201)

    def _shown(self, line: dict[str, Any]) -> dict[str, Any]:
        if line["what"] == "rejected":
            return {"identifier": line["identifier"], "state": "rejected", "reason": line["reason"]}
        state = "done" if time.time() >= line["at"] + self._fill_seconds else "wait"
        names = ("uuid", "identifier", "market", "side", "price")
        return {"state": state, **{name: line[name] for name in names}}

    def _next_fault(self) -> str | None:
        script = self._faults.get("script", [])
        if script:
            # Saved at once, so that a restart continues the script.
            fault, self._faults["script"] = script[0], script[1:]
            self._faults_path.write_text(json.dumps(self._faults))
            return None if fault == "answer" else str(fault)
        weights = self._faults.get("weights", {})
        draw = self._random.random()
        for fault in FAULTS:
            draw -= weights.get(fault, 0.0)
            if draw < 0:
                return fault
        return None


def _error(status: int, name: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response({"error": {"name": name}}, status=status, headers=headers)


def _drop(request: web.Request) -> web.Response:
    """Close the connection without an answer."""
    if request.transport:
        request.transport.abort()
    return web.Response()


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.trading.exchange", description=sys.modules[__name__].__doc__
    )
    parser.add_argument("--book", type=Path, required=True, help="the directory of the book and the faults")
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--seed", type=int, default=0, help="the seed of random faults")
    parser.add_argument("--fill-seconds", type=float, default=1.0, help="how long an order waits until it is filled")
    parser.add_argument("--late-seconds", type=float, default=6.0, help="how late a late answer or booking is")
    options = parser.parse_args()
    exchange = Exchange(options.book, options.seed, options.fill_seconds, options.late_seconds)
    web.run_app(
        exchange.application(), host="127.0.0.1", port=options.port, print=partial(print, flush=True), access_log=None
    )


if __name__ == "__main__":
    main()
