"""`kingdom petitions …`: the ledger of what left the house, and of what was not let out."""

from typing import Annotated, Any

import msgspec
import typer

from kingdom.bus.app import Application
from kingdom.bus.dispatcher import Dispatcher
from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import Query
from kingdom.cli.command import Call, command
from kingdom.cli.workflow_id import find_checkpoint, find_workflow
from kingdom.court import records
from kingdom.court.documents import Assignment
from kingdom.court.general.staff import root_of, run_of_root
from kingdom.court.petitions.decision import PETITIONS, Petition, left_behind
from kingdom.court.petitions.records import petitions_of, read
from kingdom.court.records import ASSIGNMENTS
from kingdom.court.streams import TOPOLOGY
from kingdom.errors import NotFound
from kingdom.workflow.model.workflow import Workflow
from kingdom.workflow.records import KINDS, WORKFLOWS, each

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="What agents asked for and what left the house: list, show.",
)
LEDGER = Application(topology=TOPOLOGY, dispatcher=Dispatcher(), kinds=(*KINDS, *records.KINDS, PETITIONS))
_BASE = "base"
# So much of an id is shown in a table, and is enough to name a petition.
_TAIL = 8
_STAYS = "git cannot undo it"


@command(app, "list")
async def list_(
    call: Call,
    run: Annotated[
        str, typer.Argument(metavar="RUN|TASK", help="A run or an assignment; `last` is the newest run, else all.")
    ] = "",
    *,
    after: Annotated[
        str, typer.Option(metavar="base|CHECKPOINT", help="Only what a return to this point could not undo.")
    ] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The newest so many.")] = 50,
) -> None:
    """Show what agents asked for, in its order: what left the house, when, where to, and who agreed.

    What a run has gone back behind stays outside all the same, and is marked: git cannot undo it.

    Example: kingdom petitions list last

    Example: kingdom petitions list task-20260207-001 --after w1-c1

    JSON: an array of {id, task_id, workflow_id, general, kind, target, state, reason, url, asked_at, expires_at,
    decided_by, decided_at, granted_at, ended_at, left_behind}.
    """
    if after and not run:
        raise typer.BadParameter("--after needs the run whose checkpoint it is.")
    async with call.bus(LEDGER, create=False) as bus:
        found = await (_of_run(bus, run, after) if run else _of_all(bus))
    shown = found[-limit:]
    if call.output.json:
        call.output.document([_entry(petition, stays=stays) for petition, stays in shown])
    elif shown:
        columns = ("petition", "what", "where", "state", "when", "agreed", "")
        call.output.table(columns, [_row(petition, stays=stays) for petition, stays in shown])
    else:
        call.output.say("Nothing was asked for.")


@command(app, "show")
async def show(
    call: Call,
    petition_id: Annotated[str, typer.Argument(metavar="PETITION", help="Its id, or where that ends.")],
) -> None:
    """Show all that is known of a petition, with its words.

    Example: kingdom petitions show 3f9a01bc

    JSON: as `list` answers it, with body, response and asked_as: [id].
    """
    async with call.bus(LEDGER, create=False) as bus, bus.transaction() as transaction:
        petition = await _find(transaction, petition_id)
        [(_, stays)] = await _marked(transaction, [petition])
    entry = _entry(petition, stays=stays)
    entry |= {"body": petition.body, "response": petition.response, "asked_as": petition.asked_as}
    if call.output.json:
        call.output.document(entry)
        return
    rows = [(name.replace("_", " "), value) for name, value in entry.items() if value not in ("", None, (), {})]
    call.output.table(("petition", ""), [(name, _text(value)) for name, value in rows])


async def tell_left_behind(call: Call, bus: Bus, workflow: Workflow) -> None:
    """Tell a person what a run that goes back leaves outside, where git does not reach."""
    resumption = workflow.resumption
    if resumption is None or not resumption.rolls_back:
        return
    async with bus.transaction() as transaction:
        petitions = await petitions_of(transaction, root_of(workflow.id))
    for petition in left_behind(petitions, _kept(workflow, resumption.checkpoint_id)):
        where = petition.response.get("url") or petition.target
        call.output.note(f"Git cannot undo this: {petition.kind} is {petition.state}, {where}")


async def _of_run(bus: Bus, text: str, after: str) -> list[tuple[Petition, bool]]:
    async with bus.transaction() as transaction:
        record = await transaction.get(ASSIGNMENTS.name, root_of(text))
        root = msgspec.convert(record.doc, Assignment).root_id if record else root_of(text)
        petitions = await petitions_of(transaction, root)
        if petitions and not after:
            return await _marked(transaction, petitions)
    workflow = await find_workflow(bus, run_of_root(root) if record or petitions else text)
    async with bus.transaction() as transaction:
        petitions = await petitions_of(transaction, root_of(workflow.id))
        if not after:
            return await _marked(transaction, petitions)
    point = None if after == _BASE else find_checkpoint(workflow, after).id
    return [(petition, True) for petition in left_behind(petitions, _kept(workflow, point))]


async def _of_all(bus: Bus) -> list[tuple[Petition, bool]]:
    async with bus.transaction() as transaction:
        found = [read(record) async for record in each(transaction, Query(kind=PETITIONS.name))]
        return await _marked(transaction, sorted(found, key=lambda petition: petition.created_at))


async def _marked(transaction: Transaction, petitions: list[Petition]) -> list[tuple[Petition, bool]]:
    """Return petitions with whether their runs have gone back behind them."""
    runs: dict[str, list[Petition]] = {}
    for petition in petitions:
        runs.setdefault(petition.workflow_id, []).append(petition)
    left: set[str] = set()
    for run_id, asked in runs.items():
        record = await transaction.get(WORKFLOWS.name, run_id)
        if record:
            workflow = Workflow.read(record.doc)
            kept = [claim.id for work in workflow.works for claim in work.petitions]
            left |= {petition.id for petition in left_behind(asked, kept)}
    return [(petition, petition.id in left) for petition in petitions]


def _kept(workflow: Workflow, checkpoint_id: str | None) -> list[str]:
    """Return the petitions of the Works that a return to a checkpoint, or to the base, leaves as they are."""
    point = next((point for point in workflow.checkpoints if point.id == checkpoint_id), None)
    undone = {work.id for work in workflow.works_after(point)}
    return [claim.id for work in workflow.works if work.id not in undone for claim in work.petitions]


async def _find(transaction: Transaction, text: str) -> Petition:
    record = await transaction.get(PETITIONS.name, text)
    if record:
        return read(record)
    found = [record async for record in each(transaction, Query(kind=PETITIONS.name)) if record.id.endswith(text)]
    if len(found) != 1:
        what = f"{len(found)} petitions end" if found else "no petition ends"
        raise NotFound(f"{what} in {text!r}: `kingdom petitions list` shows those there are")
    return read(found[0])


def _entry(petition: Petition, *, stays: bool) -> dict[str, Any]:
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
