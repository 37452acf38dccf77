"""A General takes an assignment on: a run is made from its template, or goes on with what a person answered."""

from pathlib import Path

import msgspec

from kingdom.bus.event import Event
from kingdom.bus.outcome import Outcome
from kingdom.bus.port import Transaction
from kingdom.chronicle.catalogue import chronicle
from kingdom.chronicle.events import TaskStarted
from kingdom.court.asks import REJECT
from kingdom.court.documents import RESUME, Assignment, AssignmentStatus, ExternalEvent
from kingdom.court.general.ending import end
from kingdom.court.general.side_files import keep_prompts
from kingdom.court.general.staff import ASKER, Staff, run_of
from kingdom.court.memory import load_memory
from kingdom.court.package import Package, Policy
from kingdom.court.prompt import context_of, needs_repo, render_template
from kingdom.court.records import ASSIGNMENTS, EVENTS, load, save
from kingdom.court.streams import AssignmentGiven, RetryDue
from kingdom.errors import IllegalTransition, Misconfigured, NotFound, Permanent, Transient
from kingdom.workflow import lifecycle
from kingdom.workflow.model.git import Git, unique_name
from kingdom.workflow.model.machine import OPERATIONS, WORKFLOW, WorkflowStatus
from kingdom.workflow.model.operations import Auto, Continue
from kingdom.workflow.model.template import OverBudget, WorkflowTemplate
from kingdom.workflow.model.workflow import About, Workflow
from kingdom.workflow.records import load as load_thing
from kingdom.workflow.records import load_workflow
from kingdom.workflow.registry import git_finder
from kingdom.workflow.templates import with_base_branches


async def take_on(staff: Staff, received: Event[AssignmentGiven], transaction: Transaction) -> Outcome | None:
    """Begin what an assignment asks for; what cannot begin yet waits, what never can ends with the reason."""
    record, assignment = await load(transaction, Assignment, received.payload.task_id)
    if assignment.status is not AssignmentStatus.PENDING:
        return None
    package = staff.packages().get(assignment.target_general)
    if package is None:
        return staff.without_package(received, assignment)
    now = staff.clock()
    begun = msgspec.structs.replace(
        assignment, status=AssignmentStatus.IN_PROGRESS, started_at=now, workflow_id=run_of(assignment)
    )
    try:
        if assignment.type == RESUME:
            await _go_on(transaction, begun)
        else:
            await _begin(staff, transaction, begun, package)
    except Transient as error:
        return staff.look_again(received, str(error))
    except (NotFound, Misconfigured, Permanent) as error:
        await save(transaction, begun, record)
        await chronicle(transaction, TaskStarted(task_id=assignment.id), assignment.target_general)
        await end(staff, transaction, assignment.root_id, AssignmentStatus.FAILED, str(error))
        return None
    await save(transaction, begun, record)
    await chronicle(transaction, TaskStarted(task_id=assignment.id), assignment.target_general)
    return None


async def try_again(staff: Staff, received: Event[RetryDue], transaction: Transaction) -> Outcome | None:
    """Let the run of an assignment go on, at first where it stopped and then behind its last checkpoint."""
    _record, root = await load(transaction, Assignment, received.payload.task_id)
    _record, workflow = await load_workflow(transaction, run_of(root))
    if workflow.status is not WorkflowStatus.FAILED or root.status in ASSIGNMENTS.final:
        return None
    try:
        if root.retries > 1:
            await lifecycle.resume(transaction, workflow.id, Auto(), actor=root.target_general)
        else:
            # What a person answered and an agent has done is kept, unless that fails again.
            await _continue(transaction, workflow, "", root.target_general)
    except Transient as error:
        return staff.look_again(received, str(error))
    except (NotFound, Misconfigured, Permanent) as error:
        await end(staff, transaction, root.id, AssignmentStatus.FAILED, str(error), workflow)
    return None


async def _begin(staff: Staff, transaction: Transaction, assignment: Assignment, package: Package) -> None:
    rendered = await _rendered(transaction, assignment, package)
    template = with_budget(rendered, assignment, package.general.policy)
    name = f"{assignment.type} {assignment.id}"
    general = assignment.target_general
    workflow = await lifecycle.run(
        transaction, template, run_of(assignment), actor=general, name=name, asker=ASKER, general=general
    )
    if staff.directory:
        keep_prompts(transaction, staff.directory, assignment.root_id, workflow)


async def _go_on(transaction: Transaction, assignment: Assignment) -> None:
    """Hand what a person said to the run that waits for it."""
    text = str(assignment.payload.get("text", ""))
    actor = assignment.target_general
    _, workflow = await load_workflow(transaction, run_of(assignment))
    if workflow.gate and text.strip().lower() == REJECT:
        await lifecycle.cancel(transaction, workflow.id, actor=actor, reason="a person rejected it")
        return
    if workflow.status not in OPERATIONS["resume"] | WORKFLOW.final:
        # Somebody let it go on by hand, before this answer came.
        return
    asks_for_money = workflow.question is not None and workflow.question.about is About.BUDGET
    try:
        await _continue(transaction, workflow, "" if workflow.gate else text, actor, grants=asks_for_money)
    except IllegalTransition as error:
        raise Permanent(f"the answer came too late: {error}") from error


async def _continue(
    transaction: Transaction, workflow: Workflow, reply: str, actor: str, *, grants: bool = False
) -> None:
    """Go on in the session that there is; where it is lost with its host, behind the last checkpoint."""
    try:
        await lifecycle.resume(transaction, workflow.id, Continue(reply=reply), actor=actor, grants=grants)
    except IllegalTransition:
        await lifecycle.resume(transaction, workflow.id, Auto(), actor=actor, grants=grants)


def with_budget(template: WorkflowTemplate, assignment: Assignment, policy: Policy) -> WorkflowTemplate:
    """Return a template whose run may cost no more than was set aside for it, nor than it says itself."""
    budgets = [each for each in (template.policy.budget_usd, assignment.budget_usd) if each]
    stops = OverBudget.STOP in (template.policy.over_budget, policy.over_budget)
    limited = msgspec.structs.replace(
        template.policy,
        budget_usd=min(budgets, default=None),
        over_budget=OverBudget.STOP if stops else OverBudget.ASK,
    )
    return msgspec.structs.replace(template, policy=limited)


async def _rendered(transaction: Transaction, assignment: Assignment, package: Package) -> WorkflowTemplate:
    """Return the template of a General with the values of an event in its prompts."""
    found = await transaction.get(EVENTS.name, assignment.cause_id)
    event = msgspec.convert(found.doc, ExternalEvent) if found else None
    repo = assignment.repo or package.general.default_repo or ""
    memory = load_memory(Path(package.directory), repo, package.general.memory)
    context = context_of(assignment, event, repo=repo, memory=memory)
    git_of = await git_finder(transaction) if needs_repo(package.template) else unique_name
    template = render_template(package.template, context, git_of)
    works = tuple(
        msgspec.structs.replace(work, timeout_seconds=work.timeout_seconds or package.general.timeout_seconds)
        for work in template.works
    )
    gits = [(await load_thing(transaction, Git, git_id))[1] for git_id in template.git_ids()]
    return with_base_branches(msgspec.structs.replace(template, works=works), gits)
