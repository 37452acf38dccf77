"""The results of `kingdom web` commands."""

from datetime import datetime

import msgspec

from kingdom.access.rights import Right


class Invitation(msgspec.Struct, frozen=True, kw_only=True):
    """A link that signs a person in once."""

    name: str
    may: tuple[Right, ...]
    generals: tuple[str, ...]
    url: str
    expires_at: datetime


class CreatedToken(msgspec.Struct, frozen=True, kw_only=True):
    """A new token, which is not shown again."""

    token: str
    name: str
    may: tuple[Right, ...]
    generals: tuple[str, ...]
    expires_at: datetime | None
