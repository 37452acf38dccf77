"""A small realm with one item of each kind that the pages show."""

from datetime import datetime, timedelta
from typing import Any

from kingdom.bus import Bus, Record, Transaction
from kingdom.clock import utc_now
from kingdom.court.documents import FOLLOWUP, Assignment, AssignmentStatus, Priority
from kingdom.court.followups.records import Followup, FollowupState, RoundEntry, RoundReason, save_followup
from kingdom.court.petitions.approval import approval_question
from kingdom.court.petitions.decision import Petition
from kingdom.court.petitions.records import save_petition
from kingdom.court.questions import save_question
from kingdom.court.records import save
from kingdom.workflow.model.run.workflow import QuestionTopic, RunQuestion, Workflow
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.records import WORKFLOWS
from kingdom.workflow.template_file import read_template
from tests.integration.web.people import approval, question

TEMPLATE = """
name: Ticket
policy: {budgetUsd: 5}
works:
- name: plan
  tasks: [Read the ticket and write a plan.]
- name: build
  tasks: [Build what the plan says., Run the tests.]
"""
TITLE = "SHOP-1 · Write the currency next to each price"
ASKED, APPROVED = "task-20261118-001", "task-20261118-002"
# A followed pull request that APPROVED opened, and its newest round.
FOLLOWED, ROUND = "acme/shop#7", "task-20261118-004"
PETITION = f"{APPROVED}-3f9a01bc3f9a01bc3f9a01bc3f9a01bc"
RUNS = {
    "wf-task-20261118-001": (WorkflowStatus.AWAITING, "gen-ticket", ""),
    "wf-task-20261118-002": (WorkflowStatus.RUNNING, "gen-ticket", ""),
    "wf-task-20261118-003": (WorkflowStatus.PAUSED, "gen-fix", "anna@desk paused it"),
    "wf-task-20261118-004": (WorkflowStatus.COMPLETED, "gen-pr", ""),
    "wf-task-20261118-005": (WorkflowStatus.FAILED, "gen-ticket", "the budget of $5.00 is used up"),
    "wf-task-20261118-006": (WorkflowStatus.CANCELLED, "gen-pr", "a newer event replaced it"),
}
_ENDED = (WorkflowStatus.COMPLETED, WorkflowStatus.FAILED, WorkflowStatus.CANCELLED)


def make_run(run_id: str, status: WorkflowStatus, general: str, *, title: str, reason: str, at: datetime) -> Workflow:
    """Return a run as the store keeps it."""
    run = Workflow.copied_from(read_template(TEMPLATE, "ticket.yaml"), run_id, at, name=title, general=general)
    run.status, run.reason, run.started_at = status, reason, at + timedelta(seconds=20)
    run.works[0].cost_usd, run.works[0].started_at = 0.84, at + timedelta(seconds=30)
    if status in _ENDED:
        run.ended_at = at + timedelta(minutes=9)
    if status is WorkflowStatus.AWAITING:
        task = run.works[1].tasks[0].id
        text, choices = "Should prices without a currency default to EUR?", ("EUR", "USD")
        run.question = RunQuestion(task_id=task, text=text, choices=choices, topic=QuestionTopic.AGENT)
        run.reason = text
    return run


async def put_run(transaction: Transaction, run: Workflow) -> None:
    await transaction.put(Record(kind=WORKFLOWS.name, id=run.id, state=run.status, doc=run.document()))


async def fill_realm(
    bus: Bus,
    *,
    title: str = TITLE,
    text: str = "",
    kind: str = "github.pull_request",
    body: dict[str, Any] | None = None,
) -> None:
    """Store the realm. `title`, `text` and `body` are texts of strangers, and `kind` is the kind of the petition."""
    now = utc_now()
    async with bus.transaction() as transaction:
        for number, (run_id, (status, general, reason)) in enumerate(RUNS.items()):
            at = now - timedelta(minutes=7 + 11 * (len(RUNS) - number))
            await put_run(transaction, make_run(run_id, status, general, title=title, reason=reason or text, at=at))
        given: dict[str, Any] = {"event_id": "evt-1", "type": "jira.ticket.assigned", "repo": "acme/shop"}
        for task in (ASKED, APPROVED):
            document = Assignment(
                id=task,
                status=AssignmentStatus.NEEDS_HUMAN,
                target_general="gen-ticket",
                payload={"title": title, "number": 12},
                priority=Priority.NORMAL,
                created_at=now - timedelta(minutes=9),
                **given,
            )
            await save(transaction, document)
        wanted = text or "Should prices without a currency default to EUR?"
        await save_question(
            transaction,
            question(ASKED, general="gen-ticket", text=wanted, choices=("USD", "EUR"), default="EUR"),
        )
        petition = Petition(
            id=PETITION,
            root=APPROVED,
            general="gen-ticket",
            workflow_id=f"wf-{APPROVED}",
            kind=kind,
            target="acme/shop",
            created_at=now,
            body=body or {"title": title, "head": "kingdom/wf-2/shop", "base": "main", "body": "Adds the currency."},
        )
        await _store_followup(transaction, now, text or "all 5 rounds about reviews are used")
        await save_petition(transaction, petition, None)
        await save_question(transaction, approval(PETITION, approval_question(petition), general="gen-ticket"))


async def _store_followup(transaction: Transaction, now: datetime, reason: str) -> None:
    """Store a followup that asks a person for `reason`, and the assignment of its newest round."""
    newest = Assignment(
        id=ROUND,
        event_id="evt-1",
        target_general="gen-ticket",
        type=FOLLOWUP,
        payload={},
        priority=Priority.NORMAL,
        created_at=now,
        status=AssignmentStatus.COMPLETED,
        repo="acme/shop",
        subject=FOLLOWED,
    )
    await save(transaction, newest)
    followup = Followup(
        id=FOLLOWED,
        repo="acme/shop",
        number=7,
        branch="kingdom/wf-2/shop",
        base="main",
        general="gen-ticket",
        assignment_id=ROUND,
        workflow_id=f"wf-{ROUND}",
        head="a" * 40,
        created_at=now,
        ends_at=now + timedelta(days=14),
        state=FollowupState.WAITING,
        reason=reason,
        rounds={RoundReason.REVIEW: 5, RoundReason.CHECKS: 1},
        waiting=(RoundEntry(id="wait-1", reason=RoundReason.REVIEW),),
        cost_usd=1.25,
        opened_by=APPROVED,
    )
    await save_followup(transaction, followup, None)
