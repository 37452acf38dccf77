"""Gits and MCP servers in the store: they become known, are looked at with who uses them, and go."""

import re
import shlex
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import OnUnreadable, Record, RecordKind, RecordQuery, ignore_unreadable, read_documents
from kingdom.errors import IllegalTransition, Misconfigured, NotFound
from kingdom.workflow.model.events import DomainEvent
from kingdom.workflow.model.git import Git, unique_name
from kingdom.workflow.model.machine import WORKFLOW
from kingdom.workflow.model.mcp import McpServer
from kingdom.workflow.model.template import WorkflowTemplate
from kingdom.workflow.model.workflow import Workflow
from kingdom.workflow.records import (
    ACTIVE,
    DELETED,
    GITS,
    MCP_SERVERS,
    TEMPLATES,
    WORKFLOWS,
    Thing,
    announce,
    change,
    each,
    load,
    save,
)

_Used = TypeVar("_Used", Git, McpServer)
ID_PATTERN = "^[a-z0-9][a-z0-9._-]{0,59}$"


class Users(msgspec.Struct, frozen=True, kw_only=True):
    """Who would miss a thing: the runs that use it keep it from being deleted, the templates only lose it."""

    workflows: tuple[str, ...]
    templates: tuple[str, ...]


async def create_git(bus: Bus, git: Git, *, actor: str) -> Git:
    """Make a repository known, unless events that name it work in another one already."""

    async def act(transaction: Transaction) -> Git:
        found = [record async for record in each(transaction, RecordQuery(kind=GITS.name, state=ACTIVE))]
        for other in read_documents(found, Git):
            if other.is_of(git.repo) and other.id != git.id:
                asked = f"events of {git.repo} work in it, so {git.id} cannot be of {git.repo} too"
                allowed = (f"delete {other.id} first", f'create {git.id} with --repo "", for no events')
                raise IllegalTransition(f"git {other.id}", ACTIVE, asked, allowed)
        return await _create(transaction, GITS, git, git.created(), actor)

    return await change(bus, act)


async def delete_git(bus: Bus, git_id: str, *, actor: str) -> Git:
    """Forget a repository that no run uses; templates lose it when the engine hears of it."""
    deletion = _Deletion(
        kind=Git,
        thing="git",
        operation="delete",
        is_used_by=lambda run: git_id in run.git_ids(),
        end=lambda git: git.delete(()),
    )
    return await _delete(bus, deletion, git_id, actor)


async def list_gits(bus: Bus, leave_out: OnUnreadable = ignore_unreadable) -> list[Git]:
    """Return every repository that is known."""
    return await list_things(bus, GITS, Git, leave_out)


async def show_git(bus: Bus, git_id: str) -> tuple[Git, Users]:
    """Return a repository, also one that was deleted, and who uses it."""
    async with bus.transaction() as transaction:
        _, git = await load(transaction, Git, git_id)
        return git, Users(
            workflows=await _workflows_with(transaction, lambda run: git_id in run.git_ids()),
            templates=await _templates_with(transaction, lambda template: template.without_git(git_id)[1] is not None),
        )


async def git_finder(transaction: Transaction) -> Callable[[str], str]:
    """Return what finds the id of the Git of a repository."""
    found = [record async for record in each(transaction, RecordQuery(kind=GITS.name, state=ACTIVE))]
    gits = list(read_documents(found, Git))

    def find(repo: str) -> str:
        for git in gits:
            if git.is_of(repo):
                return git.id
        create = f"kingdom git create {unique_name(repo)} ADDRESS --repo {shlex.quote(repo)}"
        raise NotFound(f"no Git is known for {repo}: `{create}` makes it known")

    return find


async def register_mcp_server(bus: Bus, server: McpServer, *, actor: str) -> McpServer:
    """Make an MCP server known."""
    return await _create(bus, MCP_SERVERS, server, server.registered(), actor)


async def unregister_mcp_server(bus: Bus, server_id: str, *, actor: str) -> McpServer:
    """Forget an MCP server that no run uses; templates lose it when the engine hears of it."""
    deletion = _Deletion(
        kind=McpServer,
        thing="mcp server",
        operation="unregister",
        is_used_by=lambda run: server_id in run.mcp_server_ids(),
        end=lambda server: server.unregister(()),
    )
    return await _delete(bus, deletion, server_id, actor)


async def list_mcp_servers(bus: Bus, leave_out: OnUnreadable = ignore_unreadable) -> list[McpServer]:
    """Return every MCP server that is known."""
    return await list_things(bus, MCP_SERVERS, McpServer, leave_out)


async def show_mcp_server(bus: Bus, server_id: str) -> tuple[McpServer, Users]:
    """Return an MCP server, also one that was unregistered, and who uses it."""
    async with bus.transaction() as transaction:
        _, server = await load(transaction, McpServer, server_id)
        return server, Users(
            workflows=await _workflows_with(transaction, lambda run: server_id in run.mcp_server_ids()),
            templates=await _templates_with(
                transaction, lambda template: template.without_mcp_server(server_id)[1] is not None
            ),
        )


async def free_place(
    transaction: Transaction, kind: RecordKind, thing_id: str, instead: Collection[str] = ()
) -> Record | None:
    """Return the deleted record that a new thing takes the place of, if any; refuses an id that is taken or unfit.

    `instead` names what else can be done with the one that is there.
    """
    if not re.fullmatch(ID_PATTERN, thing_id):
        raise Misconfigured(
            f"{thing_id!r} cannot be the id of a {kind.name}: use 1 to 60 lower-case letters, digits, '-', '_' and '.',"
            " a letter or digit first"
        )
    record = await transaction.get(kind.name, thing_id)
    if record is not None and record.state == ACTIVE:
        asked = "another one cannot have its id, so choose another id or delete this one first"
        raise IllegalTransition(f"{kind.name} {thing_id}", ACTIVE, asked, ("delete", "show", *instead))
    return record


async def list_things(bus: Bus, kind: RecordKind, of: type[Thing], leave_out: OnUnreadable) -> list[Thing]:
    """Return all of one kind that are not deleted and can be read."""
    async with bus.transaction() as transaction:
        found = [record async for record in each(transaction, RecordQuery(kind=kind.name))]
    return list(read_documents((record for record in found if record.state != DELETED), of, leave_out))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deletion(Generic[_Used]):
    """How a kind of thing goes."""

    kind: type[_Used]
    thing: str
    operation: str
    is_used_by: Callable[[Workflow], bool]
    end: Callable[[_Used], tuple[_Used, DomainEvent]]


async def _delete(bus: Bus, deletion: _Deletion[_Used], thing_id: str, actor: str) -> _Used:
    """Delete a thing that no run uses.

    Runs only read what they begin to use, so that many can start at once, and the deletion has to look for them: it
    first keeps new ones out, then looks, and looks again when all is done. A start that had read before the first of
    these and is stored after the last fails when its host shall use what is deleted.
    """

    async def begin(transaction: Transaction) -> None:
        record, thing = await load(transaction, deletion.kind, thing_id)
        await save(transaction, thing.begin_to_go(deletion.thing, deletion.operation), record)

    async def conclude(transaction: Transaction) -> tuple[_Used, tuple[str, ...]]:
        record, thing = await load(transaction, deletion.kind, thing_id)
        if not thing.deleting:
            thing.refuse_while_used(deletion.thing, deletion.operation, ())
            asked = f"cannot {deletion.operation} it, since somebody else decided on it meanwhile"
            raise IllegalTransition(f"{deletion.thing} {thing_id}", ACTIVE, asked, (deletion.operation, "show"))
        users = await _workflows_with(transaction, deletion.is_used_by)
        if users:
            await save(transaction, thing.stay(), record)
            return thing, users
        gone, said = deletion.end(thing)
        await save(transaction, gone, record)
        await announce(transaction, [said], aggregate=deletion.kind.__name__, key=thing_id, actor=actor)
        return gone, ()

    async def look_again(transaction: Transaction) -> tuple[str, ...]:
        record, thing = await load(transaction, deletion.kind, thing_id)
        users = await _workflows_with(transaction, deletion.is_used_by)
        if thing.deleted and users:
            await save(transaction, thing.stay(), record)
        return users if thing.deleted else ()

    await change(bus, begin)
    thing, users = await change(bus, conclude)
    if not users:
        users = await change(bus, look_again)
    thing.stay().refuse_while_used(deletion.thing, deletion.operation, users)
    return thing


async def _create(where: Bus | Transaction, kind: RecordKind, thing: Thing, said: DomainEvent, actor: str) -> Thing:
    async def act(transaction: Transaction) -> Thing:
        record = await free_place(transaction, kind, thing.id)
        await save(transaction, thing, record)
        await announce(transaction, [said], aggregate=type(thing).__name__, key=thing.id, actor=actor)
        return thing

    return await change(where, act)


async def _workflows_with(transaction: Transaction, has: Callable[[Workflow], bool]) -> tuple[str, ...]:
    """Return the runs that keep something from being deleted."""
    users: list[str] = []
    # State by state one would miss a run that changes its state meanwhile.
    async for record in each(transaction, RecordQuery(kind=WORKFLOWS.name)):
        if record.state in WORKFLOW.states - WORKFLOW.final:
            workflow = Workflow.read(record.doc)
            if workflow.is_using and has(workflow):
                users.append(workflow.id)
    return tuple(users)


async def _templates_with(transaction: Transaction, has: Callable[[WorkflowTemplate], bool]) -> tuple[str, ...]:
    query = RecordQuery(kind=TEMPLATES.name, state=ACTIVE)
    found = [record async for record in each(transaction, query)]
    return tuple(record.id for record in found if has(msgspec.convert(record.doc, WorkflowTemplate)))
