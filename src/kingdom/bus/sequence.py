"""Daily sequence numbers for people, such as `task-20261115-001`. No number is used twice."""

from datetime import date

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordKind
from kingdom.errors import Misconfigured

SEQUENCES = RecordKind(name="sequence", directories={"current": "state/king"})
# How many days keep their last number. Earlier days are needed if a clock is set back or hosts differ in time zone.
DAYS_KEPT = 7


async def next_id(transaction: Transaction, prefix: str, today: date) -> str:
    """Return the next id for a prefix and day, with at least three digits, starting at 001.

    The number is taken when the transaction commits, so a failed transaction leaves no gap. If two transactions take
    the same number, the second one gets a Conflict.
    """
    name, day = f"{prefix}-seq", f"{today:%Y%m%d}"
    known = await transaction.get(SEQUENCES.name, name)
    record = known or Record(kind=SEQUENCES.name, id=name, state="current")
    last_numbers = dict(record.doc)
    if len(last_numbers) >= DAYS_KEPT and day < min(last_numbers):
        # This day may have used numbers that are no longer known.
        raise Misconfigured(f"{today} is before the oldest day that {name} remembers: correct the clock")
    last_numbers[day] = number = last_numbers.get(day, 0) + 1
    await transaction.put(record.replace(doc=dict(sorted(last_numbers.items())[-DAYS_KEPT:])))
    return f"{prefix}-{day}-{number:03d}"
