"""How each command is executed: outside of any transaction, ending in what the host says about it."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from kingdom.errors import ProgramFailed
from kingdom.soldiers import work_space
from kingdom.soldiers.agent import Launch
from kingdom.soldiers.answering import ERROR_MAX, Tools, answer, said_of
from kingdom.soldiers.briefing import Briefing
from kingdom.soldiers.disk_quota import DiskQuotaExceeded
from kingdom.soldiers.process import run_program
from kingdom.soldiers.process_table import described
from kingdom.soldiers.quarters import Lodging
from kingdom.soldiers.queries import generate_report, say_rest, send_query
from kingdom.soldiers.redaction import secrets_in
from kingdom.soldiers.reporter import Statement
from kingdom.soldiers.result import read_result
from kingdom.soldiers.trees import Tree
from kingdom.soldiers.voice.calls import GUIDE
from kingdom.text import with_reason
from kingdom.workflow.model import answers, commands
from kingdom.workflow.model.work import session_of, soldier_of

VERIFY_LIMIT = timedelta(minutes=10)
# An agent that is to end may finish its turn for so long.
GRACE = timedelta(seconds=30)


async def prepare_resources(tools: Tools, briefing: Briefing[commands.PrepareResources]) -> Statement:
    """Make the checkouts, all or none."""
    command = briefing.command
    wanted = [tree.work_tree_id for tree in command.trees]
    await tools.trees.prepare(briefing.some_trees(*wanted))
    return said_of(briefing, *(answer(command, answers.WorkTreeCreated, work_tree_id=tree) for tree in wanted))


async def start_agent(tools: Tools, briefing: Briefing[commands.StartAgent]) -> Statement:
    """Lay out the WorkSpace, fit out the checkouts, and start an agent, or go on with its session."""
    command, work = briefing.command, briefing.work
    if work is None:
        raise ProgramFailed(f"the run has no work {command.work_id} any more")
    space = tools.folders.space(briefing.general, command.work_space_id)
    trees = briefing.some_trees(*command.work_tree_ids)
    work_space.lay_out(space, tools.folders.run(command.workflow_id), work, trees, briefing.reports)
    tools.say(Statement(workflow_id=command.workflow_id, answers=(answer(command, answers.WorkSpaceCreated),)))
    lodging = _lodging(tools, briefing, space, trees)
    await lodging.fit_out()
    stack = AsyncExitStack()
    try:
        session = await tools.agents.start(await _launch(tools, briefing, lodging, stack), command, stack)
    except BaseException:
        await stack.aclose()
        raise
    token = f"{session.launch.soldier_id}/{session.agent.session}"
    return said_of(briefing, answer(command, answers.AgentStarted, session=token, pid=session.agent.pid))


async def verify_work(tools: Tools, briefing: Briefing[commands.VerifyWork]) -> Statement:
    """End the agent, commit what it left, and run the checks of the Work; what was checked must be what was committed.

    Nothing of the agent may run any more: it could change the files for the moment of the commit, or of a check.
    """
    command, work = briefing.command, briefing.work
    session = tools.agents.find(command.work_id)
    if session:
        await tools.agents.end(session, GRACE)
    trees = briefing.some_trees(*command.work_tree_ids)
    space = tools.folders.space(briefing.general, (work and work.work_space_id) or "")
    # What the checks run was written by the agent.
    lodging = _lodging(tools, briefing, space, trees)
    if lodging.disk:
        await lodging.disk.check()
    await tools.trees.commit(trees, _message(briefing))
    seconds = work and work.definition.timeout_seconds
    for check in command.commands:
        try:
            async with AsyncExitStack() as stack:
                finished = await run_program(
                    ["/bin/sh", "-c", check],
                    cwd=space,
                    # Otherwise each check in Python would leave files beside what it has checked.
                    environment={**lodging.environment_inside(), "PYTHONDONTWRITEBYTECODE": "1"},
                    timeout=timedelta(seconds=seconds) if seconds else VERIFY_LIMIT,
                    sandbox=lodging.sandbox(egress=await lodging.open_egress(stack)),
                )
        except ProgramFailed as error:
            reason = lodging.redaction.text(str(error))
            hint = "" if isinstance(error, DiskQuotaExceeded) else " (`timeoutSeconds` of a Work is its limit)"
            raise ProgramFailed(f"`{check}` failed: {reason}{hint}") from error
        if finished.code:
            output = lodging.redaction.text(finished.output)[-ERROR_MAX:]
            raise ProgramFailed(with_reason(f"`{check}` failed ({described(finished.code)})", output))
        # After each one: it may be the agent's code, and hide from the next what it does to the files.
        if changed := await tools.trees.differing(trees):
            raise ProgramFailed(
                f"`{check}` passed, but changed what it had checked: {', '.join(changed)}; a check may write only files"
                " that .gitignore names: change it, or .gitignore in the base branch, and make a new run"
            )
    verified = answer(command, answers.WorkVerified, result=lodging.redaction.value(read_result(space)))
    stopped = [answer(command, answers.AgentStopped, attempt=session.attempt)] if session else []
    return said_of(briefing, verified, *stopped)


async def take_checkpoint(tools: Tools, briefing: Briefing[commands.TakeCheckpoint]) -> Statement:
    """Keep, per checkout, the commit that was verified."""
    command = briefing.command
    commits = await tools.trees.checkpoint(briefing.some_trees(*command.work_tree_ids), command.checkpoint_id)
    return said_of(briefing, answer(command, answers.CheckpointCreated, commits=commits))


async def roll_back(tools: Tools, briefing: Briefing[commands.RollBack]) -> Statement:
    """Bring every checkout back, all or none, and remove the WorkSpaces of undone Works."""
    command = briefing.command
    trees = list(briefing.trees.values())
    rescue = f"{command.workflow_id}/{command.attempt}"
    refs = await tools.trees.roll_back(trees, command.commits, command.to_base, rescue)
    for space in command.work_space_ids:
        await asyncio.to_thread(work_space.remove, tools.folders.space(briefing.general, space))
    return said_of(briefing, answer(command, answers.RolledBack, rescue_refs=refs))


async def release_work_tree(tools: Tools, briefing: Briefing[commands.ReleaseWorkTree]) -> Statement:
    """Remove a checkout; uncommitted files are kept under a rescue ref, commits on their branch."""
    command = briefing.command
    for tree in briefing.trees.values():
        await tools.trees.release(tree, f"{command.workflow_id}/release-{command.attempt}")
    if briefing.ended:
        await tools.folders.remove_run(command.workflow_id)
    return said_of(briefing, answer(command, answers.WorkTreeReleased))


ERRANDS: Mapping[type[commands.Command], Callable[[Tools, Any], Awaitable[Statement]]] = {
    commands.PrepareResources: prepare_resources,
    commands.StartAgent: start_agent,
    commands.SendQuery: send_query,
    commands.GenerateReport: generate_report,
    commands.VerifyWork: verify_work,
    commands.TakeCheckpoint: take_checkpoint,
    commands.RollBack: roll_back,
    commands.ReleaseWorkTree: release_work_tree,
}


def _lodging(tools: Tools, briefing: Briefing[Any], space: Path, trees: Sequence[Tree]) -> Lodging:
    given = {secret for server in briefing.mcp_servers for secret in secrets_in(server.env)}
    return Lodging(
        quarters=replace(tools.quarters, redaction=tools.quarters.redaction.knowing(given)),
        folders=tools.folders,
        trees=tools.trees,
        workflow_id=briefing.command.workflow_id,
        space=space,
        checkouts=tuple(trees),
        environment=tools.environment,
    )


async def _launch(
    tools: Tools, briefing: Briefing[commands.StartAgent], lodging: Lodging, stack: AsyncExitStack
) -> Launch:
    """Return how the agent of a Work is started; a session is named by its soldier and the agent's own name for it."""
    command = briefing.command
    token = command.session or ""
    soldier_id = soldier_of(token) or f"soldier-{int(time.time())}-{secrets.randbelow(10**6):06d}"
    voice = lodging.voice(tools.bus)
    meter = lodging.meter()
    if meter is not None:
        # Before the gate, so that nothing can be charged any more.
        stack.push_async_callback(say_rest, tools, command, meter)
    gate = await lodging.open_gate(soldier_id, voice, stack, meter)
    known = (GUIDE if voice else "", briefing.work.definition.instructions if briefing.work else "")
    return Launch(
        soldier_id=soldier_id,
        work_space=lodging.space,
        model=command.model,
        session=session_of(token) or None,
        transcript=tools.folders.transcript(soldier_id),
        errors=tools.folders.errors(soldier_id),
        environment=lodging.environment_inside(),
        mcp_servers=briefing.mcp_servers,
        instructions="\n\n".join(filter(None, known)),
        sandbox=lodging.sandbox(gate, await lodging.open_egress(stack)),
        voice=voice,
        redaction=lodging.redaction,
        meter=meter,
    )


def _message(briefing: Briefing[Any]) -> str:
    name = briefing.work.definition.name if briefing.work else "work"
    return f"{name}\n\nKingdom: {briefing.command.workflow_id}"
