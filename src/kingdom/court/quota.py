"""Limits with holders: slots and money. Whoever takes or gives something back writes the one record of its scope."""

from decimal import Decimal
from typing import Any

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordKind, read_document
from kingdom.court.records import CURRENT
from kingdom.errors import IllegalTransition

SOLDIERS = "soldiers"
MONEY = "money"
# The owner of a quota under which something is parked until there is room.
WANTED = "wanted"
QUOTAS = RecordKind(name="quota", directories={CURRENT: "state/quotas"})
ONE = Decimal(1)


def repo_scope(repo: str) -> str:
    """Return the scope of the slots of a repository, whose name has no case."""
    return f"repo:{repo.lower()}"


def general_scope(general: str) -> str:
    """Return the scope of the slots of a General."""
    return f"general:{general}"


class Quota(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How much of a limit is held by whom; what was `spent` comes back only with a new `period`."""

    scope: str
    limit: Decimal
    holders: dict[str, Decimal] = {}
    spent: Decimal = Decimal(0)
    period: str = ""

    @property
    def held(self) -> Decimal:
        """Return how much the holders have."""
        return sum(self.holders.values(), Decimal(0))

    @property
    def room(self) -> Decimal:
        """Return how much may still be taken."""
        return max(self.limit - self.spent - self.held, Decimal(0))

    def fits(self, amount: Decimal = ONE) -> bool:
        """Tell whether so much more may be taken."""
        return self.spent + self.held + amount <= self.limit

    def hold(self, holder: str, amount: Decimal = ONE, *, beyond: bool = False) -> "Quota":
        """Return the quota with a holder, who has it once however often this is asked; `beyond` passes the limit."""
        others = self.free(holder)
        if amount < 0 or not (beyond or others.fits(amount)):
            raise IllegalTransition(f"quota {self.scope}", "full", f"{holder} cannot take {amount}", ("free",))
        return msgspec.structs.replace(others, holders={**others.holders, holder: amount})

    def free(self, holder: str) -> "Quota":
        """Return the quota without a holder."""
        return msgspec.structs.replace(
            self, holders={each: amount for each, amount in self.holders.items() if each != holder}
        )

    def book(self, amount: Decimal) -> "Quota":
        """Return the quota with so much more spent; what is spent is a fact, whatever the limit says."""
        return msgspec.structs.replace(self, spent=self.spent + max(amount, Decimal(0)))

    def during(self, period: str) -> "Quota":
        """Return the quota in a period; in a new one nothing is spent yet, and holders keep what they have."""
        # The clock of another King may lag a moment behind the day that has begun.
        if period <= self.period:
            return self
        return msgspec.structs.replace(self, period=period, spent=Decimal(0))


async def load_quota(transaction: Transaction, scope: str, limit: Decimal) -> tuple[Record, Quota]:
    """Return a quota under the limit that counts now, with the record that holds it or shall hold it."""
    record = await transaction.get(QUOTAS.name, scope)
    if record is None:
        return Record(kind=QUOTAS.name, id=scope, state=CURRENT), Quota(scope=scope, limit=limit)
    return record, msgspec.structs.replace(read_quota(record.doc), limit=limit)


def read_quota(document: Any) -> Quota:
    """Return the quota that a record holds."""
    return read_document(document, Quota)


async def save_quota(transaction: Transaction, quota: Quota, record: Record, *, wanted: bool | None = None) -> None:
    """Store a quota; `wanted` says whether something is parked under it, None leaves that as it is."""
    owner = record.owner if wanted is None else WANTED if wanted else None
    await transaction.put(
        Record(
            kind=QUOTAS.name,
            id=quota.scope,
            version=record.version,
            state=CURRENT,
            owner=owner,
            doc=msgspec.to_builtins(quota),
        )
    )
