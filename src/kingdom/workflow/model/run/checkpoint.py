"""Checkpoints of a run."""

from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256

import msgspec

from kingdom.workflow.model.run.work import Work


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The commit of each WorkTree after a Work. `definitions` is a digest of this Work and all Works before it.

    `changed_paths` has the paths that differ from the start of a WorkTree, unless there are too many.
    """

    id: str
    work_id: str
    commits: dict[str, str]
    definitions: str
    created_at: datetime
    changed_paths: dict[str, list[str]] = {}

    def is_valid(self, works: Sequence[Work]) -> bool:
        """Return whether this is the current checkpoint of its Work, and no Work up to this one was redefined."""
        index = next((index for index, work in enumerate(works) if work.id == self.work_id), None)
        if index is None or not works[index].is_finished or works[index].checkpointing.checkpoint_id != self.id:
            return False
        return self.definitions == digest(works[: index + 1])


def digest(works: Sequence[Work]) -> str:
    """Return a digest of the definitions of these Works, in their order."""
    return sha256(msgspec.json.encode([(work.id, work.definition) for work in works], order="sorted")).hexdigest()
