"""Records are listed by the indexes that their kind names, in ascending or descending order of their ids."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from kingdom.bus import Record, RecordQuery, Retention
from kingdom.errors import MalformedEvent, Misconfigured
from tests.contract.scene import KINDS, TOPOLOGY, Scene


def job(number: int, **indexed: str) -> Record:
    return Record(kind="job", id=f"j{number}", state="open", indexed=indexed)


async def put(scene: Scene, *records: Record) -> None:
    async with scene.bus.transaction() as transaction:
        for record in records:
            await transaction.put(record)


async def found(scene: Scene, index: str, value: str, **more: Any) -> list[str]:
    async with scene.bus.transaction() as transaction:
        records = await transaction.find(RecordQuery(kind="job", index=index, value=value, **more))
    return [record.id for record in records]


async def test_an_index_lists_its_records_in_both_directions(scene: Scene) -> None:
    await put(scene, *(job(number, owner="ann" if number % 2 else "bob") for number in range(1, 8)))
    assert await found(scene, "owner", "ann") == ["j1", "j3", "j5", "j7"]
    assert await found(scene, "owner", "ann", descending=True) == ["j7", "j5", "j3", "j1"]
    assert await found(scene, "owner", "carol") == await found(scene, "owner", "carol", descending=True) == []


@pytest.mark.parametrize("index", ["owner", "team", "city"])
@pytest.mark.parametrize("descending", [False, True])
async def test_a_list_is_read_page_by_page(scene: Scene, index: str, *, descending: bool) -> None:
    await put(scene, *(job(number, **{index: "a" if number % 3 else "b"}) for number in range(1, 10)))
    pages: list[list[str]] = []
    while not pages or pages[-1]:
        after = pages[-1][-1] if pages else None
        pages.append(await found(scene, index, "a", limit=4, after=after, descending=descending))
    listed = ["j1", "j2", "j4", "j5", "j7", "j8"]
    listed = listed[::-1] if descending else listed
    assert pages == [listed[:4], listed[4:], []]


async def test_records_of_a_kind_or_state_are_listed_in_both_directions(scene: Scene) -> None:
    await put(scene, job(1), job(2), job(3).replace(state="closed"), job(4))
    async with scene.bus.transaction() as transaction:
        every = await transaction.find(RecordQuery(kind="job", descending=True, after="j4"))
        some = await transaction.find(RecordQuery(kind="job", state="open", descending=True, limit=2))
    assert [record.id for record in every] == ["j3", "j2", "j1"]
    assert [record.id for record in some] == ["j4", "j2"]


async def test_a_record_can_have_values_in_some_of_its_indexes(scene: Scene) -> None:
    await put(scene, job(1, owner="ann", team="red", city="bonn"), job(2, city="bonn"), job(3, team="red"), job(4))
    assert await found(scene, "owner", "ann") == ["j1"]
    assert await found(scene, "team", "red") == ["j1", "j3"]
    assert await found(scene, "city", "bonn") == ["j1", "j2"]
    # A value counts only in its own index.
    assert await found(scene, "city", "red") == []
    async with scene.bus.transaction() as transaction:
        stored = {record.id: record.indexed for record in await transaction.find(RecordQuery(kind="job"))}
        assert (await transaction.get("job", "j2") or job(0)).indexed == {"city": "bonn"}
    assert stored == {
        "j1": {"owner": "ann", "team": "red", "city": "bonn"},
        "j2": {"city": "bonn"},
        "j3": {"team": "red"},
        "j4": {},
    }


@pytest.mark.parametrize("index", ["owner", "team", "city"])
@pytest.mark.parametrize("together", [False, True])
async def test_a_record_is_listed_by_its_new_value_and_not_listed_after_its_value_is_removed(
    scene: Scene, index: str, *, together: bool
) -> None:
    values = {"owner": "ann", "team": "red", "city": "bonn"}
    before = values[index]
    await put(scene, job(1, **values), job(2, **values), job(3, **values))
    changed = job(1, **{**values, index: "new"}).replace(version=1)
    removed = job(2, **{name: value for name, value in values.items() if name != index}).replace(version=1)
    for batch in ([changed, removed],) if together else ([changed], [removed]):
        await put(scene, *batch)
    assert await found(scene, index, before) == ["j3"]
    assert await found(scene, index, "new") == ["j1"]
    for other, value in values.items():
        if other != index:
            assert await found(scene, other, value) == ["j1", "j2", "j3"]
    async with scene.second() as second, second.transaction() as transaction:
        listed = await transaction.find(RecordQuery(kind="job", index=index, value=before, descending=True))
    assert [record.id for record in listed] == ["j3"]


async def test_an_index_and_a_state_select_together(scene: Scene) -> None:
    closed = job(2, team="red").replace(state="closed")
    await put(scene, job(1, team="red"), closed, job(3, team="blue"), job(4, team="red"))
    assert await found(scene, "team", "red", state="open") == ["j1", "j4"]
    assert await found(scene, "team", "red", state="open", descending=True) == ["j4", "j1"]
    assert await found(scene, "team", "red", state="closed") == ["j2"]


async def test_a_list_includes_what_the_transaction_has_put(scene: Scene) -> None:
    await put(scene, job(1, team="red"), job(3, team="red"))
    async with scene.bus.transaction() as transaction:
        await transaction.put(job(2, team="red"))
        await transaction.put(job(3, team="blue").replace(version=1))
        query = RecordQuery(kind="job", index="team", value="red")
        assert [record.id for record in await transaction.find(query)] == ["j1", "j2"]
        assert [record.id for record in await transaction.find(replace(query, descending=True))] == ["j2", "j1"]
        assert [record.id for record in await transaction.find(replace(query, descending=True, limit=1))] == ["j2"]


async def test_a_record_beyond_its_retention_leaves_every_list(scene: Scene) -> None:
    closed = job(1, owner="ann", team="red", city="bonn").replace(state="closed")
    await put(scene, closed, job(2, owner="ann", team="red", city="bonn"))
    kinds = [replace(kind, retention=timedelta(0)) if kind.name == "job" else kind for kind in KINDS]
    async with scene.backend.open(TOPOLOGY, kinds) as bus:
        assert (await scene.backend.operations(bus).retain(Retention())).records_removed == 1
    for index, value in {"owner": "ann", "team": "red", "city": "bonn"}.items():
        assert await found(scene, index, value) == ["j2"]


async def test_an_index_that_the_kind_does_not_name_is_refused(scene: Scene) -> None:
    with pytest.raises(Misconfigured, match=r"job has no index 'boss'; indexes: owner, team, city"):
        await put(scene, job(1, boss="ann"))
    with pytest.raises(Misconfigured, match="job has no index 'boss'"):
        await found(scene, "boss", "ann")
    async with scene.bus.transaction() as transaction:
        with pytest.raises(Misconfigured, match="stranger"):
            await transaction.find(RecordQuery(kind="stranger", index="owner", value="ann"))
        assert await transaction.find(RecordQuery(kind="job")) == []


async def test_a_value_that_cannot_be_stored_is_refused(scene: Scene) -> None:
    with pytest.raises(MalformedEvent, match=r"j1: indexed.owner cannot be stored"):
        await put(scene, job(1, owner="a\0b"))
