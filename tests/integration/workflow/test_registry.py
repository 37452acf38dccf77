"""Repositories and MCP servers in the store: created, used, deleted, and created again."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from kingdom.bus import Bus, Record, RecordKind, Transaction
from kingdom.errors import Conflict, IllegalTransition, Misconfigured, NotFound, Unreadable
from kingdom.workflow import lifecycle, registry, templates
from kingdom.workflow.model.messages import events
from kingdom.workflow.model.references import GitRef, McpServerRef
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.model.resources.mcp_server import McpServer, McpTransport
from kingdom.workflow.records import (
    GITS,
    MCP_SERVERS,
    TEMPLATES,
    WORKFLOWS,
    event_envelope,
    load_resource,
    save_resource,
)
from kingdom.workflow.templates import create_template, show_template
from tests.integration.workflow.scene import ANNA, Scene
from tests.unit.workflow.model.scene import APP, LIB, task, template, work

TOOLS = McpServerRef(mcp_server_id="tools")
SMALL = template(work("only", task(), mcp_server_refs=(TOOLS,)), git_refs=(APP,))


def git(git_id: str, **more: Any) -> Git:
    return Git(id=git_id, name=git_id, url=f"https://example.org/{git_id}.git", **more)


def server(server_id: str) -> McpServer:
    return McpServer(id=server_id, name=server_id, transport=McpTransport.STDIO, command=("serve",), env={"LEVEL": "1"})


Register = Callable[[Bus, str], Awaitable[Any]]
REGISTER: dict[str, Register] = {
    "git": lambda bus, name: registry.create_git(bus, git(name), actor=ANNA),
    "mcp-server": lambda bus, name: registry.register_mcp_server(bus, server(name), actor=ANNA),
}


async def running(scene: Scene) -> str:
    """Return a run that has git-app and the MCP server in use."""
    await scene.register_server("tools")
    await scene.start_host()
    run = await scene.create_run(SMALL)
    await lifecycle.start(scene.bus, run, actor=ANNA)
    await scene.settle()
    return run


async def put_unreadable(scene: Scene, kind: RecordKind, record_id: str, state: str) -> None:
    async with scene.bus.transaction() as transaction:
        await transaction.put(Record(kind=kind.name, id=record_id, state=state, doc={"id": record_id}))


async def test_a_git_is_stored_as_written_and_its_event_names_its_creator(scene: Scene) -> None:
    made = await registry.create_git(scene.bus, git("docs", default_branch="trunk"), actor="bob")
    assert await registry.show_git(scene.bus, "docs") == (made, registry.ResourceUsers(workflows=(), templates=()))
    assert [known.id for known in await registry.list_gits(scene.bus)] == ["docs", "git-app", "git-lib"]
    (entry,) = [entry for entry in await scene.log() if entry.aggregate_id == "docs"]
    assert (entry.type, entry.actor, entry.aggregate_type) == ("GitCreated", "bob", "Git")


async def test_an_mcp_server_is_stored_as_written_and_its_event_names_its_creator(scene: Scene) -> None:
    made = await registry.register_mcp_server(scene.bus, server("tools"), actor="bob")
    assert await registry.show_mcp_server(scene.bus, "tools") == (
        made,
        registry.ResourceUsers(workflows=(), templates=()),
    )
    assert await registry.list_mcp_servers(scene.bus) == [made]
    (entry,) = [entry for entry in await scene.log() if entry.aggregate_id == "tools"]
    assert (entry.type, entry.actor, entry.aggregate_type) == ("McpServerRegistered", "bob", "McpServer")


@pytest.mark.parametrize("kind", REGISTER)
async def test_a_taken_id_is_refused_with_what_to_do(scene: Scene, kind: str) -> None:
    await REGISTER[kind](scene.bus, "same")
    with pytest.raises(
        IllegalTransition, match=f"{kind} same is ACTIVE: .* delete this one first; allowed now: delete"
    ):
        await REGISTER[kind](scene.bus, "same")


@pytest.mark.parametrize("name", ["", "App", "a b", "-a", "../etc", "a/b", "ä", "a" * 61, "a\n"])
async def test_an_invalid_id_is_refused(scene: Scene, name: str) -> None:
    with pytest.raises(Misconfigured, match="cannot be the id of a git: use 1 to 60 lower-case letters"):
        await registry.create_git(scene.bus, git(name), actor=ANNA)
    assert len(await registry.list_gits(scene.bus)) == 2


@pytest.mark.parametrize("name", ["a", "7", "a.b-c_d", "a" * 60])
async def test_a_valid_id_is_accepted(scene: Scene, name: str) -> None:
    await registry.create_git(scene.bus, git(name), actor=ANNA)
    assert (await registry.show_git(scene.bus, name))[0].id == name


async def test_an_unknown_item_is_not_found_and_the_error_names_the_command_that_creates_it(scene: Scene) -> None:
    with pytest.raises(NotFound, match="there is no git 'ghost': register it with `kingdom git create`"):
        await registry.show_git(scene.bus, "ghost")
    with pytest.raises(NotFound, match="there is no mcp-server 'ghost': register it with `kingdom mcp create`"):
        await registry.unregister_mcp_server(scene.bus, "ghost", actor=ANNA)


async def test_a_git_and_an_mcp_server_are_in_use_until_the_run_ends(scene: Scene) -> None:
    run = await running(scene)
    _, users = await registry.show_git(scene.bus, "git-app")
    assert users == registry.ResourceUsers(workflows=(run,), templates=("tpl-1",))
    assert (await registry.show_mcp_server(scene.bus, "tools"))[1] == users
    assert (await registry.show_git(scene.bus, "git-lib"))[1] == registry.ResourceUsers(workflows=(), templates=())
    with pytest.raises(
        IllegalTransition, match=f"git git-app is IN USE: cannot delete it, because it is used by {run}"
    ):
        await registry.delete_git(scene.bus, "git-app", actor=ANNA)
    with pytest.raises(
        IllegalTransition, match=f"mcp server tools is IN USE: cannot unregister it, because it is used by {run}"
    ):
        await registry.unregister_mcp_server(scene.bus, "tools", actor=ANNA)
    await scene.finish(run)
    assert (await registry.show_git(scene.bus, "git-app"))[1].workflows == ()
    assert (await registry.delete_git(scene.bus, "git-app", actor=ANNA)).deleted
    assert (await registry.unregister_mcp_server(scene.bus, "tools", actor=ANNA)).deleted


async def test_a_deleted_git_is_no_longer_listed_and_is_removed_from_all_templates(scene: Scene) -> None:
    await create_template(scene.bus, template(), actor=ANNA)
    await registry.delete_git(scene.bus, "git-app", actor=ANNA)
    await scene.settle()
    assert [known.id for known in await registry.list_gits(scene.bus)] == ["git-lib"]
    assert (await show_template(scene.bus, "tpl")).git_refs == (LIB,)
    assert (await registry.show_git(scene.bus, "git-app"))[0].deleted
    with pytest.raises(IllegalTransition, match="git git-app is DELETED: cannot delete it again"):
        await registry.delete_git(scene.bus, "git-app", actor=ANNA)


async def test_an_unregistered_mcp_server_is_removed_from_all_templates(scene: Scene) -> None:
    await scene.register_server("tools")
    await create_template(scene.bus, SMALL, actor=ANNA)
    await registry.unregister_mcp_server(scene.bus, "tools", actor=ANNA)
    await scene.settle()
    assert await registry.list_mcp_servers(scene.bus) == []
    assert (await show_template(scene.bus, "tpl")).works[0].mcp_server_refs == ()


async def test_an_unreadable_template_does_not_keep_the_others_from_losing_deleted_resources(scene: Scene) -> None:
    await scene.register_server("tools")
    await create_template(scene.bus, SMALL, actor=ANNA)
    await put_unreadable(scene, TEMPLATES, "aa", "ACTIVE")
    for show, resource_id in ((registry.show_git, "git-app"), (registry.show_mcp_server, "tools")):
        left_out: list[tuple[str, Unreadable]] = []
        _, users = await show(scene.bus, resource_id, lambda *flaw, left_out=left_out: left_out.append(flaw))
        assert (users.templates, [unreadable for unreadable, _ in left_out]) == (("tpl",), ["aa"])
    await registry.delete_git(scene.bus, "git-app", actor=ANNA)
    await registry.unregister_mcp_server(scene.bus, "tools", actor=ANNA)
    await scene.settle()
    kept = await show_template(scene.bus, "tpl")
    assert (kept.git_refs, kept.works[0].mcp_server_refs) == ((), ())


async def test_an_unreadable_run_may_use_any_resource_so_none_is_deleted(scene: Scene) -> None:
    run = await running(scene)
    await put_unreadable(scene, WORKFLOWS, "wf-broken", "RUNNING")
    before, _ = await registry.show_git(scene.bus, "git-lib")
    perhaps = r"it is used by wf-broken \(perhaps: this version cannot read it\)"
    with pytest.raises(IllegalTransition, match=f"cannot delete it, because {perhaps}"):
        await registry.delete_git(scene.bus, "git-lib", actor=ANNA)
    with pytest.raises(IllegalTransition, match=rf"because it is used by {run}, wf-broken \(perhaps: "):
        await registry.unregister_mcp_server(scene.bus, "tools", actor=ANNA)
    left_out: list[str] = []
    shown, users = await registry.show_git(scene.bus, "git-lib", lambda record_id, _: left_out.append(record_id))
    assert (shown, users.workflows, left_out) == (before, (), ["wf-broken"])
    assert (await registry.show_mcp_server(scene.bus, "tools"))[1].workflows == (run,)


async def test_a_template_that_refers_to_an_unreadable_git_is_refused_with_what_to_do(scene: Scene) -> None:
    await put_unreadable(scene, GITS, "broken", "ACTIVE")
    refers = template(work("only", task()), git_refs=(GitRef(git_id="broken", base_branch="main"),))
    with pytest.raises(Unreadable, match=r"broken cannot be read by this version: .*; use the version that wrote it"):
        await create_template(scene.bus, refers, actor=ANNA)


async def test_a_deleted_git_may_be_created_again_with_another_address(scene: Scene) -> None:
    await registry.delete_git(scene.bus, "git-app", actor=ANNA)
    again = msgspec.structs.replace(git("git-app"), url="https://example.org/moved.git")
    await registry.create_git(scene.bus, again, actor=ANNA)
    assert (await registry.show_git(scene.bus, "git-app"))[0] == again


@pytest.mark.both_stores
async def test_one_of_two_concurrent_creations_of_a_git_is_refused(scene: Scene) -> None:
    both = [registry.create_git(scene.bus, git("same"), actor=actor) for actor in ("anna", "bob")]
    done = await asyncio.gather(*both, return_exceptions=True)
    assert sorted(type(each).__name__ for each in done) == ["Git", "IllegalTransition"]


@pytest.mark.both_stores
async def test_a_template_is_not_stored_when_its_git_is_deleted_between_the_check_and_the_commit(scene: Scene) -> None:
    async def overtaken() -> None:
        async with scene.bus.transaction() as transaction:
            await templates._store_new(transaction, template(), ANNA)
            await registry.delete_git(scene.bus, "git-app", actor=ANNA)

    with pytest.raises(Conflict):
        await overtaken()
    assert await templates.list_templates(scene.bus) == []


async def leave_in_deletion(scene: Scene, git_id: str) -> None:
    """Leave a deletion as it is when its process dies after the first transaction."""
    async with scene.bus.transaction() as transaction:
        record, found = await load_resource(transaction, Git, git_id)
        await save_resource(transaction, found.mark_deleting("git", "delete"), record)


async def test_starting_runs_only_read_shared_resources_so_many_can_start_at_once(scene: Scene) -> None:
    await scene.start_host()
    await scene.register_server("tools")
    run = await scene.create_run(SMALL)

    async def stored() -> list[Record | None]:
        async with scene.bus.transaction() as transaction:
            return [await transaction.get(GITS.name, "git-app"), await transaction.get(MCP_SERVERS.name, "tools")]

    before = await stored()
    assert None not in before
    await lifecycle.start(scene.bus, run, actor=ANNA)
    assert await stored() == before


async def test_a_git_in_deletion_is_listed_and_gets_no_new_users(scene: Scene) -> None:
    run = await scene.create_run(template(work("only", task()), git_refs=(APP,)))
    await scene.start_host()
    await leave_in_deletion(scene, "git-app")
    assert [(known.id, known.deleting) for known in await registry.list_gits(scene.bus)] == [
        ("git-app", True),
        ("git-lib", False),
    ]
    assert (await registry.show_git(scene.bus, "git-app"))[0].deleting
    with pytest.raises(IllegalTransition, match=f"git git-app is DELETING: workflow {run} cannot use it while"):
        await lifecycle.start(scene.bus, run, actor=ANNA)
    with pytest.raises(NotFound, match="'git-app', which is not registered"):
        await create_template(scene.bus, template(), actor=ANNA)


async def test_an_interrupted_deletion_is_finished_by_the_next_deletion(scene: Scene) -> None:
    await leave_in_deletion(scene, "git-app")
    assert (await registry.delete_git(scene.bus, "git-app", actor=ANNA)).deleted
    shown, _ = await registry.show_git(scene.bus, "git-app")
    assert (shown.deleted, shown.deleting) == (True, False)


async def test_a_git_whose_deletion_was_interrupted_may_be_created_again(scene: Scene) -> None:
    await leave_in_deletion(scene, "git-app")
    await registry.create_git(scene.bus, git("git-app"), actor=ANNA)
    assert (await registry.show_git(scene.bus, "git-app"))[0] == git("git-app")


async def test_a_refused_deletion_does_not_change_a_git_that_is_in_use(scene: Scene) -> None:
    await running(scene)
    before, _ = await registry.show_git(scene.bus, "git-app")
    with pytest.raises(IllegalTransition, match="git git-app is IN USE"):
        await registry.delete_git(scene.bus, "git-app", actor=ANNA)
    assert (await registry.show_git(scene.bus, "git-app"))[0] == before


class Gated:
    """A bus that calls functions before and after a transaction is opened, and before it is committed."""

    def __init__(self, bus: Any, *, before_open: Any = None, after_open: Any = None, before_commit: Any = None) -> None:
        self._bus = bus
        self._before_open = before_open
        self._after_open = after_open
        self._before_commit = before_commit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    @asynccontextmanager
    async def transaction(self, *hold: Any, **options: Any) -> AsyncIterator[Transaction]:
        if self._before_open:
            await self._before_open()
        async with self._bus.transaction(*hold, **options) as transaction:
            if self._after_open:
                await self._after_open()
            yield transaction
            if self._before_commit:
                await self._before_commit()


async def test_a_deletion_is_undone_if_a_run_that_uses_the_git_starts_meanwhile(scene: Scene) -> None:
    await scene.start_host()
    run = await scene.create_run(template(work("only", task()), git_refs=(APP,)))
    has_read, may_commit = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        has_read.set()
        await may_commit.wait()

    slow: Any = Gated(scene.bus, before_commit=hold)
    starting = asyncio.create_task(lifecycle.start(slow, run, actor=ANNA))
    await has_read.wait()
    opened: list[None] = []

    async def let_it_commit() -> None:
        opened.append(None)
        if len(opened) == len(("begin", "conclude", "look again")):
            may_commit.set()
            await starting

    deleting: Any = Gated(scene.bus, before_open=let_it_commit)
    with pytest.raises(
        IllegalTransition, match=f"git git-app is IN USE: cannot delete it, because it is used by {run}"
    ):
        await registry.delete_git(deleting, "git-app", actor=ANNA)
    shown, users = await registry.show_git(scene.bus, "git-app")
    assert (shown.deleted, shown.deleting, users.workflows) == (False, False, (run,))


@pytest.mark.both_stores
async def test_one_of_two_concurrent_creations_with_the_same_repository_name_is_refused(scene: Scene) -> None:
    both_are_open = asyncio.Event()
    opened: list[None] = []

    async def wait_for_the_other() -> None:
        opened.append(None)
        if len(opened) > 1:
            both_are_open.set()
        await both_are_open.wait()

    bus: Any = Gated(scene.bus, after_open=wait_for_the_other)
    both = [git("shop-a", repo="acme/shop"), git("shop-b", repo="Acme/Shop")]
    done = await asyncio.gather(*(registry.create_git(bus, each, actor=ANNA) for each in both), return_exceptions=True)
    assert sorted(type(each).__name__ for each in done) == ["Git", "IllegalTransition"]
    [created] = [each for each in done if isinstance(each, Git)]
    await registry.delete_git(scene.bus, created.id, actor=ANNA)
    await registry.create_git(scene.bus, git("again", repo="acme/shop"), actor=ANNA)


async def test_users_are_found_among_more_runs_than_one_page_holds(scene: Scene) -> None:
    await create_template(scene.bus, template(work("only", task()), git_refs=(APP,)), actor=ANNA)
    for _ in range(120):
        await lifecycle.create(scene.bus, "tpl", actor=ANNA)
    run = await running(scene)
    assert (await registry.show_git(scene.bus, "git-app"))[1].workflows == (run,)


async def test_a_late_deletion_event_does_not_change_templates_of_a_git_that_was_created_again(scene: Scene) -> None:
    await registry.create_git(scene.bus, git("app"), actor=ANNA)
    await registry.delete_git(scene.bus, "app", actor=ANNA)
    await registry.create_git(scene.bus, git("app"), actor=ANNA)
    ref = msgspec.structs.replace(APP, git_id="app")
    made = template(work("only", task()), git_refs=(ref,), id="again")
    await create_template(scene.bus, made, actor=ANNA)
    late = event_envelope(events.GitDeleted(git_id="app"), "Git", "app")
    await scene.bus.publish(late)
    await scene.settle()
    assert (await show_template(scene.bus, "again")).git_refs == (ref,)
