"""A bank for `examples/orders.py`: `python -m examples.bank` listens on port 8081 and makes each charge once."""

import json
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT = 8081


class Bank(ThreadingHTTPServer):
    """Stores charges by identifier. A request with a known identifier gets the stored charge and charges nothing."""

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), _RequestHandler)
        self.charges: dict[str, dict[str, int]] = {}


class _RequestHandler(BaseHTTPRequestHandler):
    server: Bank

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        known = self.path in self.server.charges
        self._respond(
            HTTPStatus.OK if known else HTTPStatus.CREATED, self.server.charges.setdefault(self.path, json.loads(body))
        )

    def do_GET(self) -> None:
        charge = self.server.charges.get(self.path)
        self._respond(HTTPStatus.OK if charge else HTTPStatus.NOT_FOUND, charge or {})

    def _respond(self, status: HTTPStatus, document: dict[str, int]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the standard library
        sys.stderr.write(f"bank: {format % args}\n")


if __name__ == "__main__":
    Bank(PORT).serve_forever()
