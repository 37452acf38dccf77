"""`kingdom workflow definition` and `modify`: print and change the definition of a run as YAML."""

from typing import Annotated, Any

import msgspec
import typer

from kingdom.actions.runs import next_commands
from kingdom.bus.port import Bus
from kingdom.cli.framework.command import CommandCall, command
from kingdom.cli.framework.inputs import opened
from kingdom.cli.framework.json_result import one
from kingdom.cli.framework.workflow_ids import RunId, find_workflow
from kingdom.errors import Misconfigured
from kingdom.views.definitions import DefinitionFile, RunWorkEntry
from kingdom.workflow import lifecycle
from kingdom.workflow.model.references import GitRef
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.steps.modify import Modification, WorkChange
from kingdom.workflow.reactions import engine
from kingdom.workflow.registry import show_git
from kingdom.workflow.template_file import NESTED_ENTRIES, expand_shorthand
from kingdom.yaml_file import read_yaml, write_yaml

app = typer.Typer()
_CONTINUE = ("start", "resume")


@command(app, "definition", result=one(DefinitionFile))
async def definition(call: CommandCall, workflow_id: RunId) -> None:
    """Print the definition of a run, to edit it for `modify`.

    Example: kingdom workflow definition last > run.yaml; edit it; kingdom workflow modify last run.yaml

    JSON: {gitRefs, mcpServerRefs, works: [{id, name, tasks, …}]}.
    """
    async with call.bus(engine(), create=False) as bus:
        workflow = await find_workflow(bus, workflow_id)
    if call.output.json:
        call.output.document(_entries(workflow))
    else:
        typer.echo(write_definition(workflow), nl=False)


@command(app, "modify", result=one(Workflow))
async def modify(
    call: CommandCall,
    workflow_id: RunId,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A YAML file; - is standard input.")],
) -> None:
    """Change what has not started: works, their order and tasks, repositories, MCP servers.

    The file contains works, gitRefs or mcpServerRefs, each as the complete new list. A work with an `id` is kept, a
    work without an `id` is new, and a missing work is removed.

    Example: kingdom workflow modify last run.yaml

    JSON: the workflow, as `create` prints it.
    """
    with opened(file) as lines:
        change = read_definition(lines.read(), file)
    async with call.bus(engine(), create=False) as bus:
        workflow = await find_workflow(bus, workflow_id)
        change = await _with_default_branches(bus, change)
        workflow = await lifecycle.modify(bus, workflow.id, change, actor=call.settings.actor)
    if call.output.json:
        call.output.document(workflow)
    hints = [
        f"Continue: kingdom workflow {each} {workflow.id}" for each in next_commands(workflow) if each in _CONTINUE
    ]
    call.output.say(" ".join([f"Changed {workflow.id}.", *hints]))


def write_definition(workflow: Workflow) -> str:
    """Return the definition of a run in the format that `read_definition` reads."""
    return write_yaml(_entries(workflow))


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


def _entries(workflow: Workflow) -> dict[str, Any]:
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


async def _with_default_branches(bus: Bus, change: Modification) -> Modification:
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
