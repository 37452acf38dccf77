"""Faults of the brokers of a trial, one at a time, and of the connections to them."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import psutil

from bench.chaos.faults import run_to_end
from bench.kafka.broker import PrivateKafka
from bench.postgres import PrivateCluster
from bench.proxy import FaultyProxy
from kingdom.verify.nemesis import ExtraFault, Nemesis

_AWAY_SECONDS_MAX = 2.0
# A stopped broker must stay in the cluster in some cases and be replaced by another leader in others.
_STOPPED_SECONDS_MAX = 5.0
_CUT_SECONDS_MAX = 5.0
_SLOW_SECONDS_MAX = 3.0
_DELAY_SECONDS_MAX = 0.1
_SERVER_STOPPED_SECONDS_MAX = 1.5


class BrokerFaults:
    """The faults of the brokers, of the network between them and their clients, and a stop of PostgreSQL.

    The next fault of a broker begins when all brokers are back. `proxies` are in front of the brokers, by node.
    """

    def __init__(self, kafka: PrivateKafka, proxies: Mapping[int, FaultyProxy], cluster: PrivateCluster) -> None:
        self._kafka = kafka
        self._proxies = proxies
        self._cluster = cluster
        self._has_fault = False
        self._server_is_stopped = False

    def all(self) -> Sequence[ExtraFault]:
        """Return the faults with their weights."""
        return (
            ExtraFault(kind="broker_killed", weight=2, strike=self._kill),
            ExtraFault(kind="broker_stopped", weight=2, strike=self._stop),
            ExtraFault(kind="broker_cut_off", weight=2, strike=self._cut_off),
            ExtraFault(kind="broker_half_open", weight=1, strike=self._leave_half_open),
            ExtraFault(kind="broker_slow", weight=1, strike=self._slow_down),
            ExtraFault(kind="server_stopped", weight=1, strike=self._stop_server),
        )

    async def _kill(self, nemesis: Nemesis) -> bool:
        away = nemesis.rng.uniform(0, _AWAY_SECONDS_MAX)

        def kill_and_restart(node: int) -> None:
            self._kafka.kill(node)
            time.sleep(away)
            self._kafka.restart(node)

        return await self._strike(nemesis, kill_and_restart)

    async def _stop(self, nemesis: Nemesis) -> bool:
        seconds = nemesis.rng.uniform(0.5, _STOPPED_SECONDS_MAX)

        def stop_and_continue(node: int) -> None:
            self._kafka.stop_node(node)
            time.sleep(seconds)
            self._kafka.continue_node(node)

        return await self._strike(nemesis, stop_and_continue)

    async def _cut_off(self, nemesis: Nemesis) -> bool:
        """Cut the network between a broker and all clients."""
        seconds = nemesis.rng.uniform(0.5, _CUT_SECONDS_MAX)

        def isolate(node: int) -> None:
            proxy = self._proxies[node]
            proxy.isolated = True
            proxy.freeze()
            time.sleep(seconds)
            proxy.isolated = False
            proxy.drop_frozen()

        return await self._strike(nemesis, isolate)

    async def _leave_half_open(self, nemesis: Nemesis) -> bool:
        """Stop forwarding on the open connections of a broker, and close them later."""
        seconds = nemesis.rng.uniform(0.5, _CUT_SECONDS_MAX)

        def freeze(node: int) -> None:
            self._proxies[node].freeze()
            time.sleep(seconds)
            self._proxies[node].drop_frozen()

        return await self._strike(nemesis, freeze)

    async def _slow_down(self, nemesis: Nemesis) -> bool:
        seconds = nemesis.rng.uniform(0.5, _SLOW_SECONDS_MAX)
        delay = nemesis.rng.uniform(0.01, _DELAY_SECONDS_MAX)

        def slow_down(node: int) -> None:
            self._proxies[node].delay_seconds = delay
            time.sleep(seconds)
            self._proxies[node].delay_seconds = 0.0

        return await self._strike(nemesis, slow_down)

    async def _stop_server(self, nemesis: Nemesis) -> bool:
        """Stop all processes of PostgreSQL, and let them continue."""
        if self._server_is_stopped or self._cluster.pid is None:
            return False
        self._server_is_stopped = True
        seconds = nemesis.rng.uniform(0.2, _SERVER_STOPPED_SECONDS_MAX)
        try:
            with _stopped(self._cluster.pid):
                await asyncio.sleep(seconds)
        finally:
            self._server_is_stopped = False
        return True

    async def _strike(self, nemesis: Nemesis, fault: Callable[[int], None]) -> bool:
        """Run a blocking fault of one broker in a thread, and wait until all brokers are back."""
        if self._has_fault:
            return False
        self._has_fault, node = True, nemesis.rng.choice(list(self._proxies))

        def strike_and_wait() -> None:
            fault(node)
            self._kafka.wait_until_complete()

        try:
            await run_to_end(strike_and_wait)
        finally:
            self._has_fault = False
        return True


@contextmanager
def _stopped(pid: int) -> Iterator[None]:
    """Stop a process and its children. One of them may end in the meantime."""
    server = psutil.Process(pid)
    processes = [server, *server.children(recursive=True)]
    for process in processes:
        _send(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            _send(process, signal.SIGCONT)


def _send(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return
