"""The backends under test: the store of each for one run, and its broken variants."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from bench.chaos.broker_faults import BrokerFaults
from bench.chaos.controls import Controls
from bench.chaos.faults import ServerFaults, clock_faults, disk_faults
from bench.chaos.variants import VARIANTS
from bench.chaos.variants_files import FILES_VARIANTS, many_checkpoints, script_commits
from bench.chaos.variants_kafka import KAFKA_VARIANTS, script_holds
from bench.chaos.variants_postgres import POSTGRES_VARIANTS
from bench.kafka.broker import PrivateKafka
from bench.postgres import PrivateBouncer, PrivateCluster
from bench.proxy import FaultyProxy
from bench.servers import LOOPBACK
from kingdom.verify.nemesis import ExtraFault


@dataclass(frozen=True, slots=True)
class PrivateStore:
    """The store of one run. `deadlocks` counts the deadlocks so far.

    Its `faults` use `controls` to change the processes under test. `kafka_servers` are the brokers that carry streams.
    """

    url: str
    deadlocks: Callable[[], int]
    controls: Controls
    faults: Sequence[ExtraFault]
    cluster: PrivateCluster | None = None
    kafka_servers: str = ""


@dataclass(frozen=True, slots=True)
class Backend:
    """One backend: `place` opens a private store, and `variants` are its broken variants by name.

    `prepare` changes a process under test: rare operations become frequent, and scripts can stop or kill the process.
    """

    place: Callable[[], AbstractContextManager[PrivateStore]]
    variants: Mapping[str, Callable[[], None]]
    prepare: Sequence[Callable[[], None]]


@contextmanager
def _private_cluster() -> Iterator[PrivateStore]:
    # Use a private server, because the server of DATABASE_URL must not be killed.
    with PrivateCluster(ignore_database_url=True) as cluster, _controls() as controls:
        cluster.create_database("chaos")
        # Use the timeouts of the product, not the long ones that `create_database` returns for tests.
        url = make_conninfo(cluster.dsn, dbname="chaos")
        at = conninfo_to_dict(url)
        with PrivateBouncer(url) as bouncer, FaultyProxy(str(at["host"]), int(str(at["port"]))) as proxy:
            controls["proxy_port"], controls["bouncer_port"] = proxy.port, bouncer.port
            faults = (*ServerFaults(cluster, bouncer, proxy).all(), *clock_faults(controls, one_host=False))

            def deadlocks() -> int:
                return cluster.log_path.read_text().count("deadlock detected") if cluster.log_path else 0

            yield PrivateStore(url, deadlocks, controls, faults, cluster)


@contextmanager
def private_cluster_and_brokers(nodes: int) -> Iterator[PrivateStore]:
    """Open a private PostgreSQL, and brokers that clients reach through proxies."""
    with _private_cluster() as store, ExitStack() as stack:
        assert store.cluster is not None
        proxies: list[FaultyProxy] = []

        def open_proxy(port: int) -> int:
            proxies.append(stack.enter_context(FaultyProxy(LOOPBACK, port)))
            return proxies[-1].port

        kafka = stack.enter_context(PrivateKafka(nodes, front=open_proxy, quick=True))
        faults = BrokerFaults(kafka, dict(enumerate(proxies, 1)), store.cluster).all()
        yield replace(store, faults=(*store.faults, *faults), kafka_servers=kafka.servers)


@contextmanager
def _private_directory() -> Iterator[PrivateStore]:
    with tempfile.TemporaryDirectory(prefix="kingdom-chaos-") as directory, _controls() as controls:
        faults = (*disk_faults(controls), *clock_faults(controls, one_host=True))
        yield PrivateStore(f"file:{directory}", lambda: 0, controls, faults)


@contextmanager
def _controls() -> Iterator[Controls]:
    with tempfile.TemporaryDirectory(prefix="kingdom-chaos-") as directory:
        yield Controls(Path(directory) / "controls")


BACKENDS: Mapping[str, Backend] = {
    "postgres": Backend(_private_cluster, {**VARIANTS, **POSTGRES_VARIANTS}, ()),
    "files": Backend(_private_directory, {**VARIANTS, **FILES_VARIANTS}, (many_checkpoints, script_commits)),
}
# The numbers of brokers that a trial can have.
BROKER_COUNTS = (1, 3)
TRANSPORTS: Mapping[str, Backend] = {
    "kafka": Backend(
        partial(private_cluster_and_brokers, max(BROKER_COUNTS)),
        {**POSTGRES_VARIANTS, **KAFKA_VARIANTS},
        (script_holds,),
    ),
}
