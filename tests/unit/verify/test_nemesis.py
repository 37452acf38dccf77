import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from kingdom.bootstrap import trial_store
from kingdom.verify.fleet import Fleet
from kingdom.verify.history import History, read_history
from kingdom.verify.nemesis import ExtraFault, Nemesis
from kingdom.verify.process_config import ProcessConfig
from tests.patience import PATIENCE_SECONDS

UNREACHABLE = "host=127.0.0.1 port=1 user=nobody"
PART = ProcessConfig(
    role="worker",
    name="",
    url=UNREACHABLE,
    schema="verify",
    directory="",
    target_port=0,
    seed=0,
    lease_seconds=1,
    failure_rate=0,
    pause_seconds=0,
    steady_lease_seconds=1,
)


Strike = Callable[[Nemesis], Awaitable[bool]]


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    history = History(tmp_path, "trial")
    yield history
    history.close()


def nemesis_with(strike: Strike, history: History) -> Nemesis:
    """Return a nemesis without processes and store, with one extra fault."""
    rng = random.Random(1)
    store, fleet = trial_store(UNREACHABLE, "verify"), Fleet(PART, history, rng)
    faults = [ExtraFault(kind="server_killed", weight=1, strike=strike)]
    return Nemesis(fleet, store, history, rng, lease_seconds=1, extra_faults=faults)


async def inject_faults_until(over: asyncio.Event, nemesis: Nemesis) -> None:
    injecting = asyncio.create_task(nemesis.run(every_seconds=0.001))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await over.wait()
    injecting.cancel()
    await asyncio.gather(injecting, return_exceptions=True)


async def test_a_fault_of_a_bench_is_counted_only_if_it_hit_something(history: History, tmp_path: Path) -> None:
    enough, tries = asyncio.Event(), 0

    async def strike(_: Nemesis) -> bool:
        nonlocal tries
        tries += 1
        if tries == 4:
            enough.set()
        return tries % 2 == 0

    nemesis = nemesis_with(strike, history)
    await inject_faults_until(enough, nemesis)
    counted = [entry.facts["kind"] for entry in read_history(tmp_path) if entry.what == "fault"]
    assert nemesis.fault_counts == {"server_killed": tries // 2}
    assert counted == ["server_killed"] * (tries // 2)


async def test_a_fault_in_progress_at_the_end_is_undone_and_not_counted(history: History) -> None:
    begun, undone = asyncio.Event(), asyncio.Event()

    async def strike(_: Nemesis) -> bool:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            undone.set()
        return True

    nemesis = nemesis_with(strike, history)
    await inject_faults_until(begun, nemesis)
    assert undone.is_set()
    assert not nemesis.fault_counts


async def test_a_fault_that_fails_ends_the_verification_with_its_error(history: History) -> None:
    async def strike(_: Nemesis) -> bool:
        raise OSError("the server does not come back")

    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await nemesis_with(strike, history).run(every_seconds=0.001)
    assert raised.group_contains(OSError, match="does not come back")
