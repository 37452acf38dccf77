"""Bare psycopg loops on the table of the bus: without leases, fences, retries or handlers.

They claim and archive with the best statements known, so their rates are an upper bound for any client of this table.
"bare-best" adds the JSON library and the session settings of the bus.
"""

import json
import uuid
from collections.abc import Callable
from typing import Any, LiteralString

import msgspec
import psycopg
from psycopg.rows import DictRow, dict_row
from psycopg.types.json import set_json_loads

from bench.race.player import Contestant, Job, Progress, batches, payload, play, timed_payload
from kingdom.backends.postgres import migrate

COPY_FROM_EVENTS = 1000
_CHANNEL = "race"
_INSERT: LiteralString = (
    "INSERT INTO kingdom.outbox_event (event_id, stream, event_type, occurred_at, trace_id, payload_json)"
    " SELECT gen_random_uuid(), 'race', 'Ping', now(), 'trace', x.payload"
    " FROM jsonb_to_recordset(%s::jsonb) AS x(payload jsonb)"
)
_INSERT_AND_NOTIFY: LiteralString = (
    f"WITH inserted AS ({_INSERT} RETURNING 1)"  # noqa: S608 - both parts are constants
    f" SELECT pg_notify('{_CHANNEL}', '') FROM inserted"
)
_COPY: LiteralString = (
    "COPY kingdom.outbox_event (event_id, stream, event_type, occurred_at, trace_id, payload_json) FROM STDIN"
)
_CLAIM: LiteralString = (
    "UPDATE kingdom.outbox_event SET status = 'PROCESSING', attempt_count = attempt_count + 1 WHERE id = ANY(ARRAY("
    "SELECT id FROM kingdom.outbox_event WHERE stream = 'race' AND processed_at IS NULL AND status = 'PENDING'"
    " AND next_retry_at <= now() ORDER BY next_retry_at, id LIMIT 100 FOR UPDATE SKIP LOCKED)) RETURNING *"
)
_DONE: LiteralString = (
    "WITH d AS (DELETE FROM kingdom.outbox_event WHERE id = ANY(%s) RETURNING *)"
    " INSERT INTO kingdom.outbox_archive (id, event_id, stream, event_type, schema_version, occurred_at, trace_id,"
    " owner_id, ordered, aggregate_type, aggregate_id, attributes, payload_json, attempt_count, max_attempts,"
    " crash_count, lease_token, created_at) SELECT id, event_id, stream, event_type, schema_version, occurred_at,"
    " trace_id, owner_id, ordered, aggregate_type, aggregate_id, attributes, payload_json, attempt_count,"
    " max_attempts, crash_count, lease_token, created_at FROM d"
)
_RECORDS: LiteralString = (
    "INSERT INTO kingdom.record (kind, id, version, state, doc)"
    " SELECT 'pong', x.id, 1, 'WRITTEN', x.doc FROM jsonb_to_recordset(%s::jsonb) AS x(id text, doc jsonb)"
)
# The session settings of the bus: generic plans without sequential scans, bitmap scans or JIT compilation.
_SETTINGS: tuple[LiteralString, ...] = (
    "SET plan_cache_mode = force_generic_plan",
    "SET enable_seqscan = off",
    "SET enable_bitmapscan = off",
    "SET jit = off",
)


class BareLoop(Contestant):
    """A loop that only talks to the database."""

    _connection: psycopg.Connection[DictRow]
    _encode: Callable[[Any], str] = staticmethod(json.dumps)

    async def prepare(self, job: Job) -> None:
        """Create the tables of the bus."""
        await migrate(job.dsn)

    async def open(self, job: Job) -> None:
        """Connect, with or without the choices of the bus."""
        self._connection = psycopg.connect(job.dsn, autocommit=True, row_factory=dict_row, prepare_threshold=1)
        if job.options.get("best"):
            set_json_loads(msgspec.json.decode, self._connection)
            self._encode = _encode_quickly
            for setting in _SETTINGS:
                self._connection.execute(setting)
        if job.role == "receive":
            self._connection.execute(f"LISTEN {_CHANNEL}")

    async def publish(self, job: Job) -> None:
        """Insert one batch per transaction, by COPY if it is large."""
        insert = self._copy if job.batch >= COPY_FROM_EVENTS else self._insert
        for numbers in batches(job):
            insert(numbers)

    async def drain(self, job: Job, progress: Progress) -> None:
        """Claim and archive until nothing is left."""
        del job
        while rows := self._connection.execute(_CLAIM).fetchall():
            self._connection.execute(_DONE, ([row["id"] for row in rows],))
            progress.add(len(rows))

    async def record(self, job: Job, progress: Progress) -> None:
        """Claim, write a record per event and archive, in two transactions per batch."""
        del job
        while rows := self._connection.execute(_CLAIM).fetchall():
            records = [{"id": str(row["event_id"]), "doc": {"number": row["payload_json"]["number"]}} for row in rows]
            with self._connection.transaction():
                self._connection.execute(_RECORDS, (self._encode(records),))
                self._connection.execute(_DONE, ([row["id"] for row in rows],))
            progress.add(len(rows))

    async def send(self, number: int, sent: int) -> None:
        """Insert one row and notify the receiver."""
        self._connection.execute(_INSERT_AND_NOTIFY, (self._encode([{"payload": timed_payload(number, sent)}]),))

    async def receive(self, job: Job, progress: Progress) -> None:
        """Claim after each notification."""
        del job
        while not progress.is_complete:
            rows = self._connection.execute(_CLAIM).fetchall()
            for row in rows:
                progress.note(row["payload_json"]["sent"])
            if rows:
                self._connection.execute(_DONE, ([row["id"] for row in rows],))
            else:
                list(self._connection.notifies(timeout=0.25, stop_after=1))

    async def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _insert(self, numbers: range) -> None:
        self._connection.execute(_INSERT, (self._encode([{"payload": payload(number)} for number in numbers]),))

    def _copy(self, numbers: range) -> None:
        with self._connection.cursor() as cursor, cursor.copy(_COPY) as copy:
            for number in numbers:
                copy.write_row((uuid.uuid4(), "race", "Ping", "now", "trace", self._encode(payload(number))))


def _encode_quickly(value: Any) -> str:
    return msgspec.json.encode(value).decode()


if __name__ == "__main__":
    play(BareLoop())
