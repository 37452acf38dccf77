"""Petitions as people see them, and the effects that a rollback cannot undo."""

from typing import Any

from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import OnUnreadable, ignore_unreadable, read_documents
from kingdom.court.general.context import root_id_of
from kingdom.court.petitions.decision import Petition, irreversible_petitions
from kingdom.court.petitions.records import petitions_of
from kingdom.views.petitions import ListedPetition, PetitionDetails
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.records import WORKFLOWS


def to_listed_petition(petition: Petition, *, left_behind: bool) -> ListedPetition:
    """Return a petition as lists show it."""
    return ListedPetition(**_fields(petition, left_behind=left_behind))


def to_petition_details(petition: Petition, *, left_behind: bool) -> PetitionDetails:
    """Return a petition with its content."""
    content: dict[str, Any] = {"body": petition.body, "response": petition.response, "asked_as": petition.asked_as}
    return PetitionDetails(**_fields(petition, left_behind=left_behind), **content)


async def with_left_behind(
    transaction: Transaction, petitions: list[Petition], on_unreadable: OnUnreadable = ignore_unreadable
) -> list[tuple[Petition, bool]]:
    """Return petitions, each with whether its effect remains although its Work was rolled back."""
    runs: dict[str, list[Petition]] = {}
    for petition in petitions:
        runs.setdefault(petition.workflow_id, []).append(petition)
    keys = [(WORKFLOWS.name, run_id) for run_id in runs]
    await transaction.read_ahead(keys)
    records = [record for key in keys if (record := await transaction.get(*key))]
    irreversible: set[str] = set()
    for workflow in read_documents(records, Workflow, on_unreadable):
        kept = [claim.id for work in workflow.works for claim in work.petitions]
        irreversible |= {petition.id for petition in irreversible_petitions(runs[workflow.id], kept)}
    return [(petition, petition.id in irreversible) for petition in petitions]


async def irreversible_effects(bus: Bus, workflow: Workflow) -> list[str]:
    """Return a sentence for each effect on an external service that the rollback of a run does not undo."""
    resumption = workflow.resumption
    if resumption is None or not resumption.rolls_back:
        return []
    async with bus.transaction() as transaction:
        petitions = await petitions_of(transaction, root_id_of(workflow.id))
    return [
        f"Git cannot undo this: {petition.kind} is {petition.state}, {petition.response.get('url') or petition.target}"
        for petition in irreversible_petitions(petitions, kept_petition_ids(workflow, resumption.checkpoint_id))
    ]


def kept_petition_ids(workflow: Workflow, checkpoint_id: str | None) -> list[str]:
    """Return the ids of petitions whose Works remain after a rollback to a checkpoint, or to the base for None."""
    point = next((point for point in workflow.checkpoints if point.id == checkpoint_id), None)
    undone = {work.id for work in workflow.works_after(point)}
    return [claim.id for work in workflow.works if work.id not in undone for claim in work.petitions]


def _fields(petition: Petition, *, left_behind: bool) -> dict[str, Any]:
    names = ("workflow_id", "general", "kind", "target", "state", "reason")
    times = ("expires_at", "decided_by", "decided_at", "granted_at", "ended_at")
    return {
        "id": petition.id,
        "task_id": petition.root,
        **{name: getattr(petition, name) for name in names},
        "url": petition.response.get("url", ""),
        "asked_at": petition.created_at,
        **{name: getattr(petition, name) for name in times},
        "left_behind": left_behind,
    }
