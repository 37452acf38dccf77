"""`kingdom assignment …`: what the King handed to Generals because of events."""

from typing import Annotated

import msgspec
import typer

from kingdom.bus.record import RecordQuery
from kingdom.cli.command import Call, Newest, command
from kingdom.cli.court import COURT
from kingdom.cli.shape import array, one
from kingdom.cli.workflow_id import meant_id
from kingdom.court.documents import Assignment, AssignmentStatus
from kingdom.court.records import ASSIGNMENTS, load
from kingdom.workflow.records import each

app = typer.Typer(no_args_is_help=True, add_completion=False, help="What the King handed to Generals: list, show.")


@command(app, "list", answer=array(Assignment))
async def list_(
    call: Call,
    *,
    status: Annotated[AssignmentStatus | None, typer.Option(help="Only those that have come so far.")] = None,
    general: Annotated[str, typer.Option(help="Only those of this General.")] = "",
    limit: Newest = 50,
) -> None:
    """Show assignments, the newest last.

    Example: kingdom assignment list --status failed

    JSON: an array of {id, event_id, target_general, type, payload, priority, created_at, status, repo, root, cause,
    workflow_id, retries, reason, budget_usd, cost_usd, started_at, ended_at}.
    """
    async with call.bus(COURT, create=False) as bus, bus.transaction() as transaction:
        records = [record async for record in each(transaction, RecordQuery(kind=ASSIGNMENTS.name, state=status))]
    found = [task for task in call.readable(records, Assignment) if general in ("", task.target_general)]
    shown = sorted(found, key=lambda task: task.turn)[-limit:]
    if call.output.json:
        call.output.document(shown)
    elif shown:
        columns = ("id", "general", "type", "status", "created", "why")
        call.output.table(columns, [_row(assignment) for assignment in shown])
    else:
        call.output.say("There is no such assignment. An event makes one: kingdom send --type TYPE")


@command(app, "show", answer=one(Assignment))
async def show(
    call: Call,
    task_id: Annotated[
        str, typer.Argument(metavar="TASK", help="The id of an assignment, or where it begins; `last` is the newest.")
    ],
) -> None:
    """Show an assignment as it is stored.

    Example: kingdom assignment show task-20260207-001

    JSON: as `list` answers it.
    """
    async with call.bus(COURT, create=False) as bus, bus.transaction() as transaction:
        _, assignment = await load(transaction, Assignment, await meant_id(transaction, ASSIGNMENTS, task_id))
    if call.output.json:
        call.output.document(assignment)
        return
    fields = msgspec.to_builtins(assignment)
    call.output.table(("assignment", ""), [(name.replace("_", " "), _text(value)) for name, value in fields.items()])
    call.output.say(f"The whole story: kingdom explain {assignment.id}")


def _row(assignment: Assignment) -> tuple[object, ...]:
    why = assignment.reason or None
    return (assignment.id, assignment.target_general, assignment.type, assignment.status, assignment.created_at, why)


def _text(value: object) -> object:
    return msgspec.json.encode(value).decode() if isinstance(value, dict | list) else value
