"""Execute commands: each handler runs outside of any transaction, and returns the host's reply."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import structlog

from kingdom.atomic_write import write_atomically
from kingdom.bus.record import Record
from kingdom.errors import ProgramFailed, ProgramTimedOut
from kingdom.soldiers.agent_tools.calls import GUIDE
from kingdom.soldiers.agents.port import AgentGone, Launch
from kingdom.soldiers.checkouts.run_checkouts import CheckoutSpec
from kingdom.soldiers.host.checkpoint_diffs import copy_diffs
from kingdom.soldiers.host.command_input import CommandInput
from kingdom.soldiers.host.queries import generate_report, send_query, send_unclaimed_cost
from kingdom.soldiers.host.replies import ERROR_LENGTH_MAX, HostContext, answer_to, closing_reply, failure_reply
from kingdom.soldiers.host.reporter import HostReply
from kingdom.soldiers.processes.process_table import describe_exit
from kingdom.soldiers.processes.program import run_program
from kingdom.soldiers.turns.result import read_result
from kingdom.soldiers.workplace import work_space
from kingdom.soldiers.workplace.agent_environment import Workplace
from kingdom.text import with_reason
from kingdom.workflow.model.messages import answers, commands
from kingdom.workflow.model.references import SessionRef
from kingdom.workflow.model.run.work import SOLDIER_PREFIX, session_of, soldier_of
from kingdom.workflow.records import RESULT, RESULT_STATE

VERIFY_LIMIT = timedelta(minutes=10)
# How long an agent that is stopped may take to finish its turn.
GRACE = timedelta(seconds=30)
_log = structlog.get_logger("kingdom.soldiers")


async def prepare_resources(context: HostContext, command_input: CommandInput[commands.PrepareResources]) -> HostReply:
    """Create the checkouts, all or none."""
    command = command_input.command
    wanted = [tree.work_tree_id for tree in command.trees]
    await context.checkouts.prepare(command_input.select_trees(*wanted))
    return closing_reply(
        command_input, *(answer_to(command, answers.WorkTreeCreated, work_tree_id=tree) for tree in wanted)
    )


async def start_agent(context: HostContext, command_input: CommandInput[commands.StartAgent]) -> HostReply:
    """Start an agent, or continue its session, or the session of an earlier run if that still exists."""
    command = command_input.command
    if command.session is None and command.earlier_session and context.agents.client.takes_over_sessions:
        try:
            return await _start_agent(context, command_input, command.earlier_session)
        except AgentGone as error:
            _log.warning(
                "the session of an earlier run cannot be continued, so a new one begins",
                workflow=command.workflow_id,
                session=command.earlier_session.token,
                reason=str(error),
            )
    return await _start_agent(context, command_input, None)


async def _start_agent(
    context: HostContext, command_input: CommandInput[commands.StartAgent], earlier: SessionRef | None
) -> HostReply:
    """Lay out the WorkSpace, set up the checkouts, and start the agent, in the session `earlier` if there is one."""
    command, work = command_input.command, command_input.work
    if work is None:
        raise ProgramFailed(f"the run has no work {command.work_id} any more")
    space_id = earlier.work_space_id if earlier else command.work_space_id
    space = context.folders.work_space(command_input.general, space_id)
    if earlier:
        # The agent remembers the path of the WorkSpace. The earlier run has ended, so nothing needs the files there.
        await asyncio.to_thread(work_space.remove_work_space, space)
    trees = command_input.select_trees(*command.work_tree_ids)
    work_space.lay_out_work_space(
        space,
        context.folders.run(command.workflow_id),
        work,
        trees,
        command_input.reports,
        assignment_id=command_input.assignment_id,
        guide=context.agent_environment.guide,
    )
    created = answer_to(command, answers.WorkSpaceCreated, work_space_id=space_id)
    context.send(HostReply(workflow_id=command.workflow_id, answers=(created,)))
    workplace = _workplace(context, command_input, space, trees, earlier)
    await workplace.set_up_checkouts()
    stack = AsyncExitStack()
    try:
        launch = await _launch(context, command_input, workplace, stack, earlier)
        session = await context.agents.start(launch, command, stack)
    except BaseException as error:
        await stack.aclose()
        if not isinstance(error, Exception):
            raise
        # Any error may contain secrets of the workplace, which are known only here.
        if earlier and isinstance(error, AgentGone):
            raise AgentGone(workplace.redaction.text(str(error))) from None
        return failure_reply(command_input, error, workplace.redaction)
    token = f"{session.launch.soldier_id}/{session.agent.session}"
    _write_sessions(context, command_input, token)
    return closing_reply(command_input, answer_to(command, answers.AgentStarted, session=token, pid=session.agent.pid))


async def verify_work(context: HostContext, command_input: CommandInput[commands.VerifyWork]) -> HostReply:
    """Stop the agent, commit its changes, and run the checks of the Work on exactly that commit.

    The agent must have ended, because it could change the files during the commit or a check.
    """
    command, work = command_input.command, command_input.work
    session = context.agents.find(command.work_id)
    if session:
        await context.agents.end(session, GRACE)
    trees = command_input.select_trees(*command.work_tree_ids)
    # The checks run in a sandbox, because the agent may have written the programs that they start.
    workplace = _later_workplace(context, command_input, trees)
    if workplace.disk:
        await workplace.disk.check()
    await context.checkouts.commit(trees, _commit_message(command_input))
    seconds = work and work.definition.timeout_seconds
    for check in command.commands:
        try:
            async with AsyncExitStack() as stack:
                finished = await run_program(
                    ["/bin/sh", "-c", check],
                    cwd=workplace.space,
                    # Otherwise each check in Python would leave bytecode files in the checkout.
                    environment={**workplace.program_environment(), "PYTHONDONTWRITEBYTECODE": "1"},
                    timeout=timedelta(seconds=seconds) if seconds else VERIFY_LIMIT,
                    sandbox=workplace.sandbox(egress_socket=await workplace.open_egress(stack)),
                    redaction=workplace.redaction,
                )
        except ProgramFailed as error:
            reason = workplace.redaction.text(str(error))
            hint = " (`timeoutSeconds` of a Work is its time limit)" if isinstance(error, ProgramTimedOut) else ""
            raise ProgramFailed(f"`{check}` failed: {reason}{hint}") from error
        if finished.code:
            output = workplace.redaction.ending(finished.output, ERROR_LENGTH_MAX)
            raise ProgramFailed(with_reason(f"`{check}` failed ({describe_exit(finished.code)})", output))
        # Look for changes after each check: a check may run the agent's code, which could hide earlier changes.
        if changed := await context.checkouts.changed_files(trees):
            raise ProgramFailed(
                f"`{check}` passed, but changed the files it checked: {', '.join(changed)}; a check may write only"
                " files that .gitignore lists: change the check, or .gitignore in the base branch, and create a new run"
            )
    result = workplace.redaction.value(read_result(workplace.space))
    verified = answer_to(command, answers.WorkVerified, result=result)
    stopped = [answer_to(command, answers.AgentStopped, attempt=session.attempt)] if session else []
    return closing_reply(command_input, verified, *stopped, documents=_raw_result(command_input.assignment_id, result))


async def take_checkpoint(context: HostContext, command_input: CommandInput[commands.TakeCheckpoint]) -> HostReply:
    """Keep the verified commit of each checkout as a checkpoint."""
    command = command_input.command
    trees = command_input.select_trees(*command.work_tree_ids)
    commits = await context.checkouts.checkpoint(trees, command.checkpoint_id)
    if context.texts:
        await copy_diffs(
            context.texts,
            context.checkouts,
            _later_workplace(context, command_input, trees).redaction,
            command.workflow_id,
            command.checkpoint_id,
            trees,
            commits,
            command_input.checkpoint_commits,
        )
    changed = await context.checkouts.changed_paths(trees, commits)
    created = answer_to(command, answers.CheckpointCreated, commits=commits, changed_paths=changed)
    return closing_reply(command_input, created)


async def roll_back(context: HostContext, command_input: CommandInput[commands.RollBack]) -> HostReply:
    """Reset every checkout, all or none, and remove the WorkSpaces of undone Works."""
    command = command_input.command
    trees = list(command_input.trees.values())
    rescue = f"{command.workflow_id}/{command.attempt}"
    refs = await context.checkouts.roll_back(trees, command.commits, command.to_base, rescue)
    for space in command.work_space_ids:
        await asyncio.to_thread(work_space.remove_work_space, context.folders.work_space(command_input.general, space))
    return closing_reply(command_input, answer_to(command, answers.RolledBack, rescue_refs=refs))


async def release_work_tree(context: HostContext, command_input: CommandInput[commands.ReleaseWorkTree]) -> HostReply:
    """Remove a checkout. Its uncommitted files are kept under a rescue ref, its commits on its branch.

    With the last checkout of a run that nothing needs any more, the run's other folders are removed too.
    """
    command = command_input.command
    for tree in command_input.trees.values():
        await context.checkouts.release(tree, f"{command.workflow_id}/release-{command.attempt}")
    if command_input.may_remove_files:
        await context.folders.remove_run(command.workflow_id)
    return closing_reply(command_input, answer_to(command, answers.WorkTreeReleased))


COMMAND_HANDLERS: Mapping[type[commands.HostCommand], Callable[[HostContext, Any], Awaitable[HostReply]]] = {
    commands.PrepareResources: prepare_resources,
    commands.StartAgent: start_agent,
    commands.SendQuery: send_query,
    commands.GenerateReport: generate_report,
    commands.VerifyWork: verify_work,
    commands.TakeCheckpoint: take_checkpoint,
    commands.RollBack: roll_back,
    commands.ReleaseWorkTree: release_work_tree,
}


def _later_workplace(
    context: HostContext, command_input: CommandInput[Any], trees: Sequence[CheckoutSpec]
) -> Workplace:
    """Return the workplace of a Work whose agent has started before."""
    work = command_input.work
    space = context.folders.work_space(command_input.general, (work and work.work_space_id) or "")
    return _workplace(context, command_input, space, trees)


def _workplace(
    context: HostContext,
    command_input: CommandInput[Any],
    space: Path,
    trees: Sequence[CheckoutSpec],
    earlier: SessionRef | None = None,
) -> Workplace:
    redaction = context.agent_environment.redaction.with_secrets(command_input.server_secrets)
    return Workplace(
        agent_environment=replace(context.agent_environment, redaction=redaction),
        folders=context.folders,
        run_checkouts=context.checkouts,
        workflow_id=command_input.command.workflow_id,
        home_run=earlier.home_run if earlier else command_input.home_run,
        space=space,
        checkouts=tuple(trees),
        base_variables=context.base_variables,
    )


async def _launch(
    context: HostContext,
    command_input: CommandInput[commands.StartAgent],
    workplace: Workplace,
    stack: AsyncExitStack,
    earlier: SessionRef | None,
) -> Launch:
    """Return how to start the agent of a Work; a session token joins the soldier's id and the agent's session.

    An agent that goes on in the session of an earlier run is another soldier.
    """
    command = command_input.command
    token = command.session or ""
    soldier_id = soldier_of(token) or f"{SOLDIER_PREFIX}{int(time.time())}-{secrets.randbelow(10**6):06d}"
    if context.copier:
        context.copier.begin(command.workflow_id, soldier_id, workplace.redaction)
        # This callback runs last, when nothing more is written to the transcript.
        stack.push_async_callback(context.copier.end, soldier_id)
    tools = workplace.create_tools(context.bus)
    meter = workplace.create_meter()
    if meter is not None:
        # This callback runs after the proxy is closed, when no more costs can arise.
        stack.push_async_callback(send_unclaimed_cost, context, command, meter)
    model_proxy = await workplace.open_model_proxy(soldier_id, tools, stack, meter)
    instructions = (GUIDE if tools else "", command_input.work.definition.instructions if command_input.work else "")
    return Launch(
        soldier_id=soldier_id,
        work_space=workplace.space,
        model=command.model,
        session=session_of(earlier.token if earlier else token) or None,
        transcript=context.folders.transcript(soldier_id),
        errors=context.folders.errors(soldier_id),
        environment=workplace.program_environment(),
        mcp_servers=command_input.mcp_servers,
        instructions="\n\n".join(filter(None, instructions)),
        sandbox=workplace.sandbox(model_proxy, await workplace.open_egress(stack)),
        tools=tools,
        redaction=workplace.redaction,
        meter=meter,
        earlier_transcript=context.folders.transcript(soldier_of(earlier.token)) if earlier else None,
    )


def _write_sessions(context: HostContext, command_input: CommandInput[Any], token: str) -> None:
    """Write the soldiers and sessions of an assignment for people, one line for each Work, the current one last."""
    if not command_input.assignment_id:
        return
    tokens = (*command_input.sessions, token)
    try:
        for name, part in (("soldier-id", soldier_of), ("session-id", session_of)):
            file = context.folders.results / f"{command_input.assignment_id}-{name}"
            write_atomically(file, "".join(f"{part(each)}\n" for each in tokens))
    except OSError as error:
        _log.warning(
            "the sessions of an assignment cannot be written", assignment=command_input.assignment_id, error=str(error)
        )


def _raw_result(assignment_id: str, result: dict[str, Any] | None) -> tuple[Record, ...]:
    """Return the result of an assignment as its agent reported it. The result of a later Work replaces it."""
    if not assignment_id or result is None:
        return ()
    document = {**result, "task_id": assignment_id}
    return (Record(kind=RESULT, id=f"{assignment_id}-raw", state=RESULT_STATE, doc=document),)


def _commit_message(command_input: CommandInput[Any]) -> str:
    name = command_input.work.definition.name if command_input.work else "work"
    return f"{name}\n\nKingdom: {command_input.command.workflow_id}"
