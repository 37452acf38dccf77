"""A repository that runs may use, and which of them do."""

import msgspec

from kingdom.workflow.events import GitCreated, GitDeleted
from kingdom.workflow.usage import Used


class Git(Used, frozen=True, kw_only=True):
    """A repository known by name and address."""

    name: str
    url: str
    default_branch: str = "main"

    def created(self) -> GitCreated:
        """Return what is said once a new Git is stored."""
        return GitCreated(git_id=self.id)

    def delete(self) -> tuple["Git", GitDeleted]:
        """Return the Git as deleted, unless a Workflow uses it."""
        self.refuse_while_used("git", "delete")
        return msgspec.structs.replace(self, deleted=True), GitDeleted(git_id=self.id)
