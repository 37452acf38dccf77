import asyncio

from kingdom.backends.postgres import PostgresBus
from kingdom.bus import EFFECTS, Envelope, Stream, Topology


async def test_a_transaction_that_is_cancelled_twice_gives_its_connection_back(dsn: str) -> None:
    entered = asyncio.Event()
    async with PostgresBus(dsn, Topology([Stream(name="jobs")]), [EFFECTS], connections=1) as bus:

        async def hang() -> None:
            async with bus.transaction() as transaction:
                await transaction.get(EFFECTS.name, "any")
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(hang())
        await entered.wait()
        # As when a handler's deadline and the loss of its lease come together: the second hits the rollback.
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        await bus.publish(Envelope(type="Job", stream="jobs"))
