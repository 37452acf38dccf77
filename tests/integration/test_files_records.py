"""Records whose files people edit, move, copy and damage."""

import json
import os
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from kingdom.backends.files import FilesBus, FilesOperations
from kingdom.backends.files.store import Store
from kingdom.bus import Record, RecordQuery
from kingdom.bus.operations import Retention
from kingdom.errors import Conflict, Transient
from tests.integration.test_files_store import DAY, opened


async def put(bus: FilesBus, *records: Record) -> None:
    async with bus.transaction() as transaction:
        for record in records:
            await transaction.put(record)


async def job(bus: FilesBus, record_id: str) -> Record | None:
    async with bus.transaction() as transaction:
        return await transaction.get("job", record_id)


async def found(bus: FilesBus, state: str) -> list[str]:
    async with bus.transaction() as transaction:
        return [record.id for record in await transaction.find(RecordQuery(kind="job", state=state))]


async def test_records_are_read_ahead_in_one_access_to_the_store(realm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    visits, shared = [], Store.shared

    def visit(store: Store) -> AbstractContextManager[None]:
        visits.append(store)
        return shared(store)

    monkeypatch.setattr(Store, "shared", visit)
    names = [f"job-{number}" for number in range(32)]
    async with opened(realm) as bus:
        await put(bus, *(Record(kind="job", id=name, state="open") for name in names[:-1]))
        visits.clear()
        async with bus.transaction() as transaction:
            await transaction.read_ahead([("job", name) for name in names])
            read = [await transaction.get("job", name) for name in names]
    assert [record and record.id for record in read] == [*names[:-1], None]
    assert len(visits) == 1


async def test_a_record_without_metadata_has_version_one(realm: Path) -> None:
    path = realm / "state/jobs/open/x.json"
    async with opened(realm) as bus:
        await put(bus, Record(kind="job", id="x", state="open", indexed={"owner": "ann"}, doc={"a": 1}))
        path.write_text('{"a": "edited"}')
        record = await job(bus, "x")
        assert record == Record(kind="job", id="x", state="open", version=1, doc={"a": "edited"})
        with pytest.raises(Conflict):
            await put(bus, Record(kind="job", id="x", state="closed"))
        await put(bus, record.replace(state="closed"))
        assert not path.exists()
        shown = json.loads((realm / "state/jobs/closed/x.json").read_text())
        assert (shown["a"], shown["_kingdom"]["version"]) == ("edited", 2)


async def test_an_ended_record_without_metadata_ended_when_its_file_was_changed(realm: Path) -> None:
    old = time.time() - 8 * DAY.total_seconds()
    async with opened(realm) as bus:
        await put(bus, *(Record(kind="job", id=name, state="closed") for name in ("old", "new")))
        for name in ("old", "new"):
            (realm / f"state/jobs/closed/{name}.json").write_text("{}")
        os.utime(realm / "state/jobs/closed/old.json", (old, old))
        report = await FilesOperations(bus).retain(Retention())
    assert report.records_removed == 1
    assert [path.name for path in (realm / "state/jobs/closed").iterdir()] == ["new.json"]


@pytest.mark.parametrize("is_indexed", [False, True])
async def test_the_directory_of_a_record_is_its_state(realm: Path, *, is_indexed: bool) -> None:
    directory = realm / "state/jobs"
    async with opened(realm) as bus:
        await put(bus, Record(kind="job", id="x", state="open"))
        await put(bus, Record(kind="job", id="x", state="closed", version=1))
        if is_indexed:
            assert await found(bus, "closed") == ["x"]
        (directory / "closed/x.json").rename(directory / "open/x.json")
        assert await found(bus, "closed") == []
        record = await job(bus, "x")
        assert record is not None
        assert (record.state, record.version) == ("open", 2)
        assert await found(bus, "open") == ["x"]
        await put(bus, record.replace(state="closed"))
        assert [path.parent.name for path in directory.rglob("*.json")] == ["closed"]


async def test_if_a_record_has_two_files_the_one_with_the_higher_version_is_used(realm: Path) -> None:
    directory = realm / "state/jobs"
    async with opened(realm) as bus:
        await put(bus, Record(kind="job", id="x", state="open", doc={"is": "old"}))
        copy = (directory / "open/x.json").read_text()
        await put(bus, Record(kind="job", id="x", state="closed", version=1, doc={"is": "new"}))
        (directory / "open/x.json").write_text(copy)
        record = await job(bus, "x")
        assert record is not None
        assert (record.state, record.version, record.doc) == ("closed", 2, {"is": "new"})
        assert (await found(bus, "open"), await found(bus, "closed")) == ([], ["x"])


async def test_a_damaged_record_is_never_overwritten(realm: Path) -> None:
    path = realm / "state/jobs/open/x.json"
    async with opened(realm) as bus:
        await put(bus, Record(kind="job", id="x", state="open"))
        path.write_text('{"half')
        with pytest.raises(Transient, match="cannot read the file"):
            await job(bus, "x")
        with pytest.raises(Transient, match="cannot read the file"):
            await put(bus, Record(kind="job", id="x", state="closed"))
    assert path.read_text() == '{"half'
