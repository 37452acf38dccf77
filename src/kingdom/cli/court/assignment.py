"""`kingdom assignment …`: list and show assignments."""

from typing import Annotated

import msgspec
import typer

from kingdom.actions.listings import newest_days
from kingdom.cli.court.declarations import COURT
from kingdom.cli.framework.command import CommandCall, Limit, command
from kingdom.cli.framework.json_result import array, one
from kingdom.cli.framework.workflow_ids import resolve_id
from kingdom.court.documents import Assignment, AssignmentStatus
from kingdom.court.records import ASSIGNMENTS, load

app = typer.Typer(no_args_is_help=True, add_completion=False, help="List and show what the King assigned to Generals.")


@command(app, "list", result=array(Assignment))
async def list_(
    call: CommandCall,
    *,
    status: Annotated[AssignmentStatus | None, typer.Option(help="Only assignments with this status.")] = None,
    general: Annotated[str, typer.Option(help="Only those of this General.")] = "",
    limit: Limit = 50,
) -> None:
    """List assignments, the newest last.

    Example: kingdom assignment list --status failed

    JSON: an array of {id, event_id, target_general, type, payload, priority, created_at, status, repo, root, cause,
    workflow_id, retries, reason, budget_usd, cost_usd, started_at, ended_at}.
    """
    async with call.bus(COURT, create=False) as bus, bus.transaction() as transaction:
        records = await newest_days(
            transaction,
            ASSIGNMENTS,
            limit + 1,
            state=status,
            is_wanted=lambda record: general in ("", record.doc.get("target_general")),
        )
    shown = sorted(call.readable(records, Assignment), key=lambda task: task.sort_key)[-limit:]
    if call.output.json:
        call.output.document(shown)
    elif shown:
        columns = ("id", "general", "type", "status", "created", "why")
        call.output.table(columns, [_row(assignment) for assignment in shown])
        if len(records) > limit:
            call.output.note_older("assignments", limit)
    else:
        call.output.say("There are no assignments that match. An event creates one: kingdom send --type TYPE")


@command(app, "show", result=one(Assignment))
async def show(
    call: CommandCall,
    task_id: Annotated[
        str,
        typer.Argument(metavar="ASSIGNMENT", help="The id of an assignment, or its beginning; `last` is the newest."),
    ],
) -> None:
    """Show an assignment.

    Example: kingdom assignment show task-20260207-001

    JSON: the fields of `list`.
    """
    async with call.bus(COURT, create=False) as bus, bus.transaction() as transaction:
        _, assignment = await load(transaction, Assignment, await resolve_id(transaction, ASSIGNMENTS, task_id))
    if call.output.json:
        call.output.document(assignment)
        return
    fields = msgspec.to_builtins(assignment)
    call.output.table(("assignment", ""), [(name.replace("_", " "), _text(value)) for name, value in fields.items()])
    call.output.say(f"Its timeline: kingdom explain {assignment.id}")


def _row(assignment: Assignment) -> tuple[object, ...]:
    why = assignment.reason or None
    return (assignment.id, assignment.target_general, assignment.type, assignment.status, assignment.created_at, why)


def _text(value: object) -> object:
    return msgspec.json.encode(value).decode() if isinstance(value, dict | list) else value
