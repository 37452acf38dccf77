"""Runs and assignments in one list."""

from datetime import datetime
from typing import Literal

import msgspec


class ProcessEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A run or an assignment. `workflow_id` of an assignment is empty if it has no run yet."""

    id: str
    kind: Literal["run", "assignment"]
    name: str
    status: str
    workflow_id: str
    since: datetime
    ended_at: datetime | None
    cost_usd: float
    why: str
