"""Templates in the store: created, made from runs, changed and deleted. All their references must be registered."""

import asyncio

import msgspec
import pytest

from kingdom.errors import IllegalTransition, Misconfigured, NotFound
from kingdom.workflow import lifecycle, registry
from kingdom.workflow.model.references import GitRef, McpServerRef
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.model.steps.modify import Modification
from kingdom.workflow.templates import (
    create_template,
    delete_template,
    list_templates,
    show_template,
    slug,
    template_from_workflow,
    update_template,
)
from tests.integration.workflow.scene import ANNA, Scene
from tests.unit.workflow.model.scene import APP, LIB, task, template, work

APP_SOMEHOW = GitRef(git_id="git-app", base_branch="")
GHOST = GitRef(git_id="ghost", base_branch="main")


async def logged_about(scene: Scene, template_id: str) -> list[tuple[str, str]]:
    return [(entry.type, entry.actor) for entry in await scene.log() if entry.aggregate_id == template_id]


async def test_a_template_is_stored_as_it_was_written(scene: Scene) -> None:
    written = template(work("only", task(report=True), verify=("make check",)), description="why")
    assert await create_template(scene.bus, written, actor="bob") == written
    assert await show_template(scene.bus, "tpl") == written
    assert await list_templates(scene.bus) == [written]
    assert await logged_about(scene, "tpl") == [("WorkflowTemplateCreated", "bob")]


async def test_a_reference_without_a_branch_uses_the_default_branch_of_its_git(scene: Scene) -> None:
    docs = Git(id="docs", name="docs", url="https://example.org/docs.git", default_branch="trunk")
    await registry.create_git(scene.bus, docs, actor=ANNA)
    somehow = GitRef(git_id="docs", base_branch="")
    written = template(work("only", git_refs=(somehow,)), git_refs=(APP_SOMEHOW, LIB))
    stored = await create_template(scene.bus, written, actor=ANNA)
    assert stored.git_refs == (APP, LIB)
    assert stored.works[0].git_refs == (GitRef(git_id="docs", base_branch="trunk"),)
    assert await show_template(scene.bus, "tpl") == stored


async def test_a_template_with_an_unknown_git_is_refused_with_the_command_that_registers_it(scene: Scene) -> None:
    with pytest.raises(
        NotFound,
        match="template tpl refers to git 'ghost', which is not registered: register it with `kingdom git create g",
    ):
        await create_template(scene.bus, template(git_refs=(GHOST,)), actor=ANNA)
    await create_template(scene.bus, template(), actor=ANNA)
    with pytest.raises(NotFound, match="refers to git 'ghost'"):
        await update_template(scene.bus, "tpl", template(work("only", git_refs=(GHOST,))), actor=ANNA)
    assert await show_template(scene.bus, "tpl") == template()


async def test_a_template_that_refers_to_a_deleted_git_or_an_unknown_server_is_refused(scene: Scene) -> None:
    await registry.delete_git(scene.bus, "git-app", actor=ANNA)
    with pytest.raises(NotFound, match="refers to git 'git-app', which is not registered"):
        await create_template(scene.bus, template(), actor=ANNA)
    ghost = McpServerRef(mcp_server_id="ghost")
    with pytest.raises(
        NotFound,
        match="refers to mcp-server 'ghost', which is not registered: register it with `kingdom mcp create ghost",
    ):
        await create_template(scene.bus, template(git_refs=(), mcp_server_refs=(ghost,)), actor=ANNA)
    assert await list_templates(scene.bus) == []


async def test_a_taken_or_invalid_id_is_refused(scene: Scene) -> None:
    await create_template(scene.bus, template(), actor=ANNA)
    with pytest.raises(IllegalTransition, match=r"template tpl is ACTIVE: .*; allowed now: delete, show, update"):
        await create_template(scene.bus, template(), actor=ANNA)
    with pytest.raises(Misconfigured, match="'Tpl 1' cannot be the id of a template"):
        await create_template(scene.bus, template(id="Tpl 1"), actor=ANNA)


async def test_an_updated_template_has_other_content_and_its_runs_stay_as_they_are(scene: Scene) -> None:
    await create_template(scene.bus, template(), actor=ANNA)
    run = await lifecycle.create(scene.bus, "tpl", actor=ANNA)
    other = template(work("only"), id="ignored", name="Another name", git_refs=(APP_SOMEHOW,))
    updated = await update_template(scene.bus, "tpl", other, actor="bob")
    assert (updated.id, updated.name, updated.git_refs) == ("tpl", "Another name", (APP,))
    assert await show_template(scene.bus, "tpl") == updated
    assert [each.definition.name for each in (await scene.show(run.id)).works] == ["analyse", "build", "check"]
    assert (await logged_about(scene, "tpl"))[-1] == ("WorkflowTemplateUpdated", "bob")


async def test_a_deleted_template_cannot_be_used_but_its_id_can(scene: Scene) -> None:
    await create_template(scene.bus, template(), actor=ANNA)
    assert (await delete_template(scene.bus, "tpl", actor="bob")).deleted
    assert await list_templates(scene.bus) == []
    assert (await logged_about(scene, "tpl"))[-1] == ("WorkflowTemplateDeleted", "bob")
    with pytest.raises(IllegalTransition, match="template tpl is DELETED: cannot update it"):
        await update_template(scene.bus, "tpl", template(), actor=ANNA)
    with pytest.raises(IllegalTransition, match="no workflow can be created from it"):
        await lifecycle.create(scene.bus, "tpl", actor=ANNA)
    again = template(work("only"))
    await create_template(scene.bus, again, actor=ANNA)
    assert await show_template(scene.bus, "tpl") == again


async def test_a_template_from_a_run_has_the_current_definition_of_the_run(scene: Scene) -> None:
    await create_template(scene.bus, template(), actor=ANNA)
    run = await lifecycle.create(scene.bus, "tpl", actor=ANNA)
    await lifecycle.modify(scene.bus, run.id, Modification(git_refs=(LIB,)), actor=ANNA)
    made = await template_from_workflow(scene.bus, run.id, "Fix it: again!", actor="bob")
    assert (made.id, made.name, made.git_refs, made.works) == (
        "fix-it-again",
        "Fix it: again!",
        (LIB,),
        template().works,
    )
    assert await show_template(scene.bus, "fix-it-again") == made
    assert await logged_about(scene, "fix-it-again") == [("WorkflowTemplateCreated", "bob")]
    other = await template_from_workflow(scene.bus, run.id, "Fix it: again!", actor=ANNA, template_id="chosen")
    assert other == msgspec.structs.replace(made, id="chosen")


async def test_no_template_is_made_from_a_missing_run(scene: Scene) -> None:
    with pytest.raises(NotFound, match="there is no workflow 'wf-ghost'"):
        await template_from_workflow(scene.bus, "wf-ghost", "any", actor=ANNA)
    run = await scene.create_run()
    await lifecycle.delete(scene.bus, run, actor=ANNA)
    with pytest.raises(NotFound, match="was deleted"):
        await template_from_workflow(scene.bus, run, "any", actor=ANNA)


@pytest.mark.both_stores
async def test_none_of_many_concurrent_updates_is_lost(scene: Scene) -> None:
    await create_template(scene.bus, template(), actor=ANNA)
    others = [template(work(f"work-{number}"), name=f"name-{number}") for number in range(8)]
    await asyncio.gather(*(update_template(scene.bus, "tpl", other, actor=ANNA) for other in others))
    assert await show_template(scene.bus, "tpl") in others
    assert (await logged_about(scene, "tpl")).count(("WorkflowTemplateUpdated", ANNA)) == 8


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Fix the bug", "fix-the-bug"),
        ("  v1.2_final  ", "v1.2_final"),
        ("Ärger!", "rger"),
        ("!!!", ""),
        ("a" * 99, "a" * 60),
    ],
)
def test_a_name_becomes_an_id_that_can_be_typed(name: str, expected: str) -> None:
    assert slug(name) == expected
