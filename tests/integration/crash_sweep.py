"""Crash a scene at every operation, and check the state after recovery."""

import asyncio
import errno
import os
import signal
import traceback
import warnings
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kingdom.backends.files import store as store_module
from kingdom.backends.files.store import Store
from kingdom.backends.files.system.disk import Disk
from kingdom.bus import Done
from kingdom.errors import KingdomError, Unavailable
from tests.integration.crash_picture import Picture, files_of, inconsistencies_of, picture_of
from tests.integration.crash_scenes import KINDS, BlockingBus, Scene, event
from tests.integration.crashing_disk import (
    DIVISIBLE,
    CountingDisk,
    FailingDisk,
    FullDisk,
    KillingDisk,
    Moment,
    TrappedDisk,
)
from tests.integration.power_loss import RecordingDisk, State

_BY_NAME = {kind.name: kind for kind in KINDS}
_REALM = "realm"
# The complaint about one point, or None.
Complaint = str | None


@dataclass(frozen=True, slots=True)
class Run:
    """A scene without a crash: its operations, and the picture before and after every step."""

    scene: Scene
    given: Any
    base: State
    disk: RecordingDisk
    pictures: Sequence[Picture]
    # The number of operations at the end of each step.
    ends: Sequence[int]

    def steps_begun_after(self, operations: int) -> int:
        return sum(1 for end in self.ends if end <= operations)

    def steps_lasting_after(self, operations: int) -> int:
        """Return how many steps a power loss cannot undo."""
        ended = [step for step, end in enumerate(self.ends) if end <= operations and step not in self.scene.volatile]
        return ended[-1] + 1 if ended else 0


def rehearse(scene: Scene, place: Path, recording: Callable[[Path], RecordingDisk] = RecordingDisk) -> Run:
    """Prepare and sync a scene, then record its steps."""
    base = place / "base"
    base.mkdir()
    given: Any = {}
    if scene.prepare:
        bus = BlockingBus(base / _REALM)
        bus.store.open()
        given = asyncio.run(_await(scene.prepare(bus)))
        bus.store.checkpoint()
        bus.store.close()
    prepared = State.of(base)
    stage = prepared.build(place / "stage")
    disk = recording(stage)
    pictures, ends = [_picture(stage, place)], []

    def look(bus: BlockingBus) -> None:
        pictures.append(_picture(stage, place))
        assert picture_of(bus.store) == pictures[-1], "the files differ from the index"
        ends.append(len(disk.operations))

    take_steps(scene, given, stage, disk, look)
    return Run(scene, given, prepared, disk, pictures, ends)


def killed_everywhere(run: Run, place: Path) -> Iterator[Complaint]:
    """Kill a process before, in and after every operation."""
    for number, name in enumerate(run.disk.operations):
        begun = run.steps_begun_after(number)
        for moment in _moments(name):
            stage = run.base.build(place / "killed")
            # Killing before an operation equals killing after the previous one. One of the two is therefore checked by
            # a process that was already running, and the other by a new process.
            witness = open_with(stage, Disk()) if run.scene.prepare and moment != "after" else None
            if witness:
                picture_of(witness)
            kill_at(run, stage, number, moment)
            found = recovered(stage, witness=witness)
            yield _judged(f"killed {moment} operation {number}, {name}", found, run.pictures[begun : begun + 2])


def full_everywhere(run: Run, place: Path) -> Iterator[Complaint]:
    """Make the disk full at every operation. Then repeat the step in the same process, and in a new one."""
    for number, name in enumerate(run.disk.operations):
        bus = BlockingBus(run.base.build(place / "full") / _REALM, disk := FullDisk(number))
        bus.store.open()
        disk.is_armed = True
        allowed = run.pictures[1:]
        try:
            asyncio.run(_await(run.scene.steps[0](bus, run.given)))
        except Unavailable:
            # After this error, the step must have had no effect.
            allowed = run.pictures[:1]
        found, inconsistencies = _seen(bus.store)
        for each in ("; ".join(inconsistencies) or found, recovered(place / "full")):
            yield _judged(f"disk full at operation {number}, {name}", each, allowed)


def failing_everywhere(run: Run, place: Path, code: int) -> Iterator[Complaint]:
    """Make the disk fail from every operation on until it is repaired. The same process continues, then a new one."""
    remedy = "free some space" if code == errno.ENOSPC else "check the disk for errors"
    for number, name in enumerate(run.disk.operations):
        point = f"disk fails with {errno.errorcode[code]} from operation {number}, {name}, on"
        bus = BlockingBus(run.base.build(place / "failing") / _REALM, disk := FailingDisk(number, code))
        bus.store.open()
        disk.is_armed = True
        is_refused = False
        try:
            asyncio.run(_await(run.scene.steps[0](bus, run.given)))
        except Unavailable as error:
            is_refused = True
            yield None if remedy in str(error) else f"{point}: the error does not say what to do: {error}"
        # After this error, the step must have had no effect, now and after the repair.
        expected = [run.pictures[0 if is_refused else 1]]
        with suppress(KingdomError):
            yield _judged(f"{point}, meanwhile", picture_of(bus.store), expected)
        disk.is_armed, disk.is_mended = False, True
        yield _judged(f"{point}, repaired", picture_of(bus.store), expected)
        if is_refused:
            asyncio.run(_await(run.scene.steps[0](bus, run.given)))
        found, inconsistencies = _seen(bus.store)
        boot = ("after a loss of power",) if number % 2 else ()
        for each in ("; ".join(inconsistencies) or found, recovered(place / "failing", *boot)):
            yield _judged(f"{point}, done again", each, run.pictures[1:])


def without_power_everywhere(run: Run, place: Path) -> Iterator[Complaint]:
    """Lose power after every operation, in every way."""
    known: dict[bytes, Picture | str] = {}
    for count in range(len(run.disk.operations) + 1):
        allowed = run.pictures[run.steps_lasting_after(count) : run.steps_begun_after(count) + 2]
        for number, kept in enumerate(run.disk.losses(count)):
            state = run.disk.state(kept)
            # Many losses leave the same state, which is checked once.
            if (digest := state.digest()) not in known:
                known[digest] = recovered(state.build(place / "dark"), "after the loss", "after another one")
            last = run.disk.operations[count - 1] if count else "nothing"
            yield _judged(f"power lost after operation {count}, {last}, in way {number}", known[digest], allowed)


def killed_in_recovery_everywhere(place: Path, crashed: State, boot: str | None, after: Picture) -> Iterator[Complaint]:
    """Kill the process that recovers a store at every operation."""
    counting = CountingDisk()
    open_with(crashed.build(place / "counted"), counting, boot).close()
    for number, name in enumerate(counting.operations):
        for moment in _moments(name):
            # The same state is checked before the next operation.
            if moment == "after" and number < len(counting.operations) - 1:
                continue
            stage = crashed.build(place / "killed twice")
            kill(lambda: open_with(stage, KillingDisk(number, moment), boot))  # noqa: B023 - called at once
            yield _judged(f"recovery killed {moment} operation {number}, {name}", recovered(stage, boot), [after])


def kill_at(run: Run, stage: Path, number: int, moment: Moment) -> None:
    """Execute a scene in a process that is killed at an operation."""
    kill(lambda: take_steps(run.scene, run.given, stage, KillingDisk(number, moment)))


def recovered(place: Path, *boots: str | None, witness: Store | None = None) -> Picture | str:
    """Return the picture after recovery, or the complaint about it."""
    root = place / _REALM
    boot, another = (*boots, *boots, None, None)[:2]
    try:
        first, inconsistencies = _seen(witness or open_with(place, Disk(), boot))
        if inconsistencies:
            return "; ".join(inconsistencies)
        files = files_of(root)
        bus = BlockingBus(root)
        bus.store.boot = another or bus.store.boot
        bus.store.open()
        believed, again = picture_of(bus.store), files_of(root)
        if (believed, again) != (first, files):
            changed = {name for name in {*files, *again} if files.get(name) != again.get(name)}
            return f"a second recovery changes {changed or 'the index'}"
        _at_once(_go_on(bus))
        bus.store.close()
        if not boots:
            return first if _lasts(place, bus.store.journal.end) else "a step after the recovery is lost with the power"
    except Exception:  # noqa: BLE001 - any error is a complaint about this point
        return traceback.format_exc()
    return first


def kill(act: Callable[[], object]) -> None:
    """Run a function in a process that must be killed during it."""
    with warnings.catch_warnings():
        # Newer Pythons warn about threads, which a parallel test run has. The child needs none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        try:
            act()
        except BaseException:  # noqa: BLE001 - the child must not return into the test
            traceback.print_exc()
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), "it was not killed"
    assert os.WTERMSIG(status) == signal.SIGKILL


def open_with(place: Path, disk: Disk, boot: str | None = None) -> Store:
    """Open the store in a place with a disk, in this boot or in another one."""
    store = Store(str(place / _REALM), _BY_NAME, disk)
    store.boot = boot or store.boot
    if isinstance(disk, TrappedDisk):
        disk.is_armed = True
    store.open()
    return store


def take_steps(
    scene: Scene, given: Any, place: Path, disk: Disk, look: Callable[[BlockingBus], None] | None = None
) -> None:
    bus = BlockingBus(place / _REALM, disk)
    if scene.prepare:
        bus.store.open()
        if isinstance(disk, RecordingDisk):
            disk.begin()
    if isinstance(disk, TrappedDisk):
        disk.is_armed = True
    usual, store_module.SEGMENT_BYTES = store_module.SEGMENT_BYTES, scene.segment_bytes
    try:
        for step in scene.steps:
            asyncio.run(_await(step(bus, given)))
            if look:
                look(bus)
    finally:
        store_module.SEGMENT_BYTES = usual
    bus.store.close()


def _moments(operation: str) -> tuple[Moment, ...]:
    return ("before", "middle", "after") if operation in DIVISIBLE else ("before", "after")


async def _await(something: Any) -> Any:
    return await something


def _picture(stage: Path, place: Path) -> Picture:
    """Read a copy, so that no operation is recorded."""
    picture, inconsistencies = _seen(open_with(State.of(stage).build(place / "look"), Disk()))
    assert not inconsistencies
    return picture


def _seen(store: Store) -> tuple[Picture, list[str]]:
    try:
        return picture_of(store), inconsistencies_of(store)
    finally:
        store.close()


async def _go_on(bus: BlockingBus) -> None:
    new = event("Afterwards")
    await bus.publish(new)
    (delivery,) = await bus.claim("afterwards", 1, "w")
    assert delivery.envelope.event_id == new.event_id
    async with bus.transaction([delivery]) as transaction:
        await transaction.settle(delivery, Done())
    assert not await bus.claim("afterwards", 1, "w")


def _at_once(acting: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that never waits, without a loop."""
    with suppress(StopIteration):
        acting.send(None)
        raise AssertionError("it waits for something")


def _lasts(place: Path, end: int) -> bool:
    """Return whether a power loss leaves the journal unchanged, so that no number repeats."""
    store = open_with(place, Disk(), "after a loss of power")
    store.close()
    return store.journal.end == end


def _judged(point: str, found: Picture | str, allowed: Sequence[Picture]) -> Complaint:
    if isinstance(found, str):
        return f"{point}: {found}"
    if found in allowed:
        return None
    parts = {part for part in found if all(found[part] != each[part] for each in allowed)}
    return f"{point}: neither before nor after: {({part: found[part] for part in parts}) or 'something of both'}"
