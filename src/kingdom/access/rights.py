"""What a person or program may do over the web."""

from datetime import datetime
from enum import StrEnum

import msgspec

from kingdom.errors import NotAllowed


class Right(StrEnum):
    """A right. No right contains another one."""

    LOOK = "look"
    ANSWER = "answer"
    ACT = "act"
    ADMINISTER = "administer"


class Visitor(msgspec.Struct, frozen=True, kw_only=True):
    """The person or program behind a request.

    If `generals` is not empty, the visitor can answer and act only for these Generals. `credential_id` is the id of the
    session or token, which ends at `expires_at`; it is empty for a person that a proxy names.
    """

    name: str
    rights: tuple[Right, ...]
    generals: tuple[str, ...] = ()
    credential: str = ""
    credential_id: str = ""
    expires_at: datetime | None = None

    @property
    def actor(self) -> str:
        """Return the name in log entries."""
        return f"{self.name}@web"

    def require(self, right: Right) -> None:
        """Raise NotAllowed if the right is missing."""
        if right not in self.rights:
            has = ", ".join(self.rights) or "none"
            raise NotAllowed(f"{self.name} lacks the right {right} (has: {has}): ask an administrator for an invite")

    def require_general(self, general: str) -> None:
        """Raise NotAllowed if this visitor may not act for a General. "" means a target that has no General."""
        if self.generals and general not in self.generals:
            what = f"for {general}" if general else "on something that belongs to no General"
            raise NotAllowed(f"{self.name} may not act {what}; allowed: {', '.join(self.generals)}")
