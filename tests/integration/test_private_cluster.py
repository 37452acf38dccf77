import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from bench.postgres import PrivateBouncer, PrivateCluster
from bench.servers import (
    LOOPBACK,
    OWNER_FILE,
    PORTS_OF_A_PART,
    PrivateDirectory,
    ServerUnavailableError,
    find_binary,
    free_port,
    is_running,
)
from tests.patience import PATIENCE_SECONDS


@pytest.fixture
def own_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[PrivateCluster]:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    with PrivateCluster(shared_buffers="16MB") as cluster:
        yield cluster


def answer(dsn: str, question: str) -> object:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(question.encode()).fetchone()
        assert row is not None
        return row[0]


@pytest.mark.usefixtures("own_server")
def test_a_cluster_answers_and_leaves_neither_files_nor_processes() -> None:
    with PrivateCluster(shared_buffers="16MB") as cluster:
        directory, pid = cluster.directory, cluster.pid
        assert answer(cluster.dsn, "SELECT 1") == 1
        assert directory is not None
        assert pid is not None
        assert is_running(pid)
        assert cluster.log_path is not None
        assert cluster.log_path.parent == directory
    assert not directory.exists()
    assert not is_running(pid)


def test_a_cluster_has_the_promised_settings(cluster: PrivateCluster) -> None:
    expected = {
        "autovacuum": "on",
        "data_checksums": "on",
        "fsync": "off",
        "max_connections": "300",
        "shared_buffers": "16MB",
    }
    assert {name: answer(cluster.dsn, f"SHOW {name}") for name in expected} == expected


def test_databases_of_one_cluster_are_separate_unless_copied_from_a_template(cluster: PrivateCluster) -> None:
    first, second = cluster.create_database("first"), cluster.create_database("second")
    with psycopg.connect(first) as connection:
        connection.execute("CREATE TABLE only_here ()")
    assert answer(second, "SELECT to_regclass('only_here')") is None
    third = cluster.create_database("third", template="first")
    assert answer(third, "SELECT to_regclass('only_here')::text") == "only_here"


@pytest.mark.usefixtures("own_server")
def test_a_stopped_cluster_is_removed() -> None:
    with PrivateCluster(shared_buffers="16MB") as cluster:
        directory, pid = cluster.directory, cluster.pid
        assert directory is not None
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
    assert not directory.exists()
    assert not is_running(pid)


@pytest.mark.usefixtures("own_server")
def test_a_cluster_that_cannot_start_says_why_and_leaves_no_directory() -> None:
    cluster = PrivateCluster(settings={"shared_buffers": "nonsense"})
    with pytest.raises(ServerUnavailableError, match="nonsense"):
        cluster.start()
    assert cluster.directory is None


def test_only_our_databases_are_removed_from_a_shared_server(
    cluster: PrivateCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", cluster.dsn)
    with PrivateCluster() as guest:
        assert guest.directory is None
        assert answer(guest.create_database("visitor"), "SELECT current_database()") == "visitor"
    assert answer(cluster.dsn, "SELECT count(*) FROM pg_database WHERE datname = 'visitor'") == 0


def test_a_bouncer_pools_by_transaction_and_ends(cluster: PrivateCluster) -> None:
    cluster.create_database("pooled")
    with PrivateBouncer(cluster.dsn, pool_size=1) as bouncer:
        pid = bouncer.pid
        assert pid is not None
        dsn = bouncer.dsn("pooled")
        # Two clients on one server connection: only transaction pooling answers both.
        with psycopg.connect(dsn, autocommit=True) as one, psycopg.connect(dsn, autocommit=True) as two:
            backends = [
                one.execute("SELECT pg_backend_pid()").fetchone(),
                two.execute("SELECT pg_backend_pid()").fetchone(),
            ]
        assert backends[0] == backends[1]
    assert not is_running(pid)


@pytest.mark.usefixtures("own_server")
def test_a_killed_owner_leaves_a_cluster_that_the_next_run_removes() -> None:
    program = (
        "import os, signal; from bench.postgres import PrivateCluster; "
        "cluster = PrivateCluster(shared_buffers='16MB'); cluster.start(); "
        "print(cluster.directory, cluster.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    directory, pid = Path(done.stdout.split()[0]), int(done.stdout.split()[1])
    assert is_running(pid)
    hour_ago = time.time() - 3600
    os.utime(directory / OWNER_FILE, (hour_ago, hour_ago))
    PrivateDirectory().remove()
    assert not directory.exists()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(pid)


def test_a_missing_binary_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ServerUnavailableError, match="apt-get install postgresql"):
        find_binary("no_such_server_binary")


def test_a_free_port_is_below_the_range_that_the_system_assigns_to_connections() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = [free_port() for _ in range(20)]
    assert len(set(ports)) == len(ports)
    assert max(ports) < lowest


def test_a_port_that_is_used_on_any_address_is_not_free() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.9", port)):
        assert port not in [free_port() for _ in range(PORTS_OF_A_PART)]
    with socket.create_server((LOOPBACK, port)):
        assert port not in [free_port() for _ in range(PORTS_OF_A_PART)]
