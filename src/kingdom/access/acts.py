"""Acts of people over the web: each happens once for its idempotency key, and is in the log with the person."""

import hashlib
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from kingdom.access.rights import Visitor
from kingdom.bus.log import LogEntry
from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import Record, RecordKind, read_document
from kingdom.errors import Permanent
from kingdom.workflow.records import run_transaction

ACCEPTED, DONE = "accepted", "done"
# How long the answer to a key is remembered.
KEY_KEPT = timedelta(days=7)
ACTS = RecordKind(
    name="web-act",
    directories={ACCEPTED: "state/web/acts/accepted", DONE: "state/web/acts/done"},
    # An accepted act whose process died is final too: it continues only if its sender sends it again.
    final=frozenset({ACCEPTED, DONE}),
    retention=KEY_KEPT,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """An act that a visitor requests: a verb, its target, and the request. `key` is empty if the visitor chose none."""

    visitor: Visitor
    verb: str
    target: str
    request: bytes = b""
    key: str = ""
    # The kind of the target, as log entries name it.
    target_kind: str = ""

    @property
    def fingerprint(self) -> str:
        """Return a hash of the request. If a known key comes with another hash, it was reused by mistake."""
        return hashlib.sha256(b"\0".join((self.verb.encode(), self.target.encode(), self.request))).hexdigest()

    @property
    def record_id(self) -> str:
        """Return the id of the record of this act. Keys of different visitors do not collide."""
        key = self.key or secrets.token_hex(16)
        return hashlib.sha256(f"{self.visitor.name}\0{key}".encode()).hexdigest()[:40]


class RecordedAct(msgspec.Struct, frozen=True, kw_only=True):
    """An act as the store keeps it. `plan` is set when it is accepted, `response` when it is done."""

    verb: str
    target: str
    person: str
    fingerprint: str
    plan: Any = None
    response: Any = None


async def act_in_transaction(bus: Bus, act: Act, perform: Callable[[Transaction], Awaitable[Any]]) -> Any:
    """Perform an act and record its key in one transaction. If the key is known, return the earlier response."""
    record_id = act.record_id

    async def once(transaction: Transaction) -> Any:
        known = await _find(transaction, act, record_id)
        if known:
            return known[1].response
        response = msgspec.to_builtins(await perform(transaction))
        await _save(transaction, act, record_id, DONE, response=response)
        await transaction.append(_entry(act))
        return response

    return await run_transaction(bus, once)


async def act_in_steps(
    bus: Bus, act: Act, plan: Callable[[], Awaitable[Any]], perform: Callable[[Any], Awaitable[Any]]
) -> Any:
    """Perform an act that cannot be part of a transaction.

    Its plan and its log entry are stored first. If the process dies before the act is recorded as done, the next
    request with this key performs the same plan. So `perform` must do nothing for parts of the plan that are done.
    """
    record_id = act.record_id
    async with bus.transaction() as transaction:
        known = await _find(transaction, act, record_id)
    if known is None:
        planned = msgspec.to_builtins(await plan())

        async def accept(transaction: Transaction) -> tuple[Record, RecordedAct]:
            if raced := await _find(transaction, act, record_id):
                return raced
            await transaction.append(_entry(act))
            return await _save(transaction, act, record_id, ACCEPTED, plan=planned)

        known = await run_transaction(bus, accept)
    record, accepted = known
    if record.state == DONE:
        return accepted.response
    response = msgspec.to_builtins(await perform(accepted.plan))

    async def finish(transaction: Transaction) -> Any:
        current = await _find(transaction, act, record_id)
        if current and current[0].state == DONE:
            return current[1].response
        version = current[0].version if current else 0
        await _save(transaction, act, record_id, DONE, plan=accepted.plan, response=response, version=version)
        return response

    return await run_transaction(bus, finish)


async def _find(transaction: Transaction, act: Act, record_id: str) -> tuple[Record, RecordedAct] | None:
    record = await transaction.get(ACTS.name, record_id)
    if record is None:
        return None
    recorded = read_document(record.doc, RecordedAct)
    if recorded.fingerprint != act.fingerprint:
        raise Permanent(
            f"the Idempotency-Key was used for another request ({recorded.verb} {recorded.target}): choose a new key"
        )
    return record, recorded


async def _save(
    transaction: Transaction,
    act: Act,
    record_id: str,
    state: str,
    *,
    plan: Any = None,
    response: Any = None,
    version: int = 0,
) -> tuple[Record, RecordedAct]:
    recorded = RecordedAct(
        verb=act.verb,
        target=act.target,
        person=act.visitor.name,
        fingerprint=act.fingerprint,
        plan=plan,
        response=response,
    )
    doc = msgspec.to_builtins(recorded)
    record = Record(kind=ACTS.name, id=record_id, state=state, version=version, doc=doc)
    return await transaction.put(record), recorded


def _entry(act: Act) -> LogEntry:
    return LogEntry(
        type="web.act",
        actor=act.visitor.actor,
        data={"verb": act.verb, "target": act.target, "person": act.visitor.name},
        aggregate_type=act.target_kind,
        aggregate_id=act.target,
    )
