"""A repository that runs may use."""

from collections.abc import Collection

import msgspec

from kingdom.workflow.model.events import GitCreated, GitDeleted
from kingdom.workflow.model.usage import Used


class Git(Used, frozen=True, kw_only=True):
    """A repository known by name and address.

    Checkpoints are pushed to `checkpoint_remote`, so that another host can go on from them; without one a run waits
    for its host.
    """

    name: str
    url: str
    default_branch: str = "main"
    checkpoint_remote: str = ""

    def created(self) -> GitCreated:
        """Return what is said once a new Git is stored."""
        return GitCreated(git_id=self.id)

    def delete(self, users: Collection[str]) -> tuple["Git", GitDeleted]:
        """Return the Git as deleted, unless a Workflow uses it."""
        self.refuse_while_used("git", "delete", users)
        return msgspec.structs.replace(self, deleted=True, deleting=False), GitDeleted(git_id=self.id)
