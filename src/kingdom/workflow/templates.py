"""Templates in the store: create, update, delete. All repositories and MCP servers in a template must be registered."""

import re
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import OnUnreadable, ignore_unreadable, read_document
from kingdom.errors import NotFound
from kingdom.workflow.model.references import GitRef
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.model.resources.mcp_server import McpServer
from kingdom.workflow.model.resources.template import WorkflowTemplate
from kingdom.workflow.records import (
    ACTIVE,
    GITS,
    MCP_SERVERS,
    TEMPLATES,
    load_resource,
    load_workflow,
    publish_events,
    run_transaction,
    save_resource,
)
from kingdom.workflow.registry import check_new_id, list_resources

_Registered = TypeVar("_Registered", Git, McpServer)
_HINTS = {Git: (GITS, "kingdom git create"), McpServer: (MCP_SERVERS, "kingdom mcp create")}
_AGGREGATE = "WorkflowTemplate"
_ID_LENGTH_MAX = 60


async def create_template(bus: Bus, template: WorkflowTemplate, *, actor: str) -> WorkflowTemplate:
    """Store a new template. A Git reference without a base branch gets the default branch."""
    return await run_transaction(bus, lambda transaction: _store_new(transaction, template, actor))


async def template_from_workflow(
    bus: Bus, workflow_id: str, name: str, *, actor: str, template_id: str = ""
) -> WorkflowTemplate:
    """Store a template with the definitions of a run. The id is given or derived from the name."""

    async def act(transaction: Transaction) -> WorkflowTemplate:
        _, workflow = await load_workflow(transaction, workflow_id)
        if workflow.deleted_at:
            raise NotFound(f"workflow {workflow_id!r} was deleted: see `kingdom workflow list`")
        template, _ = workflow.as_template(template_id or slug(name), name)
        return await _store_new(transaction, template, actor)

    return await run_transaction(bus, act)


async def update_template(bus: Bus, template_id: str, definition: WorkflowTemplate, *, actor: str) -> WorkflowTemplate:
    """Replace the content of a template. Existing Workflows do not change."""

    async def act(transaction: Transaction) -> WorkflowTemplate:
        record, template = await load_resource(transaction, WorkflowTemplate, template_id)
        updated, event = template.update(definition)
        updated = await _complete_references(transaction, updated)
        await save_resource(transaction, updated, record)
        await publish_events(transaction, [event], aggregate=_AGGREGATE, key=template_id, actor=actor)
        return updated

    return await run_transaction(bus, act)


async def delete_template(bus: Bus, template_id: str, *, actor: str) -> WorkflowTemplate:
    """Delete a template. Workflows created from it stay."""

    async def act(transaction: Transaction) -> WorkflowTemplate:
        record, template = await load_resource(transaction, WorkflowTemplate, template_id)
        deleted, event = template.delete()
        await save_resource(transaction, deleted, record)
        await publish_events(transaction, [event], aggregate=_AGGREGATE, key=template_id, actor=actor)
        return deleted

    return await run_transaction(bus, act)


async def list_templates(bus: Bus, on_unreadable: OnUnreadable = ignore_unreadable) -> list[WorkflowTemplate]:
    """Return every template that is not deleted."""
    return await list_resources(bus, TEMPLATES, WorkflowTemplate, on_unreadable)


async def show_template(bus: Bus, template_id: str) -> WorkflowTemplate:
    """Return a template, even a deleted one."""
    async with bus.transaction() as transaction:
        return (await load_resource(transaction, WorkflowTemplate, template_id))[1]


def slug(name: str) -> str:
    """Return the id that is derived from a name."""
    return re.sub(r"[^a-z0-9._]+", "-", name.lower()).strip("-._")[:_ID_LENGTH_MAX].rstrip("-._")


async def _store_new(transaction: Transaction, template: WorkflowTemplate, actor: str) -> WorkflowTemplate:
    record = await check_new_id(transaction, TEMPLATES, template.id, ("update",))
    template = await _complete_references(transaction, template)
    await save_resource(transaction, template, record)
    await publish_events(transaction, [template.created_event()], aggregate=_AGGREGATE, key=template.id, actor=actor)
    return template


async def _complete_references(transaction: Transaction, template: WorkflowTemplate) -> WorkflowTemplate:
    """Return the template with a base branch in every Git reference. Refuse references to unknown resources."""
    server_refs = [*template.mcp_server_refs, *(ref for work in template.works for ref in work.mcp_server_refs)]
    gits = [await _load_registered(transaction, Git, git_id, template) for git_id in template.git_ids()]
    for server_id in sorted({ref.mcp_server_id for ref in server_refs}):
        await _load_registered(transaction, McpServer, server_id, template)
    return with_base_branches(template, gits)


def with_base_branches(template: WorkflowTemplate, gits: Iterable[Git]) -> WorkflowTemplate:
    """Return the template with the default branch in every Git reference without a base branch."""
    branches = {git.id: git.default_branch for git in gits}

    def complete(refs: tuple[GitRef, ...]) -> tuple[GitRef, ...]:
        return tuple(GitRef(git_id=r.git_id, base_branch=r.base_branch or branches[r.git_id]) for r in refs)

    works = tuple(msgspec.structs.replace(work, git_refs=complete(work.git_refs)) for work in template.works)
    return msgspec.structs.replace(template, git_refs=complete(template.git_refs), works=works)


async def _load_registered(
    transaction: Transaction, kind: type[_Registered], resource_id: str, template: WorkflowTemplate
) -> _Registered:
    """Return a resource that a template refers to; raise NotFound if it is not registered."""
    records, command = _HINTS[kind]
    record = await transaction.get(records.name, resource_id)
    if record is None or record.state != ACTIVE:
        raise NotFound(
            f"template {template.id} refers to {records.name} {resource_id!r}, which is not registered:"
            f" register it with `{command} {resource_id} …`, or remove the reference"
        )
    resource = read_document(record.doc, kind)
    # This write conflicts with a simultaneous deletion of the resource, so the later of the two sees the earlier one.
    await save_resource(transaction, resource, record)
    return resource
