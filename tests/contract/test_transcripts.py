"""Transcripts as a reader sees them: from the file on a store of one machine, from the copy on a shared store."""

import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from kingdom.bootstrap import run_texts_of
from kingdom.bus import Bus
from kingdom.soldiers.agents.transcript import append_entry, read_entries, read_page, tail_offset
from kingdom.soldiers.redaction import DEFAULT_REDACTION
from kingdom.soldiers.transcripts import copier as copying
from kingdom.soldiers.transcripts.copier import TranscriptCopier
from kingdom.soldiers.transcripts.run_sessions import RunSession, locate
from kingdom.soldiers.transcripts.sources import StoredTranscript, TranscriptFile, TranscriptSource, follow_pages
from kingdom.soldiers.workplace.host_folders import HostFolders
from kingdom.workflow import lifecycle
from kingdom.workflow.hosts import register_host
from kingdom.workflow.model.resources.template import TaskDefinition, WorkDefinition, WorkflowTemplate
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.reactions import engine
from kingdom.workflow.templates import create_template
from tests.contract.backends import BackendUnderTest
from tests.patience import PATIENCE_SECONDS

SOLDIER, HOST = "soldier-1790000000-123456", "host-a"


@pytest.fixture(autouse=True)
def _patient_copier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a copy as long as for everything else, however busy the machine is."""
    monkeypatch.setattr(copying, "_FLUSH_SECONDS", PATIENCE_SECONDS)


@dataclass
class Reading:
    """A session whose host is this machine if the store is for one machine, and else another machine."""

    bus: Bus
    folders: HostFolders
    workflow: Workflow
    copier: TranscriptCopier | None

    @property
    def path(self) -> Path:
        return self.folders.transcript(SOLDIER)

    async def write(self, *texts: str) -> None:
        for text in texts:
            append_entry(self.path, {"type": "said", "text": text}, durable=False)
        await self.share()

    async def share(self) -> None:
        if self.copier:
            self.copier.begin(self.workflow.id, SOLDIER, DEFAULT_REDACTION)
            await self.copier.flush()

    async def source(self) -> TranscriptSource:
        session = RunSession(SOLDIER, work_id=f"{self.workflow.id}-w1", host=HOST)
        await locate(self.bus, run_texts_of(self.bus), session, self.workflow)
        assert isinstance(session.source, StoredTranscript if self.copier else TranscriptFile)
        return session.source


@pytest.fixture
async def reading(backend: BackendUnderTest, tmp_path: Path) -> AsyncIterator[Reading]:
    application = engine()
    async with backend.open(application.topology, application.kinds) as bus:
        folders = HostFolders(tmp_path / "host")
        folders.create()
        texts = run_texts_of(bus)
        assert (texts is not None) == bus.spans_hosts
        machine = "elsewhere" if texts else socket.gethostname()
        await register_host(bus, HOST, 1, timedelta(hours=1), machine=machine, directory=str(folders.directory))
        works = (WorkDefinition(name="look", tasks=(TaskDefinition(query="look"),)),)
        await create_template(bus, WorkflowTemplate(id="look", name="Look", works=works), actor="anna")
        workflow = await lifecycle.create(bus, "look", actor="anna")
        copier = TranscriptCopier(texts, folders, DEFAULT_REDACTION) if texts else None
        yield Reading(bus, folders, workflow, copier)


async def test_every_entry_is_read_from_every_offset(reading: Reading) -> None:
    await reading.write(*(f"{number} {'ä' * number}" for number in range(30)))
    source, whole = await reading.source(), read_page(reading.path)
    assert await source.size() == reading.path.stat().st_size
    for number, after in enumerate([0, *whole.ends]):
        page = await source.read(after)
        assert page.entries == whole.entries[number:]
        assert page.ends == whole.ends[number:]
        assert page.next_offset == whole.next_offset


async def test_a_transcript_in_an_inaccessible_folder_is_read_from_its_copy(reading: Reading) -> None:
    await reading.write("hello")
    # Nothing can access a path with such a long name, not even root.
    here, folder = socket.gethostname(), f"/{'x' * 300}"
    await register_host(reading.bus, HOST, 1, timedelta(hours=1), machine=here, directory=folder)
    session = RunSession(SOLDIER, work_id=f"{reading.workflow.id}-w1", host=HOST)
    await locate(reading.bus, run_texts_of(reading.bus), session, reading.workflow)
    assert session.place.endswith("which this account cannot read")
    assert isinstance(session.source, StoredTranscript) == (reading.copier is not None)


async def test_pages_are_bounded_and_continue_each_other(reading: Reading) -> None:
    await reading.write(*("x" * 1000 for _ in range(40)))
    source, entries, after, pages = await reading.source(), [], 0, 0
    while (page := await source.read(after, 5000)).next_offset > after:
        assert page.next_offset - after < 7000
        entries += page.entries
        after, pages = page.next_offset, pages + 1
    assert entries == read_entries(reading.path)
    assert pages > 5


async def test_an_entry_of_many_pieces_is_read_in_full(reading: Reading) -> None:
    await reading.write("short", "long " * 100_000, "after")
    page = await (await reading.source()).read(0, 10)
    assert [entry["text"] for entry in page.entries] == ["short"]
    page = await (await reading.source()).read(page.next_offset, 10)
    assert [len(entry["text"]) for entry in page.entries] == [500_000]


async def test_the_tail_begins_at_the_first_whole_entry(reading: Reading) -> None:
    await reading.write(*(f"{number}" for number in range(20)))
    source, whole = await reading.source(), reading.path.stat().st_size
    for size in (1, 60, 61, 100, whole - 1, whole, whole + 1):
        assert await source.tail(size) == tail_offset(reading.path, size), size


async def test_an_incomplete_line_is_left_until_it_is_complete(reading: Reading) -> None:
    await reading.write("one")
    with reading.path.open("ab") as file:
        file.write(b'{"type": "said", "te')
    await reading.share()
    source = await reading.source()
    page = await source.read(0)
    assert [entry["text"] for entry in page.entries] == ["one"]
    assert (await source.read(page.next_offset)).entries == []
    await reading.write("two")
    assert [entry["text"] for entry in (await source.read(page.next_offset)).entries] == ["two"]


async def test_following_sees_each_entry_once_and_ends_with_the_run(reading: Reading) -> None:
    await reading.write("one")
    source, left = await reading.source(), ["two", "three"]

    async def is_over() -> bool:
        if left:
            await reading.write(left.pop(0))
        return not left

    pages = [page async for page in follow_pages(source, 0, is_over, every=0.001)]
    assert [entry["text"] for page in pages for entry in page.entries] == ["one", "two", "three"]


async def test_a_session_that_has_written_nothing_is_empty(reading: Reading) -> None:
    source = StoredTranscript(texts, "wf", SOLDIER) if (texts := run_texts_of(reading.bus)) else await reading.source()
    assert (await source.read(0)).entries == []
    assert (await source.size(), await source.tail(100)) == (0, 0)
