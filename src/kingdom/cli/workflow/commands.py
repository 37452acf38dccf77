"""`kingdom workflow …`: create, control and inspect runs."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated

import typer

from kingdom.actions.runs import choose_resumption, next_commands
from kingdom.bootstrap import operations_of
from kingdom.bus.port import Bus
from kingdom.cli.court.petition import note_irreversible_effects
from kingdom.cli.framework.command import CommandCall, command
from kingdom.cli.framework.json_result import one
from kingdom.cli.framework.workflow_ids import MIN_ID_LENGTH, RunId, find_checkpoint, find_workflow
from kingdom.cli.workflow import definition, inspection, results
from kingdom.cli.workflow.follow import follow
from kingdom.cli.workflow.view import describe_state
from kingdom.court.petitions.decision import PETITIONS
from kingdom.errors import KingdomError
from kingdom.workflow import lifecycle
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.reactions import engine

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Create, start, watch, pause and resume runs, and see their results.",
)
_Wait = Annotated[bool, typer.Option("--wait", help="Follow the run until it stops; the exit code says how it ended.")]


@command(app, "create", result=one(Workflow))
async def create(
    call: CommandCall,
    template: Annotated[str, typer.Argument(metavar="TEMPLATE", help="The id of a template.")],
    *,
    name: Annotated[str, typer.Option(help="The name of the run; by default the name of the template.")] = "",
    start: Annotated[bool, typer.Option("--start", help="Also start it.")] = False,
    wait: _Wait = False,
) -> int | None:
    """Create a run from a template.

    Example: kingdom workflow create fix-a-bug --start --wait

    JSON: the workflow {id, name, status, works, workTrees, checkpoints, …} in its last state.
    """
    if wait and not start:
        raise typer.BadParameter("--wait needs --start.")

    async def act(bus: Bus) -> Workflow:
        workflow = await lifecycle.create(bus, template, name=name, actor=call.settings.actor)
        if not start:
            return workflow
        call.output.say(f"Created {workflow.id}.")
        try:
            return await lifecycle.start(bus, workflow.id, actor=call.settings.actor)
        except KingdomError:
            call.output.note(f"{workflow.id} was created but not started: kingdom workflow start {workflow.id}")
            raise

    return await _act(call, act, wait=wait)


app.add_typer(inspection.app)


@command(app, "prepare", result=one(Workflow))
async def prepare(call: CommandCall, workflow_id: RunId, *, wait: _Wait = False) -> int | None:
    """Prepare the checkouts of a run and leave it READY.

    Example: kingdom workflow prepare last

    JSON: the workflow, as `create` prints it.
    """
    return await _operate(call, workflow_id, lifecycle.prepare, wait=wait)


@command(app, "start", result=one(Workflow))
async def start(call: CommandCall, workflow_id: RunId, *, wait: _Wait = False) -> int | None:
    """Start a run, preparing its checkouts first if needed.

    With --wait the exit code is 0 if it completed, 1 if it failed or was cancelled, 4 if it waits for a person.

    Example: kingdom workflow start last --wait

    JSON: the workflow, as `create` prints it.
    """
    return await _operate(call, workflow_id, lifecycle.start, wait=wait)


@command(app, "pause", result=one(Workflow))
async def pause(call: CommandCall, workflow_id: RunId, *, wait: _Wait = False) -> int | None:
    """Pause a run as soon as its host confirms that nothing is running; its session can continue later.

    Example: kingdom workflow pause last

    JSON: the workflow, as `create` prints it.
    """
    return await _operate(call, workflow_id, lifecycle.pause, wait=wait, wanted=WorkflowStatus.PAUSED)


@command(app, "resume", result=one(Workflow))
async def resume(
    call: CommandCall,
    workflow_id: RunId,
    *,
    checkpoint: Annotated[
        str | None,
        typer.Option("--from", metavar="CHECKPOINT", help="Roll back to this checkpoint and continue from there."),
    ] = None,
    from_base: Annotated[bool, typer.Option("--from-base", help="Start over from the base branches.")] = False,
    continue_: Annotated[bool, typer.Option("--continue", help="Continue in the same session.")] = False,
    reply: Annotated[
        str | None, typer.Option(help="Answer the open question, and continue in the same session.")
    ] = None,
    wait: _Wait = False,
) -> int | None:
    """Resume a run: a paused run in its session, a failed run after its last valid checkpoint.

    A rollback keeps the undone changes in the repository under refs/kingdom/rescue. The command lists effects on
    external services, which git cannot undo. A run with an open question needs --reply or one of the other options.

    Example: kingdom workflow resume last --reply "yes, both"

    Example: kingdom workflow resume last --from w1-c1 --wait

    JSON: the workflow, as `create` prints it.
    """
    if sum((checkpoint is not None, from_base, continue_ or reply is not None)) > 1:
        raise typer.BadParameter("choose one of --from, --from-base and --continue; --reply implies --continue.")

    async def act(bus: Bus) -> Workflow:
        workflow = await find_workflow(bus, workflow_id)
        point = None if checkpoint is None else find_checkpoint(workflow, checkpoint).id
        how = choose_resumption(workflow, checkpoint_id=point, from_base=from_base, in_session=continue_, reply=reply)
        resumed = await lifecycle.resume(bus, workflow.id, how, actor=call.settings.actor)
        await note_irreversible_effects(call, bus, resumed)
        return resumed

    return await _act(call, act, wait=wait)


@command(app, "cancel", result=one(Workflow))
async def cancel(call: CommandCall, workflow_id: RunId, *, wait: _Wait = False) -> int | None:
    """Cancel a run: its agent is interrupted, and its commits stay on their branches.

    Example: kingdom workflow cancel last

    JSON: the workflow, as `create` prints it.
    """
    return await _operate(
        call, workflow_id, lifecycle.cancel, MIN_ID_LENGTH, wait=wait, wanted=WorkflowStatus.CANCELLED
    )


for _part in (definition, results):
    app.add_typer(_part.app)


@command(app, "wait", result=one(Workflow))
async def wait(call: CommandCall, workflow_id: RunId) -> int | None:
    """Follow a run until it stops; the exit code says how it ended, as with --wait.

    Example: kingdom workflow wait last

    JSON: the workflow, as `create` prints it.
    """

    async def find(bus: Bus) -> Workflow:
        return await find_workflow(bus, workflow_id)

    return await _act(call, find, wait=True)


@command(app, "release", result=one(Workflow))
async def release(call: CommandCall, workflow_id: RunId) -> int | None:
    """Remove the checkouts of an ended run now instead of after a day; branches and checkpoints stay.

    Example: kingdom workflow release last

    JSON: the workflow, as `create` prints it.
    """
    return await _operate(call, workflow_id, lifecycle.release)


@command(app, "delete", result=one(Workflow))
async def delete(call: CommandCall, workflow_id: RunId) -> int | None:
    """Delete a finished run and its checkouts; branches and checkpoints stay.

    A deleted run cannot be resumed; `list --all`, and `show` with its whole id, still show it. Uncommitted changes are
    kept in the repository under refs/kingdom/rescue.

    Example: kingdom workflow delete 01k9x3v7m2q4t6

    JSON: the workflow, as `create` prints it.
    """
    return await _operate(call, workflow_id, lifecycle.delete, MIN_ID_LENGTH)


async def _operate(
    call: CommandCall,
    workflow_id: str,
    operation: Callable[..., Awaitable[Workflow]],
    at_least: int = 0,
    *,
    wait: bool = False,
    wanted: WorkflowStatus = WorkflowStatus.COMPLETED,
) -> int | None:
    async def act(bus: Bus) -> Workflow:
        workflow = await find_workflow(bus, workflow_id, at_least=at_least)
        return await operation(bus, workflow.id, actor=call.settings.actor)

    return await _act(call, act, wait=wait, wanted=wanted)


async def _act(
    call: CommandCall,
    act: Callable[[Bus], Awaitable[Workflow]],
    *,
    wait: bool,
    wanted: WorkflowStatus = WorkflowStatus.COMPLETED,
) -> int | None:
    """Act on a run, follow it if `wait` is set, and print its state. The exit code of the `wanted` status is 0."""
    code = 0
    known = engine()
    async with call.bus(replace(known, kinds=(*known.kinds, PETITIONS)), create=False) as bus:
        since = await operations_of(bus).log_end()
        workflow = await act(bus)
        if wait:
            workflow, code = await follow(call, bus, workflow.id, since, wanted)
    if call.output.json:
        call.output.document(workflow)
    call.output.say(describe_state(workflow))
    if commands := next_commands(workflow):
        call.output.say(f"Next: {', '.join(commands)} (kingdom workflow … {workflow.id})")
    return code
