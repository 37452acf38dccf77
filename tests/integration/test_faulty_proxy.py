import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from bench.proxy import FaultyProxy
from bench.servers import LOOPBACK, free_port
from tests.patience import PATIENCE_SECONDS

QUESTION, ANSWER = b"question", b"a long answer\n"
# Long enough to see what must not come; nothing is waited for that should.
A_MOMENT_SECONDS = 0.1


@pytest.fixture
async def answering() -> AsyncIterator[int]:
    """Run a server that answers every question alike, and yield its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(100):
            writer.write(ANSWER)
        writer.close()

    server = await asyncio.start_server(answer, LOOPBACK, 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    async def ask(self) -> bytes:
        self._writer.write(QUESTION)
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.reader.readline()

    def close(self) -> None:
        self._writer.close()


@pytest.fixture
async def connect(answering: int) -> AsyncIterator[tuple[FaultyProxy, Callable[[], Awaitable[Client]]]]:
    clients: list[Client] = []
    with FaultyProxy(LOOPBACK, answering) as proxy:

        async def connect() -> Client:
            clients.append(Client(*await asyncio.open_connection(LOOPBACK, proxy.port)))
            return clients[-1]

        yield proxy, connect
        for client in clients:
            client.close()


Way = tuple[FaultyProxy, Callable[[], Awaitable[Client]]]


async def test_what_is_not_hindered_is_passed_on(connect: Way) -> None:
    _, connected = connect
    client = await connected()
    assert [await client.ask() for _ in range(3)] == [ANSWER] * 3


async def test_a_frozen_connection_is_silent_and_open_and_a_new_one_answers(connect: Way) -> None:
    proxy, connected = connect
    frozen = await connected()
    await frozen.ask()
    assert proxy.freeze() == 1
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(A_MOMENT_SECONDS):
            await frozen.ask()
    assert await (await connected()).ask() == ANSWER
    proxy.drop_frozen()
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await frozen.reader.read() == b""


async def test_an_answer_is_cut_in_its_middle_and_the_next_connection_is_whole(connect: Way) -> None:
    proxy, connected = connect
    cut = await connected()
    proxy.cut_next_answer(0.5)
    assert await cut.ask() == ANSWER[: len(ANSWER) // 2]
    assert proxy.cuts == 1
    assert await (await connected()).ask() == ANSWER


async def test_a_slow_connection_answers_later(connect: Way) -> None:
    proxy, connected = connect
    client = await connected()
    loop = asyncio.get_running_loop()
    proxy.delay_seconds = A_MOMENT_SECONDS
    began = loop.time()
    assert await client.ask() == ANSWER
    # The question and its answer are held up both.
    assert loop.time() - began >= 2 * A_MOMENT_SECONDS


async def test_who_connects_while_the_server_is_away_is_closed() -> None:
    with FaultyProxy(LOOPBACK, free_port()) as proxy:
        reader, writer = await asyncio.open_connection(LOOPBACK, proxy.port)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await reader.read() == b""
        writer.close()
