"""Private PostgreSQL and PgBouncer servers that end with the process that started them."""

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import LiteralString, Self

import psutil
import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow

from bench.servers import (
    LOOPBACK,
    PATIENCE_SECONDS,
    SERVER_USER,
    PrivateDirectory,
    ServerUnavailableError,
    end_process,
    find_binary,
    free_port,
    quoted,
    until,
)

START_ATTEMPTS = 3
WAITING = ("-w", "-s", "-t", str(PATIENCE_SECONDS))


class PrivateCluster:
    """A temporary PostgreSQL cluster, or the server of DATABASE_URL if that is set and not ignored."""

    def __init__(
        self,
        *,
        fsync: bool = False,
        shared_buffers: str = "256MB",
        settings: Mapping[str, str] | None = None,
        ignore_database_url: bool = False,
    ) -> None:
        self._settings = {
            "listen_addresses": LOOPBACK,
            "max_connections": "300",
            "shared_buffers": shared_buffers,
            "fsync": "on" if fsync else "off",
            "full_page_writes": "on" if fsync else "off",
            "autovacuum": "on",
            "logging_collector": "off",
            "log_line_prefix": "%m [%p] %a ",
            "timezone": "UTC",
            **(settings or {}),
        }
        self._directory: PrivateDirectory | None = None
        self._created: list[str] = []
        self._connection: psycopg.Connection[TupleRow] | None = None
        self._port: int | None = None
        self.dsn = "" if ignore_database_url else os.environ.get("DATABASE_URL", "")
        self.log_path: Path | None = None
        self.pid: int | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def directory(self) -> Path | None:
        """The directory of the cluster, its socket and its log; None for the server of DATABASE_URL."""
        return self._directory.path if self._directory else None

    def start(self) -> None:
        """Create the cluster and wait until it answers."""
        atexit.register(self.stop)
        if self.dsn:
            return
        self._directory = PrivateDirectory()
        try:
            self._initialize(self._directory)
            self._listen(self._directory)
        except BaseException:
            self.stop()
            raise

    def follow(self, primary: "PrivateCluster") -> None:
        """Become a standby of another cluster. Remove the old data first."""
        atexit.register(self.stop)
        directory = self._directory = self._directory or PrivateDirectory()
        data, at = directory.path / "data", conninfo_to_dict(primary.dsn)
        shutil.rmtree(data, ignore_errors=True)
        try:
            place = (f"--host={at['host']}", f"--port={at['port']}", f"--username={SERVER_USER}", f"--pgdata={data}")
            how = ("--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync")
            directory.run(find_binary("pg_basebackup"), *place, *how)
            self._configure(directory)
            self._listen(directory)
        except BaseException:
            self.stop()
            raise

    def promote(self) -> None:
        """Promote a standby to primary."""
        self._control("promote")

    def crash(self, by: signal.Signals = signal.SIGKILL) -> None:
        """Kill the server (SIGQUIT: immediate shutdown) and wait until all its processes have ended."""
        if self.pid is None:
            raise ServerUnavailableError("there is no private server to kill")
        self._disconnect()
        server = psutil.Process(self.pid)
        processes = [server, *server.children(recursive=True)]
        os.kill(self.pid, by)
        _, left = psutil.wait_procs(processes, timeout=PATIENCE_SECONDS)
        if left:
            raise ServerUnavailableError(f"{len(left)} processes of a killed server do not end")
        self.pid = None

    def restart(self) -> None:
        """Restart a crashed server at the same address and wait until it answers."""
        if self._directory is None:
            raise ServerUnavailableError("there is no private cluster to restart")
        self._listen(self._directory)

    def configure(self, name: str, value: str | None) -> None:
        """Change a setting while the server runs, or reset it."""
        statement = sql.SQL("ALTER SYSTEM RESET {}") if value is None else sql.SQL("ALTER SYSTEM SET {} = {}")
        self._execute(statement.format(sql.Identifier(name), *(() if value is None else (sql.Literal(value),))))
        self._execute(sql.SQL("SELECT pg_reload_conf()").format())

    def ask(self, question: LiteralString) -> object:
        """Return the first value of the answer."""
        row = self._connected().execute(question).fetchone()
        return None if row is None else row[0]

    def stop(self) -> None:
        """Stop and remove the cluster, or drop the databases that were created on the server of DATABASE_URL."""
        atexit.unregister(self.stop)
        if self._directory is None:
            for name in tuple(self._created):
                self.drop_database(name)
            self._disconnect()
            return
        try:
            self._disconnect()
            self._halt()
        finally:
            self._directory.remove()
            self._directory, self._port, self.pid, self.dsn = None, None, None, ""
            self._created.clear()

    def create_database(self, name: str, *, template: str = "template1") -> str:
        """Create a database and return its conninfo, with long timeouts for a busy machine."""
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        self._execute(statement.format(sql.Identifier(name), sql.Identifier(template)))
        self._created.append(name)
        return make_conninfo(self.dsn, dbname=name, connect_timeout=PATIENCE_SECONDS)

    def drop_database(self, name: str) -> None:
        """Drop a database, with all sessions in it."""
        self._execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        self._created = [kept for kept in self._created if kept != name]

    def _execute(self, statement: sql.Composed) -> None:
        """Execute on a persistent connection, which saves time for a database per test. Replace a lost connection."""
        for _ in until(PATIENCE_SECONDS):
            try:
                self._connected().execute(statement)
            except psycopg.errors.ObjectInUse:
                # The server waits only five seconds for sessions that are ending.
                continue
            except psycopg.OperationalError:
                if self._connection is None or not self._connection.closed:
                    raise
            else:
                return
        raise ServerUnavailableError(f"{statement.as_string()}: the database is in use")

    def _connected(self) -> psycopg.Connection[TupleRow]:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self.dsn, autocommit=True)
        return self._connection

    def _disconnect(self) -> None:
        if self._connection:
            self._connection.close()
            self._connection = None

    def _initialize(self, directory: PrivateDirectory) -> None:
        data = directory.path / "data"
        directory.run(
            find_binary("initdb"),
            f"--pgdata={data}",
            f"--username={SERVER_USER}",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--data-checksums",
            "--no-sync",
            "--no-instructions",
        )
        self._configure(directory)

    def _configure(self, directory: PrivateDirectory) -> None:
        settings = self._settings | {"unix_socket_directories": str(directory.path)}
        with (directory.path / "data" / "postgresql.conf").open("a") as configuration:
            configuration.writelines(f"{name} = {quoted(value)}\n" for name, value in settings.items())

    def _listen(self, directory: PrivateDirectory) -> None:
        data, log = directory.path / "data", directory.path / "server.log"
        for attempt in range(1, START_ATTEMPTS + 1):
            port = self._port or free_port()
            try:
                self._control("start", "-l", log, "-o", f"-p {port}")
            except ServerUnavailableError as error:
                words = log.read_text() if log.exists() else ""
                # Another process may have taken the port in the meantime.
                if attempt == START_ATTEMPTS or "Address already in use" not in words:
                    raise ServerUnavailableError(f"{error}\n{words[-2000:]}") from None
                log.unlink()
            else:
                self.log_path, self._port = log, port
                self.pid = int((data / "postmaster.pid").read_text().split()[0])
                self.dsn = make_conninfo(host=LOOPBACK, port=port, user=SERVER_USER, dbname="postgres")
                return

    def _halt(self) -> None:
        if self.pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            # A test may have stopped the server with SIGSTOP. It must continue before it can shut down.
            os.kill(self.pid, signal.SIGCONT)
        try:
            self._control("stop", "-m", "immediate")
        except ServerUnavailableError:
            end_process(self.pid, signal.SIGKILL)

    def _control(self, *arguments: str | Path) -> None:
        if self._directory is None:
            raise ServerUnavailableError("the server of DATABASE_URL is not private, so it is not controlled")
        self._directory.run(find_binary("pg_ctl"), *WAITING, *arguments, "-D", self._directory.path / "data")


class PrivateBouncer:
    """A PgBouncer in transaction pooling mode in front of the server of a conninfo."""

    def __init__(self, dsn: str, *, pool_size: int = 20, max_clients: int = 500) -> None:
        given = {"user": SERVER_USER} | conninfo_to_dict(dsn)
        self._server = {name: str(given[name]) for name in ("host", "port", "user", "password") if name in given}
        self._limits = {"default_pool_size": str(pool_size), "max_client_conn": str(max_clients)}
        self._directory: PrivateDirectory | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.pid: int | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def dsn(self, database: str) -> str:
        """Return the conninfo of a database behind the bouncer."""
        place = make_conninfo(host=LOOPBACK, port=self.port, user=self._server["user"], dbname=database)
        return make_conninfo(place, connect_timeout=PATIENCE_SECONDS)

    def start(self) -> None:
        """Start the bouncer and wait until it answers."""
        atexit.register(self.stop)
        self._directory = PrivateDirectory()
        self.port = free_port()
        try:
            self._launch(self._directory)
        except BaseException:
            self.stop()
            raise

    def crash(self) -> None:
        """Kill the bouncer with every connection through it."""
        if self._process is None:
            raise ServerUnavailableError("the bouncer does not run")
        end_process(self.pid or self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE_SECONDS)

    def restart(self) -> None:
        """Restart a crashed bouncer at the same address and wait until it answers."""
        if self._directory is None:
            raise ServerUnavailableError("there is no bouncer to restart")
        self._launch(self._directory)

    def stop(self) -> None:
        """Stop the bouncer at once and remove its files."""
        atexit.unregister(self.stop)
        if self._process is not None:
            # The started process may be runuser, but the signal must reach the bouncer.
            end_process(self.pid or self._process.pid, signal.SIGTERM)
            self._process.wait(PATIENCE_SECONDS)
        if self._directory is not None:
            self._directory.remove()
        self._process, self._directory, self.pid = None, None, None

    def _launch(self, directory: PrivateDirectory) -> None:
        log, pidfile = directory.path / "bouncer.log", directory.path / "bouncer.pid"
        pidfile.unlink(missing_ok=True)
        configuration = self._configure(directory.path, pidfile)
        self._process = directory.spawn(find_binary("pgbouncer"), configuration, log=log)
        for _ in until(PATIENCE_SECONDS):
            if self._process.poll() is not None:
                break
            with contextlib.suppress(OSError, ValueError):
                self.pid = int(pidfile.read_text())
                with socket.create_connection((LOOPBACK, self.port), timeout=1):
                    return
        raise ServerUnavailableError(f"pgbouncer did not start:\n{log.read_text()[-2000:]}")

    def _configure(self, directory: Path, pidfile: Path) -> Path:
        settings = {
            "listen_addr": LOOPBACK,
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": str(directory / "userlist.txt"),
            "pidfile": str(pidfile),
            "pool_mode": "transaction",
            "server_connect_timeout": str(PATIENCE_SECONDS),
            "client_login_timeout": str(PATIENCE_SECONDS),
            "query_wait_timeout": str(PATIENCE_SECONDS),
            # The default blocks all clients for fifteen seconds after a server was down.
            "server_login_retry": "1",
            **self._limits,
        }
        user, password = (self._server.get(name, "").replace('"', '""') for name in ("user", "password"))
        (directory / "userlist.txt").write_text(f'"{user}" "{password}"\n')
        target = " ".join(f"{name}={quoted(value)}" for name, value in self._server.items())
        lines = ["[databases]", f"* = {target}", "[pgbouncer]", *(f"{k} = {v}" for k, v in settings.items())]
        configuration = directory / "bouncer.ini"
        configuration.write_text("\n".join(lines) + "\n")
        return configuration
