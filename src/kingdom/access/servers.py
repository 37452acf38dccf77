"""Where the web servers of a realm listen, so that other processes can print links to them."""

import socket
from datetime import timedelta

import msgspec

from kingdom.access.settings import WebSettings
from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordKind, read_document

_RUNNING, _STOPPED = "running", "stopped"
WEB_SERVERS = RecordKind(
    name="web-server",
    directories={_RUNNING: "state/web/servers", _STOPPED: "state/web/servers/stopped"},
    final=frozenset({_STOPPED}),
    retention=timedelta(days=1),
)


class ListeningServer(msgspec.Struct, frozen=True, kw_only=True):
    """The address of the web server of a machine."""

    machine: str
    url: str


async def save_server(transaction: Transaction, url: str, *, is_running: bool) -> None:
    """Store the address of the web server of this machine, or that it stopped."""
    machine = socket.gethostname()
    record = await transaction.get(WEB_SERVERS.name, machine)
    if record and not is_running and record.doc.get("url") != url:
        # Another process of this machine has replaced the entry.
        return
    await transaction.put(
        Record(
            kind=WEB_SERVERS.name,
            id=machine,
            state=_RUNNING if is_running else _STOPPED,
            version=record.version if record else 0,
            doc=msgspec.to_builtins(ListeningServer(machine=machine, url=url)),
        )
    )


async def find_url(transaction: Transaction, settings: WebSettings) -> tuple[str, bool]:
    """Return the address that people use, and whether a server of this machine listens."""
    record = await transaction.get(WEB_SERVERS.name, socket.gethostname())
    is_running = record is not None and record.state == _RUNNING
    if settings.url:
        return settings.url.rstrip("/"), is_running
    if record and is_running:
        return read_document(record.doc, ListeningServer).url, True
    return f"http://{settings.address}", False
