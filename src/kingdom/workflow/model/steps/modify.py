"""Change the parts of a run that have not started: Works, Tasks, their order, repositories and MCP servers."""

import msgspec

from kingdom.errors import IllegalTransition, Misconfigured, NotFound
from kingdom.workflow.model.messages.events import (
    WorkflowGitRefsUpdated,
    WorkflowMcpServerRefsUpdated,
    WorkflowWorksUpdated,
    WorkTreePendingRelease,
)
from kingdom.workflow.model.references import GitRef, McpServerRef, added_and_removed, refuse_duplicates
from kingdom.workflow.model.resources.template import WorkDefinition
from kingdom.workflow.model.run.work import Work
from kingdom.workflow.model.run.work_tree import WorkTree
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import CheckpointStatus, QueryStatus, WorkflowStatus, WorkStatus, WorkTreeStatus
from kingdom.workflow.model.steps.proceed import proceed
from kingdom.workflow.model.steps.step import Step
from kingdom.workflow.model.steps.stopping import release_tree

# The fields of a Work's definition that can change after the Work has started.
_CHANGEABLE = ("tasks", "verify", "pause_after", "timeout_seconds")


class WorkChange(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The new definition of an existing Work, or the definition of a new Work, which has no id yet."""

    id: str | None = None
    definition: WorkDefinition


class Modification(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The new lists of a run; None leaves a list unchanged.

    `works` is the complete list in its new order. A Work that is not in the list is removed.
    """

    works: tuple[WorkChange, ...] | None = None
    git_refs: tuple[GitRef, ...] | None = None
    mcp_server_refs: tuple[McpServerRef, ...] | None = None


def modify(step: Step, change: Modification) -> None:
    """Change the parts of a run that have not started. A refused change changes nothing."""
    workflow = step.workflow
    workflow.require_allowed("modify")
    refuse_duplicates(change.git_refs or (), change.mcp_server_refs or ())
    if change.works is not None:
        _check_works(workflow, change.works)
    gits, servers = workflow.all_git_refs(), workflow.all_mcp_server_refs()
    refs_in_use = _refs_in_use(workflow)
    if change.works is not None:
        _change_works(step, change.works)
    if change.git_refs is not None:
        workflow.git_refs = change.git_refs
    if change.mcp_server_refs is not None:
        workflow.mcp_server_refs = change.mcp_server_refs
    added_servers, removed_servers = added_and_removed(servers, workflow.all_mcp_server_refs())
    if added_servers or removed_servers:
        step.emit(
            WorkflowMcpServerRefsUpdated(
                workflow_id=workflow.id,
                added_refs=tuple(ref.mcp_server_id for ref in added_servers),
                removed_refs=tuple(ref.mcp_server_id for ref in removed_servers),
            )
        )
    added, removed = added_and_removed(gits, workflow.all_git_refs())
    if added or removed:
        step.emit(WorkflowGitRefsUpdated(workflow_id=workflow.id, added_refs=added, removed_refs=removed))
        _change_trees(step, added, removed, refs_in_use)
    proceed(step)


def _check_works(workflow: Workflow, changes: tuple[WorkChange, ...]) -> None:
    if not changes:
        raise Misconfigured(f"workflow {workflow.id} needs at least one work")
    known = {work.id: work for work in workflow.works}
    named = [change.id for change in changes if change.id is not None]
    if unknown := sorted(set(named) - known.keys()):
        raise NotFound(f"workflow {workflow.id} has no work {', '.join(unknown)}; it has: {', '.join(known)}")
    if len(named) != len(set(named)):
        raise Misconfigured(f"a work of workflow {workflow.id} is named twice in the new list")
    started = [work for work in workflow.works if work.has_started]
    if [change.id for change in changes[: len(started)]] != [work.id for work in started]:
        raise _refusal(workflow, started[-1], "a work that has started keeps its place")
    for work, change in zip(started, changes, strict=False):
        if change.definition != work.definition:
            _check_started(workflow, work, change.definition)


def _check_started(workflow: Workflow, work: Work, wanted: WorkDefinition) -> None:
    """Refuse most changes of a started Work.

    Only its open Tasks, its checks, its time limit and the pause after it can change. The run must not be running, and
    the Work must not be completed.
    """
    if workflow.status is WorkflowStatus.RUNNING or work.status is WorkStatus.COMPLETED:
        raise _refusal(workflow, work, "a work that has started cannot be changed")
    kept = {name: getattr(work.definition, name) for name in _CHANGEABLE}
    if msgspec.structs.replace(wanted, **kept) != work.definition:
        raise _refusal(workflow, work, "its name, instructions, model, repositories and MCP servers cannot change")
    open_tasks = {QueryStatus.PENDING, QueryStatus.FAILED}
    started = tuple(task.definition for task in work.tasks if task.query.status not in open_tasks)
    if wanted.tasks[: len(started)] != started:
        raise _refusal(workflow, work, f"its first {len(started)} tasks have started and cannot change")


def _refusal(workflow: Workflow, work: Work, refusal: str) -> IllegalTransition:
    return IllegalTransition(
        f"work {work.id} of workflow {workflow.id}", work.status, refusal, ("change what has not started",)
    )


def _change_works(step: Step, changes: tuple[WorkChange, ...]) -> None:
    workflow = step.workflow
    before = {work.id: work for work in workflow.works}
    order = list(before)
    changed: list[str] = []
    works: list[Work] = []
    for change in changes:
        work = workflow.new_work(change.definition) if change.id is None else before[change.id]
        if work.definition != change.definition:
            _redefine(work, change.definition)
            changed.append(work.id)
        works.append(work)
    workflow.works = works
    after = [work.id for work in works]
    added = tuple(work_id for work_id in after if work_id not in before)
    removed = tuple(work_id for work_id in order if work_id not in after)
    workflow.removed_cost_usd += sum(before[work_id].cost_usd for work_id in removed)
    if added or removed or changed or after != order:
        step.emit(
            WorkflowWorksUpdated(
                workflow_id=workflow.id, added_work_ids=added, removed_work_ids=removed, changed_work_ids=tuple(changed)
            )
        )


def _redefine(work: Work, definition: WorkDefinition) -> None:
    """Give a Work a new definition. Unchanged Tasks keep their ids."""
    unused = list(work.tasks)
    work.definition = definition
    work.tasks = []
    for wanted in definition.tasks:
        same = next((task for task in unused if task.definition == wanted), None)
        if same:
            unused.remove(same)
            work.tasks.append(same)
        else:
            work.add_task(wanted)


def _refs_in_use(workflow: Workflow) -> tuple[GitRef, ...]:
    """Return the repositories that must stay until the run ends, because a Work in progress uses them."""
    if workflow.status is WorkflowStatus.FAILED:
        return ()
    if any(work.checkpointing.status is CheckpointStatus.TAKING for work in workflow.works):
        # A checkpoint covers the checkouts of all Works.
        return workflow.all_git_refs()
    works = (work for work in workflow.works if work.has_started and not work.is_finished)
    return tuple(ref for work in works for ref in workflow.git_refs_of(work.definition))


def _change_trees(
    step: Step, added: tuple[GitRef, ...], removed: tuple[GitRef, ...], refs_in_use: tuple[GitRef, ...]
) -> None:
    workflow = step.workflow
    for tree in workflow.work_trees:
        if tree.is_wanted and tree.ref in removed:
            # No agent uses a checkout that is still being created.
            is_unused = tree.ref not in refs_in_use or tree.status is WorkTreeStatus.CREATING
            _discard_tree(step, tree, at_once=is_unused)
    for ref in added:
        kept = next((tree for tree in workflow.work_trees if tree.ref == ref and _is_intact(tree)), None)
        if kept:
            step.transition(kept, WorkTreeStatus.READY, kept.id)
        else:
            workflow.add_tree(ref)
    if added and workflow.status is WorkflowStatus.READY:
        step.set_status(WorkflowStatus.PREPARING)


def _is_intact(tree: WorkTree) -> bool:
    """Return whether an unwanted checkout can be used again. A checkout whose release failed may be incomplete."""
    return tree.status is WorkTreeStatus.PENDING_RELEASE and not tree.releasing and not tree.error


def _discard_tree(step: Step, tree: WorkTree, *, at_once: bool) -> None:
    """Release a checkout at once, or mark it for release at the end of the run."""
    if not tree.may_exist:
        step.transition(tree, WorkTreeStatus.RELEASED, tree.id)
        return
    step.transition(tree, WorkTreeStatus.PENDING_RELEASE, tree.id)
    step.emit(WorkTreePendingRelease(work_tree_id=tree.id, workflow_id=step.workflow.id, git_id=tree.ref.git_id))
    if at_once:
        release_tree(step, tree)
