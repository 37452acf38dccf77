"""The checkout of one repository for one run."""

from typing import Any, ClassVar

import msgspec

from kingdom.workflow.model.references import GitRef
from kingdom.workflow.model.status import WORK_TREE, StatusMachine, WorkTreeStatus


class WorkTree(msgspec.Struct, kw_only=True, rename="camel"):
    """A checkout with its own branch. `attempt` is the number of the command to the host that requested it."""

    machine: ClassVar[StatusMachine[Any]] = WORK_TREE

    id: str
    ref: GitRef
    branch: str
    status: WorkTreeStatus = WorkTreeStatus.PENDING
    attempt: int = 0
    error: str = ""
    # The host was told to remove the checkout and has not answered yet.
    releasing: bool = False

    @property
    def is_wanted(self) -> bool:
        """Return whether the run needs the checkout."""
        return self.status not in {WorkTreeStatus.PENDING_RELEASE, WorkTreeStatus.RELEASED}

    @property
    def may_exist(self) -> bool:
        """Return whether files of the checkout may exist on a host."""
        return self.status in {WorkTreeStatus.CREATING, WorkTreeStatus.READY, WorkTreeStatus.PENDING_RELEASE}
