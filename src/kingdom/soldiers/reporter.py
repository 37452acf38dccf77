"""What a host says goes to the store in the order in which it was said, many things in one transaction."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
import structlog

from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import Record, to_storable
from kingdom.errors import Conflict, KingdomError, Transient
from kingdom.soldiers.redaction import WELL_KNOWN, Redaction
from kingdom.workflow.model.answers import HostAnswer
from kingdom.workflow.records import ACCEPTED, ANSWERED, DOCUMENTS, event_envelope

_TOGETHER = 64
_PAUSE_SECONDS = 0.5
_log = structlog.get_logger("kingdom.soldiers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What is said of one run: answers with their texts; `closes` are the commands that need no further answer.

    `otherwise` tells what to say where no store can keep this.
    """

    workflow_id: str
    answers: tuple[HostAnswer, ...] = ()
    documents: tuple[Record, ...] = ()
    closes: tuple[Record, ...] = ()
    otherwise: Callable[[KingdomError], tuple[HostAnswer, ...]] | None = None


class Reporter:
    """Carries statements to the store, without secrets; while the store is away they wait."""

    def __init__(self, bus: Bus, redaction: Redaction = WELL_KNOWN) -> None:
        self._bus = bus
        self._redaction = redaction
        self._waiting: deque[Statement] = deque()
        self._news = asyncio.Event()
        self._said_all = asyncio.Event()
        self._said_all.set()

    def say(self, statement: Statement) -> None:
        """Have something said after all that was said before."""
        self._waiting.append(statement)
        self._said_all.clear()
        self._news.set()

    def closing(self) -> set[str]:
        """Return the ids of the commands whose answers are on their way."""
        return {record.id for statement in self._waiting for record in statement.closes}

    def forget(self) -> None:
        """Drop what was not said yet: nobody would listen any more."""
        self._waiting.clear()

    async def said_all(self) -> None:
        """Wait until everything is said."""
        await self._said_all.wait()

    async def run(self) -> None:
        """Carry statements until cancelled."""
        while True:
            if not self._waiting:
                self._said_all.set()
                self._news.clear()
                await self._news.wait()
            together = list(self._waiting)[:_TOGETHER]
            try:
                await self._tell(together)
            except Transient as error:
                _log.warning("the store cannot be told, trying again", statements=len(self._waiting), error=str(error))
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _tell(self, statements: Sequence[Statement]) -> None:
        """Tell all at once, or one by one where something of it cannot be told as it is."""
        try:
            async with self._bus.transaction() as transaction:
                for statement in statements:
                    await self._write(transaction, statement, statement.closes, statement.documents)
        except KingdomError as error:
            if isinstance(error, Transient) and not isinstance(error, Conflict):
                raise
            for statement in statements:
                await self._tell_alone(statement)
                self._told(statement)
        else:
            for statement in statements:
                self._told(statement)

    def _told(self, statement: Statement) -> None:
        # What was forgotten meanwhile is not there any more.
        if self._waiting and self._waiting[0] is statement:
            self._waiting.popleft()

    async def _tell_alone(self, statement: Statement) -> None:
        """Tell one thing by what is in the store now; a command that was given up meanwhile needs no answer."""
        try:
            async with self._bus.transaction() as transaction:
                now = [await transaction.get(each.kind, each.id) for each in statement.closes]
                closes = [each for each in now if each and each.state == ACCEPTED]
                if statement.closes and not closes:
                    _log.info("what was said comes too late", workflow=statement.workflow_id)
                    return
                known = [await transaction.get(DOCUMENTS.name, each.id) for each in statement.documents]
                missing = [each for each, found in zip(statement.documents, known, strict=True) if found is None]
                await self._write(transaction, statement, closes, missing)
        except Transient:
            raise
        except KingdomError as error:
            _log.error("what was said cannot be stored", workflow=statement.workflow_id, error=str(error))
            if statement.otherwise:
                said = statement.otherwise(error)
                await self._tell_alone(replace(statement, answers=said, documents=(), otherwise=None))

    async def _write(
        self, transaction: Transaction, statement: Statement, closes: Sequence[Record], documents: Sequence[Record]
    ) -> None:
        for record in closes:
            await transaction.put(replace(record, state=ANSWERED))
        for record in documents:
            await transaction.put(replace(record, doc=self._redaction.value(to_storable(record.doc))))
        for answer in statement.answers:
            envelope = event_envelope(answer, "Workflow", statement.workflow_id)
            payload = self._redaction.value(to_storable(envelope.payload))
            await transaction.publish(msgspec.structs.replace(envelope, payload=payload))
