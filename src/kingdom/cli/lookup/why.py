"""`kingdom why`: show where an event is and why it waits there."""

import typer

from kingdom.cli.court.declarations import COURT, EventId, Rules, king_context_of
from kingdom.cli.framework.command import CommandCall, command
from kingdom.cli.framework.json_result import one
from kingdom.cli.framework.output import format_cell
from kingdom.cli.framework.workflow_ids import resolve_id
from kingdom.clock import utc_now
from kingdom.court.king.why import AHEAD_MAX, EventExplanation, WaitReason, explain_event
from kingdom.court.records import EVENTS

app = typer.Typer(add_completion=False)


@command(app, "why", result=one(EventExplanation))
async def why(call: CommandCall, event_id: EventId, *, rules: Rules = "") -> None:
    """Show where an event is: which Generals get it and why, what it waits for, and its result.

    Example: kingdom why last

    JSON: {event, standing, considered: [{rule, general, chosen, reason}], waits: [{general, rule, priority, since,
    line, held_by, ahead}], assignments: [{task_id, general, type, status, reason, workflow_id}]}.
    """
    king = king_context_of(call, rules)
    async with call.bus(COURT, create=False) as bus, bus.transaction() as transaction:
        event_id = await resolve_id(transaction, EVENTS, event_id)
        explanation = await explain_event(transaction, event_id, utc_now(), king, call.note_unreadable)
    if call.output.json:
        call.output.document(explanation)
        return
    event = explanation.event
    call.output.say(f"{event.id}: {event.type}{f' in {event.repo}' if event.repo else ''}. {explanation.status_text}")
    _print_details(call, explanation)


def _print_details(call: CommandCall, explanation: EventExplanation) -> None:
    for wait in explanation.waits:
        call.output.say(f"For {wait.general} since {format_cell(wait.since)}: {_wait_text(wait)}")
    if explanation.assignments:
        columns = ("assignment", "general", "type", "status", "reason")
        rows = [
            (each.assignment_id, each.general, each.type, each.status, each.reason) for each in explanation.assignments
        ]
        call.output.table(columns, rows)
    if explanation.considered:
        rows_considered = [(each.rule, "yes" if each.chosen else "no", each.reason) for each in explanation.considered]
        call.output.table(("rule", "gets it", "why"), rows_considered)


def _wait_text(wait: WaitReason) -> str:
    ahead = f"{wait.ahead}{'+' if wait.ahead >= AHEAD_MAX else ''}"
    return f"{wait.held_by}; {ahead} ahead of it in the queue {wait.line!r}."
