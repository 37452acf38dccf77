"""Daily numbers for people: `task-20261115-001`, never given twice."""

from dataclasses import replace
from datetime import date

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordKind
from kingdom.errors import Misconfigured

SEQUENCES = RecordKind(name="sequence", directories={"current": "state/king"})
# A clock may be set back, and two hosts may live in two time zones: so far back a day goes on where it was.
DAYS_KEPT = 7


async def next_id(transaction: Transaction, prefix: str, today: date) -> str:
    """Return the next id of a prefix on a day; at least three digits, beginning at 001.

    It is taken with the transaction: one that fails leaves no gap, and of two that run at once one is rerun.
    """
    name, day = f"{prefix}-seq", f"{today:%Y%m%d}"
    known = await transaction.get(SEQUENCES.name, name)
    record = known or Record(kind=SEQUENCES.name, id=name, state="current")
    last_numbers = dict(record.doc)
    if len(last_numbers) >= DAYS_KEPT and day < min(last_numbers):
        # Its numbers may have been given and forgotten.
        raise Misconfigured(f"{today} lies before all days of which {name} knows the numbers: set the clock right")
    last_numbers[day] = number = last_numbers.get(day, 0) + 1
    await transaction.put(replace(record, doc=dict(sorted(last_numbers.items())[-DAYS_KEPT:])))
    return f"{prefix}-{day}-{number:03d}"
