"""An unreadable event file: its event waits, and all others continue."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kingdom.backends.files import FilesBus, FilesOperations, adoption
from kingdom.backends.files import bus as bus_module
from kingdom.backends.files import inspection as inspection_module
from kingdom.backends.files.system.disk import read_file
from kingdom.backends.files.tree import tree as tree_module
from kingdom.bus import Delivery, Done, Envelope
from kingdom.bus.log import LogCursor
from kingdom.bus.why import why
from kingdom.errors import Unavailable
from tests.integration.doctor.scene import look_at
from tests.integration.dropping import open_queue
from tests.integration.test_files_extremes import numbers, opened, ping, step

Refuse = Callable[[Path | None], None]


@pytest.fixture(params=[errno.EACCES, errno.EIO], ids=["denied", "bad sector"])
def refuse(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Make one file unreadable by a patch, because root ignores permissions."""
    refused: list[Path | None] = [None]

    def read(path: str) -> bytes:
        if refused[0] is not None and Path(path).name == refused[0].name:
            raise OSError(request.param, os.strerror(request.param), path)
        return read_file(path)

    for module in (tree_module, inspection_module):
        monkeypatch.setattr(module, "read_file", read)
    monkeypatch.setattr(bus_module, "_UNREADABLE_SECONDS", 0.0)

    def refuse(path: Path | None) -> None:
        refused[0] = path

    return refuse


def first_file(realm: Path, stream: str) -> Path:
    return min((realm / f"bus/streams/{stream}/pending").iterdir())


async def logged_types(bus: FilesBus) -> list[str]:
    return [logged.entry.type for logged in await FilesOperations(bus).read_log(LogCursor(), 100)]


async def settle(bus: FilesBus, deliveries: list[Delivery]) -> None:
    async with bus.transaction(deliveries) as transaction:
        for delivery in deliveries:
            await transaction.settle(delivery, Done())


async def test_an_unreadable_event_is_claimed_once_it_can_be_read_and_others_continue(
    realm: Path, refuse: Refuse
) -> None:
    event = ping(1)
    async with opened(realm) as bus:
        await bus.publish(event)
        await bus.publish(ping(2))
        refuse(first_file(realm, "free"))
        assert await numbers(bus, "free") == [2]
        await bus.publish(ping(3))
        assert await numbers(bus, "free") == [3]
        assert await logged_types(bus) == ["event.unreadable"]
        (situation,) = await FilesOperations(bus).situations(event.event_id)
        assert (situation.status, situation.error_code) == ("PENDING", "unreadable")
        assert "cannot read its file" in str(situation.error_message)
        refuse(None)
        assert await numbers(bus, "free") == [1]


async def test_a_process_that_starts_with_an_unreadable_event_publishes_claims_and_counts(
    realm: Path, refuse: Refuse
) -> None:
    event = ping(1)
    async with opened(realm) as bus:
        await bus.publish(event)
        await bus.publish(ping(2))
    refuse(first_file(realm, "free"))
    async with opened(realm) as bus:
        (stats,) = await FilesOperations(bus).stats()
        assert stats.pending == 2
        assert await bus.publish(event) != ()
        await bus.publish(ping(3))
        assert await numbers(bus, "free") == [2, 3]
        assert await numbers(bus, "free") == []
        assert await logged_types(bus) == ["event.unreadable"]
        refuse(None)
        assert await numbers(bus, "free") == [1]


async def test_an_unreadable_event_holds_back_only_its_own_key(realm: Path, refuse: Refuse) -> None:
    async with opened(realm) as bus:
        await bus.publish(step(0), step(1), step(2, "other"))
        refuse(first_file(realm, "line"))
        assert await numbers(bus, "line") == [2]
        refuse(None)
        assert await numbers(bus, "line") == [0, 1]


async def test_after_a_restart_the_whole_stream_of_an_unreadable_event_waits(realm: Path, refuse: Refuse) -> None:
    async with opened(realm) as bus:
        await bus.publish(step(0), step(1), step(2, "other"))
    refuse(first_file(realm, "line"))
    async with opened(realm) as bus:
        assert await numbers(bus, "line") == []
        refuse(None)
        assert sorted(await numbers(bus, "line")) == [0, 1, 2]


async def test_a_running_event_with_an_unreadable_file_can_be_settled(realm: Path, refuse: Refuse) -> None:
    event = ping(1)
    async with opened(realm) as bus:
        await bus.publish(event)
        claimed = await bus.claim("free", 1, "worker")
        refuse(min((realm / "bus/streams/free/processing").iterdir()))
        await settle(bus, claimed)
        (situation,) = await FilesOperations(bus).situations(event.event_id)
        assert situation.status == "DONE"


async def test_an_event_with_an_unreadable_file_waits_longer_than_one_with_a_damaged_file(
    realm: Path, refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus_module, "_DAMAGED_SECONDS", -1.0)
    async with opened(realm) as bus:
        await bus.publish(ping(1))
        refuse(first_file(realm, "free"))
        for _ in range(3):
            assert await numbers(bus, "free") == []
        (stats,) = await FilesOperations(bus).stats()
        assert (stats.pending, stats.dead) == (1, 0)


async def test_why_and_the_doctor_name_the_unreadable_file(
    realm: Path, refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus_module, "_UNREADABLE_SECONDS", 60.0)
    event = Envelope(type="Ping")
    async with opened(realm) as bus:
        await bus.publish(event)
        path = first_file(realm, "free")
        assert (await look_at("event-files", url=f"file:{realm}")).status == "ok"
        refuse(path)
        assert await bus.claim("free", 1, "worker") == []
        (situation,) = await FilesOperations(bus).situations(event.event_id)
    assert str(path) in why(situation)
    finding = await look_at("event-files", url=f"file:{realm}")
    assert finding.status == "fail"
    assert str(path) in finding.found
    assert str(path) in finding.fix


async def test_any_other_read_error_is_raised_and_ends_no_event(
    realm: Path, refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(realm) as bus:
        await bus.publish(ping(1))

        def fail(_: str) -> bytes:
            raise OSError(errno.EMFILE, "too many open files")

        with monkeypatch.context() as patch:
            patch.setattr(tree_module, "read_file", fail)
            with pytest.raises(Unavailable):
                await bus.claim("free", 1, "worker")
        refuse(None)
        assert await numbers(bus, "free") == [1]


async def test_a_dropped_file_that_this_process_may_not_read_is_moved_aside(
    realm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: str) -> bytes:
        if Path(path).name == "secret.json":
            raise PermissionError(errno.EACCES, "refused", path)
        return read_file(path)

    monkeypatch.setattr(adoption, "read_file", read)
    monkeypatch.setattr(adoption, "SCAN_EVERY_SECONDS", 0.0)
    async with open_queue(realm) as queue:
        secret, _ = queue.drop("secret"), queue.drop("zebra")
        await queue.bus.reap()
        assert "the user of this process may not read it" in queue.reason(secret.name)
        (delivery,) = await queue.bus.claim("arrivals", 10, "worker")
        assert delivery.envelope.payload["id"] == "zebra"
