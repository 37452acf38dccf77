"""`kingdom petition …`: the ledger of what left the house, and of what was not let out."""

from datetime import datetime
from typing import Annotated, Any

import msgspec
import typer

from kingdom.bus.app import Application
from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import RecordQuery, read_document
from kingdom.bus.worker.dispatcher import Dispatcher
from kingdom.cli.command import Call, Newest, command
from kingdom.cli.shape import array, one
from kingdom.cli.workflow_id import find_checkpoint, find_workflow
from kingdom.court import records
from kingdom.court.documents import Assignment
from kingdom.court.general.staff import root_of, run_of_root
from kingdom.court.petitions.decision import PETITIONS, Petition, PetitionState, left_behind
from kingdom.court.petitions.records import petitions_of, read
from kingdom.court.records import ASSIGNMENTS
from kingdom.court.streams import TOPOLOGY
from kingdom.errors import Ambiguous, NotFound
from kingdom.workflow.model.workflow import Workflow
from kingdom.workflow.records import KINDS, WORKFLOWS, each

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="What agents asked for and what left the house: list, show.",
)
LEDGER = Application(topology=TOPOLOGY, dispatcher=Dispatcher(), kinds=(*KINDS, *records.KINDS, PETITIONS))
_BASE = "base"
# So much of the end of an id is shown in a table, and so much is enough to name a petition.
_TAIL = 8
_TAIL_MIN = 6
_STAYS = "git cannot undo it"


class ListedPetition(msgspec.Struct, frozen=True, kw_only=True):
    """A petition; it is `left_behind` where its run has gone back behind it, which git cannot undo outside."""

    id: str
    task_id: str
    workflow_id: str
    general: str
    kind: str
    target: str
    state: PetitionState
    reason: str
    url: str
    asked_at: datetime
    expires_at: datetime | None
    decided_by: str
    decided_at: datetime | None
    granted_at: datetime | None
    ended_at: datetime | None
    left_behind: bool


class ShownPetition(ListedPetition, frozen=True, kw_only=True):
    """A petition with its words, what came back from outside, and the ids under which agents asked for it."""

    body: dict[str, Any]
    response: dict[str, Any]
    asked_as: tuple[str, ...]


@command(app, "list", answer=array(ListedPetition))
async def list_(
    call: Call,
    run: Annotated[
        str, typer.Argument(metavar="RUN|TASK", help="A run or an assignment; `last` is the newest run, else all.")
    ] = "",
    *,
    after: Annotated[
        str, typer.Option(metavar="base|CHECKPOINT", help="Only what a return to this point could not undo.")
    ] = "",
    limit: Newest = 50,
) -> None:
    """Show what agents asked for, in its order: what left the house, when, where to, and who agreed.

    What a run has gone back behind stays outside all the same, and is marked: git cannot undo it.

    Example: kingdom petition list last

    Example: kingdom petition list task-20260207-001 --after w1-c1

    JSON: an array of {id, task_id, workflow_id, general, kind, target, state, reason, url, asked_at, expires_at,
    decided_by, decided_at, granted_at, ended_at, left_behind}.
    """
    if after and not run:
        raise typer.BadParameter("--after needs the run whose checkpoint it is.")
    async with call.bus(LEDGER, create=False) as bus:
        shown = await (_of_run(call, bus, run, after, limit) if run else _of_all(call, bus, limit))
    if call.output.json:
        call.output.document([ListedPetition(**_fields(petition, stays=stays)) for petition, stays in shown])
    elif shown:
        columns = ("petition", "what", "where", "state", "when", "agreed", "")
        call.output.table(columns, [_row(petition, stays=stays) for petition, stays in shown])
    else:
        call.output.say("Nothing was asked for.")


@command(app, "show", answer=one(ShownPetition))
async def show(
    call: Call,
    petition_id: Annotated[str, typer.Argument(metavar="PETITION", help="Its id, or where that ends.")],
) -> None:
    """Show all that is known of a petition, with its words.

    Example: kingdom petition show 3f9a01bc

    JSON: as `list` answers it, with body, response and asked_as: [id].
    """
    async with call.bus(LEDGER, create=False) as bus, bus.transaction() as transaction:
        petition = await find_petition(transaction, petition_id)
        [(_, stays)] = await _marked(call, transaction, [petition])
    entry = _fields(petition, stays=stays)
    entry |= {"body": petition.body, "response": petition.response, "asked_as": petition.asked_as}
    if call.output.json:
        call.output.document(ShownPetition(**entry))
        return
    rows = [(name.replace("_", " "), value) for name, value in entry.items() if value not in ("", None, (), {})]
    call.output.table(("petition", ""), [(name, _text(value)) for name, value in rows])


async def find_petition(transaction: Transaction, text: str) -> Petition:
    """Return the petition that somebody means, by its id or by enough of its end."""
    record = await transaction.get(PETITIONS.name, text)
    if record:
        return read(record)
    if len(text) < _TAIL_MIN:
        raise NotFound(f"there is no petition {text!r}: write at least {_TAIL_MIN} letters of the end of its id")
    found = [record async for record in each(transaction, RecordQuery(kind=PETITIONS.name)) if record.id.endswith(text)]
    if not found:
        raise NotFound(f"no petition ends in {text!r}: `kingdom petition list` shows those there are")
    if len(found) > 1:
        raise Ambiguous(f"{text!r} can mean {', '.join(record.id for record in found)}: write more of the id")
    return read(found[0])


async def tell_left_behind(call: Call, bus: Bus, workflow: Workflow) -> None:
    """Tell a person what a run that goes back leaves outside, where git does not reach."""
    for words in await left_outside(bus, workflow):
        call.output.note(words)


async def left_outside(bus: Bus, workflow: Workflow) -> list[str]:
    """Return in sentences what a run that goes back leaves outside."""
    resumption = workflow.resumption
    if resumption is None or not resumption.rolls_back:
        return []
    async with bus.transaction() as transaction:
        petitions = await petitions_of(transaction, root_of(workflow.id))
    return [
        f"Git cannot undo this: {petition.kind} is {petition.state}, {petition.response.get('url') or petition.target}"
        for petition in left_behind(petitions, _kept(workflow, resumption.checkpoint_id))
    ]


async def _of_run(call: Call, bus: Bus, text: str, after: str, limit: int) -> list[tuple[Petition, bool]]:
    async with bus.transaction() as transaction:
        record = await transaction.get(ASSIGNMENTS.name, root_of(text))
        root = read_document(record.doc, Assignment).root_id if record else root_of(text)
        petitions = await petitions_of(transaction, root)
        if petitions and not after:
            return await _marked(call, transaction, petitions[-limit:])
    workflow = await find_workflow(bus, run_of_root(root) if record or petitions else text)
    async with bus.transaction() as transaction:
        petitions = await petitions_of(transaction, root_of(workflow.id))
        if not after:
            return await _marked(call, transaction, petitions[-limit:])
    point = None if after == _BASE else find_checkpoint(workflow, after).id
    return [(petition, True) for petition in left_behind(petitions, _kept(workflow, point))[-limit:]]


async def _of_all(call: Call, bus: Bus, limit: int) -> list[tuple[Petition, bool]]:
    async with bus.transaction() as transaction:
        known = [record async for record in each(transaction, RecordQuery(kind=PETITIONS.name))]
        found = call.readable(known, Petition)
        return await _marked(call, transaction, sorted(found, key=lambda petition: petition.created_at)[-limit:])


async def _marked(call: Call, transaction: Transaction, petitions: list[Petition]) -> list[tuple[Petition, bool]]:
    """Return petitions with whether their runs, where they can be read, have gone back behind them."""
    runs: dict[str, list[Petition]] = {}
    for petition in petitions:
        runs.setdefault(petition.workflow_id, []).append(petition)
    left: set[str] = set()
    for run_id, asked in runs.items():
        if workflow := call.read(await transaction.get(WORKFLOWS.name, run_id), Workflow):
            kept = [claim.id for work in workflow.works for claim in work.petitions]
            left |= {petition.id for petition in left_behind(asked, kept)}
    return [(petition, petition.id in left) for petition in petitions]


def _kept(workflow: Workflow, checkpoint_id: str | None) -> list[str]:
    """Return the petitions of the Works that a return to a checkpoint, or to the base, leaves as they are."""
    point = next((point for point in workflow.checkpoints if point.id == checkpoint_id), None)
    undone = {work.id for work in workflow.works_after(point)}
    return [claim.id for work in workflow.works if work.id not in undone for claim in work.petitions]


def _fields(petition: Petition, *, stays: bool) -> dict[str, Any]:
    names = ("workflow_id", "general", "kind", "target", "state", "reason")
    times = ("expires_at", "decided_by", "decided_at", "granted_at", "ended_at")
    return {
        "id": petition.id,
        "task_id": petition.root,
        **{name: getattr(petition, name) for name in names},
        "url": petition.response.get("url", ""),
        "asked_at": petition.created_at,
        **{name: getattr(petition, name) for name in times},
        "left_behind": stays,
    }


def _row(petition: Petition, *, stays: bool) -> tuple[object, ...]:
    said = petition.reason or petition.response.get("url") or petition.response.get("message_id") or ""
    return (
        petition.id[-_TAIL:],
        petition.kind,
        petition.target,
        "awaits a person" if petition.awaits_person else petition.state,
        petition.ended_at or petition.granted_at or petition.created_at,
        None if petition.rejected else petition.decided_by or None,
        f"{said}\n{_STAYS}".strip() if stays else said,
    )


def _text(value: object) -> object:
    """Return a value for a table; what agents wrote line by line, not as one string of JSON."""
    if isinstance(value, dict):
        return "\n".join(f"{name}: {each}" for name, each in value.items() if each not in ("", 0))
    return "\n".join(value) if isinstance(value, tuple) else value
