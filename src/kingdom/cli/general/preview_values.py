"""The values that a preview fills into the prompts of a General."""

from contextlib import suppress
from typing import Any

from kingdom.cli.framework.command import CommandCall
from kingdom.clock import utc_now
from kingdom.court.documents import Assignment, AssignmentStatus, EventStatus, ExternalEvent, Priority
from kingdom.court.king.routing import route_event
from kingdom.court.memory import load_memory
from kingdom.court.package import Package
from kingdom.court.prompt import PromptContext, PromptResults, needs_results, prompt_context
from kingdom.court.result_memory import load_prompt_results
from kingdom.errors import NotFound
from kingdom.workflow.model.resources.git import unique_name
from kingdom.workflow.reactions import engine
from kingdom.workflow.registry import git_finder


async def preview_context(
    call: CommandCall, package: Package, payload: dict[str, Any], repo: str, event_type: str
) -> PromptContext:
    """Return the values of the prompts for a made-up event: its fields, the General's memory and earlier results."""
    event = ExternalEvent(
        id="evt-demo-preview",
        type=event_type,
        source="demo",
        repo=repo or None,
        payload=payload,
        priority=Priority.NORMAL,
        created_at=utc_now(),
        status=EventStatus.PENDING,
    )
    choices = route_event(event, [package]).choices
    assignment = Assignment(
        id="task-preview",
        event_id=event.id,
        target_general=package.name,
        type=event.type,
        payload=payload,
        priority=event.priority,
        created_at=event.created_at,
        status=AssignmentStatus.PENDING,
        repo=event.repo,
        subject=choices[0].key if choices else "",
    )
    results = await _results_of(call, assignment, repo) if needs_results(package.template) else None
    memory = load_memory(package.directory, repo, package.general.memory)
    return prompt_context(assignment, event, repo=repo, memory=memory, results=results)


async def git_of(call: CommandCall, repo: str) -> str:
    """Return the id under which a repository is registered, or a suitable id if it is not registered yet."""
    with suppress(NotFound):
        async with call.bus(engine(), create=False) as bus, bus.transaction() as transaction:
            return (await git_finder(transaction))(repo)
    return unique_name(repo)


async def _results_of(call: CommandCall, assignment: Assignment, repo: str) -> PromptResults:
    """Return the earlier results in the store, or none if there is no store yet."""
    with suppress(NotFound):
        async with call.bus(engine(), create=False) as bus, bus.transaction() as transaction:
            return await load_prompt_results(transaction, assignment, repo)
    return PromptResults()
