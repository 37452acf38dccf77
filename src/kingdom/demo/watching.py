"""Looking at the store while the story goes on: what is new in it, and how everything stands."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import msgspec

from kingdom.bootstrap import operations_of
from kingdom.bus.log import LogCursor, LogEntry
from kingdom.bus.port import Bus
from kingdom.bus.record import RecordQuery
from kingdom.clock import utc_now
from kingdom.court.asks import ASKS, Ask
from kingdom.court.documents import Assignment, ExternalEvent, Message
from kingdom.court.envoy.answers import open_asks
from kingdom.court.heartbeat import last_signs
from kingdom.court.records import ASSIGNMENTS, EVENTS, MESSAGES
from kingdom.demo.narration import Line, Tone, heard, told
from kingdom.soldiers.transcript import read_page
from kingdom.workflow.model.work import soldier_of
from kingdom.workflow.model.workflow import Workflow
from kingdom.workflow.records import WORKFLOWS, each

_PAGE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A question of an agent, the answer that counted, and whose it was."""

    question: str
    answer: str
    answered_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How everything stands at one moment: all of it as it is stored."""

    events: Sequence[ExternalEvent] = ()
    assignments: Sequence[Assignment] = ()
    runs: Sequence[Workflow] = ()
    asks: Sequence[Ask] = ()
    # When each role was last heard of.
    signs: Mapping[str, datetime] = field(default_factory=dict)
    at: datetime = field(default_factory=utc_now)

    @property
    def cost_usd(self) -> float:
        """Return what all agents have cost so far."""
        return sum(run.cost_usd for run in self.runs)

    def assignment_of(self, general: str) -> Assignment | None:
        """Return the assignment of a General with which its work began."""
        found = (each for each in self.assignments if each.target_general == general and not each.root)
        return next(found, None)

    def run_of(self, general: str) -> Workflow | None:
        """Return the run of a General."""
        return next((run for run in self.runs if run.general == general), None)


class Watcher:
    """Reads a store: everything once for the story, and again and again how it stands."""

    def __init__(self, bus: Bus, realm: Path) -> None:
        self.log: list[LogEntry] = []
        self.words: list[str] = []
        self._bus = bus
        self._realm = realm
        self._operations = operations_of(bus)
        self._cursor = LogCursor()
        self._offsets: dict[Path, int] = {}

    async def news(self) -> list[Line]:
        """Return what was not told yet; what an agent said comes behind its start, in whatever order it was found."""
        # Read first: who has spoken by now has its start in the log.
        said = await asyncio.to_thread(self._said)
        told_of: list[Line] = []
        while page := await self._operations.read_log(self._cursor, _PAGE):
            self._cursor = page[-1].cursor
            for logged in page:
                self.log.append(logged.entry)
                if line := told(await self._with_words(logged.entry)):
                    told_of.append(line)
                told_of += said.pop(soldier_of(str(logged.entry.data.get("session") or "")), [])
        return [*(line for lines in said.values() for line in lines), *told_of]

    async def standing(self) -> Standing:
        """Return how everything stands now."""
        async with self._bus.transaction() as transaction:
            events = [record async for record in each(transaction, RecordQuery(kind=EVENTS.name))]
            assignments = [record async for record in each(transaction, RecordQuery(kind=ASSIGNMENTS.name))]
            runs = [record async for record in each(transaction, RecordQuery(kind=WORKFLOWS.name))]
            asks = await open_asks(transaction)
            signs = await last_signs(transaction, self._realm)
        return Standing(
            events=[msgspec.convert(record.doc, ExternalEvent) for record in events],
            assignments=[msgspec.convert(record.doc, Assignment) for record in assignments],
            runs=sorted((Workflow.read(record.doc) for record in runs), key=lambda run: run.created_at),
            asks=asks,
            signs=signs,
        )

    async def answered(self) -> Answered:
        """Return the question of the story and the answer that counted."""
        async with self._bus.transaction() as transaction:
            found = [
                msgspec.convert(record.doc, Ask) async for record in each(transaction, RecordQuery(kind=ASKS.name))
            ]
        (ask,) = found
        return Answered(question=ask.question, answer=ask.answer, answered_by=ask.answered_by)

    async def _with_words(self, entry: LogEntry) -> LogEntry:
        """Return an entry about a message with what the message says."""
        if entry.type != "message.sent":
            return entry
        async with self._bus.transaction() as transaction:
            record = await transaction.get(MESSAGES.name, str(entry.data["msg_id"]))
        words = msgspec.convert(record.doc, Message).content if record else ""
        return replace(entry, data={**entry.data, "content": words})

    def _said(self) -> dict[str, list[Line]]:
        """Return what is new in the transcripts, by who said it."""
        said: dict[str, list[Line]] = {}
        for path in sorted((self._realm / "logs" / "sessions").glob("*.json")):
            page = read_page(path, self._offsets.get(path, 0))
            self._offsets[path] = page.next_offset
            if lines := [line for entry in page.entries for line in heard(entry)]:
                said[path.stem] = lines
                self.words += [line.what for line in lines if line.tone is Tone.WORDS]
        return said
