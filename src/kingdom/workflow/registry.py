"""Gits and MCP servers in the store: create, list, show with their users, and delete."""

import re
import shlex
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

import msgspec

from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import OnUnreadable, Record, RecordKind, RecordQuery, ignore_unreadable, read_documents
from kingdom.errors import IllegalTransition, Misconfigured, NotFound, Unreadable
from kingdom.workflow.model.messages.events import DomainEvent
from kingdom.workflow.model.resources.git import Git, unique_name
from kingdom.workflow.model.resources.mcp_server import McpServer
from kingdom.workflow.model.resources.template import WorkflowTemplate
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WORKFLOW
from kingdom.workflow.records import (
    ACTIVE,
    DELETED,
    GITS,
    MCP_SERVERS,
    TEMPLATES,
    WORKFLOWS,
    Resource,
    each_record,
    load_resource,
    publish_events,
    run_transaction,
    save_resource,
)

_Registered = TypeVar("_Registered", Git, McpServer)
_CREATION = "git.creation"
_CREATION_KEPT = timedelta(minutes=1)
ID_PATTERN = "^[a-z0-9][a-z0-9._-]{0,59}$"


class ResourceUsers(msgspec.Struct, frozen=True, kw_only=True):
    """The Workflows and templates that use a resource. Only the Workflows prevent its deletion."""

    workflows: tuple[str, ...]
    templates: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ResourceKind(Generic[_Registered]):
    """A kind of registered resource: Git or McpServer."""

    type: type[_Registered]
    records: RecordKind
    label: str
    delete_operation: str
    delete: Callable[[_Registered, Collection[str]], tuple[_Registered, DomainEvent]]
    ids_in_workflow: Callable[[Workflow], Collection[str]]
    remove_from_template: Callable[[WorkflowTemplate, str], tuple[WorkflowTemplate, DomainEvent | None]]


_GIT = _ResourceKind(
    type=Git,
    records=GITS,
    label="git",
    delete_operation="delete",
    delete=Git.delete,
    ids_in_workflow=Workflow.git_ids,
    remove_from_template=WorkflowTemplate.without_git,
)
_MCP_SERVER = _ResourceKind(
    type=McpServer,
    records=MCP_SERVERS,
    label="mcp server",
    delete_operation="unregister",
    delete=McpServer.unregister,
    ids_in_workflow=Workflow.mcp_server_ids,
    remove_from_template=WorkflowTemplate.without_mcp_server,
)


async def create_git(bus: Bus, git: Git, *, actor: str) -> Git:
    """Register a repository. Refuse it if events with its repository name already belong to another Git."""

    async def act(transaction: Transaction) -> Git:
        if git.repo:
            # Only one open creation holds the key of a repository name, so a later one sees the Git of an earlier one.
            await transaction.once(_CREATION, git.repo.lower(), _CREATION_KEPT)
        for other in await _active_gits(transaction):
            if other.matches(git.repo) and other.id != git.id:
                asked = f"events of {git.repo} use it, so {git.id} cannot have the repository name {git.repo} too"
                allowed = (f"delete {other.id} first", f'create {git.id} with --repo "", for no events')
                raise IllegalTransition(f"git {other.id}", ACTIVE, asked, allowed)
        return await _create(transaction, GITS, git, git.created_event(), actor)

    return await run_transaction(bus, act)


async def delete_git(bus: Bus, git_id: str, *, actor: str) -> Git:
    """Delete a repository that no run uses. The engine then removes it from the templates."""
    return await _delete(bus, _GIT, git_id, actor)


async def list_gits(bus: Bus, on_unreadable: OnUnreadable = ignore_unreadable) -> list[Git]:
    """Return every registered repository."""
    return await list_resources(bus, GITS, Git, on_unreadable)


async def show_git(bus: Bus, git_id: str, on_unreadable: OnUnreadable = ignore_unreadable) -> tuple[Git, ResourceUsers]:
    """Return a repository, even a deleted one, and its readable users."""
    return await _show(bus, _GIT, git_id, on_unreadable)


async def git_finder(transaction: Transaction) -> Callable[[str], str]:
    """Return a function that finds the id of a registered repository by its name on GitHub."""
    gits = await _active_gits(transaction)

    def find(repo: str) -> str:
        for git in gits:
            if git.matches(repo):
                return git.id
        create = f"kingdom git create {unique_name(repo)} ADDRESS --repo {shlex.quote(repo)}"
        raise NotFound(f"the repository {repo} is not registered: register it with `{create}`")

    return find


async def _active_gits(transaction: Transaction) -> list[Git]:
    found = [record async for record in each_record(transaction, RecordQuery(kind=GITS.name, state=ACTIVE))]
    return list(read_documents(found, Git))


async def register_mcp_server(bus: Bus, server: McpServer, *, actor: str) -> McpServer:
    """Register an MCP server."""
    return await _create(bus, MCP_SERVERS, server, server.registered_event(), actor)


async def unregister_mcp_server(bus: Bus, server_id: str, *, actor: str) -> McpServer:
    """Unregister an MCP server that no run uses. The engine then removes it from the templates."""
    return await _delete(bus, _MCP_SERVER, server_id, actor)


async def list_mcp_servers(bus: Bus, on_unreadable: OnUnreadable = ignore_unreadable) -> list[McpServer]:
    """Return every registered MCP server."""
    return await list_resources(bus, MCP_SERVERS, McpServer, on_unreadable)


async def show_mcp_server(
    bus: Bus, server_id: str, on_unreadable: OnUnreadable = ignore_unreadable
) -> tuple[McpServer, ResourceUsers]:
    """Return an MCP server, even an unregistered one, and its readable users."""
    return await _show(bus, _MCP_SERVER, server_id, on_unreadable)


async def check_new_id(
    transaction: Transaction, kind: RecordKind, resource_id: str, alternatives: Collection[str] = ()
) -> Record | None:
    """Refuse an id that is invalid or in use. Return the record with this id that is deleted or being deleted, if any.

    The error message lists `alternatives` as further operations on the existing resource.
    """
    if not re.fullmatch(ID_PATTERN, resource_id):
        raise Misconfigured(
            f"{resource_id!r} cannot be the id of a {kind.name}: use 1 to 60 lower-case letters, digits, '-', '_' and"
            " '.', and start with a letter or digit"
        )
    record = await transaction.get(kind.name, resource_id)
    if record is not None and record.state == ACTIVE:
        asked = "the id is in use, so choose another id or delete this one first"
        raise IllegalTransition(f"{kind.name} {resource_id}", ACTIVE, asked, ("delete", "show", *alternatives))
    return record


async def list_resources(
    bus: Bus, kind: RecordKind, resource_type: type[Resource], on_unreadable: OnUnreadable
) -> list[Resource]:
    """Return every readable resource of one kind that is not deleted."""
    async with bus.transaction() as transaction:
        found = [record async for record in each_record(transaction, RecordQuery(kind=kind.name))]
    return list(read_documents((record for record in found if record.state != DELETED), resource_type, on_unreadable))


async def _create(
    where: Bus | Transaction, kind: RecordKind, resource: Resource, event: DomainEvent, actor: str
) -> Resource:
    async def act(transaction: Transaction) -> Resource:
        record = await check_new_id(transaction, kind, resource.id)
        await save_resource(transaction, resource, record)
        await publish_events(transaction, [event], aggregate=type(resource).__name__, key=resource.id, actor=actor)
        return resource

    return await run_transaction(where, act)


async def _show(
    bus: Bus, kind: _ResourceKind[_Registered], resource_id: str, on_unreadable: OnUnreadable
) -> tuple[_Registered, ResourceUsers]:
    async with bus.transaction() as transaction:
        _, resource = await load_resource(transaction, kind.type, resource_id)
        users = ResourceUsers(
            workflows=await _workflows_with(transaction, kind, resource_id, on_unreadable),
            templates=await _templates_with(transaction, kind, resource_id, on_unreadable),
        )
        return resource, users


async def _delete(bus: Bus, kind: _ResourceKind[_Registered], resource_id: str, actor: str) -> _Registered:
    """Delete a resource that no run uses.

    A starting run only reads its resources, so it does not conflict with the deletion. Therefore the deletion first
    blocks new users, then looks for users, and looks again after it has deleted the resource. It can still miss a run
    that read the resource before the first step and is stored after the last. Such a run fails on its host.
    """

    async def begin(transaction: Transaction) -> None:
        record, resource = await load_resource(transaction, kind.type, resource_id)
        await save_resource(transaction, resource.mark_deleting(kind.label, kind.delete_operation), record)

    async def conclude(transaction: Transaction) -> tuple[_Registered, tuple[str, ...]]:
        record, resource = await load_resource(transaction, kind.type, resource_id)
        if not resource.deleting:
            resource.refuse_second_deletion(kind.label, kind.delete_operation)
            asked = f"cannot {kind.delete_operation} it, since another request changed it in the meantime"
            raise IllegalTransition(f"{kind.label} {resource_id}", ACTIVE, asked, (kind.delete_operation, "show"))
        users = await _possible_workflows_with(transaction, kind, resource_id)
        if users:
            await save_resource(transaction, resource.restore(), record)
            return resource, users
        deleted, event = kind.delete(resource, ())
        await save_resource(transaction, deleted, record)
        await publish_events(transaction, [event], aggregate=kind.type.__name__, key=resource_id, actor=actor)
        return deleted, ()

    async def look_again(transaction: Transaction) -> tuple[str, ...]:
        record, resource = await load_resource(transaction, kind.type, resource_id)
        users = await _possible_workflows_with(transaction, kind, resource_id)
        if resource.deleted and users:
            await save_resource(transaction, resource.restore(), record)
        return users if resource.deleted else ()

    await run_transaction(bus, begin)
    resource, users = await run_transaction(bus, conclude)
    if not users:
        users = await run_transaction(bus, look_again)
    resource.restore().refuse_while_used(kind.label, kind.delete_operation, users)
    return resource


async def _possible_workflows_with(
    transaction: Transaction, kind: _ResourceKind[_Registered], resource_id: str
) -> tuple[str, ...]:
    """Return the runs that prevent the deletion of a resource: its users, and unreadable runs, which may use it."""
    unreadable: list[str] = []

    def note(run: str, _error: Unreadable) -> None:
        unreadable.append(f"{run} (perhaps: this version cannot read it)")

    users = await _workflows_with(transaction, kind, resource_id, note)
    return users + tuple(unreadable)


async def _workflows_with(
    transaction: Transaction, kind: _ResourceKind[_Registered], resource_id: str, on_unreadable: OnUnreadable
) -> tuple[str, ...]:
    """Return the readable runs that use a resource and prevent its deletion."""
    users: list[str] = []
    # One query covers all states, since a run could change its state between two queries.
    async for record in each_record(transaction, RecordQuery(kind=WORKFLOWS.name)):
        if record.state in WORKFLOW.states - WORKFLOW.final:
            found = read_documents([record], Workflow, on_unreadable)
            users += [run.id for run in found if run.uses_resources and resource_id in kind.ids_in_workflow(run)]
    return tuple(users)


async def _templates_with(
    transaction: Transaction, kind: _ResourceKind[_Registered], resource_id: str, on_unreadable: OnUnreadable
) -> tuple[str, ...]:
    """Return the readable templates that refer to a resource."""
    found = [record async for record in each_record(transaction, RecordQuery(kind=TEMPLATES.name, state=ACTIVE))]
    known = read_documents(found, WorkflowTemplate, on_unreadable)
    return tuple(template.id for template in known if kind.remove_from_template(template, resource_id)[1])
