"""A store of files that crashes or loses power at any operation has the state before or after the transaction."""

import errno
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from kingdom.backends.files import store as store_module
from kingdom.backends.files.journal.entry import JournalEntry
from kingdom.backends.files.journal.journal import Journal
from kingdom.backends.files.tree.replay import Replay
from tests.integration.crash_picture import files_of
from tests.integration.crash_scenes import RECOVERY, SCENES
from tests.integration.crash_sweep import (
    Complaint,
    Run,
    failing_everywhere,
    full_everywhere,
    kill_at,
    killed_everywhere,
    killed_in_recovery_everywhere,
    rehearse,
    take_steps,
    without_power_everywhere,
)
from tests.integration.power_loss import RecordingDisk, State

# Scenes that combine the steps of other scenes.
COMPOSED = frozenset({"publish many", "settle a group", "many records", "a new day's log", "a life"})
PrintNumber = Callable[[str], None]
Break = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture
def print_number(capsys: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]) -> PrintNumber:
    """Print a number in the test output."""

    def print_number(text: str) -> None:
        record_property("crash points", text)
        with capsys.disabled():
            print(f"\n{text}", file=sys.stderr, flush=True)  # noqa: T201 - it is asked for

    return print_number


def wrong(points: Sequence[Complaint]) -> list[str]:
    """Return the first complaints."""
    return [complaint for complaint in points if complaint][:3]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory for thousands of crashing stores, in memory if possible."""
    memory = Path("/dev/shm")  # noqa: S108 - made and removed here
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        yield Path(directory)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in COMPOSED else ()) for name in SCENES]
)
def test_a_crash_anywhere_leaves_the_store_as_it_was_before_or_after(
    name: str, place: Path, print_number: PrintNumber
) -> None:
    run = rehearse(SCENES[name], place)
    killed = list(killed_everywhere(run, place))
    lost = list(without_power_everywhere(run, place))
    print_number(f"crash points of {name!r}: {len(killed)} killed, {len(lost)} after power loss")
    assert not wrong(killed)
    assert not wrong(lost)


@pytest.mark.parametrize("name", ["publish many", "settle a group", "many records", "a new day's log"])
def test_a_disk_that_is_full_at_any_operation_loses_no_confirmed_transaction(
    name: str, place: Path, print_number: PrintNumber
) -> None:
    full = list(full_everywhere(rehearse(SCENES[name], place), place))
    print_number(f"points of {name!r} at which the disk was full: {len(full) // 2}")
    assert not wrong(full)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
@pytest.mark.parametrize(
    "name",
    [
        "publish one",
        "claim",
        "settle",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("publish many", "settle a group", "many records")),
    ],
)
def test_a_disk_that_fails_for_a_while_is_reported_and_work_continues_once_it_is_repaired(
    name: str, code: int, place: Path, print_number: PrintNumber
) -> None:
    failed = list(failing_everywhere(rehearse(SCENES[name], place), place, code))
    print_number(
        f"checks of {name!r} on a disk that fails with {errno.errorcode[code]} from any operation on: {len(failed)}"
    )
    assert not wrong(failed)


@pytest.mark.parametrize("boot", [None, "after the loss"], ids=["after a kill", "after power loss"])
def test_a_recovery_that_is_killed_at_any_operation_is_finished_by_the_next_recovery(
    boot: str | None, place: Path, print_number: PrintNumber
) -> None:
    run = rehearse(SCENES["many records"], place)
    crashed = run.base.build(place / "crashed")
    kill_at(run, crashed, run.disk.operations.index("sync_file"), "after")
    killed = list(killed_in_recovery_everywhere(place, State.of(crashed), boot, run.pictures[-1]))
    print_number(f"crash points of the recovery of 'many records': {len(killed)} killed")
    assert not wrong(killed)


def test_a_recovery_from_power_loss_that_loses_power_is_finished_by_the_next_recovery(
    place: Path, print_number: PrintNumber, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = rehearse(SCENES["reap"], place)
    committed = run.disk.operations.index("sync_file") + 1
    crashed = run.disk.state(lambda effect: effect.lasts_from is not None and effect.lasts_from <= committed)
    stage = crashed.build(place / "again")
    monkeypatch.setattr(store_module, "boot_id", lambda: "the recovery that loses power")
    disk = RecordingDisk(stage)
    take_steps(RECOVERY, {}, stage, disk)
    after = [run.pictures[-1]] * 2
    recovery = Run(RECOVERY, {}, run.base, disk, after, [len(disk.operations)])
    lost = list(without_power_everywhere(recovery, place))
    print_number(f"crash points of the recovery from power loss: {len(lost)} after power loss")
    assert not wrong(lost)


def test_an_entry_that_a_dead_process_did_not_sync_is_synced_before_it_is_shown(place: Path) -> None:
    run = rehearse(SCENES["settle"], place)
    crashed = run.base.build(place / "crashed")
    (segment,) = (crashed / "realm/bus/journal").iterdir()
    size = segment.stat().st_size
    kill_at(run, crashed, run.disk.operations.index("write"), "after")
    disk = RecordingDisk(crashed)
    disk.mark_unsynced(segment, size)
    take_steps(RECOVERY, {}, crashed, disk)
    recovery = Run(RECOVERY, {}, run.base, disk, run.pictures, [len(disk.operations)])
    assert not wrong(list(without_power_everywhere(recovery, place)))


def test_the_recording_disk_has_the_same_content_as_the_real_disk(place: Path) -> None:
    run = rehearse(SCENES["many records"], place)
    remembered = run.disk.state(lambda _: True).build(place / "remembered")
    assert files_of(remembered) == files_of(place / "stage")


class PretendingDisk(RecordingDisk):
    """Reports a file as synced without syncing it."""

    def _sync_file(self, at: int, descriptor: int) -> None: ...


def test_a_disk_that_only_pretends_to_sync_is_caught(place: Path) -> None:
    assert any(without_power_everywhere(rehearse(SCENES["settle"], place, PretendingDisk), place))


def _sync_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    append = Journal.append

    def unsynced(self: Journal, entry: JournalEntry, *, durable: bool) -> None:  # noqa: ARG001 - the point of it
        append(self, entry, durable=False)

    monkeypatch.setattr(Journal, "append", unsynced)


def _journal_no_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    append = Journal.append

    def without(self: Journal, entry: JournalEntry, *, durable: bool) -> None:
        new = {position: body for position, body in entry.bodies.items() if position >= self.end}
        append(self, msgspec.structs.replace(entry, bodies=new), durable=durable)

    monkeypatch.setattr(Journal, "append", without)


def _trust_every_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    recover = Journal.recover

    def without_looking(self: Journal, start: int, after: int) -> Iterator[tuple[int, JournalEntry]]:
        yield from recover(self, start, after)
        later = [segment for segment in self.segments() if segment > start]
        self.end = later[0] if later else self.end

    monkeypatch.setattr(Journal, "recover", without_looking)


@pytest.mark.parametrize(
    ("name", "broken"),
    [("settle", _sync_nothing), ("settle a group", _journal_no_bodies), ("new segments", _trust_every_segment)],
)
def test_a_store_that_loses_committed_data_after_power_loss_is_caught(
    name: str, broken: Break, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    assert any(without_power_everywhere(rehearse(SCENES[name], place), place))


def test_a_store_that_does_not_replay_is_caught(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = rehearse(SCENES["settle"], place)
    monkeypatch.setattr(Replay, "run", lambda *_, **__: None)
    assert any(killed_everywhere(run, place))
