"""Other queues on files, each used as its documentation says."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import msgspec
from litequeue import LiteQueue  # type: ignore[import-untyped] # it has no types
from persistqueue import Queue, SQLiteAckQueue

from bench.files.load import some_events

_SQLITE_SYNCHRONOUS = {
    0: "off: a loss of power can lose or damage everything",
    1: "normal: a loss of power can take back the newest messages",
    2: "full: every message is synced before the call returns",
}


class Peer(ABC):
    """A queue of text messages, put and taken one by one."""

    name: str
    durability: str

    def __init__(self) -> None:
        self._message = some_events(1)[0].to_wire()

    def fill(self, count: int) -> None:
        """Put messages one by one."""
        for _ in range(count):
            self.put(msgspec.json.encode(self._message).decode())

    def drain(self, count: int) -> None:
        """Take and acknowledge messages one by one."""
        for _ in range(count):
            msgspec.json.decode(self.take())

    @abstractmethod
    def put(self, text: str) -> None:
        """Add a message."""

    @abstractmethod
    def take(self) -> str:
        """Take and acknowledge the next message."""

    @abstractmethod
    def close(self) -> None:
        """Close every file."""


class PersistAck(Peer):
    """persist-queue's queue with acknowledgements."""

    name = "persist-queue SQLiteAckQueue"

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._queue = SQLiteAckQueue(str(directory / "persist-ack"))
        self.durability = _synchronous(self._queue._putter)

    def put(self, text: str) -> None:
        """Add a message."""
        self._queue.put(text)

    def take(self) -> str:
        """Take and acknowledge the next message."""
        item: dict[str, Any] = self._queue.get(raw=True, block=False)
        self._queue.ack(id=item["pqid"])
        return str(item["data"])

    def close(self) -> None:
        """Close every file."""
        self._queue.close()


class PersistFile(Peer):
    """persist-queue's queue of plain files."""

    name = "persist-queue Queue(autosave)"
    durability = "flushed, synced once in 100 messages: a loss of power can take back the newest messages"

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._queue = Queue(str(directory / "persist-file"), tempdir=str(directory), autosave=True)

    def put(self, text: str) -> None:
        """Add a message."""
        self._queue.put(text)

    def take(self) -> str:
        """Take and acknowledge the next message."""
        text = str(self._queue.get(block=False))
        self._queue.task_done()
        return text

    def close(self) -> None:
        """Close every file."""
        self._queue.headf.close()
        self._queue.tailf.close()


class Lite(Peer):
    """litequeue with its defaults, or with a sync per message."""

    def __init__(self, directory: Path, *, synced: bool) -> None:
        super().__init__()
        self.name = "litequeue, synchronous=FULL" if synced else "litequeue"
        self._queue = LiteQueue(str(directory / f"lite-{synced}.db"))
        if synced:
            self._queue.conn.execute("PRAGMA synchronous = FULL")
        self.durability = _synchronous(self._queue.conn)

    def put(self, text: str) -> None:
        """Add a message."""
        self._queue.put(text)

    def take(self) -> str:
        """Take and acknowledge the next message."""
        message = self._queue.pop()
        self._queue.done(message.message_id)
        return str(message.data)

    def close(self) -> None:
        """Close every file."""
        self._queue.conn.close()


def open_peers(directory: Path) -> list[Peer]:
    """Return all peers with empty queues below one directory."""
    directory.mkdir()
    return [PersistAck(directory), PersistFile(directory), Lite(directory, synced=False), Lite(directory, synced=True)]


def _synchronous(connection: Any) -> str:
    """Return the sync settings of SQLite."""
    (level,) = connection.execute("PRAGMA synchronous").fetchone()
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    return f"SQLite journal_mode={mode}, synchronous={_SQLITE_SYNCHRONOUS.get(level, level)}"
