"""Runs: list, show, pause, resume, modify and cancel."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec

from kingdom.access.acts import act_in_transaction
from kingdom.actions.definitions import change_works
from kingdom.actions.hosts import host_of
from kingdom.actions.listings import newest_runs, runs_of_general
from kingdom.actions.runs import choose_resumption, to_details, without_env
from kingdom.bus.log import LogCursor
from kingdom.bus.port import Transaction
from kingdom.court.questions import QuestionStatus, load_question
from kingdom.errors import MalformedRequest
from kingdom.views.camel import to_json_object
from kingdom.views.workflows import CheckpointDetails, WorkflowDetails
from kingdom.web.route import ApiCall, Page, PageQuery, part_of
from kingdom.workflow import lifecycle
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.records import load_workflow


class RunsQuery(PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Which runs to list. `status` can be repeated."""

    status: tuple[WorkflowStatus, ...] = ()
    general: str = ""


class ResumeRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """From where a run resumes: at most one field is set. If none is set, Kingdom chooses."""

    checkpoint: str | None = None
    from_base: bool = False
    in_session: bool = False
    reply: str | None = None


class ModifyRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The works of a run as YAML, as `kingdom workflow definition` prints them, without their resources.

    A work with an `id` is kept, a work without an `id` is new, and a missing work is removed.
    """

    definition: Annotated[str, msgspec.Meta(max_length=200_000)]


async def list_runs(call: ApiCall) -> Page[Workflow]:
    """List runs, the newest first. A page can have fewer items than `limit`, even if more pages follow."""
    query: RunsQuery = call.query
    async with call.context.bus.transaction() as transaction:
        page = await newest_runs(transaction, query.status, after=query.after, limit=query.limit)
    items = [without_env(run) for run in runs_of_general(page.records, query.general)]
    return Page(items=items, next=page.next)


async def show_run(call: ApiCall) -> WorkflowDetails:
    """Show a run: its state and the reason, works, tasks, checkouts, checkpoints, and the allowed commands."""
    workflow = await lifecycle.show(call.context.bus, call.path["id"])
    return to_details(without_env(workflow), await host_of(call.context.bus, workflow))


async def list_checkpoints(call: ApiCall) -> Page[CheckpointDetails]:
    """List the checkpoints of a run, and which of them are still valid."""
    workflow = await lifecycle.show(call.context.bus, call.path["id"])
    valid = {point.id for point in workflow.valid_checkpoints()}
    items = [CheckpointDetails(**msgspec.structs.asdict(each), valid=each.id in valid) for each in workflow.checkpoints]
    return part_of(items, lambda point: f"{point.created_at.isoformat()} {point.id}", call.query)


async def list_log(call: ApiCall) -> Page[Any]:
    """List entries of the log in transaction order, without gaps or duplicates."""
    return await _log_page(call, None)


async def list_run_log(call: ApiCall) -> Page[Any]:
    """List the log entries of a run in transaction order."""
    return await _log_page(call, call.path["id"])


async def post_run_pause(call: ApiCall) -> Any:
    """Pause a run as soon as its host confirms that nothing is running; its session can continue later."""
    return await _operate(call, "pause", lifecycle.pause)


async def post_run_cancel(call: ApiCall) -> Any:
    """Cancel a run: its agent is interrupted, and its commits stay on their branches."""
    return await _operate(call, "cancel", lifecycle.cancel)


async def post_run_resume(call: ApiCall) -> Any:
    """Resume a run: a paused run in its session, a failed run after its last valid checkpoint."""
    given: ResumeRun = call.body
    if sum((given.checkpoint is not None, given.from_base, given.in_session or given.reply is not None)) > 1:
        raise MalformedRequest("choose one of checkpoint, fromBase, inSession and reply")

    async def resume(transaction: Transaction, workflow_id: str, *, actor: str) -> Workflow:
        _, workflow = await load_workflow(transaction, workflow_id)
        await _refuse_if_people_answer(transaction, workflow, given)
        how = choose_resumption(
            workflow,
            checkpoint_id=given.checkpoint,
            from_base=given.from_base,
            in_session=given.in_session,
            reply=given.reply,
        )
        return await lifecycle.resume(transaction, workflow_id, how, actor=actor)

    return await _operate(call, "resume", resume)


async def post_run_modify(call: ApiCall) -> Any:
    """Change what has not started: works, their order, tasks and checks. Repositories and MCP servers stay."""
    given: ModifyRun = call.body

    async def modify(transaction: Transaction, workflow_id: str, *, actor: str) -> Workflow:
        _, workflow = await load_workflow(transaction, workflow_id)
        return await lifecycle.modify(transaction, workflow_id, change_works(workflow, given.definition), actor=actor)

    return await _operate(call, "modify", modify)


async def _refuse_if_people_answer(transaction: Transaction, workflow: Workflow, given: ResumeRun) -> None:
    """Refuse to resume a run whose General asks people. Only a person with the right to answer may answer or approve.

    The General may not have asked yet, so a question that is stored is not the only sign.
    """
    question_id, general = workflow.assignment_id, workflow.general
    if not question_id:
        return
    found = await load_question(transaction, question_id)
    if found and found[1].status is QuestionStatus.OPEN and not found[1].followup:
        raise MalformedRequest(f"{general} asks people: answer with POST /api/v1/questions/{question_id}/answer")
    if workflow.waits_for_people:
        raise MalformedRequest(
            f"{general} asks people: answer its question when GET /api/v1/questions has it. If it is already answered,"
            " the King resumes the run as soon as budget and health allow it"
        )
    if given.reply and workflow.question:
        raise MalformedRequest(f"{general} asks people, so leave out `reply`: resume with `inSession` or a checkpoint")


async def _operate(call: ApiCall, verb: str, operation: Callable[..., Awaitable[Workflow]]) -> Any:
    workflow_id = call.path["id"]

    async def perform(transaction: Transaction) -> Workflow:
        _, workflow = await load_workflow(transaction, workflow_id)
        call.visitor.require_general(workflow.general)
        return without_env(await operation(transaction, workflow_id, actor=call.visitor.actor))

    return await act_in_transaction(call.context.bus, call.act(verb, workflow_id, "workflow"), perform)


async def _log_page(call: ApiCall, about: str | None) -> Page[Any]:
    query: PageQuery = call.query
    try:
        cursor = LogCursor.parse(query.after) if query.after else LogCursor()
    except ValueError as error:
        raise MalformedRequest(f"{query.after!r} is not a cursor: use `next` of the previous page") from error
    found = await call.context.operations.read_log(cursor, query.limit, about)
    items = [{"cursor": str(logged.cursor), **to_json_object(logged.entry)} for logged in found]
    # The log grows, so even the last page has a cursor, with which the client continues later.
    return Page(items=items, next=str(found[-1].cursor) if found else query.after or None)
