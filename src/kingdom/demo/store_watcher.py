"""Watch the store while the demo runs: new log entries, and the current state."""

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
from kingdom.court.documents import Assignment, ExternalEvent, Message
from kingdom.court.envoy.answers import open_questions
from kingdom.court.heartbeat import last_heartbeats
from kingdom.court.questions import QUESTIONS, HumanQuestion, QuestionStatus
from kingdom.court.records import ASSIGNMENTS, EVENTS, MESSAGES
from kingdom.demo.narration import NarrationLine, Tone, describe_log_entry, describe_transcript_entry
from kingdom.soldiers.agents.transcript import read_page
from kingdom.workflow.model.run.work import soldier_of
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.records import WORKFLOWS, each_record

_PAGE_SIZE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredQuestion:
    """A question of an agent, the accepted answer, and who gave it."""

    question: str
    answer: str
    answered_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoState:
    """The state of the whole court at one moment, as it is stored."""

    events: Sequence[ExternalEvent] = ()
    assignments: Sequence[Assignment] = ()
    runs: Sequence[Workflow] = ()
    asks: Sequence[HumanQuestion] = ()
    # The last heartbeat of each role.
    heartbeats: Mapping[str, datetime] = field(default_factory=dict)
    at: datetime = field(default_factory=utc_now)

    @property
    def cost_usd(self) -> float:
        """Return the cost of all agents so far."""
        return sum(run.cost_usd for run in self.runs)

    def assignment_of(self, general: str) -> Assignment | None:
        """Return the first assignment of a General."""
        found = (each for each in self.assignments if each.target_general == general and not each.root)
        return next(found, None)

    def run_of(self, general: str) -> Workflow | None:
        """Return the run of a General."""
        return next((run for run in self.runs if run.general == general), None)


class StoreWatcher:
    """Reads a store: each log and transcript entry once, and the current state on demand."""

    def __init__(self, bus: Bus, realm: Path) -> None:
        self.log: list[LogEntry] = []
        # Everything that agents have said.
        self.utterances: list[str] = []
        self._bus = bus
        self._realm = realm
        self._operations = operations_of(bus)
        self._cursor = LogCursor()
        self._offsets: dict[Path, int] = {}

    async def read_new_lines(self) -> list[NarrationLine]:
        """Return the lines of all new entries. The lines of an agent follow the entry about its start."""
        # Transcripts are read before the log, so that the log has the start of every agent with a transcript.
        agent_lines = await asyncio.to_thread(self._read_transcripts)
        lines: list[NarrationLine] = []
        while page := await self._operations.read_log(self._cursor, _PAGE_SIZE):
            self._cursor = page[-1].cursor
            for logged in page:
                self.log.append(logged.entry)
                if line := describe_log_entry(await self._with_content(logged.entry)):
                    lines.append(line)
                lines += agent_lines.pop(soldier_of(str(logged.entry.data.get("session") or "")), [])
        return [*(line for others in agent_lines.values() for line in others), *lines]

    async def read_state(self) -> DemoState:
        """Return the current state."""
        async with self._bus.transaction() as transaction:
            events = [record async for record in each_record(transaction, RecordQuery(kind=EVENTS.name))]
            assignments = [record async for record in each_record(transaction, RecordQuery(kind=ASSIGNMENTS.name))]
            runs = [record async for record in each_record(transaction, RecordQuery(kind=WORKFLOWS.name))]
            asks = await open_questions(transaction)
            heartbeats = await last_heartbeats(transaction, self._realm)
        return DemoState(
            events=[msgspec.convert(record.doc, ExternalEvent) for record in events],
            assignments=[msgspec.convert(record.doc, Assignment) for record in assignments],
            runs=sorted((Workflow.read(record.doc) for record in runs), key=lambda run: run.created_at),
            asks=asks,
            heartbeats=heartbeats,
        )

    async def read_question(self) -> AnsweredQuestion:
        """Return the first answered question and its accepted answer."""
        async with self._bus.transaction() as transaction:
            found = [
                msgspec.convert(record.doc, HumanQuestion)
                async for record in each_record(transaction, RecordQuery(kind=QUESTIONS.name))
            ]
        ask = min(found, key=lambda each: (each.status is not QuestionStatus.ANSWERED, each.asked_at))
        return AnsweredQuestion(question=ask.text, answer=ask.answer, answered_by=ask.answered_by)

    async def _with_content(self, entry: LogEntry) -> LogEntry:
        """Add the text of the message to an entry about a message."""
        if entry.type != "message.sent":
            return entry
        async with self._bus.transaction() as transaction:
            record = await transaction.get(MESSAGES.name, str(entry.data["msg_id"]))
        content = msgspec.convert(record.doc, Message).content if record else ""
        return replace(entry, data={**entry.data, "content": content})

    def _read_transcripts(self) -> dict[str, list[NarrationLine]]:
        """Return the lines of new transcript entries by soldier."""
        agent_lines: dict[str, list[NarrationLine]] = {}
        for path in sorted((self._realm / "logs" / "sessions").glob("*.json")):
            page = read_page(path, self._offsets.get(path, 0))
            self._offsets[path] = page.next_offset
            if lines := [line for entry in page.entries for line in describe_transcript_entry(entry)]:
                agent_lines[path.stem] = lines
                self.utterances += [line.what for line in lines if line.tone is Tone.WORDS]
        return agent_lines
