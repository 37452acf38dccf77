"""References of Workflows and Works to repositories, MCP servers and earlier sessions."""

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from kingdom.errors import Misconfigured


class GitRef(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A repository and the branch that its checkout starts from."""

    git_id: str
    base_branch: str

    @property
    def target(self) -> str:
        """Return the id of the referenced resource."""
        return self.git_id


class McpServerRef(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An MCP server, and environment variables that override its own."""

    mcp_server_id: str
    env: dict[str, str] = {}

    @property
    def target(self) -> str:
        """Return the id of the referenced resource."""
        return self.mcp_server_id

    def without_env(self) -> "McpServerRef":
        """Return the reference without its environment, which may contain secrets."""
        return McpServerRef(mcp_server_id=self.mcp_server_id)


class SessionRef(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The agent session of an ended run, with which another run goes on.

    `token` continues the conversation on `host`. The session stays in the WorkSpace `work_space_id`, and in the HOME of
    the run `home_run`, because an agent remembers paths.
    """

    workflow_id: str
    host: str
    token: str
    work_space_id: str
    home_run: str


Ref = TypeVar("Ref", GitRef, McpServerRef)


def merge_refs(workflow: Iterable[Ref], work: Iterable[Ref]) -> tuple[Ref, ...]:
    """Merge the references of a Workflow and one of its Works.

    If both refer to the same resource, the reference of the Work is used.
    """
    merged = {ref.target: ref for ref in workflow} | {ref.target: ref for ref in work}
    return tuple(merged.values())


def added_and_removed(before: Iterable[Ref], after: Iterable[Ref]) -> tuple[tuple[Ref, ...], tuple[Ref, ...]]:
    """Return the added references, which only `after` has, and the removed references, which only `before` has."""
    old, new = tuple(before), tuple(after)
    return tuple(ref for ref in new if ref not in old), tuple(ref for ref in old if ref not in new)


def refuse_duplicates(*lists: Iterable[GitRef | McpServerRef]) -> None:
    """Refuse a list that contains the same repository or server twice."""
    for refs in lists:
        targets = [ref.target for ref in refs]
        if len(set(targets)) < len(targets):
            duplicates = sorted({target for target in targets if targets.count(target) > 1})
            raise Misconfigured(f"{', '.join(duplicates)} is referred to twice in one list: keep one reference")
