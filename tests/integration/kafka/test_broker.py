import hashlib
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.kafka import jars
from bench.kafka.broker import PrivateKafka
from bench.servers import ServerUnavailableError, is_running
from tests.patience import PATIENCE_SECONDS


def create_topic(servers: str, name: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(name, num_partitions=partitions)])[name].result(PATIENCE_SECONDS)


def send(servers: str, topic: str, count: int) -> int:
    """Send messages, and return how many of them the brokers have acknowledged."""
    acknowledged = 0

    def count_delivery(error: object, _message: object) -> None:
        nonlocal acknowledged
        acknowledged += error is None

    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for number in range(count):
        producer.produce(topic, str(number), on_delivery=count_delivery)
    producer.flush(PATIENCE_SECONDS)
    return acknowledged


def test_a_broker_acknowledges_messages(broker: PrivateKafka) -> None:
    create_topic(broker.servers, "taken")
    assert send(broker.servers, "taken", 100) == 100


@pytest.mark.kafka
def test_a_cluster_leaves_neither_files_nor_processes() -> None:
    with PrivateKafka() as cluster:
        directory, pids = cluster.directory, cluster.pids
        assert directory is not None
        assert all(map(is_running, pids.values()))
    assert not directory.exists()
    assert not any(map(is_running, pids.values()))


@pytest.mark.kafka
def test_a_cluster_of_three_accepts_messages_while_a_node_is_killed_and_after_its_return() -> None:
    with PrivateKafka(3) as cluster:
        create_topic(cluster.servers, "killed", partitions=3)
        assert send(cluster.servers, "killed", 100) == 100
        cluster.kill(2)
        assert sorted(cluster.pids) == [1, 3]
        assert send(cluster.servers, "killed", 100) == 100
        cluster.restart(2)
        cluster.wait_until_complete()
        assert send(cluster.servers, "killed", 100) == 100


@pytest.fixture
def mirrored_jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path in a mirror of the one jar that the lock file names. The test creates the jar."""
    mirror, lock = tmp_path / "mirror", tmp_path / "jars.lock"
    (mirror / "a").mkdir(parents=True)
    lock.write_text(f"{hashlib.sha256(b'as published').hexdigest()}  a/a.jar\n")
    monkeypatch.setenv("KINGDOM_MAVEN_URL", mirror.as_uri())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(jars, "_LOCK_FILE", lock)
    return mirror / "a" / "a.jar"


def test_fetching_a_jar_is_repeated_after_a_failure(mirrored_jar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "sleep", lambda _: mirrored_jar.write_bytes(b"as published"))
    (fetched,) = jars.class_path()
    assert fetched.read_bytes() == b"as published"


def test_a_jar_with_another_checksum_is_refused(mirrored_jar: Path) -> None:
    mirrored_jar.write_bytes(b"changed later")
    with pytest.raises(ServerUnavailableError, match="checksum"):
        jars.class_path()
    assert list(jars.cache_directory().rglob("*.jar")) == []
