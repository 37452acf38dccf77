"""Start an assignment: create a run from its General's template, or resume a run with a person's answer."""

from pathlib import Path

import msgspec

from kingdom.bus.event import Event
from kingdom.bus.outcome import Outcome
from kingdom.bus.port import Transaction
from kingdom.chronicle.catalog import log_event
from kingdom.chronicle.events import AssignmentStarted
from kingdom.court.documents import FOLLOWUP, RESUME, Assignment, AssignmentStatus, ExternalEvent, title_of
from kingdom.court.followups.records import find_followup
from kingdom.court.followups.round_prompt import on_branch, round_template
from kingdom.court.general.assignment_end import end_assignment
from kingdom.court.general.context import COURT_REQUESTER, GeneralContext, run_id_of
from kingdom.court.general.side_files import write_prompts
from kingdom.court.memory import load_memory
from kingdom.court.package import GeneralPolicy, Package
from kingdom.court.prompt import needs_repo, needs_results, prompt_context, render_template
from kingdom.court.questions import REJECT
from kingdom.court.records import ASSIGNMENTS, EVENTS, load, save
from kingdom.court.result_memory import load_prompt_results
from kingdom.court.streams import AssignmentGiven, RetryDue
from kingdom.errors import IllegalTransition, Misconfigured, NotFound, Permanent, Transient
from kingdom.workflow import lifecycle
from kingdom.workflow.model.resources.git import Git, unique_name
from kingdom.workflow.model.resources.template import OverBudget, WorkflowTemplate
from kingdom.workflow.model.run.continuation import Continuation
from kingdom.workflow.model.run.workflow import QuestionTopic, Workflow
from kingdom.workflow.model.status import OPERATIONS, WORKFLOW, WorkflowStatus
from kingdom.workflow.model.steps.operations import Auto, Continue
from kingdom.workflow.records import load_resource, load_workflow
from kingdom.workflow.registry import git_finder
from kingdom.workflow.templates import with_base_branches


async def start_assignment(
    context: GeneralContext, received: Event[AssignmentGiven], transaction: Transaction
) -> Outcome | None:
    """Start an assignment. Defer it if it cannot start yet, and end it with the reason if it never can."""
    record, assignment = await load(transaction, Assignment, received.payload.assignment_id)
    if assignment.status is not AssignmentStatus.PENDING:
        return None
    package = context.packages().get(assignment.target_general)
    if package is None:
        return context.defer_without_package(received, assignment)
    now = context.clock()
    begun = msgspec.structs.replace(
        assignment, status=AssignmentStatus.IN_PROGRESS, started_at=now, workflow_id=run_id_of(assignment)
    )
    try:
        if assignment.type == RESUME:
            await _resume_run(transaction, begun)
        else:
            await _start_run(context, transaction, begun, package)
    except Transient as error:
        return context.defer(received, str(error))
    except (NotFound, Misconfigured, Permanent) as error:
        await save(transaction, begun, record)
        await log_event(transaction, AssignmentStarted(assignment_id=assignment.id), assignment.target_general)
        await end_assignment(context, transaction, assignment.root_id, AssignmentStatus.FAILED, str(error))
        return None
    await save(transaction, begun, record)
    await log_event(transaction, AssignmentStarted(assignment_id=assignment.id), assignment.target_general)
    return None


async def retry_assignment(
    context: GeneralContext, received: Event[RetryDue], transaction: Transaction
) -> Outcome | None:
    """Retry the run of an assignment. The first retry continues where it stopped, later ones at its last checkpoint."""
    _record, root = await load(transaction, Assignment, received.payload.assignment_id)
    _record, workflow = await load_workflow(transaction, run_id_of(root))
    if workflow.status is not WorkflowStatus.FAILED or root.status in ASSIGNMENTS.final:
        return None
    try:
        if root.retries > 1:
            await lifecycle.resume(transaction, workflow.id, Auto(), actor=root.target_general)
        else:
            # The first retry keeps the answers of people and the work of agents.
            await _continue_run(transaction, workflow, "", root.target_general)
    except Transient as error:
        return context.defer(received, str(error))
    except (NotFound, Misconfigured, Permanent) as error:
        await end_assignment(context, transaction, root.id, AssignmentStatus.FAILED, str(error), workflow)
    return None


async def _start_run(
    context: GeneralContext, transaction: Transaction, assignment: Assignment, package: Package
) -> None:
    is_round = assignment.type == FOLLOWUP
    chosen = round_template(package, assignment.payload) if is_round else package.template
    rendered = await _rendered_template(transaction, assignment, package, chosen)
    template = with_budget(rendered, assignment, package.general.policy)
    name = title_of(assignment.payload) or assignment.type
    general = assignment.target_general
    workflow = await lifecycle.run(
        transaction,
        template,
        run_id_of(assignment),
        actor=general,
        name=name,
        requester=COURT_REQUESTER,
        general=general,
        continuation=await _continuation(transaction, assignment, package) if is_round else None,
    )
    if context.directory:
        write_prompts(transaction, context.directory, assignment.root_id, workflow)


async def _resume_run(transaction: Transaction, assignment: Assignment) -> None:
    """Pass the answer of a person to the run that waits for it."""
    text = str(assignment.payload.get("text", ""))
    actor = assignment.target_general
    _, workflow = await load_workflow(transaction, run_id_of(assignment))
    if workflow.work_to_approve_id and text.strip().lower() == REJECT:
        await lifecycle.cancel(transaction, workflow.id, actor=actor, reason="a person rejected it")
        return
    if workflow.status not in OPERATIONS["resume"] | WORKFLOW.final:
        # The run was already resumed by hand.
        return
    asks_for_money = workflow.question is not None and workflow.question.topic is QuestionTopic.BUDGET
    try:
        await _continue_run(
            transaction, workflow, "" if workflow.work_to_approve_id else text, actor, grants=asks_for_money
        )
    except IllegalTransition as error:
        raise Permanent(f"the answer came too late: {error}") from error


async def _continue_run(
    transaction: Transaction, workflow: Workflow, reply: str, actor: str, *, grants: bool = False
) -> None:
    """Continue in the same session, or at the last checkpoint if the session is lost. `grants` adds another budget."""
    try:
        await lifecycle.resume(transaction, workflow.id, Continue(reply=reply), actor=actor, grants=grants)
    except IllegalTransition:
        await lifecycle.resume(transaction, workflow.id, Auto(), actor=actor, grants=grants)


def with_budget(template: WorkflowTemplate, assignment: Assignment, policy: GeneralPolicy) -> WorkflowTemplate:
    """Return the template with the smaller of its own budget and the amount reserved for the assignment."""
    budgets = [each for each in (template.policy.budget_usd, assignment.budget_usd) if each]
    stops = OverBudget.STOP in (template.policy.over_budget, policy.over_budget)
    limited = msgspec.structs.replace(
        template.policy,
        budget_usd=min(budgets, default=None),
        over_budget=OverBudget.STOP if stops else OverBudget.ASK,
    )
    return msgspec.structs.replace(template, policy=limited)


async def _continuation(transaction: Transaction, assignment: Assignment, package: Package) -> Continuation | None:
    """Return the run whose session a round continues, and the prompt for that session."""
    found = await find_followup(transaction, assignment.followup)
    if found is None:
        return None
    template = round_template(package, assignment.payload, same_session=True)
    rendered = await _rendered_template(transaction, assignment, package, template)
    return Continuation(
        workflow_id=assignment.payload["continues"],
        query=rendered.works[0].tasks[0].query,
        kept_until=found[1].ended_at or found[1].ends_at,
    )


async def _rendered_template(
    transaction: Transaction, assignment: Assignment, package: Package, template: WorkflowTemplate
) -> WorkflowTemplate:
    """Return a template of a General, rendered with the values of the assignment's event."""
    found = await transaction.get(EVENTS.name, assignment.cause_id)
    event = msgspec.convert(found.doc, ExternalEvent) if found else None
    repo = assignment.repo or package.general.default_repo or ""
    memory = load_memory(Path(package.directory), repo, package.general.memory)
    results = await load_prompt_results(transaction, assignment, repo) if needs_results(template) else None
    context = prompt_context(assignment, event, repo=repo, memory=memory, results=results)
    git_of = await git_finder(transaction) if needs_repo(template) else unique_name
    template = render_template(template, context, git_of)
    works = tuple(
        msgspec.structs.replace(work, timeout_seconds=work.timeout_seconds or package.general.timeout_seconds)
        for work in template.works
    )
    gits = [(await load_resource(transaction, Git, git_id))[1] for git_id in template.git_ids()]
    if assignment.type == FOLLOWUP:
        own = {git.id for git in gits if git.matches(repo)}
        template = on_branch(template, own, str(assignment.payload["branch"]))
    return with_base_branches(msgspec.structs.replace(template, works=works), gits)
