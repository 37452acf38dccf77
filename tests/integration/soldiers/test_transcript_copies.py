"""Copies of transcripts and diffs on PostgreSQL: complete after any kill, bounded, and never in the way of an agent."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from kingdom.backends.postgres import PostgresBus, PostgresRunTexts
from kingdom.errors import Unavailable
from kingdom.soldiers.agents.transcript import append_entry
from kingdom.soldiers.redaction import DEFAULT_REDACTION, Redaction
from kingdom.soldiers.transcripts import copier as copying
from kingdom.soldiers.transcripts.copier import TranscriptCopier
from kingdom.soldiers.transcripts.sources import StoredTranscript
from kingdom.soldiers.workplace.host_folders import HostFolders
from kingdom.storage.run_texts import RunTexts, TextExtent, TextPiece
from tests.integration.processes import child
from tests.integration.running import eventually, open_bus
from tests.patience import PATIENCE_SECONDS

RUN = "wf-1"
SOLDIERS = ("soldier-1-1", "soldier-1-2")


@pytest.fixture(autouse=True)
def _patient_copier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the time limit of the last copy, because the machine may be busy."""
    monkeypatch.setattr(copying, "_FLUSH_SECONDS", PATIENCE_SECONDS)


@pytest.fixture
def folders(tmp_path: Path) -> HostFolders:
    folders = HostFolders(tmp_path / "host")
    folders.create()
    return folders


@pytest.fixture
async def bus(dsn: str) -> AsyncIterator[PostgresBus]:
    async with open_bus(dsn) as bus:
        yield bus


class UnsteadyTexts(RunTexts):
    """Texts of a store that is unreachable, or whose answers are lost, as often as a test requests."""

    def __init__(self, texts: RunTexts) -> None:
        self._texts = texts
        self.unreachable = self.lost_answers = 0

    async def append(self, run: str, name: str, pieces: Sequence[TextPiece]) -> int:
        if self.unreachable:
            self.unreachable -= 1
            raise Unavailable("no answer")
        end = await self._texts.append(run, name, pieces)
        if self.lost_answers:
            self.lost_answers -= 1
            raise Unavailable("the answer is lost")
        return end

    async def extents(self, run: str) -> dict[str, TextExtent]:
        return await self._texts.extents(run)

    async def read(self, run: str, name: str, after: int, limit: int) -> list[TextPiece]:
        return await self._texts.read(run, name, after, limit)


def say(folders: HostFolders, soldier: str, text: str) -> None:
    append_entry(folders.transcript(soldier), {"type": "said", "text": text}, durable=False)


async def stored(texts: RunTexts, soldier: str) -> bytes:
    found, after = bytearray(), 0
    while pieces := await texts.read(RUN, soldier, after, 1000):
        for piece in pieces:
            assert piece.start == after
            found += piece.content
            after = piece.end
    return bytes(found)


async def test_a_copier_that_is_killed_again_and_again_copies_every_byte_once(
    bus: PostgresBus, folders: HostFolders
) -> None:
    texts = PostgresRunTexts(bus)
    before = TranscriptCopier(texts, folders, DEFAULT_REDACTION)
    for soldier in SOLDIERS:
        before.begin(RUN, soldier, DEFAULT_REDACTION)
    chance, number = random.Random(7), 0
    for _ in range(5):
        async with child("integration.soldiers.copier_child", place=bus.dsn, directory=str(folders.directory)):
            seen = await asyncio.gather(*(stored(texts, each) for each in SOLDIERS))
            for _ in range(chance.randrange(5, 60)):
                number += 1
                say(folders, chance.choice(SOLDIERS), f"{number} {'x' * chance.randrange(300)}")
            goal = chance.randrange(1, 3000)

            async def has_copied(seen: list[bytes] = seen, goal: int = goal) -> bool:
                now = [len(await stored(texts, each)) for each in SOLDIERS]
                written = [len(folders.transcript(each).read_bytes()) for each in SOLDIERS if _exists(folders, each)]
                return sum(now) - sum(map(len, seen)) >= goal or sum(now) == sum(written)

            await eventually(has_copied)
    async with child("integration.soldiers.copier_child", place=bus.dsn, directory=str(folders.directory)):

        async def is_copied() -> bool:
            return all([await stored(texts, each) == folders.transcript(each).read_bytes() for each in SOLDIERS])

        await eventually(is_copied)


def _exists(folders: HostFolders, soldier: str) -> bool:
    return folders.transcript(soldier).exists()


async def test_a_store_that_does_not_answer_only_delays_the_copy(bus: PostgresBus, folders: HostFolders) -> None:
    texts = UnsteadyTexts(PostgresRunTexts(bus))
    copier = TranscriptCopier(texts, folders, DEFAULT_REDACTION)
    copier.begin(RUN, SOLDIERS[0], DEFAULT_REDACTION)
    for number in range(6):
        say(folders, SOLDIERS[0], f"{number}")
        texts.unreachable, texts.lost_answers = number % 3 == 1, number % 3 == 2
        await copier.flush()
    await copier.flush()
    assert await stored(texts, SOLDIERS[0]) == folders.transcript(SOLDIERS[0]).read_bytes()


async def test_a_run_has_a_limit_and_its_readers_are_warned(bus: PostgresBus, folders: HostFolders) -> None:
    texts = PostgresRunTexts(bus)
    for _ in range(2):
        # A copier that has restarted knows the limit too.
        copier = TranscriptCopier(texts, folders, DEFAULT_REDACTION, run_bytes_max=1000)
        for soldier in SOLDIERS:
            copier.begin(RUN, soldier, DEFAULT_REDACTION)
            for number in range(10):
                say(folders, soldier, f"{number} {'x' * 30}")
                await copier.flush()
    sizes = [len(await stored(texts, each)) for each in SOLDIERS]
    assert sum(sizes) == 1000
    kept = await stored(texts, SOLDIERS[0])
    assert folders.transcript(SOLDIERS[0]).read_bytes().startswith(kept)
    source = StoredTranscript(texts, RUN, SOLDIERS[0])
    (note,) = await source.missing_parts("host a")
    assert note == "The store keeps at most 20 MiB of a run's transcripts; the rest is on host a"
    page = await source.read(0)
    assert page.entries
    assert (await source.read(page.next_offset)).next_offset == page.next_offset


async def test_a_secret_that_the_host_learned_later_is_not_copied(bus: PostgresBus, folders: HostFolders) -> None:
    texts = PostgresRunTexts(bus)
    say(folders, SOLDIERS[0], "the password is swordfish-of-the-store, twice: swordfish-of-the-store")
    copier = TranscriptCopier(texts, folders, DEFAULT_REDACTION)
    copier.begin(RUN, SOLDIERS[0], Redaction(["swordfish-of-the-store"]))
    await copier.flush()
    copy = await stored(texts, SOLDIERS[0])
    assert b"swordfish" not in copy
    assert copy.count(b"[redacted]") == 2
    assert len(copy) == folders.transcript(SOLDIERS[0]).stat().st_size


async def test_a_session_is_forgotten_some_time_after_its_end_and_copied_until_then(
    bus: PostgresBus, folders: HostFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = PostgresRunTexts(bus)
    copier = TranscriptCopier(texts, folders, DEFAULT_REDACTION, every=0.001)
    copier.begin(RUN, SOLDIERS[0], DEFAULT_REDACTION)
    marker = folders.copying / SOLDIERS[0]
    assert marker.read_text() == RUN
    say(folders, SOLDIERS[0], "one")
    await copier.end(SOLDIERS[0])
    assert await stored(texts, SOLDIERS[0]) == folders.transcript(SOLDIERS[0]).read_bytes()
    running = asyncio.create_task(copier.run())
    say(folders, SOLDIERS[0], "the cost of the turn")

    async def is_copied() -> bool:
        return await stored(texts, SOLDIERS[0]) == folders.transcript(SOLDIERS[0]).read_bytes()

    await eventually(is_copied)
    assert marker.exists()
    monkeypatch.setattr(copying, "_LINGER_SECONDS", 0.0)

    async def is_forgotten() -> bool:
        return not marker.exists()

    await eventually(is_forgotten)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
