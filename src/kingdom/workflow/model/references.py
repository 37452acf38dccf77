"""References to repositories and MCP servers, and how those of a Workflow and of its Works become one list."""

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from kingdom.errors import Misconfigured


class GitRef(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A repository, and the branch that work on it starts from."""

    git_id: str
    base_branch: str

    @property
    def target(self) -> str:
        """Return what is referred to."""
        return self.git_id


class McpServerRef(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An MCP server, and the environment variables that differ from its own."""

    mcp_server_id: str
    env: dict[str, str] = {}

    @property
    def target(self) -> str:
        """Return what is referred to."""
        return self.mcp_server_id

    def without_env(self) -> "McpServerRef":
        """Return the reference as it may be told to others: the environment may hold secrets."""
        return McpServerRef(mcp_server_id=self.mcp_server_id)


Ref = TypeVar("Ref", GitRef, McpServerRef)


def merge_refs(workflow: Iterable[Ref], work: Iterable[Ref]) -> tuple[Ref, ...]:
    """Return the references of a Workflow and one of its Works as one list; for the same thing the Work's wins."""
    merged = {ref.target: ref for ref in workflow} | {ref.target: ref for ref in work}
    return tuple(merged.values())


def added_and_removed(before: Iterable[Ref], after: Iterable[Ref]) -> tuple[tuple[Ref, ...], tuple[Ref, ...]]:
    """Return which references are only in the second list, and which only in the first."""
    old, new = tuple(before), tuple(after)
    return tuple(ref for ref in new if ref not in old), tuple(ref for ref in old if ref not in new)


def refuse_duplicates(*lists: Iterable[GitRef | McpServerRef]) -> None:
    """Refuse a list that names the same repository or server twice."""
    for refs in lists:
        targets = [ref.target for ref in refs]
        if twins := sorted({target for target in targets if targets.count(target) > 1}):
            raise Misconfigured(f"{', '.join(twins)} is referred to twice in one list: keep one reference")
