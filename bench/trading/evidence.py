"""What a trial left: rows of the tables, their audit, events of the bus, the book of the exchange, the pushes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg.rows import DictRow, dict_row

from examples.trading.exchange import read_book
from examples.trading.push_service import read_pushes
from examples.trading.streams import STOPS_AND_STARTS

PUSHED = ("OrderAccepted", "OrderFilled", "OrderRejected", "BacktestCompleted", *STOPS_AND_STARTS)
# Every change of an attempt or a market, in the order of the locks that it took.
AUDIT: LiteralString = """
CREATE TABLE everbit.audit (
    id bigint GENERATED ALWAYS AS IDENTITY, thing text, name text, market text, earlier text, later text
);
CREATE FUNCTION everbit.audit_attempt() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO everbit.audit (thing, name, market, earlier, later)
    VALUES ('attempt', NEW.identifier, NEW.market, CASE WHEN TG_OP = 'UPDATE' THEN OLD.state END, NEW.state);
    RETURN NULL;
END $$;
CREATE FUNCTION everbit.audit_market() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO everbit.audit (thing, name, market, later) VALUES ('market', NEW.market, NEW.market,
        CASE WHEN NEW.kill_switch OR NEW.suspended_since IS NOT NULL THEN 'stopped' ELSE 'trading' END);
    RETURN NULL;
END $$;
CREATE TRIGGER audit_attempt AFTER INSERT OR UPDATE ON everbit.order_attempt
    FOR EACH ROW EXECUTE FUNCTION everbit.audit_attempt();
CREATE TRIGGER audit_market AFTER INSERT OR UPDATE ON everbit.market
    FOR EACH ROW EXECUTE FUNCTION everbit.audit_market();
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The tables, the events, the book and the pushes. The rows are one snapshot; the book and the pushes are newer."""

    intents: Sequence[DictRow]
    attempts: Sequence[DictRow]
    markets: Sequence[DictRow]
    audit: Sequence[DictRow]
    # The events to push.
    pushed: Sequence[DictRow]
    # The ids of the aggregates that have an open event.
    moving: frozenset[str]
    open_events: int
    dead: Sequence[DictRow]
    book: Sequence[dict[str, Any]]
    pushes: Counter[str]

    @property
    def stopped_markets(self) -> frozenset[str]:
        """Return the markets in which nothing is sent."""
        stopped = {row["market"] for row in self.markets if row["kill_switch"] or row["suspended_since"]}
        return frozenset(row["market"] for row in self.markets) if "*" in stopped else frozenset(stopped)

    @property
    def is_quiet(self) -> bool:
        """Return whether nothing is left to do, except in stopped markets."""
        open_intents = [row for row in self.intents if row["state"] not in ("FILLED", "REJECTED")]
        unsettled = [row for row in self.attempts if row["state"] in ("SENT", "UNKNOWN")]
        left = {row["market"] for row in (*open_intents, *unsettled)}
        return not self.open_events and left <= self.stopped_markets


async def read_evidence(url: str, directory: Path) -> Evidence:
    """Read the database in one snapshot, then the files."""
    async with await psycopg.AsyncConnection.connect(url, row_factory=dict_row) as connection:
        await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)

        async def rows(sql: LiteralString, *values: Any) -> list[DictRow]:
            return await (await connection.execute(sql, values)).fetchall()

        unfinished = await rows("SELECT aggregate_id FROM kingdom.outbox_event WHERE processed_at IS NULL")
        event = "SELECT DISTINCT event_id::text, event_type, status, aggregate_id FROM kingdom.outbox_all"
        found = Evidence(
            intents=await rows("SELECT * FROM everbit.order_intent"),
            attempts=await rows("SELECT * FROM everbit.order_attempt ORDER BY id"),
            markets=await rows("SELECT * FROM everbit.market"),
            audit=await rows("SELECT * FROM everbit.audit ORDER BY id"),
            pushed=await rows(f"{event} WHERE event_type = ANY(%s)", list(PUSHED)),
            moving=frozenset(row["aggregate_id"] for row in unfinished),
            open_events=len(unfinished),
            dead=await rows(
                "SELECT stream, event_type, last_error_message FROM kingdom.outbox_event WHERE status = 'DEAD'"
            ),
            book=(),
            pushes=Counter(),
        )
    pushes = Counter(push["topic"] for push in read_pushes(directory))
    names = ("intents", "attempts", "markets", "audit", "pushed", "moving", "open_events", "dead")
    return Evidence(book=read_book(directory), pushes=pushes, **{name: getattr(found, name) for name in names})
