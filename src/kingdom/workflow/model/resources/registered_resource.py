"""Registered resources. A resource cannot be deleted while a run uses it."""

from collections.abc import Collection
from typing import Self

import msgspec

from kingdom.errors import IllegalTransition

_USERS_SHOWN = 5


class RegisteredResource(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A resource that Workflows use. While it is `deleting`, no Workflow can start to use it."""

    id: str
    deleted: bool = False
    deleting: bool = False

    def refuse_if_deleted(self, kind: str, workflow_id: str) -> None:
        """Refuse a run that uses a deleted resource."""
        if self.deleted:
            refusal = f"workflow {workflow_id} cannot use it"
            raise IllegalTransition(f"{kind} {self.id}", "DELETED", refusal, ("create it again",))

    def refuse_if_unavailable(self, kind: str, workflow_id: str) -> None:
        """Refuse a run that would use a resource that is deleted or being deleted."""
        self.refuse_if_deleted(kind, workflow_id)
        if self.deleting:
            refusal = f"workflow {workflow_id} cannot use it while it is being deleted"
            raise IllegalTransition(f"{kind} {self.id}", "DELETING", refusal, ("create it again", "delete it", "show"))

    def mark_deleting(self, kind: str, operation: str) -> Self:
        """Return the resource marked as `deleting`."""
        self.refuse_second_deletion(kind, operation)
        return msgspec.structs.replace(self, deleting=True)

    def restore(self) -> Self:
        """Return the resource as it was before its deletion."""
        return msgspec.structs.replace(self, deleted=False, deleting=False)

    def refuse_second_deletion(self, kind: str, operation: str) -> None:
        """Refuse to delete a resource that is already deleted."""
        if self.deleted:
            raise IllegalTransition(f"{kind} {self.id}", "DELETED", f"cannot {operation} it again", ())

    def refuse_while_used(self, kind: str, operation: str, users: Collection[str]) -> None:
        """Refuse to delete a resource that is already deleted or in use. The error lists the runs that use it."""
        self.refuse_second_deletion(kind, operation)
        if users:
            more = f" and {len(users) - _USERS_SHOWN} more" if len(users) > _USERS_SHOWN else ""
            refusal = f"cannot {operation} it, because it is used by {', '.join(sorted(users)[:_USERS_SHOWN])}{more}"
            raise IllegalTransition(f"{kind} {self.id}", "IN USE", refusal, ("use", "show"))
