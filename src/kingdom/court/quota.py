"""Quotas of slots and money: a limit, and how much of it each holder has. Each scope has one record."""

from decimal import Decimal
from typing import Any

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordKind, read_document
from kingdom.court.records import CURRENT
from kingdom.errors import IllegalTransition

SOLDIERS = "soldiers"
MONEY = "money"
# The value in the index `parked` of a quota while entries wait until the quota has room.
WANTED = "wanted"
QUOTAS = RecordKind(name="quota", directories={CURRENT: "state/quotas"}, indexes=("parked",))
ONE = Decimal(1)


def repo_scope(repo: str) -> str:
    """Return the scope of a repository's slots. Repository names are case-insensitive."""
    return f"repo:{repo.lower()}"


def general_scope(general: str) -> str:
    """Return the scope of a General's slots."""
    return f"general:{general}"


def full_reason(scope: str) -> str:
    """Return why work waits while the quota of a scope is full, as a text for people."""
    if scope == SOLDIERS:
        return "all soldiers are busy"
    if scope == MONEY:
        return "the daily budget is spent or reserved"
    return f"all slots of {scope.partition(':')[2] or scope} are in use"


class Quota(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How much of a limit each holder has, and how much is spent in the current `period`, such as a day."""

    scope: str
    limit: Decimal
    holders: dict[str, Decimal] = {}
    spent: Decimal = Decimal(0)
    period: str = ""

    @property
    def held(self) -> Decimal:
        """Return the sum that the holders have."""
        return sum(self.holders.values(), Decimal(0))

    @property
    def room(self) -> Decimal:
        """Return how much may still be taken."""
        return max(self.limit - self.spent - self.held, Decimal(0))

    def fits(self, amount: Decimal = ONE) -> bool:
        """Return whether `amount` more may be taken."""
        return self.spent + self.held + amount <= self.limit

    def hold(self, holder: str, amount: Decimal = ONE, *, may_exceed: bool = False) -> "Quota":
        """Return the quota with a holder added or replaced. `may_exceed` allows exceeding the limit."""
        others = self.free(holder)
        if amount < 0 or not (may_exceed or others.fits(amount)):
            raise IllegalTransition(f"quota {self.scope}", "full", f"{holder} cannot take {amount}", ("free",))
        return msgspec.structs.replace(others, holders={**others.holders, holder: amount})

    def free(self, holder: str) -> "Quota":
        """Return the quota without a holder."""
        return msgspec.structs.replace(
            self, holders={each: amount for each, amount in self.holders.items() if each != holder}
        )

    def book(self, amount: Decimal) -> "Quota":
        """Return the quota with `amount` more spent, even beyond the limit."""
        return msgspec.structs.replace(self, spent=self.spent + max(amount, Decimal(0)))

    def with_period(self, period: str) -> "Quota":
        """Return the quota in a period. A new period starts with nothing spent. Holders keep their amounts."""
        # The clock of another King may be slightly behind the new day.
        if period <= self.period:
            return self
        return msgspec.structs.replace(self, period=period, spent=Decimal(0))


async def load_quota(transaction: Transaction, scope: str, limit: Decimal) -> tuple[Record, Quota]:
    """Return the quota of a scope with the given limit, and its record. Both are new if none is stored."""
    record = await transaction.get(QUOTAS.name, scope)
    if record is None:
        return Record(kind=QUOTAS.name, id=scope, state=CURRENT), Quota(scope=scope, limit=limit)
    return record, msgspec.structs.replace(read_quota(record.doc), limit=limit)


def read_quota(document: Any) -> Quota:
    """Return the quota in a document."""
    return read_document(document, Quota)


async def save_quota(transaction: Transaction, quota: Quota, record: Record, *, wanted: bool | None = None) -> None:
    """Store a quota. `wanted` says whether entries wait for it; None leaves that unchanged."""
    indexed = record.indexed if wanted is None else {"parked": WANTED} if wanted else {}
    await transaction.put(
        Record(
            kind=QUOTAS.name,
            id=quota.scope,
            version=record.version,
            state=CURRENT,
            indexed=indexed,
            doc=msgspec.to_builtins(quota),
        )
    )
