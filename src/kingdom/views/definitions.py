"""The definition of a run as a file."""

from typing import Annotated

import msgspec

from kingdom.workflow.registry import ID_PATTERN
from kingdom.workflow.template_file import GitRefEntry, McpServerRefEntry, TemplateFileEntry, WorkEntry

_Id = Annotated[str, msgspec.Meta(pattern=ID_PATTERN)]


class RunWorkEntry(WorkEntry, frozen=True, kw_only=True):
    """An existing Work with its id, or a new Work without an id."""

    id: str = ""


class DefinitionFile(TemplateFileEntry, frozen=True, kw_only=True):
    """The new definition of a run. Parts that are not in the file do not change."""

    git_refs: tuple[GitRefEntry | _Id, ...] | msgspec.UnsetType = msgspec.UNSET
    mcp_server_refs: tuple[McpServerRefEntry | _Id, ...] | msgspec.UnsetType = msgspec.UNSET
    works: tuple[RunWorkEntry, ...] | msgspec.UnsetType = msgspec.UNSET
