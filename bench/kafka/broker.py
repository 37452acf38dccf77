"""Private Kafka clusters of one or three nodes that end with the process that started them."""

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from bench.kafka.jars import cache_directory, class_path, java, only_one_process
from bench.servers import (
    LOOPBACK,
    PATIENCE_SECONDS,
    PrivateDirectory,
    ServerUnavailableError,
    end_process,
    free_port,
    until,
)

_CLUSTER_ID = "kingdom-test-cluster-0"
_HEAP = ("-Xms192m", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_NODES_MAX = 3
_FORMATTED, _CLASSES = "formatted", "classes.jsa"
_SETTINGS = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "num.partitions": "4",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
    "log.retention.ms": "-1",
    "log.cleaner.dedupe.buffer.size": "4194304",
}
# Nodes and consumers that are killed must be noticed within seconds.
_QUICK_SETTINGS = {
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "3000",
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "300",
    "controller.quorum.fetch.timeout.ms": "1000",
    "controller.quorum.election.timeout.ms": "500",
}


class PrivateKafka:
    """A temporary Kafka cluster. Each node is a broker and a controller; its number starts at 1.

    With `front`, clients connect to the port that it returns for the port of a broker. Brokers connect to each other
    directly. A `quick` cluster notices a lost broker or consumer within seconds; one with several nodes always does.
    """

    def __init__(self, nodes: int = 1, *, front: Callable[[int], int] | None = None, quick: bool = False) -> None:
        if nodes not in (1, _NODES_MAX):
            raise ServerUnavailableError(f"a private Kafka cluster has 1 or {_NODES_MAX} nodes, not {nodes}")
        self._numbers = range(1, nodes + 1)
        self._directory: PrivateDirectory | None = None
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        # The ports of each node for brokers and for controllers.
        self._ports: dict[int, tuple[int, int]] = {}
        self._front = front
        self._is_quick = quick or nodes > 1
        # The ports at which each node listens for clients behind `front`, and those to which clients connect.
        self._client_ports: dict[int, tuple[int, int]] = {}
        self._jars: list[Path] = []
        self._options: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def servers(self) -> str:
        """The addresses of the brokers, as clients take them."""
        return ",".join(f"{LOOPBACK}:{self._client_port(number)}" for number in self._ports)

    def _client_port(self, number: int) -> int:
        return self._client_ports[number][1] if self._front else self._ports[number][0]

    @property
    def pids(self) -> dict[int, int]:
        """The process id of each running node."""
        return {number: process.pid for number, process in self._processes.items()}

    @property
    def directory(self) -> Path | None:
        """The directory of all nodes, or None before the start and after the end."""
        return self._directory.path if self._directory else None

    def start(self) -> None:
        """Start all nodes and wait until they answer."""
        atexit.register(self.stop)
        self._jars = class_path()
        _format_directories(self._jars, self._numbers)
        if len(self._numbers) > 1:
            # For a single node, this would take longer than it saves.
            _record_classes()
        self._start_nodes()

    def record_classes(self, archive: Path) -> None:
        """Write the classes that a node loads to an archive, from which later nodes start in half the time."""
        self._jars = class_path()
        partial = archive.with_suffix(".partial")
        self._options = (f"-XX:ArchiveClassesAtExit={partial}",)
        self._start_nodes()
        for process in self._processes.values():
            end_process(process.pid, signal.SIGTERM)
            process.wait(PATIENCE_SECONDS)
        self.stop()
        partial.rename(archive)

    def _start_nodes(self) -> None:
        formatted = cache_directory() / _FORMATTED
        self._directory = PrivateDirectory(as_server_user=False)
        self._ports = {number: (free_port(), free_port()) for number in self._numbers}
        try:
            if self._front:
                ports = {number: free_port() for number in self._numbers}
                self._client_ports = {number: (port, self._front(port)) for number, port in ports.items()}
            for number in self._numbers:
                shutil.copytree(formatted / str(number), self._directory.path / str(number))
                self._launch(self._directory, number)
            self.wait_until_complete()
        except BaseException:
            self.stop()
            raise

    def kill(self, number: int) -> None:
        """Kill a node."""
        process = self._processes.pop(number)
        end_process(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_SECONDS)

    def stop_node(self, number: int) -> None:
        """Stop the process of a node without ending it."""
        os.kill(self._processes[number].pid, signal.SIGSTOP)

    def continue_node(self, number: int) -> None:
        """Let a stopped node continue."""
        os.kill(self._processes[number].pid, signal.SIGCONT)

    def restart(self, number: int) -> None:
        """Start a killed node again at the same address."""
        if self._directory is None:
            raise ServerUnavailableError("there is no private Kafka cluster to restart")
        self._launch(self._directory, number)

    def wait_until_complete(self) -> None:
        """Wait until clients see every node that was started."""
        admin = AdminClient({"bootstrap.servers": self.servers, "reconnect.backoff.max.ms": 200, "log_level": 0})
        for _ in until(PATIENCE_SECONDS):
            for number, process in self._processes.items():
                if process.poll() is not None:
                    raise ServerUnavailableError(f"Kafka node {number} has ended:\n{self._log(number)}")
            with contextlib.suppress(KafkaException, OSError):
                for number in self._processes:
                    for port in (self._ports[number][0], *self._client_ports.get(number, ())[:1]):
                        socket.create_connection((LOOPBACK, port), timeout=1).close()
                if len(admin.list_topics(timeout=1).brokers) == len(self._processes):
                    return
        raise ServerUnavailableError(f"Kafka did not start:\n{self._log(1)}")

    def stop(self) -> None:
        """Kill all nodes and remove their files."""
        atexit.unregister(self.stop)
        for number in list(self._processes):
            self.kill(number)
        if self._directory is not None:
            self._directory.remove()
            self._directory = None

    def _launch(self, directory: PrivateDirectory, number: int) -> None:
        home = directory.path / str(number)
        broker_port, controller_port = self._ports[number]
        copies = str(len(self._numbers))
        in_sync = str(len(self._numbers) // 2 + 1)
        settings = {
            **_SETTINGS,
            **(_QUICK_SETTINGS if self._is_quick else {}),
            "node.id": str(number),
            "log.dirs": str(home),
            **self._listeners(number, broker_port, controller_port),
            "controller.quorum.voters": ",".join(f"{n}@{LOOPBACK}:{self._ports[n][1]}" for n in self._numbers),
            "default.replication.factor": copies,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": in_sync,
        }
        configuration = directory.path / f"{number}.properties"
        configuration.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        options = self._options or (f"-XX:SharedArchiveFile={cache_directory() / _CLASSES}",)
        main = _main(self._jars, "kafka.Kafka")
        log = directory.path / f"{number}.log"
        self._processes[number] = directory.spawn(java(), *_HEAP, *options, *main, configuration, log=log)

    def _listeners(self, number: int, broker_port: int, controller_port: int) -> dict[str, str]:
        listeners = f"PLAINTEXT://{LOOPBACK}:{broker_port},CONTROLLER://{LOOPBACK}:{controller_port}"
        if not self._front:
            return {"listeners": listeners}
        port, front = self._client_ports[number]
        return {
            "listeners": f"{listeners},CLIENTS://{LOOPBACK}:{port}",
            "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{broker_port},CLIENTS://{LOOPBACK}:{front}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT",
        }

    def _log(self, number: int) -> str:
        log = self._directory.path / f"{number}.log" if self._directory else None
        return log.read_text(errors="replace")[-2000:] if log and log.exists() else ""


def _format_directories(jars: list[Path], numbers: Iterable[int]) -> None:
    """Format the storage of each node that the cache does not have."""
    formatted = cache_directory() / _FORMATTED
    with only_one_process(cache_directory()):
        for number in numbers:
            if not (formatted / str(number)).exists():
                partial = formatted / f"{number}.partial"
                shutil.rmtree(partial, ignore_errors=True)
                _format(jars, partial, number)
                partial.rename(formatted / str(number))


def _record_classes() -> None:
    cache = cache_directory()
    with only_one_process(cache):
        if not (cache / _CLASSES).exists():
            PrivateKafka().record_classes(cache / _CLASSES)


def _format(jars: list[Path], directory: Path, number: int) -> None:
    directory.mkdir(parents=True)
    configuration = directory.with_suffix(".properties")
    settings = _SETTINGS | {
        "node.id": str(number),
        "log.dirs": str(directory),
        "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "controller.quorum.voters": f"{number}@{LOOPBACK}:9093",
    }
    configuration.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    tool = _main(jars, "kafka.tools.StorageTool")
    command = (java(), *_HEAP, *tool, "format", "--cluster-id", _CLUSTER_ID, "--config", configuration)
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ServerUnavailableError(f"the storage of Kafka cannot be formatted: {done.stdout}{done.stderr}")


def _main(jars: list[Path], name: str) -> tuple[str, ...]:
    return ("-cp", ":".join(map(str, jars)), name)
