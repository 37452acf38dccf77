"""Send the replies of a host to the store in order, many in one transaction."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
import structlog

from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import Record, to_storable
from kingdom.errors import Conflict, KingdomError, Transient
from kingdom.soldiers.redaction import DEFAULT_REDACTION, Redaction
from kingdom.workflow.model.messages.answers import HostAnswer
from kingdom.workflow.records import ACCEPTED, ANSWERED, DOCUMENTS, RESULT, event_envelope

_BATCH_SIZE = 64
_PAUSE_SECONDS = 0.5
_log = structlog.get_logger("kingdom.soldiers")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReply:
    """A reply about one run: answers with their documents, and accepted commands that this reply `closes`.

    `fallback` returns the answers that are sent if the store rejects this reply.
    """

    workflow_id: str
    answers: tuple[HostAnswer, ...] = ()
    documents: tuple[Record, ...] = ()
    closes: tuple[Record, ...] = ()
    fallback: Callable[[KingdomError], tuple[HostAnswer, ...]] | None = None


class Reporter:
    """Removes secrets from replies and stores them; replies wait while the store is unavailable."""

    def __init__(self, bus: Bus, redaction: Redaction = DEFAULT_REDACTION) -> None:
        self._bus = bus
        self._redaction = redaction
        self._waiting: deque[HostReply] = deque()
        self._reply_added = asyncio.Event()
        self._all_sent = asyncio.Event()
        self._all_sent.set()

    def send(self, reply: HostReply) -> None:
        """Queue a reply after all earlier ones."""
        self._waiting.append(reply)
        self._all_sent.clear()
        self._reply_added.set()

    def pending_command_ids(self) -> set[str]:
        """Return the ids of commands whose closing replies are not stored yet."""
        return {record.id for reply in self._waiting for record in reply.closes}

    def discard_unsent(self) -> None:
        """Drop replies that are not stored yet, because the host has lost the runs that they are about."""
        self._waiting.clear()

    async def wait_until_sent(self) -> None:
        """Wait until every reply is stored."""
        await self._all_sent.wait()

    async def run(self) -> None:
        """Store replies until cancelled."""
        while True:
            if not self._waiting:
                self._all_sent.set()
                self._reply_added.clear()
                await self._reply_added.wait()
            batch = list(self._waiting)[:_BATCH_SIZE]
            try:
                await self._store(batch)
            except Transient as error:
                _log.warning("replies cannot be stored, trying again", replies=len(self._waiting), error=str(error))
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _store(self, replies: Sequence[HostReply]) -> None:
        """Store all replies at once, or one by one if some of them are rejected."""
        try:
            async with self._bus.transaction() as transaction:
                for reply in replies:
                    await self._write(transaction, reply, reply.closes, reply.documents)
        except KingdomError as error:
            if isinstance(error, Transient) and not isinstance(error, Conflict):
                raise
            for reply in replies:
                await self._store_alone(reply)
                self._mark_sent(reply)
        else:
            for reply in replies:
                self._mark_sent(reply)

    def _mark_sent(self, reply: HostReply) -> None:
        # The reply may have been discarded meanwhile.
        if self._waiting and self._waiting[0] is reply:
            self._waiting.popleft()

    async def _store_alone(self, reply: HostReply) -> None:
        """Store one reply, based on the current records; drop the reply if its commands were closed meanwhile."""
        try:
            async with self._bus.transaction() as transaction:
                now = [await transaction.get(each.kind, each.id) for each in reply.closes]
                closes = [each for each in now if each and each.state == ACCEPTED]
                if reply.closes and not closes:
                    _log.info("a reply comes too late and is dropped", workflow=reply.workflow_id)
                    return
                known = {each.id for each in reply.documents if await transaction.get(DOCUMENTS.name, each.id)}
                missing = [each for each in reply.documents if each.id not in known]
                await self._write(transaction, reply, closes, missing)
        except Transient:
            raise
        except KingdomError as error:
            _log.error("the store rejects a reply", workflow=reply.workflow_id, error=str(error))
            if reply.fallback:
                answer = reply.fallback(error)
                await self._store_alone(replace(reply, answers=answer, documents=(), fallback=None))

    async def _write(
        self, transaction: Transaction, reply: HostReply, closes: Sequence[Record], documents: Sequence[Record]
    ) -> None:
        for record in closes:
            await transaction.put(record.replace(state=ANSWERED))
        for record in documents:
            # A later result of the same assignment replaces the earlier one.
            earlier = await transaction.get(record.kind, record.id) if record.kind == RESULT else None
            version = earlier.version if earlier else record.version
            await transaction.put(record.replace(version=version, doc=self._redaction.value(to_storable(record.doc))))
        for answer in reply.answers:
            envelope = event_envelope(answer, "Workflow", reply.workflow_id)
            payload = self._redaction.value(to_storable(envelope.payload))
            await transaction.publish(msgspec.structs.replace(envelope, payload=payload))
