"""Templates as YAML files: what may stand in one, how it becomes a template, and back.

A task may be just its query, a reference just the id; a Git without `baseBranch` is meant with its default branch.
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
_Words = Annotated[str, Meta(min_length=1)]
_Seconds = Annotated[int, Meta(gt=0)]


class TemplateFileEntry(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """Something that a file says; a field that nobody knows is an error."""


class SectionEntry(TemplateFileEntry, frozen=True, kw_only=True):
    """One heading that a report shall have, and what belongs under it."""

    title: _Words
    description: str = ""


class TaskEntry(TemplateFileEntry, frozen=True, kw_only=True):
    """One step: a prompt, and the outline of the document that it shall leave, if any."""

    query: _Words
    report_outline: tuple[SectionEntry, ...] = ()
    timeout_seconds: _Seconds | None = None


class GitRefEntry(TemplateFileEntry, frozen=True, kw_only=True):
    """A repository, and the branch that work on it starts from: its default branch unless another is named."""

    git_id: _Id
    base_branch: str = ""


class McpServerRefEntry(TemplateFileEntry, frozen=True, kw_only=True):
    """An MCP server, and the environment variables that differ from its own."""

    mcp_server_id: _Id
    env: dict[str, str] = {}


class WorkEntry(TemplateFileEntry, frozen=True, kw_only=True):
    """One agent session: its steps in order, its model, its resources, and the commands that must succeed after it."""

    name: _Words
    tasks: Annotated[tuple[TaskEntry | _Words, ...], Meta(min_length=1)]
    instructions: str = ""
    model: str = ""
    git_refs: tuple[GitRefEntry | _Id, ...] = ()
    mcp_server_refs: tuple[McpServerRefEntry | _Id, ...] = ()
    verify: tuple[_Words, ...] = ()
    pause_after: bool = False
    timeout_seconds: _Seconds | None = None


class PolicyEntry(TemplateFileEntry, frozen=True, kw_only=True):
    """What may be done without asking: how many failures of one work are met with another attempt, and the money.

    A run that has cost `budgetUsd` asks a person for as much again, or with `overBudget: stop` it fails.
    """

    retries: Annotated[int, Meta(ge=0)] = 0
    budget_usd: Annotated[float, Meta(gt=0)] | None = None
    over_budget: OverBudget = OverBudget.ASK


class TemplateFile(TemplateFileEntry, frozen=True, kw_only=True):
    """A workflow to be; the id is made from the name unless it is given."""

    id: _Id = ""
    name: _Words
    description: str = ""
    git_refs: tuple[GitRefEntry | _Id, ...] = ()
    mcp_server_refs: tuple[McpServerRefEntry | _Id, ...] = ()
    policy: PolicyEntry = PolicyEntry()
    works: Annotated[tuple[WorkEntry, ...], Meta(min_length=1)]


# What stands under each field, for those that hold more than a value.
NESTED_ENTRIES: dict[str, type[TemplateFileEntry]] = {
    "works": WorkEntry,
    "tasks": TaskEntry,
    "reportOutline": SectionEntry,
    "gitRefs": GitRefEntry,
    "mcpServerRefs": McpServerRefEntry,
    "policy": PolicyEntry,
}
# The one field of which each of these may be just the value.
_SHORTHAND = {"tasks": "query", "gitRefs": "gitId", "mcpServerRefs": "mcpServerId"}


def read_template(text: str, source: str, *, template_id: str = "") -> WorkflowTemplate:
    """Read a template; `source` names the file in errors, `template_id` is the id where the file has none."""
    file = read_yaml(text, source, TemplateFile, NESTED_ENTRIES)
    chosen = file.id or template_id or slug(file.name)
    if not chosen:
        raise Misconfigured(f"{source}: no id can be made from the name {file.name!r}: add a field `id`")
    content = expand_shorthand(msgspec.to_builtins(file))
    try:
        return msgspec.convert({**content, "id": chosen}, WorkflowTemplate)
    except Misconfigured as error:
        raise Misconfigured(f"{source}: {error}") from error


def write_template(template: WorkflowTemplate) -> str:
    """Return a template as a file that `read_template` reads back as the same."""
    document = msgspec.to_builtins(template)
    del document["deleted"]
    file = msgspec.to_builtins(msgspec.convert(document, TemplateFile))
    if not file.get("policy"):
        file.pop("policy", None)
    return write_yaml(file)


def expand_shorthand(document: dict[str, Any]) -> dict[str, Any]:
    """Return what a file says without shorthand."""
    written = dict(document)
    for field, key in _SHORTHAND.items():
        if field in written:
            written[field] = [{key: each} if isinstance(each, str) else each for each in written[field]]
    if "gitRefs" in written:
        written["gitRefs"] = [{"baseBranch": "", **ref} for ref in written["gitRefs"]]
    if "works" in written:
        written["works"] = [expand_shorthand(work) for work in written["works"]]
    return written
