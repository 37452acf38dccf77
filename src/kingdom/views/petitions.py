"""Petitions."""

from datetime import datetime
from typing import Any

import msgspec

from kingdom.court.petitions.decision import PetitionState


class ListedPetition(msgspec.Struct, frozen=True, kw_only=True):
    """A petition. `left_behind` means that its run was rolled back, but its effect on an external service remains."""

    id: str
    task_id: str
    workflow_id: str
    general: str
    kind: str
    target: str
    state: PetitionState
    reason: str
    url: str
    asked_at: datetime
    expires_at: datetime | None
    decided_by: str
    decided_at: datetime | None
    granted_at: datetime | None
    ended_at: datetime | None
    left_behind: bool


class PetitionDetails(ListedPetition, frozen=True, kw_only=True):
    """A petition with its content, the response of the external service, and the ids that its agents used for it."""

    body: dict[str, Any]
    response: dict[str, Any]
    asked_as: tuple[str, ...]
