"""A private NATS server with JetStream on disk."""

import contextlib
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from bench.race.clocks import processor_seconds
from bench.race.environments import find_nats_server
from bench.race.sides import Side
from bench.race.stores import Store, fill, prepare
from bench.servers import (
    LOOPBACK,
    PATIENCE_SECONDS,
    PrivateDirectory,
    ServerUnavailableError,
    end_process,
    free_port,
    until,
)


class NatsStore(Store):
    """One server for all turns. Each turn begins with a new stream. `sync` writes each message to disk at once."""

    def __init__(self, *, sync: bool) -> None:
        binary = find_nats_server()
        self._directory = PrivateDirectory()
        self._port = free_port()
        self._pid: int | None = None
        try:
            self._launch(binary, sync=sync)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def place(self, side: Side, python: Path, *, waiting: int) -> Iterator[str]:
        """Yield the address of the server with a new stream."""
        address = f"nats://{LOOPBACK}:{self._port}"
        prepare(side, python, address)
        if waiting:
            fill(side, python, address, waiting)
        yield address

    def processor_seconds(self) -> float:
        """Return the processor time of the server."""
        assert self._pid is not None
        return processor_seconds(self._pid)

    def count_waiting(self, side: Side, address: str) -> int | None:
        """Return None: a stream drops acknowledged messages later."""
        del side, address
        return None

    def close(self) -> None:
        """Stop the server and remove its files."""
        if self._pid is not None:
            end_process(self._pid, signal.SIGTERM)
            self._process.wait(PATIENCE_SECONDS)
            self._pid = None
        self._directory.remove()

    def _launch(self, binary: Path, *, sync: bool) -> None:
        place = self._directory.path
        # The user of the server may not be able to read the original.
        own = Path(shutil.copy(binary, place / "nats-server"))
        own.chmod(0o755)
        log, pidfile, configuration = place / "server.log", place / "server.pid", place / "server.conf"
        limit = "sync_interval: always" if sync else ""
        configuration.write_text(f'jetstream {{ store_dir: "{place}/streams"\n {limit} }}\n')
        options = ("-a", LOOPBACK, "-p", str(self._port), "-P", pidfile)
        self._process = self._directory.spawn(own, "-c", configuration, *options, log=log)
        for _ in until(PATIENCE_SECONDS):
            if self._process.poll() is not None:
                break
            with contextlib.suppress(OSError, ValueError):
                self._pid = int(pidfile.read_text())
                with socket.create_connection((LOOPBACK, self._port), timeout=1):
                    return
        raise ServerUnavailableError(f"nats-server did not start:\n{log.read_text()[-2000:]}")
