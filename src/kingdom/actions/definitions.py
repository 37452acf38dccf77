"""The definition of a run as YAML: write it to edit it, and read it to change the run."""

from typing import Any

import msgspec

from kingdom.bus.port import Bus
from kingdom.errors import MalformedRequest, Misconfigured
from kingdom.views.definitions import DefinitionFile, RunWorkEntry
from kingdom.workflow.model.references import GitRef
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.steps.modify import Modification, WorkChange
from kingdom.workflow.registry import show_git
from kingdom.workflow.template_file import NESTED_ENTRIES, expand_shorthand
from kingdom.yaml_file import read_yaml, write_yaml

_RESOURCES = ("gitRefs", "mcpServerRefs")


def write_definition(workflow: Workflow) -> str:
    """Return the definition of a run in the format that `read_definition` reads."""
    return write_yaml(definition_entries(workflow))


def write_works(workflow: Workflow) -> str:
    """Return the works of a run without their repositories and MCP servers, as `change_works` reads them."""
    works = definition_entries(workflow)["works"]
    return write_yaml({"works": [{key: work[key] for key in work if key not in _RESOURCES} for work in works]})


def change_works(workflow: Workflow, text: str) -> Modification:
    """Parse new works of a run. Each work keeps its repositories and MCP servers.

    Naming others would give a person who may act for one General access to the resources of all.
    """
    change = read_definition(text, "the definition")
    known = {work.id: work.definition for work in workflow.works}
    lists = [change.git_refs, change.mcp_server_refs]
    for work in change.works or ():
        lists += [work.definition.git_refs or None, work.definition.mcp_server_refs or None]
    if any(each is not None for each in lists):
        raise MalformedRequest(
            "repositories and MCP servers cannot be changed here: leave gitRefs and mcpServerRefs out, or run"
            f" `kingdom workflow modify {workflow.id} FILE` on the machine of the court"
        )
    works = []
    for work in change.works or ():
        kept = known.get(work.id) if work.id else None
        resources = {"git_refs": kept.git_refs, "mcp_server_refs": kept.mcp_server_refs} if kept else {}
        works.append(WorkChange(id=work.id, definition=msgspec.structs.replace(work.definition, **resources)))
    return Modification(works=tuple(works))


def read_definition(text: str, source: str) -> Modification:
    """Parse the definition of a run. `source` is the name of the file in errors."""
    file = read_yaml(text, source, DefinitionFile, {**NESTED_ENTRIES, "works": RunWorkEntry})
    if file == DefinitionFile():
        known = ", ".join(field.encode_name for field in msgspec.structs.fields(DefinitionFile))
        raise Misconfigured(f"{source}: a definition needs at least one of {known}")
    content = expand_shorthand(msgspec.to_builtins(file))
    if "works" in content:
        content["works"] = [{"id": work.pop("id", None), "definition": work} for work in content["works"]]
    try:
        return msgspec.convert(content, Modification)
    except Misconfigured as error:
        raise Misconfigured(f"{source}: {error}") from error


def definition_entries(workflow: Workflow) -> dict[str, Any]:
    """Return the definition of a run without default values."""
    content = {
        "gitRefs": workflow.git_refs,
        "mcpServerRefs": workflow.mcp_server_refs,
        "works": [{"id": work.id, **msgspec.to_builtins(work.definition)} for work in workflow.works],
    }
    file = msgspec.convert(msgspec.to_builtins(content), DefinitionFile)
    entries: dict[str, Any] = msgspec.to_builtins(file)
    # The id comes first for readability.
    return {**entries, "works": [{"id": work.pop("id"), **work} for work in entries["works"]]}


async def with_default_branches(bus: Bus, change: Modification) -> Modification:
    """Fill in the default branch of every repository without a base branch."""

    async def complete(refs: tuple[GitRef, ...]) -> tuple[GitRef, ...]:
        return tuple([ref if ref.base_branch else await _with_default_branch(bus, ref) for ref in refs])

    git_refs = None if change.git_refs is None else await complete(change.git_refs)
    works: list[WorkChange] | None = None
    if change.works is not None:
        works = []
        for work in change.works:
            completed = msgspec.structs.replace(work.definition, git_refs=await complete(work.definition.git_refs))
            works.append(WorkChange(id=work.id, definition=completed))
    return Modification(
        works=None if works is None else tuple(works), git_refs=git_refs, mcp_server_refs=change.mcp_server_refs
    )


async def _with_default_branch(bus: Bus, ref: GitRef) -> GitRef:
    git, _ = await show_git(bus, ref.git_id)
    return GitRef(git_id=ref.git_id, base_branch=git.default_branch)
