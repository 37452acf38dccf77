"""The cost of finding the newest results does not depend on their number."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path

import msgspec

from bench.explain import ExplainedBus
from kingdom.bootstrap import open_bus
from kingdom.bus.port import Bus
from kingdom.bus.record import Record
from kingdom.clock import utc_now
from kingdom.workflow.past_results import (
    PastResult,
    find_past_results,
    general_repo_key,
    repo_key,
    save_past_result,
)
from kingdom.workflow.reactions import engine
from kingdom.workflow.records import ACTIVE, PAST_RESULTS

COUNT = 3000
LIMIT = 5
APPLICATION = engine()


async def fill(bus: Bus) -> None:
    """Store results of one repository and as many of other repositories, in the order of their end."""
    start = utc_now() - timedelta(days=1)
    async with bus.transaction() as transaction:
        for number in range(COUNT):
            for repo, general in (("acme/app", "gen-pr"), (f"acme/{number}", "gen-other")):
                result = PastResult(
                    assignment_id=f"task-20260101-{number:03d}"
                    if general == "gen-pr"
                    else f"task-20260102-{number:03d}",
                    general=general,
                    type="github.pr.comment",
                    ended_at=start + timedelta(seconds=number),
                    status="success",
                    summary="done",
                    repo=repo,
                )
                await save_past_result(transaction, result)


async def newest(bus: Bus) -> list[str]:
    async with bus.transaction() as transaction:
        found = await find_past_results(transaction, repo_key("acme/app"), LIMIT)
    return [each.assignment_id for each in found]


NEWEST = [f"task-20260101-{number:03d}" for number in range(COUNT - 1, COUNT - 1 - LIMIT, -1)]


async def test_postgresql_reads_only_the_newest_by_their_index(dsn: str) -> None:
    async with ExplainedBus(dsn, APPLICATION.topology, APPLICATION.kinds, connections=1) as bus:
        await fill(bus)
        async with bus.pool.connection() as connection:
            await connection.execute("ANALYZE kingdom.record")
        bus.take()
        assert await newest(bus) == NEWEST
        (plan,) = bus.take("find_by_index_1_descending")
        assert plan.indexes == {"record_owner"}
        assert plan.buffers <= 2 * LIMIT + 5


async def test_a_store_of_files_opens_only_the_files_of_the_newest(tmp_path: Path) -> None:
    async with open_bus(f"file:{tmp_path}/realm", APPLICATION.topology, APPLICATION.kinds) as bus:
        await fill(bus)
        # The first search of a process reads every header into the index.
        assert await newest(bus) == NEWEST
        with opened_files(tmp_path / "realm" / "state" / "past-results") as paths:
            assert await newest(bus) == NEWEST
    assert len(paths) == LIMIT


@contextmanager
def opened_files(folder: Path) -> Iterator[list[str]]:
    """Record which files of a folder this process opens."""
    paths: list[str] = []
    active = True

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if active and event == "open" and str(arguments[0]).startswith(f"{folder}/"):
            paths.append(str(arguments[0]))

    # Python cannot remove a hook, so it is switched off.
    sys.addaudithook(hook)
    yield paths
    active = False


async def test_results_that_an_earlier_version_stored_once_per_key_follow_the_newer_ones(tmp_path: Path) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)

    def result(number: int) -> PastResult:
        return PastResult(
            assignment_id=f"task-{number}",
            general="gen-pr",
            type="github.pr.comment",
            ended_at=start + timedelta(hours=number),
            status="success",
            summary="done",
            repo="acme/app",
        )

    keys = [repo_key("acme/app"), general_repo_key("gen-pr", "acme/app")]
    async with open_bus(f"file:{tmp_path}/realm", APPLICATION.topology, APPLICATION.kinds) as bus:
        async with bus.transaction() as transaction:
            for number, (copy, key) in product(range(3), enumerate(keys)):
                moment = 10**14 - int(result(number).ended_at.timestamp() * 1000)
                record = Record(
                    kind=PAST_RESULTS.name,
                    id=f"{moment:014d}-task-{number}-{copy}",
                    state=ACTIVE,
                    indexed={"repo": key.value},
                    doc=msgspec.to_builtins(result(number)),
                )
                await transaction.put(record)
            for number in (3, 4):
                await save_past_result(transaction, result(number))
        async with bus.transaction() as transaction:
            for key in keys:
                found = await find_past_results(transaction, key, 4)
                assert [each.assignment_id for each in found] == ["task-4", "task-3", "task-2", "task-1"]
