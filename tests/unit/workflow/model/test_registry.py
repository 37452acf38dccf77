"""Templates, repositories and MCP servers: the resources of runs, and their users."""

import json
from datetime import timedelta

import msgspec
import pytest

from kingdom.errors import IllegalTransition, Misconfigured
from kingdom.workflow.model.messages import commands, events
from kingdom.workflow.model.references import GitRef, McpServerRef, merge_refs
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.model.resources.mcp_server import McpServer, McpTransport
from kingdom.workflow.model.resources.template import WorkflowTemplate
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.steps.operations import create, start
from tests.unit.workflow.model.scene import APP, DOCS, LIB, NOON, Run, task, template, work

APP_DEV = GitRef(git_id="git-app", base_branch="dev")
TOOLS = McpServerRef(mcp_server_id="mcp-tools", env={"LEVEL": "1"})
TOOLS_LOUD = McpServerRef(mcp_server_id="mcp-tools", env={"LEVEL": "9"})


def git(**more: object) -> Git:
    return Git(id="git-app", name="app", url="https://example.org/app.git", **more)  # type: ignore[arg-type] # any field


def server() -> McpServer:
    return McpServer(id="mcp-tools", name="tools", transport=McpTransport.STDIO, command=("tools", "--stdio"))


def test_a_workflow_is_a_copy_that_does_not_know_its_template() -> None:
    made_from = template()
    first = create(made_from, "wf-1", NOON)
    assert [type(event).__name__ for event in first.events] == ["WorkflowCreated"]
    assert "tpl" not in json.dumps(first.workflow.document())
    made_from.update(template(work("other")))
    assert [each.definition.name for each in first.workflow.works] == ["analyse", "build", "check"]


def test_a_template_made_from_a_workflow_makes_the_same_workflow() -> None:
    original = create(template(work("analyse", task(report=True)), description="why"), "wf-1", NOON).workflow
    copy, created = original.as_template("tpl-2", "again")
    assert created == events.WorkflowTemplateCreated(template_id="tpl-2")
    again = create(copy, "wf-1", NOON).workflow
    again.name = original.name
    for tree, known in zip(again.work_trees, original.work_trees, strict=True):
        tree.branch = known.branch
    assert again == original


def test_every_change_of_a_template_has_its_event() -> None:
    known = template()
    assert known.created_event() == events.WorkflowTemplateCreated(template_id="tpl")
    updated, event = known.update(template(work("only"), id="ignored"))
    assert (updated.id, len(updated.works), event) == ("tpl", 1, events.WorkflowTemplateUpdated(template_id="tpl"))
    deleted, gone = updated.delete()
    assert (deleted.deleted, gone) == (True, events.WorkflowTemplateDeleted(template_id="tpl"))
    with pytest.raises(IllegalTransition, match="template tpl is DELETED: cannot update it"):
        deleted.update(known)
    with pytest.raises(IllegalTransition, match="no workflow can be created from it"):
        create(deleted, "wf-1", NOON)


def test_a_deleted_git_is_removed_from_every_list_of_a_template() -> None:
    known = template(work("analyse", git_refs=(APP_DEV, DOCS)), git_refs=(APP, LIB))
    cascaded, event = known.without_git("git-app")
    assert (cascaded.git_refs, cascaded.works[0].git_refs) == ((LIB,), (DOCS,))
    assert event == events.WorkflowTemplateUpdated(template_id="tpl")
    assert cascaded.without_git("git-app") == (cascaded, None)


def test_an_unregistered_mcp_server_is_removed_from_every_list_of_a_template() -> None:
    known = template(work("analyse", mcp_server_refs=(TOOLS,)), mcp_server_refs=(TOOLS_LOUD,))
    cascaded, event = known.without_mcp_server("mcp-tools")
    assert (cascaded.mcp_server_refs, cascaded.works[0].mcp_server_refs) == ((), ())
    assert event == events.WorkflowTemplateUpdated(template_id="tpl")
    assert cascaded.without_mcp_server("mcp-tools") == (cascaded, None)


def test_a_template_needs_works_and_a_work_needs_tasks() -> None:
    with pytest.raises(Misconfigured, match="has no work"):
        WorkflowTemplate(id="t", name="empty", works=())
    with pytest.raises(Misconfigured, match="has no task"):
        msgspec.structs.replace(work("empty"), tasks=())


def test_the_references_of_a_work_win_over_those_of_its_workflow() -> None:
    assert merge_refs((APP, LIB), (APP_DEV, DOCS)) == (APP_DEV, LIB, DOCS)
    assert merge_refs((TOOLS,), (TOOLS_LOUD,)) == (TOOLS_LOUD,)


def test_one_checkout_is_planned_per_repository_and_base_branch() -> None:
    known = template(work("analyse"), work("build", git_refs=(APP_DEV,)), git_refs=(APP, LIB))
    workflow = create(known, "wf-1", NOON).workflow
    assert [tree.ref for tree in workflow.work_trees] == [APP, LIB, APP_DEV]
    assert [tree.branch for tree in workflow.work_trees] == [
        "kingdom/wf-1/fix-the-bug",
        "kingdom/wf-1/fix-the-bug",
        "kingdom/wf-1/fix-the-bug-3",
    ]
    assert [tree.ref for tree in workflow.trees_of(workflow.works[1])] == [LIB, APP_DEV]
    assert workflow.git_ids() == ("git-app", "git-lib")


def test_a_workflow_names_the_mcp_servers_it_uses() -> None:
    known = template(work("analyse", mcp_server_refs=(TOOLS_LOUD,)), work("build"), mcp_server_refs=(TOOLS,))
    assert create(known, "wf-1", NOON).workflow.mcp_server_ids() == ("mcp-tools",)


def test_a_run_uses_its_repositories_from_its_preparation_until_it_ends_or_fails() -> None:
    run = Run()
    assert not run.workflow.uses_resources
    run.do(start)
    assert run.workflow.uses_resources
    failed = run.fork()
    failed.fail(commands.PrepareResources)
    assert not failed.workflow.uses_resources
    assert not run.finish().uses_resources


def test_a_resource_in_use_cannot_be_deleted() -> None:
    users = [f"wf-{number}" for number in range(7)]
    with pytest.raises(IllegalTransition, match=r"git git-app is IN USE: .* wf-0, wf-1, wf-2, wf-3, wf-4 and 2 more"):
        git().delete(users)
    deleted, event = git().delete([])
    assert (deleted.deleted, event) == (True, events.GitDeleted(git_id="git-app"))
    with pytest.raises(IllegalTransition, match="cannot delete it again"):
        deleted.delete([])
    with pytest.raises(IllegalTransition, match="workflow wf-9 cannot use it"):
        deleted.refuse_if_deleted("git", "wf-9")


def test_an_mcp_server_in_use_cannot_be_unregistered() -> None:
    assert server().registered_event() == events.McpServerRegistered(mcp_server_id="mcp-tools")
    with pytest.raises(IllegalTransition, match="mcp server mcp-tools is IN USE"):
        server().unregister(["wf-1"])
    gone, event = server().unregister([])
    assert (gone.deleted, event) == (True, events.McpServerUnregistered(mcp_server_id="mcp-tools"))


def test_an_mcp_server_needs_the_command_or_the_url_of_its_transport() -> None:
    with pytest.raises(Misconfigured, match="uses SSE and needs a url"):
        McpServer(id="m", name="m", transport=McpTransport.SSE)
    with pytest.raises(Misconfigured, match="uses STDIO and needs a command"):
        McpServer(id="m", name="m", transport=McpTransport.STDIO, url="http://localhost")


@pytest.mark.parametrize(
    "thing", [git(checkpoint_remote="file:///shared"), server(), template(work("a", mcp_server_refs=(TOOLS,)))]
)
def test_a_stored_value_is_read_back_equal(thing: Git | McpServer | WorkflowTemplate) -> None:
    document = json.loads(json.dumps(msgspec.to_builtins(thing)))
    assert msgspec.convert(document, type(thing)) == thing


def test_a_workflow_document_is_camel_case_throughout() -> None:
    document = create(template(), "wf-1", NOON).workflow.document()
    assert {"gitRefs", "workTrees", "createdAt", "startsWhenReady"} <= document.keys()
    assert "_" not in json.dumps(list(_keys(document)))
    assert Workflow.read(document).created_at == NOON + timedelta(0)


def _keys(value: object) -> set[str]:
    if isinstance(value, dict):
        return set(value) | {key for inner in value.values() for key in _keys(inner)}
    if isinstance(value, list | tuple):
        return {key for inner in value for key in _keys(inner)}
    return set()
