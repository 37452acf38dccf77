"""The page of a run: why it waits, its timeline, transcript, changes, effects and cost, and what a person can do."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
from aiohttp import web

from kingdom.actions.definitions import write_works
from kingdom.actions.petitions import kept_petition_ids
from kingdom.actions.runs import explain_state, next_commands
from kingdom.bus.port import Transaction
from kingdom.bus.record import read_documents
from kingdom.court.documents import Assignment
from kingdom.court.followups.records import followups_of
from kingdom.court.followups.summary import describe_followup, describe_rounds, summarize_followup
from kingdom.court.general.context import root_id_of
from kingdom.court.petitions.decision import Petition, irreversible_petitions
from kingdom.court.petitions.records import petitions_of
from kingdom.court.questions import QUESTIONS, HumanQuestion, QuestionStatus
from kingdom.court.records import ASSIGNMENTS
from kingdom.web.api.court import explain
from kingdom.web.pages.frame import PageFrame, html_response, open_page
from kingdom.web.pages.story import story_values
from kingdom.web.route import ApiCall
from kingdom.workflow.model.run.checkpoint import Checkpoint
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.records import WORKFLOWS, load_workflow

Tab = Literal["transcript", "changes", "reports", "outside", "cost", "story"]
TABS: dict[Tab, str] = {
    "transcript": "Transcript",
    "changes": "Changes",
    "reports": "Reports",
    "outside": "Outside effects",
    "cost": "Cost",
    "story": "Story",
}


class RunPageQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tab of a run to show, and the soldier whose transcript it shows."""

    tab: Tab = "transcript"
    soldier: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """A way to resume a run: the body of the request, its name and description, and what a rollback would not undo."""

    body: dict[str, object]
    name: str
    words: str
    irreversible: Sequence[Petition] = ()


async def show_run(call: ApiCall) -> web.Response:
    """Show a run."""
    query: RunPageQuery = call.query
    run_id = call.path["id"]
    async with open_page(call, "/runs") as page:
        # The question of a General's run has the id of its assignment.
        keys = [(WORKFLOWS.name, run_id), (QUESTIONS.name, root_id_of(run_id))]
        await page.transaction.read_ahead(keys)
        _, workflow = await load_workflow(page.transaction, run_id)
        question = await _open_question(page.transaction, workflow)
        petitions = await petitions_of(page.transaction, root_id_of(run_id)) if workflow.general else []
        return _render(page, workflow, question, petitions, query)


async def show_timeline(call: ApiCall) -> web.Response:
    """Return the timeline of a run as an HTML fragment."""
    return html_response("timeline-part.html", **story_values(await explain(call), call.context.clock()))


async def show_story(call: ApiCall) -> web.Response:
    """Return the story of a run, event or assignment as an HTML fragment."""
    return html_response("story.html", **story_values(await explain(call), call.context.clock()))


async def show_followups(call: ApiCall) -> web.Response:
    """Return the pull requests that a run opened or worked on as a part of a page."""
    run_id = call.path["id"]
    king = await asyncio.to_thread(call.context.king_context)
    async with call.context.bus.transaction() as transaction:
        record = await transaction.get(ASSIGNMENTS.name, root_id_of(run_id))
        root = next(read_documents([record] if record else [], Assignment), None)
        found = await followups_of(transaction, root) if root else []
    return html_response(
        "followups-part.html",
        run_id=run_id,
        visitor=call.visitor,
        followups=[summarize_followup(each, king.follow_policy) for each in found],
        describe_followup=describe_followup,
        describe_rounds=describe_rounds,
    )


def resume_points(workflow: Workflow, petitions: Sequence[Petition]) -> list[ResumePoint]:
    """Return the ways to resume a run. A General's run that asks people has none.

    The default of a failed run comes first, then the ways in the order of what they lose, the least first.
    """
    if "resume" not in next_commands(workflow) or (workflow.general and workflow.waits_for_people):
        return []
    points: list[ResumePoint] = []
    if not workflow.host_data_lost and workflow.question is None:
        words = "The agent continues in its session; nothing is rolled back."
        if workflow.status is WorkflowStatus.FAILED:
            points.append(ResumePoint(body={}, name="After the last checkpoint", words="Kingdom chooses where."))
        points.append(ResumePoint(body={"inSession": True}, name="In its session", words=words))
    points += [_rollback(workflow, petitions, checkpoint) for checkpoint in reversed(workflow.valid_checkpoints())]
    return [*points, _rollback(workflow, petitions, None)]


def _rollback(workflow: Workflow, petitions: Sequence[Petition], checkpoint: Checkpoint | None) -> ResumePoint:
    undone = ", ".join(work.definition.name for work in workflow.works_after(checkpoint) if work.has_started)
    words = f"Rolled back: {undone}." if undone else "Nothing is rolled back."
    kept = kept_petition_ids(workflow, checkpoint.id if checkpoint else None)
    left = irreversible_petitions(petitions, kept)
    if checkpoint is None:
        return ResumePoint(body={"fromBase": True}, name="From the base", words=words, irreversible=left)
    work = workflow.find_work(checkpoint.work_id)
    name = f"From the checkpoint after {work.definition.name if work else checkpoint.work_id}"
    return ResumePoint(body={"checkpoint": checkpoint.id}, name=name, words=words, irreversible=left)


async def _open_question(transaction: Transaction, workflow: Workflow) -> HumanQuestion | None:
    record = await transaction.get(QUESTIONS.name, root_id_of(workflow.id)) if workflow.general else None
    found = next(read_documents([record] if record else [], HumanQuestion), None)
    # A question about a followup is shown with the followup.
    is_shown = found and found.status is QuestionStatus.OPEN and not found.followup
    return found if is_shown else None


def _render(
    page: PageFrame,
    workflow: Workflow,
    question: HumanQuestion | None,
    petitions: Sequence[Petition],
    query: RunPageQuery,
) -> web.Response:
    return page.render(
        "run.html",
        run=workflow,
        root=root_id_of(workflow.id),
        why=explain_state(workflow),
        question=question,
        approval=next((each for each in petitions if each.awaits_person), None),
        petitions=sorted(petitions, key=lambda each: each.created_at),
        commands=next_commands(workflow),
        definition=write_works(workflow),
        points=resume_points(workflow, petitions),
        valid={point.id for point in workflow.valid_checkpoints()},
        tabs=TABS,
        query=query,
    )
