"""The scenes of the crash tests: each is prepared once, then executed step by step, one commit per step."""

import errno
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pytest

from kingdom.backends.files import FilesBus, FilesOperations
from kingdom.backends.files.store import SEGMENT_BYTES
from kingdom.backends.files.system.disk import Disk
from kingdom.bus import Dead, Defer, Done, Envelope, LogEntry, Record, RecordKind, Retry, Stream, Topology
from kingdom.bus.operations import DeadFilter, Retention
from kingdom.clock import utc_now

T = TypeVar("T")
_HOUR = timedelta(hours=1)
# The leases are so long that none expires during a test.
TOPOLOGY = Topology(
    replace(stream, lease=_HOUR)
    for stream in (
        Stream(name="free", subscribes=frozenset({"Ping", "Both"})),
        Stream(name="other", subscribes=frozenset({"Both"})),
        Stream(name="line", subscribes=frozenset({"Step", "Both"}), ordered=True, on_dead="block"),
        Stream(name="skipping", subscribes=frozenset({"Skip"}), ordered=True, on_dead="skip"),
        Stream(name="afterwards", subscribes=frozenset({"Afterwards"})),
    )
)
KINDS = (
    RecordKind(
        name="job",
        directories={"open": "jobs/open", "waiting": "jobs/open", "closed": "jobs/closed"},
        final=frozenset({"closed"}),
        retention=timedelta(0),
    ),
    RecordKind(name="tally", directories={"counting": "tallies"}),
)


class BlockingBus(FilesBus):
    """A bus without a thread, so that its process can be forked and killed at a known operation."""

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        super().__init__(root, TOPOLOGY, KINDS, disk=disk)
        self.run_in_thread = _at_once


async def _at_once(act: Callable[[], T]) -> T:
    return act()


Step = Callable[[BlockingBus, Any], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A preparation and its steps. A power loss may undo the steps in `volatile`."""

    prepare: Callable[[BlockingBus], Awaitable[Any]] | None
    steps: tuple[Step, ...]
    volatile: frozenset[int] = frozenset()
    segment_bytes: int = SEGMENT_BYTES


def event(kind: str, key: str | None = None, number: int = 0) -> Envelope:
    return Envelope(type=kind, partition_key=key, payload={"number": number, "text": "x" * 20}, event_id=uuid4())


async def _something_to_publish(bus: BlockingBus) -> dict[str, list[Envelope]]:
    await bus.publish(event("Both", "k"))
    known = [event("Ping"), event("Ping")]
    await bus.publish(*known)
    return {
        "one": [event("Ping", number=1)],
        "many": [*(event("Ping", number=n) for n in range(3)), event("Both", "k", 3), event("Skip", "s", 4)],
        "ordered": [event("Step", "k", n) for n in range(2)] + [event("Step", "new", n) for n in range(2)],
        "duplicates": [known[0], event("Ping", number=5), known[1]],
    }


def _publish(which: str) -> Step:
    async def publish(bus: BlockingBus, envelopes: Any) -> None:
        await bus.publish(*envelopes[which])

    return publish


async def _claimed(bus: BlockingBus) -> dict[str, Any]:
    """Claim events of several streams, among them five of one key and a key that will be skipped, and store records."""
    await bus.publish(*(event("Ping", number=n) for n in range(4)))
    await bus.publish(*(event("Step", "k", n) for n in range(4)), event("Step", "l"), event("Step", "l", 1))
    await bus.publish(event("Skip", "s"), event("Skip", "s", 1))
    async with bus.transaction() as transaction:
        for name in ("a", "b"):
            await transaction.put(Record(kind="job", id=f"job-{name}", state="open", doc={"is": name}))
        await transaction.append(LogEntry(type="began", actor="test", data={}))
    return {
        "free": await bus.claim("free", 3, "w"),
        "line": await bus.claim("line", 5, "w"),
        "skipping": await bus.claim("skipping", 2, "w"),
        "later": utc_now() + _HOUR,
        "new": [event("Ping", number=9), event("Step", "k", 9)],
    }


async def _claim(bus: BlockingBus, given: Any) -> None:
    given["claimed"] = await bus.claim("free", 3, "w")
    assert given["claimed"]


async def _settle_claimed(bus: BlockingBus, given: Any) -> None:
    first, second, *_ = given["claimed"]
    async with bus.transaction([first, second]) as transaction:
        await transaction.settle(first, Done())
        await transaction.settle(second, Retry(timedelta(0)))


async def _settle_one(bus: BlockingBus, given: Any) -> None:
    async with bus.transaction(given["free"][:1]) as transaction:
        await transaction.settle(transaction.held[0], Done())


async def _settle_group(bus: BlockingBus, given: Any) -> None:
    """All outcomes in one transaction: done, retry, dead, defer and release, for free events and two runs."""
    held = [*given["free"], *given["line"], *given["skipping"]]
    async with bus.transaction(held) as transaction:
        free, line, skipping = given["free"], given["line"], given["skipping"]
        await transaction.settle(free[0], Done())
        await transaction.settle(free[1], Retry(_HOUR, "busy", "come back"))
        await transaction.settle(free[2], Dead("never"))
        first = [delivery for delivery in line if delivery.envelope.partition_key == "k"]
        second = [delivery for delivery in line if delivery.envelope.partition_key == "l"]
        await transaction.settle(first[0], Done())
        # The rest of its run is released.
        await transaction.settle(first[1], Dead("blocks"))
        await transaction.settle(second[0], Defer(given["later"], "not yet"))
        await transaction.settle(skipping[0], Dead("skipped"))


async def _change_much(bus: BlockingBus, given: Any) -> None:
    """Several records, one of them in another directory, keys, lines, events and settlements at once."""
    async with bus.transaction(given["free"]) as transaction:
        for name, state in (("a", "closed"), ("b", "waiting")):
            found = await transaction.get("job", f"job-{name}")
            assert found
            changed = Record(kind="job", id=found.id, version=found.version, state=state, doc={"was": name})
            await transaction.put(changed)
        await transaction.put(Record(kind="tally", id="a name/with a slash", state="counting", doc={"count": 1}))
        assert await transaction.once("orders", "key-1", _HOUR)
        assert await transaction.once("seen", "key-2", _HOUR)
        await transaction.append(*(LogEntry(type="changed", actor="test", data={"n": n}) for n in range(2)))
        await transaction.publish(*given["new"])
        await transaction.settle(given["free"][0], Done())
        await transaction.settle(given["free"][1], Retry(_HOUR))


async def _expired(bus: BlockingBus) -> dict[str, Any]:
    given = await _claimed(bus)
    bus.renew({given["line"][0].token: -_HOUR})
    return given


async def _reap(bus: BlockingBus, _: Any) -> None:
    assert await bus.reap()


async def _dead(bus: BlockingBus) -> dict[str, Any]:
    """A dead letter that blocks its key, a free one, and a paused stream."""
    given = await _claimed(bus)
    await _settle_group(bus, given)
    operations = FilesOperations(bus)
    await operations.pause("other", reason="a test", actor="test")
    letters = await operations.dead_letters(DeadFilter(), 10)
    return given | {
        "free": next(letter for letter in letters if letter.stream == "free"),
        "line": next(letter for letter in letters if letter.stream == "line"),
    }


def _dead_letter(which: str, what: str) -> Step:
    async def act(bus: BlockingBus, given: Any) -> None:
        letter, operations = given[which], FilesOperations(bus)
        match what:
            case "redrive":
                assert await operations.redrive([letter.position], actor="test")
            case "discard":
                assert await operations.discard([letter.position], reason="no use", actor="test")
            case "patch":
                await operations.patch(letter.event_id, letter.stream, {"patched": True}, actor="test")

    return act


async def _damaged(bus: BlockingBus) -> dict[str, Any]:
    """An event with a damaged file."""
    given = await _something_to_publish(bus)
    with bus.store.exclusive() as plan:
        row = next(iter(plan.events.stream("free").rows.values()))
        Path(bus.store.tree.event_path(row)).write_text("{", encoding="utf-8")
    return {**given, "damaged": row.position}


async def _give_up(bus: BlockingBus, given: Any) -> None:
    with bus.store.exclusive() as plan:
        plan.give_up(plan.events.stream("free").rows[given["damaged"]], "damaged", "a test", blocks=True)
        bus.store.commit(plan)


def _cancel(which: str) -> Step:
    async def cancel(bus: BlockingBus, given: Any) -> None:
        stream, number = which.split()
        await FilesOperations(bus).cancel(given[stream][int(number)].envelope.event_id, stream, actor="test")

    return cancel


async def _waiting(bus: BlockingBus) -> dict[str, Any]:
    given = await _claimed(bus)
    async with bus.transaction(given["line"]) as transaction:
        await transaction.settle(given["line"][0], Retry(timedelta(0)))
    return given


async def _pause(bus: BlockingBus, _: Any) -> None:
    await FilesOperations(bus).pause("free", reason="a test", actor="test")


async def _resume(bus: BlockingBus, _: Any) -> None:
    assert await FilesOperations(bus).resume("other", actor="test")


async def _yesterdays_log(bus: BlockingBus) -> dict[str, Any]:
    given = await _claimed(bus)
    _let_a_day_pass(bus)
    return given


def _let_a_day_pass(bus: BlockingBus) -> None:
    yesterday = time.time() - 86400
    os.utime(bus.store.layout.log, (yesterday, yesterday))


async def _retain(bus: BlockingBus, _: Any) -> None:
    report = await FilesOperations(bus).retain(Retention())
    assert report.records_removed == 2


async def _ended_records(bus: BlockingBus) -> None:
    async with bus.transaction() as transaction:
        for name in ("a", "b"):
            await transaction.put(Record(kind="job", id=name, state="closed", doc={"is": name}))
        await transaction.put(Record(kind="job", id="c", state="open", doc={}))


def _log(number: int) -> Step:
    async def log(bus: BlockingBus, given: Any) -> None:
        _let_a_day_pass(bus)
        async with bus.transaction() as transaction:
            await transaction.append(LogEntry(type="told", actor="test", data={"number": number}))
            await transaction.settle(given["free"][number], Done())

    return log


async def _begin_segment(bus: BlockingBus, _: Any) -> None:
    await _count(bus)
    _join_checkpoint(bus)


async def _begin_segment_and_fail(bus: BlockingBus, _: Any) -> None:
    """Start a segment without removing the previous one. A later checkpoint removes it."""

    def fail(_: str) -> None:
        raise OSError(errno.EIO, "a test")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bus.store.disk, "sync_everything", fail)
        await _count(bus)
        _join_checkpoint(bus)


async def _count(bus: BlockingBus) -> None:
    async with bus.transaction() as transaction:
        found = await transaction.get("tally", "t") or Record(kind="tally", id="t", state="counting", doc={"count": 0})
        await transaction.put(found.replace(doc={"count": found.doc["count"] + 1}))


def _join_checkpoint(bus: BlockingBus) -> None:
    assert bus.store._checkpoint
    bus.store._checkpoint.join()


async def _skip(bus: BlockingBus, _: Any) -> None:
    with bus.store.exclusive() as plan:
        bus.store.skip_to(plan.offset + 1000)


async def _open(bus: BlockingBus, _: Any) -> None:
    bus.store.open()


async def _publish_first(bus: BlockingBus, _: Any) -> None:
    await bus.publish(FIRST)


FIRST = event("Both", "k")
SCENES = {
    "publish one": Scene(prepare=_something_to_publish, steps=(_publish("one"),)),
    "publish many": Scene(prepare=_something_to_publish, steps=(_publish("many"),)),
    "publish in order": Scene(prepare=_something_to_publish, steps=(_publish("ordered"),)),
    "publish duplicates": Scene(prepare=_something_to_publish, steps=(_publish("duplicates"),)),
    "claim": Scene(prepare=_something_to_publish, steps=(_claim,), volatile=frozenset({0})),
    "settle": Scene(prepare=_claimed, steps=(_settle_one,)),
    "settle a group": Scene(prepare=_claimed, steps=(_settle_group,)),
    "many records": Scene(prepare=_claimed, steps=(_change_much,)),
    "reap": Scene(prepare=_expired, steps=(_reap,)),
    "redrive": Scene(prepare=_dead, steps=(_dead_letter("line", "redrive"),)),
    "patch and redrive": Scene(prepare=_dead, steps=(_dead_letter("free", "patch"), _dead_letter("free", "redrive"))),
    "discard": Scene(prepare=_dead, steps=(_dead_letter("line", "discard"),)),
    "cancel what waits": Scene(prepare=_waiting, steps=(_cancel("line 0"),)),
    "cancel what runs": Scene(prepare=_claimed, steps=(_cancel("free 0"),)),
    "give up": Scene(prepare=_damaged, steps=(_give_up,)),
    "pause": Scene(prepare=_something_to_publish, steps=(_pause,)),
    "resume": Scene(prepare=_dead, steps=(_resume,)),
    "a new day's log": Scene(prepare=_yesterdays_log, steps=(_log(0), _log(1), _log(2))),
    "retention": Scene(prepare=_ended_records, steps=(_retain,)),
    "a life": Scene(
        prepare=_something_to_publish,
        steps=(_publish("one"), _claim, _settle_claimed),
        volatile=frozenset({1}),
    ),
    "new segments": Scene(prepare=_claimed, steps=(_begin_segment_and_fail, _begin_segment), segment_bytes=1),
    "skip": Scene(prepare=_something_to_publish, steps=(_publish("one"), _skip, _publish("duplicates"))),
    "open": Scene(prepare=None, steps=(_open, _publish_first)),
}
RECOVERY = Scene(prepare=None, steps=(_open,))
