"""pgmq as its SQL functions in a plain loop, without handlers: read a batch, then delete it."""

import json
from typing import Any

import psycopg
from pgmq.install import get_embedded_install_sql

from bench.race.player import Contestant, Job, Progress, batches, payload, play, timed_payload

# Read a batch of 100 and hide it from other readers for 30 seconds. _POLL looks every ten milliseconds for a second.
_READ = "SELECT msg_id, message FROM pgmq.read('race', 30, 100)"
_POLL = "SELECT msg_id, message FROM pgmq.read_with_poll('race', 30, 100, 1, 10)"
_DELETE = "SELECT count(*) FROM pgmq.delete('race', %s::bigint[])"
_SEND = "SELECT pgmq.send('race', %s::jsonb)"
_SEND_BATCH = "SELECT count(*) FROM pgmq.send_batch('race', %s::jsonb[])"
_RECORDS = "INSERT INTO record (id, doc) SELECT id, doc FROM jsonb_to_recordset(%s::jsonb) AS x(id text, doc jsonb)"


class Pgmq(Contestant):
    """A loop over the functions of pgmq."""

    _connection: psycopg.Connection[Any]

    async def prepare(self, job: Job) -> None:
        """Install the functions, a queue and a table for records."""
        with psycopg.connect(job.dsn) as connection:
            connection.execute(get_embedded_install_sql())
            connection.execute("SELECT pgmq.create('race')")
            connection.execute("CREATE TABLE record (id text PRIMARY KEY, doc jsonb NOT NULL)")

    async def open(self, job: Job) -> None:
        """Connect."""
        self._connection = psycopg.connect(job.dsn, autocommit=True, prepare_threshold=1)

    async def publish(self, job: Job) -> None:
        """Send one message or one batch per transaction."""
        for numbers in batches(job):
            bodies = [json.dumps(payload(number)) for number in numbers]
            if job.batch == 1:
                self._connection.execute(_SEND, bodies)
            else:
                self._connection.execute(_SEND_BATCH, (bodies,))

    async def drain(self, job: Job, progress: Progress) -> None:
        """Read and delete until nothing is left."""
        del job
        while rows := self._connection.execute(_READ).fetchall():
            self._connection.execute(_DELETE, ([row[0] for row in rows],))
            progress.add(len(rows))

    async def record(self, job: Job, progress: Progress) -> None:
        """Read, then write records and delete in one transaction."""
        del job
        while rows := self._connection.execute(_READ).fetchall():
            records = [{"id": str(number), "doc": {"number": message["number"]}} for number, message in rows]
            with self._connection.transaction():
                self._connection.execute(_RECORDS, (json.dumps(records),))
                self._connection.execute(_DELETE, ([row[0] for row in rows],))
            progress.add(len(rows))

    async def send(self, number: int, sent: int) -> None:
        """Send one message."""
        self._connection.execute(_SEND, (json.dumps(timed_payload(number, sent)),))

    async def receive(self, job: Job, progress: Progress) -> None:
        """Let the server look for messages every ten milliseconds."""
        del job
        while not progress.is_complete:
            rows = self._connection.execute(_POLL).fetchall()
            for _, message in rows:
                progress.note(message["sent"])
            if rows:
                self._connection.execute(_DELETE, ([row[0] for row in rows],))

    async def close(self) -> None:
        """Close the connection."""
        self._connection.close()


if __name__ == "__main__":
    play(Pgmq())
