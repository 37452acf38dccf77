import asyncio
from datetime import timedelta

import pytest

from kingdom.bus.worker.keeper import HeldLease
from kingdom.bus.worker.unit import Unit
from tests.unit.bus.deliveries import delivery


def a_unit() -> Unit:
    return Unit(HeldLease(1, timedelta(seconds=30), 0.0), [delivery()], calls_outside=True)


@pytest.mark.parametrize("ended", ["lost", "stopped"])
async def test_a_unit_that_was_ended_before_its_first_step_does_not_run(ended: str) -> None:
    unit = a_unit()
    if ended == "lost":
        unit.lost = True
        unit.cancel()
    else:
        unit.stop()
    with pytest.raises(asyncio.CancelledError):
        unit.adopt_task()


async def test_stopping_a_unit_twice_cancels_it_once() -> None:
    unit, cancellations = a_unit(), 0

    async def run() -> None:
        nonlocal cancellations
        unit.adopt_task()
        for _ in range(2):
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                cancellations += 1

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    unit.stop()
    unit.stop()
    await task
    assert cancellations == 1
