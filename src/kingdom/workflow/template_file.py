"""Templates as YAML files: their format, and the conversion in both directions.

A task can be written as just its query, and a reference as just an id. A Git reference without `baseBranch` uses the
default branch.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kingdom.errors import Misconfigured
from kingdom.workflow.model.resources.template import OverBudget, WorkflowTemplate
from kingdom.workflow.registry import ID_PATTERN
from kingdom.workflow.templates import slug
from kingdom.yaml_file import read_yaml, write_yaml

_Id = Annotated[str, Meta(pattern=ID_PATTERN)]
_Text = Annotated[str, Meta(min_length=1)]
_Seconds = Annotated[int, Meta(gt=0)]


class TemplateFileEntry(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """An entry of a template file. Unknown fields are errors."""


class SectionEntry(TemplateFileEntry, frozen=True, kw_only=True):
    """A heading of a report, and a description of what belongs under it."""

    title: _Text
    description: str = ""


class TaskEntry(TemplateFileEntry, frozen=True, kw_only=True):
    """A prompt, and the outline of the report that the agent writes, if any."""

    query: _Text
    report_outline: tuple[SectionEntry, ...] = ()
    timeout_seconds: _Seconds | None = None


class GitRefEntry(TemplateFileEntry, frozen=True, kw_only=True):
    """A repository and the branch to start from. Without a branch, the run starts from the default branch."""

    git_id: _Id
    base_branch: str = ""


class McpServerRefEntry(TemplateFileEntry, frozen=True, kw_only=True):
    """An MCP server, and environment variables that override its own."""

    mcp_server_id: _Id
    env: dict[str, str] = {}


class WorkEntry(TemplateFileEntry, frozen=True, kw_only=True):
    """One agent session: its tasks in order, its model, its resources, and commands that must succeed after it."""

    name: _Text
    tasks: Annotated[tuple[TaskEntry | _Text, ...], Meta(min_length=1)]
    instructions: str = ""
    model: str = ""
    git_refs: tuple[GitRefEntry | _Id, ...] = ()
    mcp_server_refs: tuple[McpServerRefEntry | _Id, ...] = ()
    verify: tuple[_Text, ...] = ()
    pause_after: bool = False
    timeout_seconds: _Seconds | None = None


class PolicyEntry(TemplateFileEntry, frozen=True, kw_only=True):
    """Limits of a run: the number of retries per work, and the budget.

    When a run has cost `budgetUsd`, it asks a person whether it may cost the same amount again. With `overBudget: stop`
    it fails instead.
    """

    retries: Annotated[int, Meta(ge=0)] = 0
    budget_usd: Annotated[float, Meta(gt=0)] | None = None
    over_budget: OverBudget = OverBudget.ASK


class TemplateFile(TemplateFileEntry, frozen=True, kw_only=True):
    """A template. The id is derived from the name unless it is given."""

    id: _Id = ""
    name: _Text
    description: str = ""
    git_refs: tuple[GitRefEntry | _Id, ...] = ()
    mcp_server_refs: tuple[McpServerRefEntry | _Id, ...] = ()
    policy: PolicyEntry = PolicyEntry()
    works: Annotated[tuple[WorkEntry, ...], Meta(min_length=1)]


# The entry type of each field that contains entries.
NESTED_ENTRIES: dict[str, type[TemplateFileEntry]] = {
    "works": WorkEntry,
    "tasks": TaskEntry,
    "reportOutline": SectionEntry,
    "gitRefs": GitRefEntry,
    "mcpServerRefs": McpServerRefEntry,
    "policy": PolicyEntry,
}
# For each list that may contain plain strings: the field that a plain string stands for.
_SHORTHAND = {"tasks": "query", "gitRefs": "gitId", "mcpServerRefs": "mcpServerId"}


def read_template(text: str, source: str, *, template_id: str = "") -> WorkflowTemplate:
    """Read a template. Errors mention `source` as the file; `template_id` is the id if the file has none."""
    file = read_yaml(text, source, TemplateFile, NESTED_ENTRIES)
    chosen = file.id or template_id or slug(file.name)
    if not chosen:
        raise Misconfigured(f"{source}: no id can be derived from the name {file.name!r}: add a field `id`")
    content = expand_shorthand(msgspec.to_builtins(file))
    try:
        return msgspec.convert({**content, "id": chosen}, WorkflowTemplate)
    except Misconfigured as error:
        raise Misconfigured(f"{source}: {error}") from error


def write_template(template: WorkflowTemplate) -> str:
    """Return the YAML text of a template, so that `read_template` returns an equal template."""
    document = msgspec.to_builtins(template)
    del document["deleted"]
    file = msgspec.to_builtins(msgspec.convert(document, TemplateFile))
    if not file.get("policy"):
        file.pop("policy", None)
    return write_yaml(file)


def expand_shorthand(document: dict[str, Any]) -> dict[str, Any]:
    """Return a template document in which each plain string is replaced by the object that it stands for."""
    expanded = dict(document)
    for field, key in _SHORTHAND.items():
        if field in expanded:
            expanded[field] = [{key: each} if isinstance(each, str) else each for each in expanded[field]]
    if "gitRefs" in expanded:
        expanded["gitRefs"] = [{"baseBranch": "", **ref} for ref in expanded["gitRefs"]]
    if "works" in expanded:
        expanded["works"] = [expand_shorthand(work) for work in expanded["works"]]
    return expanded
