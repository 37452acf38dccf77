"""A real HTTP server that acts once per identifier, enforces fences per name, and misbehaves on demand."""

import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import unquote

from bench.servers import LOOPBACK

Manner = Literal["do", "accept", "throttle", "refuse", "fail", "do and drop"]


@dataclass
class Seen:
    """One received request."""

    identifier: str
    fence: int
    body: dict[str, Any]


class HttpTarget:
    """The received requests, the performed actions, and the planned answers. The last planned answer repeats."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.done: list[str] = []
        self.manners: list[Manner] = ["do"]
        self.dedups = True
        self.answers_questions = True
        self.retry_after = "1"
        self.fences: dict[str, int] = defaultdict(int)
        self.url = ""
        self._lock = threading.Lock()

    def receive(self, seen: Seen) -> Manner:
        with self._lock:
            self.seen.append(seen)
            manner = self.manners.pop(0) if len(self.manners) > 1 else self.manners[0]
            if not self._passes(seen.body["name"], seen.fence):
                return "refuse"
            known = self.dedups and seen.identifier in self.done
            if manner in ("do", "do and drop", "accept") and not known:
                self.done.append(seen.identifier)
            return manner

    def find(self, name: str, identifier: str, fence: int) -> bool:
        """Return whether an action was performed. A lookup under a fence excludes all senders below it."""
        with self._lock:
            self._passes(name, fence)
            return identifier in self.done

    def _passes(self, name: str, fence: int) -> bool:
        passes = fence >= self.fences[name]
        self.fences[name] = max(self.fences[name], fence)
        return passes


class _Handler(BaseHTTPRequestHandler):
    world: HttpTarget

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        seen = Seen(self.headers["identifier"], int(self.headers["fence"]), body)
        match self.world.receive(seen):
            case "do":
                self._answer(200, {"made": seen.identifier})
            case "accept":
                self._answer(202, {})
            case "throttle":
                self._answer(429, {}, {"Retry-After": self.world.retry_after})
            case "refuse":
                self._answer(422, {})
            case "fail":
                self._answer(500, {})
            case "do and drop":
                self.close_connection = True

    def do_GET(self) -> None:
        if not self.world.answers_questions:
            self._answer(503, {})
            return
        name, identifier = unquote(self.path).split("/")[-2:]
        found = self.world.find(name, identifier, int(self.headers["fence"]))
        self._answer(200 if found else 404, {"made": identifier})

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the signature of http.server
        """Say nothing."""

    def _answer(self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        content = json.dumps(body).encode()
        # The client may have been killed in the meantime.
        with suppress(OSError):
            self.send_response(status)
            for name, value in {**(headers or {}), "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)


@contextmanager
def http_target() -> Iterator[HttpTarget]:
    world = HttpTarget()
    server = ThreadingHTTPServer((LOOPBACK, 0), type("Handler", (_Handler,), {"world": world}))
    world.url = f"http://{LOOPBACK}:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield world
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
