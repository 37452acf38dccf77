"""Files that people drop into a queue, edit, damage or remove."""

import asyncio
import errno
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kingdom.backends.files import FilesBus, adoption
from kingdom.backends.files import bus as bus_module
from kingdom.backends.files.tree.layout import file_name, is_temporary_name
from kingdom.bus import Envelope, Record, Stream, Topology
from kingdom.bus.record import Adoption
from kingdom.errors import Misconfigured
from tests.integration.dropping import EVENTS, TOPOLOGY, DropQueue, open_queue, read, worked_queue
from tests.patience import PATIENCE_SECONDS


async def test_a_dropped_document_is_adopted_and_handled(realm: Path) -> None:
    async with worked_queue(realm) as queue:
        queue.drop("evt-github-1", repo="acme/shop")
        await queue.until(queue.dispatched, "it is dispatched")
        record = await queue.record("evt-github-1")
    assert record is not None
    assert (record.state, record.doc["repo"]) == ("dispatched", "acme/shop")
    shown = json.loads((realm / "queue/events/dispatched/evt-github-1.json").read_text())
    assert (shown["id"], shown["repo"]) == ("evt-github-1", "acme/shop")
    assert not list((realm / "queue/events/pending").iterdir())


async def test_a_document_dropped_before_the_start_is_adopted_too(realm: Path) -> None:
    box = realm / "queue/events/pending"
    box.mkdir(parents=True)
    (box / "evt-1.json").write_text('{"id": "evt-1", "type": "a"}')
    async with worked_queue(realm) as queue:
        await queue.until(queue.dispatched, "it is dispatched")


async def test_a_document_that_is_written_slowly_is_adopted_when_it_is_complete(
    realm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adoption, "COMPLETE_AFTER_SECONDS", PATIENCE_SECONDS)
    async with worked_queue(realm) as queue:
        path = queue.box / "evt-slow.json"
        path.write_text('{"id": "evt-slow", ')
        # The incomplete document is seen and ignored.
        for _ in range(2):
            await queue.bus.reap()
            assert path.exists()
        path.write_text('{"id": "evt-slow", "type": "a"}')
        await queue.until(queue.dispatched, "it is dispatched")
        assert not queue.rejected.exists()


async def test_a_file_that_cannot_be_adopted_is_moved_aside_with_a_reason(
    realm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adoption, "COMPLETE_AFTER_SECONDS", 0.2)
    dropped = {
        "broken.json": ('{"id": ', "not a JSON object"),
        "list.json": ("[1]", "not a JSON object"),
        "empty.json": ("", "not a JSON object"),
        "nameless.json": ('{"type": "a"}', "the field 'id' must be a text"),
        "other.json": ('{"id": "evt-2", "type": "a"}', "rename it to evt-2.json"),
        "climbing.json": ('{"id": "../../etc/passwd", "type": "a"}', "rename it to %2E.%2F..%2Fetc%2Fpasswd.json"),
        "notes.txt": ('{"id": "notes", "type": "a"}', "does not end in .json"),
    }
    async with worked_queue(realm) as queue:
        for name, (content, _) in dropped.items():
            unfinished = queue.box / f".tmp-{name}"
            unfinished.write_text(content)
            unfinished.rename(queue.box / name)

        async def box_is_cleared() -> bool:
            # Without a notification the worker scans only every ten seconds.
            await queue.bus.reap()
            return not list(queue.box.iterdir())

        await queue.until(box_is_cleared, "all are moved aside")
        for name, (content, reason) in dropped.items():
            assert reason in queue.reason(name)
            assert (queue.rejected / name).read_text() == content
        logged = [data["file"] for what, data in await queue.log() if what == "record.rejected"]
        assert sorted(logged) == sorted(dropped)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("%FF.json", '{"id": "a"}', "rename it to a.json"),
        ("empty.json", '{"id": ""}', "an id must not be empty"),
        ("number.json", '{"id": 5}', "its id must be a string, not 5"),
        ("none.json", "{}", "KeyError('id')"),
        ("unheard.json", '{"id": "unheard"}', "ZeroDivisionError"),
    ],
)
async def test_a_file_whose_adoption_fails_is_moved_aside_and_does_not_stop_the_others(
    realm: Path, name: str, content: str, reason: str
) -> None:
    def announce_some(record: Record) -> Envelope:
        return Envelope(type="Arrived", payload={"id": record.id, "share": 1 / (record.id != "unheard")})

    def read_anything(doc: Mapping[str, Any]) -> Record:
        return Record(kind="event", id=doc["id"], state="pending", doc=doc)

    careless = replace(EVENTS, adoption=Adoption(state="pending", read=read_anything, announce=announce_some))
    async with FilesBus(realm, TOPOLOGY, [careless]) as bus:
        queue = DropQueue(realm, bus)
        (queue.box / name).write_text(content)
        queue.drop("zebra")
        await bus.reap()
        assert reason in queue.reason(file_name(name))
        (delivery,) = await bus.claim("arrivals", 10, "worker")
        assert delivery.envelope.payload["id"] == "zebra"


async def test_a_file_waits_while_its_stream_cannot_be_read_and_does_not_stop_the_others(
    realm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def announce_by_id(record: Record) -> Envelope:
        return Envelope(type="Arrived", payload={"id": record.id}, stream=record.id.split("-")[0])

    def list_some(path: str) -> list[str]:
        if f"{path}/".startswith(closed):
            raise PermissionError(errno.EACCES, "refused", path)
        return listed(path)

    kind = replace(EVENTS, adoption=Adoption(state="pending", read=read, announce=announce_by_id))
    topology = Topology([Stream(name=name, subscribes=frozenset({"Arrived"})) for name in ("closed", "open")])
    # Root may read everything, so no permission is removed here.
    listed, closed = os.listdir, f"{realm}/bus/streams/closed/"
    monkeypatch.setattr(adoption, "SCAN_EVERY_SECONDS", 0.0)
    async with FilesBus(realm, topology, [kind]) as bus:
        queue = DropQueue(realm, bus)
        with monkeypatch.context() as patch:
            patch.setattr(os, "listdir", list_some)
            waiting, _ = queue.drop("closed-1"), queue.drop("open-1")
            with pytest.raises(Misconfigured, match="bus/streams/closed"):
                await bus.reap()
            assert len(await bus.claim("open", 10, "worker")) == 1
        assert (waiting.exists(), queue.rejected.exists()) == (True, False)
        await bus.reap()
        assert len(await bus.claim("closed", 10, "worker")) == 1


async def test_a_file_with_an_invalid_name_in_a_directory_of_records_stops_nothing(realm: Path) -> None:
    async with open_queue(realm) as queue:
        dispatched = realm / "queue/events/dispatched"
        dispatched.mkdir()
        for name in ("%FF.json", ".json", "not encoded.json", ".#evt-1.json"):
            (dispatched / name).write_text("{}")
        (dispatched / "folder.json").mkdir()
        (dispatched / "link.json").symlink_to("nowhere")
        queue.drop("evt-1")
        await queue.bus.reap()
        assert await queue.record("evt-1")
        assert await queue.dispatched() == []


async def test_links_pipes_and_directories_are_moved_aside_unopened(realm: Path) -> None:
    secret = realm.parent / "secret.json"
    secret.write_text('{"id": "secret", "type": "a"}')
    async with worked_queue(realm) as queue:
        (queue.box / "secret.json").symlink_to(secret)
        os.mkfifo(queue.box / "pipe.json")
        (queue.box / "folder.json").mkdir()
        names = ("secret.json", "pipe.json", "folder.json")
        await queue.until(lambda: all(os.path.lexists(queue.rejected / name) for name in names), "all are moved aside")
        assert all("not a plain file" in queue.reason(name) for name in names)
    assert secret.exists()


async def test_a_document_with_a_known_id_is_moved_aside(realm: Path) -> None:
    async with worked_queue(realm) as queue:
        queue.drop("evt-1")
        await queue.until(queue.dispatched, "it is dispatched")
        queue.drop("evt-1")
        await queue.until((queue.rejected / "evt-1.json").exists, "the second is moved aside")
        assert "already exists in state dispatched" in queue.reason("evt-1.json")


async def test_temporary_files_of_an_editor_are_ignored(realm: Path) -> None:
    async with open_queue(realm) as queue:
        names = [".evt-1.json.swp", "evt-1.json~", ".tmp-evt-2.json", "4913", "#evt-1.json#"]
        for name in names:
            (queue.box / name).write_text("half")
        queue.drop("evt-1")
        await queue.bus.reap()
        assert await queue.record("evt-1")
        assert sorted(path.name for path in queue.box.iterdir()) == sorted([*names, "evt-1.json"])


async def test_a_pending_document_can_be_edited(realm: Path) -> None:
    async with open_queue(realm) as queue:
        path = queue.drop("evt-1", priority="low")
        await queue.bus.reap()
        assert '"priority": "low"' in path.read_text()
        # Like `sed -i`: write a new file under a temporary name and rename it over the old one.
        sed = await asyncio.create_subprocess_exec("sed", "-i", 's/"low"/"high"/', str(path))
        assert await sed.wait() == 0
        record = await queue.record("evt-1")
        assert record is not None
        assert (record.doc["priority"], record.version) == ("high", 1)
        await queue.bus.reap()
        assert path.exists()


async def test_a_document_that_an_editor_wrote_without_our_metadata_is_still_a_record(realm: Path) -> None:
    async with open_queue(realm) as queue:
        path = queue.drop("evt-1", priority="low")
        await queue.bus.reap()
        path.write_text('{"id": "evt-1", "type": "a", "priority": "high"}')
        record = await queue.record("evt-1")
        assert record is not None
        assert (record.doc["priority"], record.version) == ("high", 1)


async def test_a_dropped_document_is_not_a_record_before_it_is_adopted(realm: Path) -> None:
    async with open_queue(realm) as queue:
        queue.drop("evt-1")
        assert await queue.record("evt-1") is None
        await queue.bus.reap()
        assert await queue.record("evt-1")


async def test_a_half_written_document_of_a_known_id_does_not_hide_the_record(realm: Path) -> None:
    async with worked_queue(realm) as queue:
        queue.drop("evt-1")
        await queue.until(queue.dispatched, "it is dispatched")
        (queue.box / "evt-1.json").write_text('{"id": ')
        record = await queue.record("evt-1")
        assert record is not None
        assert record.state == "dispatched"


async def test_a_record_that_is_moved_back_into_the_queue_is_pending_again(realm: Path) -> None:
    async with worked_queue(realm) as queue:
        queue.drop("evt-1")
        await queue.until(queue.dispatched, "it is dispatched")
    async with open_queue(realm) as queue:
        (realm / "queue/events/dispatched/evt-1.json").rename(queue.box / "evt-1.json")
        await queue.bus.reap()
        record = await queue.record("evt-1")
        assert record is not None
        assert (record.state, record.version) == ("pending", 2)
        assert not queue.rejected.exists()


async def test_a_pending_event_of_the_bus_can_be_edited(realm: Path) -> None:
    async with open_queue(realm) as queue:
        queue.drop("evt-1")
        await queue.bus.reap()
        (path,) = (realm / "bus/streams/arrivals/pending").iterdir()
        path.write_text(path.read_text().replace('"id": "evt-1"', '"id": "evt-2"'))
        (delivery,) = await queue.bus.claim("arrivals", 10, "worker")
        assert delivery.envelope.payload == {"id": "evt-2"}


async def test_an_event_whose_file_is_damaged_waits_and_does_not_stop_the_others(
    realm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus_module, "_READ_AGAIN_SECONDS", 0.2)
    async with open_queue(realm) as queue:
        queue.drop("evt-1")
        queue.drop("evt-2")
        await queue.bus.reap()
        first, _ = sorted((realm / "bus/streams/arrivals/pending").iterdir())
        whole = first.read_text()
        first.write_text(whole[:40])
        (delivery,) = await queue.bus.claim("arrivals", 10, "worker")
        assert delivery.envelope.payload == {"id": "evt-2"}
        first.write_text(whole)

        async def claimed() -> bool:
            return bool(await queue.bus.claim("arrivals", 10, "worker"))

        await queue.until(claimed, "the mended one is claimed")


async def test_an_event_whose_file_is_missing_for_a_moment_is_not_lost(
    realm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus_module, "_READ_AGAIN_SECONDS", 0.2)
    async with open_queue(realm) as queue:
        queue.drop("evt-1")
        await queue.bus.reap()
        (path,) = (realm / "bus/streams/arrivals/pending").iterdir()
        # Like vim: rename the old file, then write the new one.
        away = path.rename(f"{path}~")
        assert await queue.bus.claim("arrivals", 10, "worker") == []
        away.rename(path)

        async def claimed() -> bool:
            return bool(await queue.bus.claim("arrivals", 10, "worker"))

        await queue.until(claimed, "it is claimed")


NASTY_NAMES: list[bytes] = [
    *(b"-rf.json", b"..json", b"...json", b" .json", b"\n.json", b"\t\x1b[31m.json", b"con.json", b"nul", b"a\\b.json"),
    *(b"%2F.json", b"%00.json", b"%h0.json", b"\xff\xfe.json", b"\xc3\xa9.json", b"e\xcc\x81.json", b"A.json"),
    *(b"a.json", b"\xe2\x80\xae.json", b"x" * 250 + b".json", b"x" * 255, b"json", b"evt-1.JSON", b"evt-1.json.json"),
    *(b".json", b"*?[].json", b"'\";.json", b"$(id).json", b"~.json", b"~root", b"lost+found"),
]
NASTY_CONTENTS: list[bytes] = [
    *(b"", b"{", b"}", b"null", b"1e999", b"NaN", b'"', b"\x00", b"\xff\xfe{}", b"\xef\xbb\xbf{}", b"[" * 100_000),
    *(b'{"a":' * 50_000, b'{"id": null, "type": 1}', b'{"id": "", "type": ""}', b'{"id": "\\u0000", "type": "a"}'),
    *(b'{"id": "..", "type": "a"}', b'{"id": "/", "type": "a"}', b'{"id": "\\ud800", "type": "a"}'),
    *(b'{"_kingdom": 1}', b'{"id": "a", "type": "a", "_kingdom": {"version": -1}}', b'{"id": "a", "id": "b"}'),
]


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.long)])
def test_thousands_of_malformed_files_stop_nothing_and_are_all_accounted_for(
    realm: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adoption, "COMPLETE_AFTER_SECONDS", 0.2)
    # Generated before the worker runs, because Hypothesis must be the only user of its random numbers.
    inputs = _nasty_inputs(count)
    assert asyncio.run(_account(realm, inputs)) == count == len(inputs)


async def _account(realm: Path, inputs: Sequence[tuple[bytes, bytes]]) -> int:
    """Drop all files while a worker runs, and return how many were adopted, rejected or correctly ignored."""
    async with worked_queue(realm) as queue:
        good = {f"evt-good-{number}" for number in range(0, len(inputs), 100)}
        names = await asyncio.to_thread(_drop_all, queue, inputs)
        left_alone = {name for name in names if is_temporary_name(os.fsdecode(name))}

        async def box_is_cleared() -> bool:
            # Without a notification the worker scans only every ten seconds.
            await queue.bus.reap()
            return {os.fsencode(path.name) for path in queue.box.iterdir()} == left_alone

        await queue.until(box_is_cleared, "every complete file is adopted or moved aside")

        async def good_ones_are_handled() -> bool:
            return good <= set(await queue.dispatched())

        await queue.until(good_ones_are_handled, "the good ones among them are handled")
        reasons = [path for path in queue.rejected.iterdir() if path.suffix == ".reason"]
        rejected = [path for path in queue.rejected.iterdir() if path.suffix != ".reason"]
        log = [what for what, _ in await queue.log()]
        assert len(reasons) == len(rejected) == log.count("record.rejected")
        assert all(path.read_text().strip() for path in reasons)
        return len(rejected) + log.count("record.adopted") + len(left_alone)


def _drop_all(queue: DropQueue, inputs: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    """Drop files under unique names, every hundredth a valid one, and return the names."""
    box, names = os.fsencode(queue.box), []
    for number, (name, content) in enumerate(inputs):
        if number % 100 == 0:
            names.append(os.fsencode(queue.drop(f"evt-good-{number}").name))
            continue
        # The number makes names unique. The unusual part stays at the beginning or at the end.
        unique = name[:200] + b"%d" % number if number % 2 else b"%d" % number + name[-200:]
        descriptor = os.open(box + b"/" + unique, os.O_WRONLY | os.O_CREAT)
        os.write(descriptor, content)
        os.close(descriptor)
        names.append(unique)
    return names


def _nasty_inputs(count: int) -> list[tuple[bytes, bytes]]:
    """Return names and contents: every pair of the corpus, then generated ones in many combinations."""
    made: list[tuple[bytes, bytes]] = []
    documents = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=5,
    ).map(lambda value: json.dumps(value).encode())
    names = (st.binary(min_size=1, max_size=12) | st.text(min_size=1, max_size=8).map(str.encode)).map(
        lambda name: name.replace(b"/", b"_").replace(b"\x00", b"_") + b".json"
    )

    @settings(
        max_examples=min(count // 2, 1500),
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(names, documents | st.binary(max_size=20))
    def collect(name: bytes, content: bytes) -> None:
        made.append((name, content))

    collect()
    corpus = itertools.product(NASTY_NAMES, NASTY_CONTENTS)
    shifted = ((made[i][0], made[(i + shift) % len(made)][1]) for shift in itertools.count() for i in range(len(made)))
    return list(itertools.islice(itertools.chain(corpus, shifted), count))
