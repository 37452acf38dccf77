"""The checkout of one repository for one run."""

from typing import Any, ClassVar

import msgspec

from kingdom.workflow.model.references import GitRef
from kingdom.workflow.model.status import WORK_TREE, StatusMachine, WorkTreeStatus


class WorkTree(msgspec.Struct, kw_only=True, rename="camel"):
    """A branch of its own in a checkout of its own; `attempt` is the request that makes it."""

    machine: ClassVar[StatusMachine[Any]] = WORK_TREE

    id: str
    ref: GitRef
    branch: str
    status: WorkTreeStatus = WorkTreeStatus.PENDING
    attempt: int = 0
    error: str = ""
    # The host was told to remove it.
    releasing: bool = False

    @property
    def is_wanted(self) -> bool:
        """Tell whether the run has a use for it."""
        return self.status not in {WorkTreeStatus.PENDING_RELEASE, WorkTreeStatus.RELEASED}

    @property
    def is_there(self) -> bool:
        """Tell whether a host may have files of it."""
        return self.status in {WorkTreeStatus.CREATING, WorkTreeStatus.READY, WorkTreeStatus.PENDING_RELEASE}
