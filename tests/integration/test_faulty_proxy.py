import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from bench.proxy import ANSWERS_BEFORE_A_CUT, FaultyProxy
from bench.servers import LOOPBACK, free_port
from tests.patience import PATIENCE_SECONDS

QUESTION, ANSWER = b"question", b"a long answer\n"
DELAY_SECONDS = 0.05


@pytest.fixture
async def answering() -> AsyncIterator[int]:
    """Run a server that gives every request the same answer, and yield its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(100):
            writer.write(ANSWER)
        writer.close()

    server = await asyncio.start_server(answer, LOOPBACK, 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self) -> bytes:
        self._writer.write(QUESTION)
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._reader.readline()

    def close(self) -> None:
        self._writer.close()


Proxied = tuple[FaultyProxy, Callable[[], Awaitable[Client]]]


@pytest.fixture
async def proxied(answering: int) -> AsyncIterator[Proxied]:
    """Yield a proxy in front of that server, and a function to connect through it."""
    clients: list[Client] = []
    with FaultyProxy(LOOPBACK, answering) as proxy:

        async def connect() -> Client:
            clients.append(Client(*await asyncio.open_connection(LOOPBACK, proxy.port)))
            return clients[-1]

        yield proxy, connect
        for client in clients:
            client.close()


async def test_calls_are_forwarded_without_a_fault(proxied: Proxied) -> None:
    _, connect = proxied
    client = await connect()
    assert [await client.ask() for _ in range(3)] == [ANSWER] * 3


async def test_a_frozen_connection_is_silent_and_open_and_a_new_one_answers(proxied: Proxied) -> None:
    proxy, connect = proxied
    frozen = await connect()
    await frozen.ask()
    assert proxy.freeze() == 1
    silent = asyncio.create_task(frozen.ask())
    assert await (await connect()).ask() == ANSWER
    assert not silent.done()
    proxy.drop_frozen()
    assert await silent == b""


async def test_an_answer_is_cut_in_its_middle_and_the_next_connection_works(proxied: Proxied) -> None:
    proxy, connect = proxied
    cut = await connect()
    proxy.cut_next_answer(0.5)
    assert [await cut.ask() for _ in range(ANSWERS_BEFORE_A_CUT)] == [ANSWER] * ANSWERS_BEFORE_A_CUT
    assert await cut.ask() == ANSWER[: len(ANSWER) // 2]
    assert proxy.cuts == 1
    assert await (await connect()).ask() == ANSWER


async def test_a_slow_connection_answers_later(proxied: Proxied) -> None:
    proxy, connect = proxied
    client = await connect()
    loop = asyncio.get_running_loop()
    proxy.delay_seconds = DELAY_SECONDS
    began = loop.time()
    assert await client.ask() == ANSWER
    # Both the request and its answer are delayed.
    assert loop.time() - began >= 2 * DELAY_SECONDS


async def test_a_connection_is_closed_while_the_server_is_down() -> None:
    with FaultyProxy(LOOPBACK, free_port()) as proxy:
        reader, writer = await asyncio.open_connection(LOOPBACK, proxy.port)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await reader.read() == b""
        writer.close()
