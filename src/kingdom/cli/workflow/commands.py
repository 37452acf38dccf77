"""`kingdom workflow …`: runs, from their making to their end."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated

import typer

from kingdom.bootstrap import operations_of
from kingdom.bus.port import Bus
from kingdom.cli.court.petition import note_left_behind
from kingdom.cli.shared.command import CommandCall, command
from kingdom.cli.shared.json_result import one
from kingdom.cli.shared.workflow_ids import CAREFUL, RunId, find_checkpoint, find_workflow
from kingdom.cli.workflow import definition, inspection, results
from kingdom.cli.workflow.follow import follow
from kingdom.cli.workflow.view import next_commands, standing
from kingdom.court.petitions.decision import PETITIONS
from kingdom.errors import KingdomError, Misconfigured
from kingdom.workflow import lifecycle
from kingdom.workflow.model.machine import WorkflowStatus
from kingdom.workflow.model.operations import Auto, Continue, FromBase, FromCheckpoint, ResumeFrom
from kingdom.workflow.model.workflow import Workflow
from kingdom.workflow.reactions import engine

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Runs: create, start, watch, pause, resume, look at what they left.",
)
_Wait = Annotated[bool, typer.Option("--wait", help="Follow it until it rests or ends; the exit code tells how.")]


@command(app, "create", result=one(Workflow))
async def create(
    call: CommandCall,
    template: Annotated[str, typer.Argument(metavar="TEMPLATE", help="The id of a template.")],
    *,
    name: Annotated[str, typer.Option(help="What to call it; else as the template is called.")] = "",
    start: Annotated[bool, typer.Option("--start", help="Start it too.")] = False,
    wait: _Wait = False,
) -> int | None:
    """Make a run from a template.

    Example: kingdom workflow create fix-a-bug --start --wait

    JSON: the workflow {id, name, status, works, workTrees, checkpoints, …}, as it stands at last.
    """
    if wait and not start:
        raise typer.BadParameter("there is nothing to wait for without --start.")

    async def act(bus: Bus) -> Workflow:
        workflow = await lifecycle.create(bus, template, name=name, actor=call.settings.actor)
        if not start:
            return workflow
        call.output.say(f"{workflow.id} is created.")
        try:
            return await lifecycle.start(bus, workflow.id, actor=call.settings.actor)
        except KingdomError:
            call.output.note(f"{workflow.id} is there but not started: kingdom workflow start {workflow.id}")
            raise

    return await _act(call, act, wait=wait)


app.add_typer(inspection.app)


@command(app, "prepare", result=one(Workflow))
async def prepare(call: CommandCall, workflow_id: RunId, *, wait: _Wait = False) -> int | None:
    """Have the checkouts of a run made, and let it rest at READY.

    Example: kingdom workflow prepare last

    JSON: the workflow, as `create` prints it.
    """
    return await _take(call, workflow_id, lifecycle.prepare, wait=wait)


@command(app, "start", result=one(Workflow))
async def start(call: CommandCall, workflow_id: RunId, *, wait: _Wait = False) -> int | None:
    """Let a run run; what is not prepared yet is prepared first.

    With --wait the exit code is 0 if it completed, 1 if it failed or was cancelled, 4 if it waits for a person.

    Example: kingdom workflow start last --wait

    JSON: the workflow, as `create` prints it.
    """
    return await _take(call, workflow_id, lifecycle.start, wait=wait)


@command(app, "pause", result=one(Workflow))
async def pause(call: CommandCall, workflow_id: RunId, *, wait: _Wait = False) -> int | None:
    """Let a run rest as soon as its host confirms that nothing runs; its session can go on later.

    Example: kingdom workflow pause last

    JSON: the workflow, as `create` prints it.
    """
    return await _take(call, workflow_id, lifecycle.pause, wait=wait, wanted=WorkflowStatus.PAUSED)


@command(app, "resume", result=one(Workflow))
async def resume(
    call: CommandCall,
    workflow_id: RunId,
    *,
    checkpoint: Annotated[
        str | None, typer.Option("--from", metavar="CHECKPOINT", help="Go back to this checkpoint and on from there.")
    ] = None,
    from_base: Annotated[bool, typer.Option("--from-base", help="Begin again from the base branches.")] = False,
    continue_: Annotated[bool, typer.Option("--continue", help="Go on in the same session.")] = False,
    reply: Annotated[str | None, typer.Option(help="The answer to its question; it goes on in its session.")] = None,
    wait: _Wait = False,
) -> int | None:
    """Let a run go on: a paused one in its session, a failed one after its last valid checkpoint.

    What a way back undoes is kept in the repository under refs/kingdom/rescue; what left the house meanwhile is told,
    as git cannot undo it. A run with an open question wants a --reply, or one of the other ways.

    Example: kingdom workflow resume last --reply "yes, both"

    Example: kingdom workflow resume last --from w1-c1 --wait

    JSON: the workflow, as `create` prints it.
    """
    if sum((checkpoint is not None, from_base, continue_ or reply is not None)) > 1:
        raise typer.BadParameter("choose one way: --from, --from-base, --continue or --reply.")

    async def act(bus: Bus) -> Workflow:
        workflow = await find_workflow(bus, workflow_id)
        how: ResumeFrom = Auto()
        if checkpoint is not None:
            how = FromCheckpoint(find_checkpoint(workflow, checkpoint).id)
        elif from_base:
            how = FromBase()
        elif continue_ or reply is not None or workflow.status is WorkflowStatus.PAUSED:
            how = Continue(reply or "")
        _check_reply(workflow, how)
        resumed = await lifecycle.resume(bus, workflow.id, how, actor=call.settings.actor)
        await note_left_behind(call, bus, resumed)
        return resumed

    return await _act(call, act, wait=wait)


@command(app, "cancel", result=one(Workflow))
async def cancel(call: CommandCall, workflow_id: RunId, *, wait: _Wait = False) -> int | None:
    """Give a run up: what runs is interrupted, its commits stay on their branches.

    Example: kingdom workflow cancel last

    JSON: the workflow, as `create` prints it.
    """
    return await _take(call, workflow_id, lifecycle.cancel, CAREFUL, wait=wait, wanted=WorkflowStatus.CANCELLED)


for _part in (definition, results):
    app.add_typer(_part.app)


@command(app, "wait", result=one(Workflow))
async def wait(call: CommandCall, workflow_id: RunId) -> int | None:
    """Follow a run until it rests or ends; the exit code tells how, as with --wait.

    Example: kingdom workflow wait last

    JSON: the workflow, as `create` prints it.
    """

    async def look(bus: Bus) -> Workflow:
        return await find_workflow(bus, workflow_id)

    return await _act(call, look, wait=True)


@command(app, "release", result=one(Workflow))
async def release(call: CommandCall, workflow_id: RunId) -> int | None:
    """Have the checkouts of an ended run removed now, not after a day; branches and checkpoints stay.

    Example: kingdom workflow release last

    JSON: the workflow, as `create` prints it.
    """
    return await _take(call, workflow_id, lifecycle.release)


@command(app, "delete", result=one(Workflow))
async def delete(call: CommandCall, workflow_id: RunId) -> int | None:
    """Let a run disappear that rests for good, with its checkouts; branches and checkpoints stay.

    It cannot go on any more. `list --all`, and `show` with its whole id, still tell of it; what was not committed is
    kept in the repository under refs/kingdom/rescue.

    Example: kingdom workflow delete 01k9x3v7m2q4t6

    JSON: the workflow, as `create` prints it.
    """
    return await _take(call, workflow_id, lifecycle.delete, CAREFUL)


async def _take(
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
    """Do something to a run, follow it if asked to, and tell where it stands then; what was wanted is no failure."""
    code = 0
    known = engine()
    async with call.bus(replace(known, kinds=(*known.kinds, PETITIONS)), create=False) as bus:
        since = await operations_of(bus).log_end()
        workflow = await act(bus)
        if wait:
            workflow, code = await follow(call, bus, workflow.id, since, wanted)
    if call.output.json:
        call.output.document(workflow)
    call.output.say(standing(workflow))
    if commands := next_commands(workflow):
        call.output.say(f"Next: {', '.join(commands)} (kingdom workflow … {workflow.id})")
    return code


def _check_reply(workflow: Workflow, how: ResumeFrom) -> None:
    """Refuse an answer that nobody asked for, and a question that would be passed over by accident."""
    asks = workflow.question
    if isinstance(how, Continue) and how.reply and not asks:
        raise Misconfigured(f"workflow {workflow.id} asks nothing: leave --reply out")
    if isinstance(how, Auto) and asks:
        raise Misconfigured(
            f"workflow {workflow.id} asks: {asks.text}"
            " Answer with --reply, or choose another way: --continue, --from or --from-base"
        )
