"""The Sentinel forgets subjects and tickets some time after their last activity, and not earlier."""

from datetime import UTC, datetime, timedelta

from kingdom.bus import RecordQuery
from kingdom.court.records import CURRENT, ENDED
from kingdom.court.sentinel.deduplication import SubjectHistory
from kingdom.court.sentinel.records import KnownTicket, end_old_records, load_state, save_state
from tests.integration.court.sentinel.scene import Watch

TICKET = KnownTicket(key="QP-1", status="To Do", known_until=datetime(2026, 2, 7, 10, tzinfo=UTC))


async def remembered(watch: Watch) -> None:
    async with watch.bus.transaction() as transaction:
        place, _ = await load_state(transaction, SubjectHistory, "acme/app#7")
        await save_state(transaction, "acme/app#7", SubjectHistory(subject="acme/app#7"), place)
        ticket, _ = await load_state(transaction, KnownTicket, "QP-1")
        await save_state(transaction, "QP-1", TICKET, ticket)


async def states(watch: Watch) -> dict[str, str]:
    async with watch.bus.transaction() as transaction:
        found = [each for kind in ("place", "ticket") for each in await transaction.find(RecordQuery(kind=kind))]
    return {record.id: record.state for record in found}


async def test_an_inactive_subject_is_forgotten_after_its_retention(watch: Watch) -> None:
    await remembered(watch)
    now = datetime.now(UTC)
    assert await end_old_records(watch.bus, now + timedelta(days=29)) == 0
    assert await end_old_records(watch.bus, now + timedelta(days=31)) == 1
    assert await states(watch) == {"acme/app#7": ENDED, "QP-1": CURRENT}
    assert await end_old_records(watch.bus, now + timedelta(days=366)) == 1
    assert await states(watch) == {"acme/app#7": ENDED, "QP-1": ENDED}


async def test_a_forgotten_ticket_counts_as_new(watch: Watch) -> None:
    await remembered(watch)
    await end_old_records(watch.bus, datetime.now(UTC) + timedelta(days=400))
    async with watch.bus.transaction() as transaction:
        assert (await load_state(transaction, KnownTicket, "QP-1"))[1] is None
    await remembered(watch)
    assert await states(watch) == {"acme/app#7": CURRENT, "QP-1": CURRENT}
