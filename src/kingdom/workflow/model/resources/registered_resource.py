"""Registered things: what a run uses cannot be deleted. Who uses them is told by the runs, so nothing can drift."""

from collections.abc import Collection
from typing import Self

import msgspec

from kingdom.errors import IllegalTransition

_SHOWN = 5


class RegisteredResource(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A registered thing that Workflows use; while it is `deleting`, nobody begins to use it."""

    id: str
    deleted: bool = False
    deleting: bool = False

    def refuse_if_deleted(self, kind: str, workflow_id: str) -> None:
        """Refuse a run that wants to use what is gone."""
        if self.deleted:
            asked = f"workflow {workflow_id} cannot use it"
            raise IllegalTransition(f"{kind} {self.id}", "DELETED", asked, ("create it again",))

    def refuse_if_going(self, kind: str, workflow_id: str) -> None:
        """Refuse a run that wants to begin to use what is gone or about to go."""
        self.refuse_if_deleted(kind, workflow_id)
        if self.deleting:
            asked = f"workflow {workflow_id} cannot use it before that has ended"
            raise IllegalTransition(f"{kind} {self.id}", "DELETING", asked, ("create it again", "delete it", "show"))

    def begin_to_go(self, kind: str, operation: str) -> Self:
        """Return the thing as one that nobody may begin to use."""
        self.refuse_while_used(kind, operation, ())
        return msgspec.structs.replace(self, deleting=True)

    def stay(self) -> Self:
        """Return the thing as it was before somebody wanted it to go."""
        return msgspec.structs.replace(self, deleted=False, deleting=False)

    def refuse_while_used(self, kind: str, operation: str, users: Collection[str]) -> None:
        """Refuse an end while somebody would miss it, naming who."""
        if self.deleted:
            raise IllegalTransition(f"{kind} {self.id}", "DELETED", f"cannot {operation} it again", ())
        if users:
            more = f" and {len(users) - _SHOWN} more" if len(users) > _SHOWN else ""
            asked = f"cannot {operation} it before {', '.join(sorted(users)[:_SHOWN])}{more} ended or let it go"
            raise IllegalTransition(f"{kind} {self.id}", "IN USE", asked, ("use", "show"))
