"""The replies of a host reach the store in order, despite conflicts, outages and replies that cannot be stored."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from kingdom.bus import Bus, Record, Transaction
from kingdom.errors import Conflict, KingdomError, MalformedEvent, Unavailable
from kingdom.soldiers.host.reporter import HostReply, Reporter
from kingdom.workflow.model.messages import answers
from kingdom.workflow.reactions import engine
from kingdom.workflow.records import ACCEPTED, ACTIVE, ANSWERED, COMMANDS, DOCUMENTS
from tests.contract.backends import BackendUnderTest
from tests.integration.soldiers.host_barriers import BarredBus, BeforeCommit
from tests.patience import PATIENCE_SECONDS

ONE_BACKEND = pytest.mark.parametrize("backend", ["files"], indirect=True)
VERIFIED = answers.WorkVerified.__name__


async def nothing(_: Transaction) -> None:
    """Let every transaction commit."""


@dataclass
class Refusal:
    """Raises an error in the first transactions that report a Work as verified, as many times as requested."""

    work_id: str
    error: KingdomError
    times: int

    async def __call__(self, transaction: Transaction) -> None:
        if self.times and reports_as_verified(transaction, self.work_id):
            self.times -= 1
            raise self.error


def reports_as_verified(transaction: Transaction, work_id: str) -> bool:
    published = (copy.envelope for copy in transaction.changes.copies.values())
    return any(each.type == VERIFIED and each.payload["workId"] == work_id for each in published)


class ReporterScene:
    """A running reporter on a store without an engine, so that all its replies stay there."""

    def __init__(self, bus: Bus) -> None:
        self.transactions_before_outage: int | None = None
        self.before_commit: BeforeCommit = nothing
        self.bus = bus
        self.reporter = Reporter(BarredBus(bus, self._refuse))

    async def accepted(self, name: str) -> Record:
        async with self.bus.transaction() as transaction:
            record = Record(kind=COMMANDS.name, id=name, state=ACCEPTED, indexed={"host": "host-a"})
            return await transaction.put(record)

    async def send(self, *statements: HostReply) -> None:
        for statement in statements:
            self.reporter.send(statement)
        await asyncio.wait_for(self.reporter.wait_until_sent(), PATIENCE_SECONDS)

    async def state_of(self, record: Record) -> str:
        async with self.bus.transaction() as transaction:
            found = await transaction.get(record.kind, record.id)
        assert found is not None
        return found.state

    async def received_works(self) -> list[str]:
        """Return the Works in the order in which the engine would receive them."""
        return [work_id for _, work_id in await self.replies()]

    async def replies(self) -> list[tuple[str, str]]:
        """Return the types and Works of the replies to the engine, in order."""
        deliveries = await self.bus.claim("workflow", 100, "listener")
        return [(delivery.envelope.type, delivery.envelope.payload["workId"]) for delivery in deliveries]

    async def give_up(self, record: Record) -> None:
        async with self.bus.transaction() as transaction:
            await transaction.put(record.replace(state=ANSWERED))

    async def _refuse(self, transaction: Transaction) -> None:
        await self.before_commit(transaction)
        if self.transactions_before_outage == 0:
            self.transactions_before_outage = None
            raise Unavailable("the store is away")
        if self.transactions_before_outage:
            self.transactions_before_outage -= 1


@asynccontextmanager
async def at_work(backend: BackendUnderTest) -> AsyncIterator[ReporterScene]:
    application = engine()
    async with backend.open(application.topology, application.kinds) as bus:
        scene = ReporterScene(bus)
        running = asyncio.create_task(scene.reporter.run())
        try:
            yield scene
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.wait([running])


def verified(work_id: str, *closes: Record, **more: Any) -> HostReply:
    reply = answers.WorkVerified(work_id=work_id, host="host-a", epoch=1, attempt=1)
    return HostReply(workflow_id="wf-1", answers=(reply,), closes=closes, **more)


def not_verified(error: KingdomError) -> tuple[answers.HostAnswer, ...]:
    return (answers.VerifyFailed(work_id="w2", host="host-a", epoch=1, attempt=1, error=str(error)),)


async def test_all_replies_arrive_in_order_and_close_their_commands(backend: BackendUnderTest) -> None:
    async with at_work(backend) as scene:
        command = await scene.accepted("one")
        names = [f"w{number}" for number in range(100)]
        await scene.send(*(verified(name, *([command] if name == "w5" else [])) for name in names))
        assert await scene.received_works() == names
        assert await scene.state_of(command) == ANSWERED


@ONE_BACKEND
async def test_a_reply_to_an_abandoned_command_does_not_delay_the_others(backend: BackendUnderTest) -> None:
    async with at_work(backend) as scene:
        given_up, command = await scene.accepted("one"), await scene.accepted("two")
        await scene.give_up(given_up)
        await scene.send(verified("w1"), verified("late", given_up), verified("w2", command))
        assert await scene.received_works() == ["w1", "w2"]
        assert await scene.state_of(command) == ANSWERED


@ONE_BACKEND
@pytest.mark.parametrize("transactions_before", [0, 1, 2])
async def test_no_reply_is_lost_if_the_store_becomes_unavailable(
    backend: BackendUnderTest, transactions_before: int
) -> None:
    async with at_work(backend) as scene:
        given_up, command = await scene.accepted("one"), await scene.accepted("two")
        await scene.give_up(given_up)
        scene.transactions_before_outage = transactions_before
        await scene.send(verified("late", given_up), verified("w1", command))
        assert scene.transactions_before_outage is None
        assert await scene.received_works() == ["w1"]
        assert await scene.state_of(command) == ANSWERED


@ONE_BACKEND
async def test_an_existing_document_is_not_written_twice(backend: BackendUnderTest) -> None:
    document = Record(
        kind=DOCUMENTS.name, id="report", state=ACTIVE, indexed={"run": "wf-1"}, doc={"text": "# Report\n"}
    )
    async with at_work(backend) as scene:
        await scene.send(verified("w1", documents=(document,)))
        await scene.send(verified("w2", documents=(document,)))
        assert await scene.received_works() == ["w1", "w2"]


@pytest.mark.parametrize("closes", ["nothing", "a command"])
@pytest.mark.parametrize("times", [1, 2, 3])
@ONE_BACKEND
async def test_no_reply_is_lost_after_conflicts_with_other_transactions(
    backend: BackendUnderTest, closes: str, times: int
) -> None:
    async with at_work(backend) as scene:
        commands = [await scene.accepted("one")] if closes == "a command" else []
        refusal = scene.before_commit = Refusal("w2", Conflict("another transaction was faster: deadlock"), times)
        await scene.send(verified("w1"), verified("w2", *commands), verified("w3"))
        assert refusal.times == 0
        assert await scene.received_works() == ["w1", "w2", "w3"]
        assert [await scene.state_of(command) for command in commands] == [ANSWERED] * len(commands)


@ONE_BACKEND
@pytest.mark.parametrize("tries_before", [0, 1])
async def test_a_command_that_is_abandoned_while_it_is_answered_gets_no_reply(
    backend: BackendUnderTest, tries_before: int
) -> None:
    async with at_work(backend) as scene:
        given_up, command = await scene.accepted("one"), await scene.accepted("two")
        refusal = Refusal("w2", Conflict("another transaction was faster"), tries_before)

        async def give_up(transaction: Transaction) -> None:
            await refusal(transaction)
            if reports_as_verified(transaction, "w2") and await scene.state_of(given_up) == ACCEPTED:
                await scene.give_up(given_up)

        scene.before_commit = give_up
        await scene.send(verified("w1"), verified("w2", given_up), verified("w3", command))
        assert await scene.received_works() == ["w1", "w3"]
        assert await scene.state_of(given_up) == await scene.state_of(command) == ANSWERED


@ONE_BACKEND
async def test_an_unstorable_answer_is_replaced_by_a_failure(backend: BackendUnderTest) -> None:
    document = Record(
        kind=DOCUMENTS.name, id="report", state=ACTIVE, indexed={"run": "wf-1"}, doc={"text": "# Report\n"}
    )
    async with at_work(backend) as scene:
        command = await scene.accepted("one")
        scene.before_commit = Refusal("w2", MalformedEvent("this cannot be stored"), 100)
        odd = verified("w2", command, documents=(document,), fallback=not_verified)
        await scene.send(verified("w1"), odd, verified("w3"))
        assert await scene.replies() == [(VERIFIED, "w1"), (answers.VerifyFailed.__name__, "w2"), (VERIFIED, "w3")]
        assert await scene.state_of(command) == ANSWERED
        async with scene.bus.transaction() as transaction:
            assert await transaction.get(DOCUMENTS.name, document.id) is None


@ONE_BACKEND
async def test_an_unstorable_answer_does_not_delay_the_others(backend: BackendUnderTest) -> None:
    async with at_work(backend) as scene:
        scene.before_commit = Refusal("w2", MalformedEvent("this cannot be stored"), 100)
        await scene.send(verified("w1"), verified("w2"), verified("w3"))
        await scene.send(verified("w4"))
        assert await scene.received_works() == ["w1", "w3", "w4"]
