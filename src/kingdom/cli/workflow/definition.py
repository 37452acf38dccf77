"""`kingdom workflow definition` and `modify`: print and change the definition of a run as YAML."""

from typing import Annotated

import typer

from kingdom.actions.definitions import definition_entries, read_definition, with_default_branches, write_definition
from kingdom.actions.runs import next_commands
from kingdom.cli.framework.command import CommandCall, command
from kingdom.cli.framework.inputs import opened
from kingdom.cli.framework.json_result import one
from kingdom.cli.framework.workflow_ids import RunId, find_workflow
from kingdom.views.definitions import DefinitionFile
from kingdom.workflow import lifecycle
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.reactions import engine

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
        call.output.document(definition_entries(workflow))
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
        change = await with_default_branches(bus, change)
        workflow = await lifecycle.modify(bus, workflow.id, change, actor=call.settings.actor)
    if call.output.json:
        call.output.document(workflow)
    hints = [
        f"Continue: kingdom workflow {each} {workflow.id}" for each in next_commands(workflow) if each in _CONTINUE
    ]
    call.output.say(" ".join([f"Changed {workflow.id}.", *hints]))
