"""`kingdom template …`: manage the templates that runs are created from."""

from typing import Annotated, Any

import typer

from kingdom.cli.framework.command import CommandCall, command
from kingdom.cli.framework.inputs import opened
from kingdom.cli.framework.json_result import array, one
from kingdom.cli.framework.workflow_ids import RunId, find_workflow
from kingdom.cli.schemas.described import print_schema
from kingdom.cli.schemas.template import template_schema
from kingdom.errors import Misconfigured
from kingdom.workflow import templates
from kingdom.workflow.model.resources.template import WorkflowTemplate
from kingdom.workflow.reactions import engine
from kingdom.workflow.template_file import read_template, write_template

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Manage the templates that runs are created from.")
_Template = Annotated[str, typer.Argument(metavar="TEMPLATE", help="The id of a template.")]
_File = Annotated[str, typer.Argument(metavar="FILE", help="A YAML file; - is standard input.")]


@command(app, "create", result=one(WorkflowTemplate))
async def create(call: CommandCall, file: _File) -> None:
    """Store a template; the repositories and MCP servers that it names must be registered.

    Example: kingdom template create fix-a-bug.yaml

    JSON: the template {id, name, description, gitRefs, mcpServerRefs, policy, works, deleted}.
    """
    template = read_template(_text(file), file)
    async with call.bus(engine()) as bus:
        template = await templates.create_template(bus, template, actor=call.settings.actor)
    _report(call, template, f"Created template {template.id}. Run it: kingdom workflow create {template.id}")


@command(app, "from-workflow", result=one(WorkflowTemplate))
async def from_workflow(
    call: CommandCall,
    workflow_id: RunId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the template.")],
    *,
    template_id: Annotated[str, typer.Option("--id", help="Its id; by default derived from the name.")] = "",
) -> None:
    """Store the current definition of a run as a template.

    Example: kingdom template from-workflow last "Fix a bug"

    JSON: the template, as `create` prints it.
    """
    async with call.bus(engine(), create=False) as bus:
        workflow = await find_workflow(bus, workflow_id)
        template = await templates.template_from_workflow(
            bus, workflow.id, name, actor=call.settings.actor, template_id=template_id
        )
    _report(call, template, f"Created template {template.id}. Run it: kingdom workflow create {template.id}")


@command(app, "update", result=one(WorkflowTemplate))
async def update(call: CommandCall, template_id: _Template, file: _File) -> None:
    """Replace a template with a file; runs that were created from it do not change.

    Example: kingdom template show fix-a-bug --yaml > fix.yaml; edit it; kingdom template update fix-a-bug fix.yaml

    JSON: the template, as `create` prints it.
    """
    definition = read_template(_text(file), file, template_id=template_id)
    if definition.id != template_id:
        raise Misconfigured(
            f"{file} defines template {definition.id!r}, not {template_id!r}: change or remove its field `id`"
        )
    async with call.bus(engine(), create=False) as bus:
        template = await templates.update_template(bus, template_id, definition, actor=call.settings.actor)
    _report(call, template, f"Updated template {template.id}.")


@command(app, "list", result=array(WorkflowTemplate))
async def list_(call: CommandCall) -> None:
    """List every template.

    Example: kingdom template list

    JSON: an array of templates, as `create` prints them.
    """
    async with call.bus(engine(), create=False) as bus:
        found = await templates.list_templates(bus, call.note_unreadable)
    if call.output.json:
        call.output.document(found)
    elif found:
        rows = [(each.id, each.name, ", ".join(work.name for work in each.works)) for each in found]
        call.output.table(("id", "name", "works"), rows)
    else:
        call.output.say("There are no templates. Add one: kingdom template create FILE")


@command(app, "show", result=one(WorkflowTemplate))
async def show(
    call: CommandCall,
    template_id: _Template,
    *,
    as_yaml: Annotated[bool, typer.Option("--yaml", help="Print only the file, to edit it for `update`.")] = False,
) -> None:
    """Show a template.

    Example: kingdom template show fix-a-bug --yaml > fix-a-bug.yaml

    JSON: the template, as `create` prints it.
    """
    async with call.bus(engine(), create=False) as bus:
        template = await templates.show_template(bus, template_id)
    if call.output.json:
        call.output.document(template)
    elif as_yaml:
        typer.echo(write_template(template), nl=False)
    else:
        if template.deleted:
            call.output.say("This template was deleted.")
        call.output.say(write_template(template).rstrip())


@command(app, "delete", result=one(WorkflowTemplate))
async def delete(call: CommandCall, template_id: _Template) -> None:
    """Delete a template; runs that were created from it stay.

    Example: kingdom template delete fix-a-bug

    JSON: the template, as `create` prints it.
    """
    async with call.bus(engine(), create=False) as bus:
        template = await templates.delete_template(bus, template_id, actor=call.settings.actor)
    _report(call, template, f"Deleted template {template_id}.")


@command(app, "validate", result=one(WorkflowTemplate))
async def validate(call: CommandCall, file: _File) -> None:
    """Check a file without a store; repositories and MCP servers are not checked.

    Example: kingdom template validate fix-a-bug.yaml

    JSON: the template, as `create` prints it; a missing baseBranch is an empty text.
    """
    template = read_template(_text(file), file)
    works, tasks = len(template.works), sum(len(work.tasks) for work in template.works)
    _report(call, template, f"{file} is a template with the id {template.id}, {works} work(s) and {tasks} task(s).")


@command(app, "schema", result=one(dict[str, Any]))
async def schema(call: CommandCall) -> None:
    """Print the JSON schema of a template file, for editors that complete and check YAML.

    Example: kingdom template schema > template.schema.json

    JSON: the schema on one line.
    """
    print_schema(call.output, template_schema())


def _report(call: CommandCall, template: WorkflowTemplate, sentence: str) -> None:
    if call.output.json:
        call.output.document(template)
    call.output.say(sentence)


def _text(file: str) -> str:
    with opened(file) as lines:
        return lines.read()
