"""The live stream: a client misses nothing, whatever happens to its connection, and costs the store nothing."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from psycopg.rows import DictRow

from kingdom.backends.postgres import PostgresOperations
from kingdom.bootstrap import open_bus, operations_of
from kingdom.bus import Bus, LogCursor, LogEntry, Topology
from kingdom.chronicle.catalog import CATALOG
from kingdom.cli.bus.stream_client import StreamClient
from kingdom.clock import utc_now
from kingdom.errors import Permanent
from kingdom.web.stream import LogStream, StreamSession
from kingdom.workflow.model.messages.catalog import EVENT_TYPES
from tests.integration import running
from tests.integration.running import eventually
from tests.integration.web.streams import append, block, connected, data, serving, take, types

REVOKED = "session.revoked"


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    async with open_bus(f"file:{tmp_path}/realm", Topology([])) as opened:
        yield opened


def stream_of(bus: Bus, **options: Any) -> LogStream:
    return LogStream(operations_of(bus), registry=CollectorRegistry(), **options)


async def test_an_entry_arrives_with_its_cursor_as_its_id(bus: Bus) -> None:
    async with serving(stream_of(bus)) as url, connected(url) as response:
        assert response.headers["X-Accel-Buffering"] == "no"
        assert "Content-Encoding" not in response.headers
        assert response.content_type == "text/event-stream"
        # The position comes first, so that a client that is cut at once can resume.
        assert await block(response) == ["retry: 1000", f"id: {LogCursor()}"]
        await append(bus, "TaskStarted")
        identifier, event, line = await block(response)
        (logged,) = await operations_of(bus).read_log(LogCursor(), 10)
        assert (identifier, event) == (f"id: {logged.cursor}", "event: entry")
        assert f'"cursor":"{logged.cursor}"' in line
        assert '"type":"TaskStarted"' in line


async def test_every_domain_event_and_internal_event_arrives(bus: Bus) -> None:
    names = sorted({*CATALOG, *(event.__name__ for event in EVENT_TYPES)})
    assert {"TaskStarted", "WorkflowMcpServerRefsUpdated"} <= set(names)
    await append(bus, *names)
    async with serving(stream_of(bus)) as url:
        assert types(await take(StreamClient(url, None, "start"), len(names))) == names


async def test_a_client_resumes_exactly_after_the_last_id_that_it_has(bus: Bus) -> None:
    await append(bus, "a", "b", "c", "d")
    stream = stream_of(bus)
    async with serving(stream) as url:
        first = await take(StreamClient(url, None, "start"), 2)
        rest = await take(StreamClient(url, None, first[-1].id), 2)
        assert types([*first, *rest]) == ["a", "b", "c", "d"]
        async with connected(url, position=first[0].id, after="start") as response:
            await block(response)
            assert (await block(response))[0] == f"id: {first[1].id}"


async def test_a_client_gets_only_the_kinds_it_wants_and_its_position_moves_with_the_others(bus: Bus) -> None:
    await append(bus, "TaskStarted", "dead_letter.patched", "TaskStarted", "Other")
    end = await operations_of(bus).read_log(LogCursor(), 10)
    async with serving(stream_of(bus)) as url, connected(url, after="start", kinds="Task*,dead_letter.patched") as got:
        await block(got)
        events = [await block(got) for _ in range(4)]
    assert [each[0] for each in events] == [f"id: {logged.cursor}" for logged in end]
    assert events[-1] == [f"id: {end[-1].cursor}"]


async def test_an_idle_stream_is_pinged(bus: Bus) -> None:
    async with serving(stream_of(bus, ping_seconds=0.05)) as url, connected(url) as response:
        await block(response)
        assert await block(response) == [": ping", f"id: {LogCursor()}"]


async def test_a_client_with_a_position_that_the_log_no_longer_has_gets_a_reset(bus: Bus) -> None:
    await append(bus, "one")
    async with serving(stream_of(bus)) as url:
        client = StreamClient(url, None, "77777777.77777777")
        (reset,) = await take(client, 1)
        end = await operations_of(bus).log_end()
        assert (reset.event, data(reset)) == ("reset", {"cursor": str(end), "reason": "not-in-log"})
        await append(bus, "two")
        assert types(await take(client, 1)) == ["two"]


async def test_a_text_that_is_no_position_is_refused(bus: Bus) -> None:
    async with serving(stream_of(bus)) as url, connected(url, after="yesterday") as response:
        assert response.status == 400
        assert "start, now, or the id" in await response.text()


async def test_a_client_that_is_too_slow_is_dropped_and_resumes(bus: Bus) -> None:
    stream = stream_of(bus, buffer=50, write_seconds=0.2)
    big = LogEntry(type="big", actor="test", data={"text": "x" * 100_000})
    async with serving(stream) as url:
        async with connected(url) as response:
            first = (await block(response))[-1].removeprefix("id: ")

            async def is_dropped() -> bool:
                async with bus.transaction() as transaction:
                    await transaction.append(*[big] * 20)
                return stream.figures.dropped == 1

            await eventually(is_dropped)
        whole = await operations_of(bus).read_log(LogCursor(), 10_000)
        resumed = await take(StreamClient(url, None, first), len(whole))
        assert [message.id for message in resumed] == [str(logged.cursor) for logged in whole]


async def test_a_server_that_stops_asks_its_clients_to_reconnect(bus: Bus) -> None:
    stream = stream_of(bus)
    async with serving(stream) as url, connected(url) as response:
        await block(response)
        await stream.stop()
        assert await block(response) == ["retry: 1000", ": the server is stopping"]
        assert await response.content.read() == b""
        async with connected(url) as refused:
            assert refused.status == 503


async def test_a_stream_beyond_the_limit_is_refused_and_the_others_continue(bus: Bus) -> None:
    stream = stream_of(bus, clients_max=2)
    async with serving(stream) as url, connected(url) as first, connected(url):
        async with connected(url) as third:
            assert third.status == 503
        await block(first)
        await append(bus, "TaskStarted")
        assert '"type":"TaskStarted"' in (await block(first))[-1]


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_revoking_a_session_closes_its_streams(bus: Bus, where: str) -> None:
    def revoked(entry: LogEntry) -> str | None:
        return entry.aggregate_id if entry.type == REVOKED else None

    stream = stream_of(bus, ended_credential=revoked)
    async with serving(stream, StreamSession(id="session-1")) as url, connected(url) as response:
        await block(response)
        if where == "here":
            assert stream.close("session-2") == 0
            assert stream.close("session-1") == 1
        else:
            async with bus.transaction() as transaction:
                await transaction.append(LogEntry(type=REVOKED, actor="test", aggregate_id="session-1"))
        with pytest.raises(aiohttp.ClientError):
            await response.content.read()


async def test_a_session_that_was_revoked_while_its_stream_was_opened_gets_nothing(bus: Bus) -> None:
    async def is_valid() -> bool:
        return False

    async with serving(stream_of(bus), StreamSession(id="gone", is_valid=is_valid)) as url:
        with pytest.raises(Permanent, match="401"):
            await take(StreamClient(url, None, "start"), 1)


async def test_a_stream_ends_when_its_session_expires(bus: Bus) -> None:
    expires = utc_now() + timedelta(seconds=0.2)
    async with (
        serving(stream_of(bus), StreamSession(id="short", expires_at=expires)) as url,
        connected(url) as response,
    ):
        await response.content.read()
        assert utc_now() >= expires


async def test_the_figures_of_the_stream_are_also_metrics(bus: Bus) -> None:
    registry = CollectorRegistry()
    stream = LogStream(operations_of(bus), registry=registry)
    async with serving(stream) as url, connected(url) as response:
        await block(response)
        assert (stream.figures.clients, stream.figures.lag_seconds) == (1, 0.0)
        shown = generate_latest(registry).decode()
        assert "kingdom_web_stream_clients 1.0" in shown
        assert "kingdom_web_stream_lag_seconds 0.0" in shown


class CountingOperations(PostgresOperations):
    """Counts its statements."""

    statements = 0

    async def _read(self, name: str, parameters: Mapping[str, Any]) -> list[DictRow]:
        self.statements += 1
        return await super()._read(name, parameters)


@pytest.mark.parametrize("streams", [1, 200])
async def test_two_hundred_streams_cost_the_store_as_much_as_one(dsn: str, streams: int) -> None:
    poll_seconds, per_poll, opening = 0.25, 2, 3
    async with running.open_bus(dsn) as bus:
        operations = CountingOperations(bus)
        async with serving(LogStream(operations, registry=CollectorRegistry())) as url:
            taking = [asyncio.create_task(take(StreamClient(url, None, "now"), 10)) for _ in range(streams)]
            began = time.monotonic()
            while not all(task.done() for task in taking):
                await append(bus, "a", "b")
                await asyncio.sleep(poll_seconds)
            await asyncio.gather(*taking)
            polls = (time.monotonic() - began) / poll_seconds + 1
    # A slow machine makes fewer polls in the time, never more.
    assert operations.statements <= 1.1 * (per_poll * polls + opening)
