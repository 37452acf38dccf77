"""A stand-in for a web push service: `python -m examples.trading.push_service --log DIRECTORY`.

It records every push that arrives, also a repeated one, and shows whether a Topic has arrived. `PUT /faults` with
`{"script": ["drop", "record_and_drop"], "weights": {"fail": 0.1}}` makes it misbehave.
"""

import argparse
import json
import random
import sys
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

PORT = 8083
FAULTS = {
    "drop": "the connection is closed, nothing is recorded",
    "record_and_drop": "recorded, and the connection is closed",
    "fail": "503, nothing is recorded",
}


class PushService:
    """The HTTP interface: pushes by Topic, and faults."""

    def __init__(self, directory: Path, seed: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._topics = {push["topic"] for push in read_pushes(directory)}
        self._file = (directory / "pushes.jsonl").open("a")
        self._faults: dict[str, Any] = {}
        self._random = random.Random(seed)  # noqa: S311 - repeatable faults, no secret

    def application(self) -> web.Application:
        """Return the routes."""
        application = web.Application()
        application.router.add_post("/push", self.receive)
        application.router.add_get("/push/{topic}", self.show)
        application.router.add_put("/faults", self.set_faults)
        return application

    async def set_faults(self, request: web.Request) -> web.Response:
        """Replace the faults."""
        self._faults = await request.json()
        return web.json_response(self._faults)

    async def receive(self, request: web.Request) -> web.Response:
        """Record a push, or misbehave."""
        text, topic, fault = (await request.json())["text"], request.headers["Topic"], self._next_fault()
        if fault == "fail":
            return web.Response(status=503)
        if fault != "drop":
            self._file.write(json.dumps({"topic": topic, "text": text}) + "\n")
            self._file.flush()
            self._topics.add(topic)
        if fault and request.transport:
            request.transport.abort()
        return web.Response(status=201)

    async def show(self, request: web.Request) -> web.Response:
        """Say whether a Topic has arrived."""
        return web.Response(status=200 if request.match_info["topic"] in self._topics else 404)

    def _next_fault(self) -> str | None:
        script = self._faults.get("script", [])
        if script:
            fault, self._faults["script"] = script[0], script[1:]
            return None if fault == "answer" else str(fault)
        draw = self._random.random()
        for fault in FAULTS:
            draw -= self._faults.get("weights", {}).get(fault, 0.0)
            if draw < 0:
                return fault
        return None


def read_pushes(directory: Path) -> list[dict[str, str]]:
    """Return every push that arrived."""
    path = directory / "pushes.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.trading.push_service", description=sys.modules[__name__].__doc__
    )
    parser.add_argument("--log", type=Path, required=True, help="the directory of the recorded pushes")
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--seed", type=int, default=0, help="the seed of random faults")
    options = parser.parse_args()
    service = PushService(options.log, options.seed)
    web.run_app(
        service.application(), host="127.0.0.1", port=options.port, print=partial(print, flush=True), access_log=None
    )


if __name__ == "__main__":
    main()
