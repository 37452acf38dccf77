"""Templates in the store: written, made from a run, changed, deleted; what they refer to must be known."""

import re
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import OnUnreadable, ignore_unreadable
from kingdom.errors import NotFound
from kingdom.workflow.model.git import Git
from kingdom.workflow.model.mcp import McpServer
from kingdom.workflow.model.refs import GitRef
from kingdom.workflow.model.template import WorkflowTemplate
from kingdom.workflow.records import ACTIVE, GITS, MCP_SERVERS, TEMPLATES, announce, change, load, load_workflow, save
from kingdom.workflow.registry import free_place, list_things

Known = TypeVar("Known", Git, McpServer)
_HINTS = {Git: (GITS, "kingdom git create"), McpServer: (MCP_SERVERS, "kingdom mcp create")}
_AGGREGATE = "WorkflowTemplate"
_ID_LENGTH_MAX = 60


async def create_template(bus: Bus, template: WorkflowTemplate, *, actor: str) -> WorkflowTemplate:
    """Store a new template; a Git without a base branch is meant with its default branch."""
    return await change(bus, lambda transaction: _store_new(transaction, template, actor))


async def template_from_workflow(
    bus: Bus, workflow_id: str, name: str, *, actor: str, template_id: str = ""
) -> WorkflowTemplate:
    """Store a template with the definitions of a run, under the id that is given or made from the name."""

    async def act(transaction: Transaction) -> WorkflowTemplate:
        _, workflow = await load_workflow(transaction, workflow_id)
        if workflow.deleted_at:
            raise NotFound(f"workflow {workflow_id!r} was deleted: `kingdom workflow list` shows those there are")
        template, _ = workflow.as_template(template_id or slug(name), name)
        return await _store_new(transaction, template, actor)

    return await change(bus, act)


async def update_template(bus: Bus, template_id: str, definition: WorkflowTemplate, *, actor: str) -> WorkflowTemplate:
    """Give a template other content; Workflows made before stay as they are."""

    async def act(transaction: Transaction) -> WorkflowTemplate:
        record, template = await load(transaction, WorkflowTemplate, template_id)
        updated, said = template.update(definition)
        updated = await _resolved(transaction, updated)
        await save(transaction, updated, record)
        await announce(transaction, [said], aggregate=_AGGREGATE, key=template_id, actor=actor)
        return updated

    return await change(bus, act)


async def delete_template(bus: Bus, template_id: str, *, actor: str) -> WorkflowTemplate:
    """Let a template disappear; Workflows made from it stay."""

    async def act(transaction: Transaction) -> WorkflowTemplate:
        record, template = await load(transaction, WorkflowTemplate, template_id)
        deleted, said = template.delete()
        await save(transaction, deleted, record)
        await announce(transaction, [said], aggregate=_AGGREGATE, key=template_id, actor=actor)
        return deleted

    return await change(bus, act)


async def list_templates(bus: Bus, leave_out: OnUnreadable = ignore_unreadable) -> list[WorkflowTemplate]:
    """Return every template that can be used."""
    return await list_things(bus, TEMPLATES, WorkflowTemplate, leave_out)


async def show_template(bus: Bus, template_id: str) -> WorkflowTemplate:
    """Return a template, also one that was deleted."""
    async with bus.transaction() as transaction:
        return (await load(transaction, WorkflowTemplate, template_id))[1]


def slug(name: str) -> str:
    """Return the id that a name stands for."""
    return re.sub(r"[^a-z0-9._]+", "-", name.lower()).strip("-._")[:_ID_LENGTH_MAX].rstrip("-._")


async def _store_new(transaction: Transaction, template: WorkflowTemplate, actor: str) -> WorkflowTemplate:
    record = await free_place(transaction, TEMPLATES, template.id, ("update",))
    template = await _resolved(transaction, template)
    await save(transaction, template, record)
    await announce(transaction, [template.created()], aggregate=_AGGREGATE, key=template.id, actor=actor)
    return template


async def _resolved(transaction: Transaction, template: WorkflowTemplate) -> WorkflowTemplate:
    """Return a template whose references are complete; refuses one that refers to what is not known."""
    server_refs = [*template.mcp_server_refs, *(ref for work in template.works for ref in work.mcp_server_refs)]
    gits = [await _known(transaction, Git, git_id, template) for git_id in template.git_ids()]
    for server_id in sorted({ref.mcp_server_id for ref in server_refs}):
        await _known(transaction, McpServer, server_id, template)
    return with_base_branches(template, gits)


def with_base_branches(template: WorkflowTemplate, gits: Iterable[Git]) -> WorkflowTemplate:
    """Return a template in which a Git without a base branch has its default branch."""
    branches = {git.id: git.default_branch for git in gits}

    def complete(refs: tuple[GitRef, ...]) -> tuple[GitRef, ...]:
        return tuple(GitRef(git_id=r.git_id, base_branch=r.base_branch or branches[r.git_id]) for r in refs)

    works = tuple(msgspec.structs.replace(work, git_refs=complete(work.git_refs)) for work in template.works)
    return msgspec.structs.replace(template, git_refs=complete(template.git_refs), works=works)


async def _known(transaction: Transaction, kind: type[Known], thing_id: str, template: WorkflowTemplate) -> Known:
    """Return what a template refers to."""
    records, command = _HINTS[kind]
    record = await transaction.get(records.name, thing_id)
    if record is None or record.state != ACTIVE:
        raise NotFound(
            f"template {template.id} refers to {records.name} {thing_id!r}, which is not known:"
            f" `{command} {thing_id} …` makes it known, or take the reference out"
        )
    thing = msgspec.convert(record.doc, kind)
    # Written again as it is, so that a deletion at the same moment has to look again.
    await save(transaction, thing, record)
    return thing
