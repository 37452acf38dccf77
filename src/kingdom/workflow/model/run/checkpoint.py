"""The points to return to, and whether one still fits what the run is made of."""

from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256

import msgspec

from kingdom.workflow.model.run.work import Work


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A commit per WorkTree after one Work; `definitions` is a digest of all that led there."""

    id: str
    work_id: str
    commits: dict[str, str]
    definitions: str
    created_at: datetime

    def fits(self, works: Sequence[Work]) -> bool:
        """Tell whether its Work still stands on it, and nothing up to there was defined anew."""
        index = next((index for index, work in enumerate(works) if work.id == self.work_id), None)
        if index is None or not works[index].is_finished or works[index].checkpointing.checkpoint_id != self.id:
            return False
        return self.definitions == digest(works[: index + 1])


def digest(works: Sequence[Work]) -> str:
    """Return a fingerprint of what these Works were asked to do, in their order."""
    return sha256(msgspec.json.encode([(work.id, work.definition) for work in works], order="sorted")).hexdigest()
