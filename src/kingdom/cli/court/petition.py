"""`kingdom petition …`: list and show petitions."""

from typing import Annotated

import msgspec
import typer

from kingdom.actions.listings import newest_days
from kingdom.actions.petitions import (
    irreversible_effects,
    kept_petition_ids,
    to_listed_petition,
    to_petition_details,
    with_left_behind,
)
from kingdom.bus.app import Application
from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import RecordQuery, read_document
from kingdom.bus.worker.dispatcher import Dispatcher
from kingdom.cli.framework.command import CommandCall, Limit, command
from kingdom.cli.framework.json_result import array, one
from kingdom.cli.framework.workflow_ids import find_checkpoint, find_workflow
from kingdom.court import records
from kingdom.court.documents import Assignment
from kingdom.court.general.context import root_id_of, run_id_of_root
from kingdom.court.petitions.decision import PETITIONS, Petition, irreversible_petitions
from kingdom.court.petitions.records import petitions_of, read_petition
from kingdom.court.records import ASSIGNMENTS
from kingdom.court.streams import TOPOLOGY
from kingdom.errors import Ambiguous, NotFound
from kingdom.views.petitions import ListedPetition, PetitionDetails
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.records import KINDS, WORKFLOWS, each_record

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="List and show what agents asked for and what was done in outside systems.",
)
PETITIONS_APPLICATION = Application(
    topology=TOPOLOGY, dispatcher=Dispatcher(), kinds=(*KINDS, *records.KINDS, PETITIONS)
)
_BASE = "base"
# A table shows this many characters of the end of an id. At least _TAIL_MIN of them identify a petition.
_TAIL = 8
_TAIL_MIN = 6
_CANNOT_UNDO = "git cannot undo it"


@command(app, "list", result=array(ListedPetition))
async def list_(
    call: CommandCall,
    run: Annotated[
        str,
        typer.Argument(metavar="RUN|ASSIGNMENT", help="A run or assignment, by default all; `last` is the newest run."),
    ] = "",
    *,
    after: Annotated[
        str, typer.Option(metavar="base|CHECKPOINT", help="Only what a rollback to this checkpoint cannot undo.")
    ] = "",
    limit: Limit = 50,
) -> None:
    """List what agents asked for, in order: what was done in outside systems, when, where, and who approved it.

    Petitions of rolled back Works are marked, because git cannot undo their effects on external services.

    Example: kingdom petition list last

    Example: kingdom petition list task-20260207-001 --after w1-c1

    JSON: an array of {id, task_id, workflow_id, general, kind, target, state, reason, url, asked_at, expires_at,
    decided_by, decided_at, granted_at, ended_at, left_behind}.
    """
    if after and not run:
        raise typer.BadParameter("--after needs the run of the checkpoint.")
    async with call.bus(PETITIONS_APPLICATION, create=False) as bus:
        at_most = limit + 1
        found = await (_petitions_of_run(call, bus, run, after, at_most) if run else _all_petitions(call, bus, at_most))
    shown = found[-limit:]
    if call.output.json:
        call.output.document([to_listed_petition(petition, left_behind=left_behind) for petition, left_behind in shown])
    elif shown:
        columns = ("petition", "what", "where", "state", "when", "approved by", "")
        call.output.table(columns, [_row(petition, left_behind=left_behind) for petition, left_behind in shown])
        if len(found) > limit:
            call.output.note_older("petitions", limit)
    else:
        call.output.say("There are no petitions.")


@command(app, "show", result=one(PetitionDetails))
async def show(
    call: CommandCall,
    petition_id: Annotated[str, typer.Argument(metavar="PETITION", help="The id of a petition, or its end.")],
) -> None:
    """Show a petition with its content.

    Example: kingdom petition show 3f9a01bc

    JSON: the fields of `list`, with body, response and asked_as: [id].
    """
    async with call.bus(PETITIONS_APPLICATION, create=False) as bus, bus.transaction() as transaction:
        petition = await find_petition(transaction, petition_id)
        [(_, left_behind)] = await with_left_behind(transaction, [petition], call.note_unreadable)
    details = to_petition_details(petition, left_behind=left_behind)
    if call.output.json:
        call.output.document(details)
        return
    entry = msgspec.structs.asdict(details)
    rows = [(name.replace("_", " "), value) for name, value in entry.items() if value not in ("", None, (), {})]
    call.output.table(("petition", ""), [(name, _text(value)) for name, value in rows])


async def find_petition(transaction: Transaction, text: str) -> Petition:
    """Return a petition by its id or by the end of its id."""
    record = await transaction.get(PETITIONS.name, text)
    if record:
        return read_petition(record)
    if len(text) < _TAIL_MIN:
        raise NotFound(f"there is no petition {text!r}: write at least the last {_TAIL_MIN} characters of its id")
    found = [
        record
        async for record in each_record(transaction, RecordQuery(kind=PETITIONS.name))
        if record.id.endswith(text)
    ]
    if not found:
        raise NotFound(f"no petition ends in {text!r}: `kingdom petition list` shows all")
    if len(found) > 1:
        raise Ambiguous(f"{text!r} matches {', '.join(record.id for record in found)}: write more of the id")
    return read_petition(found[0])


async def note_irreversible_effects(call: CommandCall, bus: Bus, workflow: Workflow) -> None:
    """Print a note for each effect on an external service that the rollback of a run does not undo."""
    for words in await irreversible_effects(bus, workflow):
        call.output.note(words)


async def _petitions_of_run(
    call: CommandCall, bus: Bus, text: str, after: str, limit: int
) -> list[tuple[Petition, bool]]:
    async with bus.transaction() as transaction:
        record = await transaction.get(ASSIGNMENTS.name, root_id_of(text))
        root = read_document(record.doc, Assignment).root_id if record else root_id_of(text)
        petitions = await petitions_of(transaction, root)
        is_without_run = record is not None and await transaction.get(WORKFLOWS.name, run_id_of_root(root)) is None
        if not after and (petitions or is_without_run):
            return await with_left_behind(transaction, petitions[-limit:], call.note_unreadable)
    workflow = await find_workflow(bus, run_id_of_root(root) if record or petitions else text)
    async with bus.transaction() as transaction:
        petitions = await petitions_of(transaction, root_id_of(workflow.id))
        if not after:
            return await with_left_behind(transaction, petitions[-limit:], call.note_unreadable)
    point = None if after == _BASE else find_checkpoint(workflow, after).id
    return [
        (petition, True) for petition in irreversible_petitions(petitions, kept_petition_ids(workflow, point))[-limit:]
    ]


async def _all_petitions(call: CommandCall, bus: Bus, limit: int) -> list[tuple[Petition, bool]]:
    async with bus.transaction() as transaction:
        found = call.readable(await newest_days(transaction, PETITIONS, limit), Petition)
        newest = sorted(found, key=lambda petition: petition.created_at)[-limit:]
        return await with_left_behind(transaction, newest, call.note_unreadable)


def _row(petition: Petition, *, left_behind: bool) -> tuple[object, ...]:
    outcome_text = petition.reason or petition.response.get("url") or petition.response.get("message_id") or ""
    return (
        petition.id[-_TAIL:],
        petition.kind,
        petition.target,
        "awaits a person" if petition.awaits_person else petition.state,
        petition.ended_at or petition.granted_at or petition.created_at,
        None if petition.rejected else petition.decided_by or None,
        f"{outcome_text}\n{_CANNOT_UNDO}".strip() if left_behind else outcome_text,
    )


def _text(value: object) -> object:
    """Return a value for a table. An object becomes one line per field."""
    if isinstance(value, dict):
        return "\n".join(f"{name}: {each}" for name, each in value.items() if each not in ("", 0))
    return "\n".join(value) if isinstance(value, tuple) else value
