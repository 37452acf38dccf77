"""Who uses a registered thing: what is in use cannot be deleted."""

from typing import Self

import msgspec

from kingdom.errors import IllegalTransition

_SHOWN = 5


class Used(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A registered thing with the Workflows that use it."""

    id: str
    used_by: tuple[str, ...] = ()
    deleted: bool = False

    def register(self, workflow_id: str) -> Self:
        """Return the thing as used by a Workflow too; a second time changes nothing."""
        if self.deleted:
            raise IllegalTransition(self.id, "DELETED", f"workflow {workflow_id} cannot use it", ())
        return msgspec.structs.replace(self, used_by=tuple(sorted({*self.used_by, workflow_id})))

    def release(self, workflow_id: str) -> Self:
        """Return the thing as no longer used by a Workflow; a second time changes nothing."""
        return msgspec.structs.replace(self, used_by=tuple(user for user in self.used_by if user != workflow_id))

    def refuse_while_used(self, kind: str, operation: str) -> None:
        """Refuse an end while somebody would miss it, naming who."""
        if self.deleted:
            raise IllegalTransition(f"{kind} {self.id}", "DELETED", f"cannot {operation} it again", ())
        if self.used_by:
            more = f" and {len(self.used_by) - _SHOWN} more" if len(self.used_by) > _SHOWN else ""
            users = ", ".join(self.used_by[:_SHOWN]) + more
            asked = f"cannot {operation} it before {users} ended or let it go"
            raise IllegalTransition(f"{kind} {self.id}", "IN USE", asked, ("register", "release"))
