"""What a hostile agent, or a hostile repository, leaves for the house to stumble over; nothing of it is in a sandbox.

Each function lays something out and lets the house do its work; what it returns is what the agent has won, if anything.
"""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from kingdom.soldiers import work_space
from kingdom.soldiers.result import read_result
from kingdom.soldiers.trees import Tree
from kingdom.workflow.model.resources.template import TaskDefinition, WorkDefinition
from kingdom.workflow.model.run.work import Work
from tests.integration.soldiers.sources import a_tree, checkpointed, make_source, run
from tests.redteam.house import SECRET, House, released

Leaving = Callable[[House], Awaitable[str]]
LEAVINGS: list[tuple[Leaving, str]] = []


def stopped_by(guard: str) -> Callable[[Leaving], Leaving]:
    """Tell what the house relies on."""

    def noted(lay: Leaving) -> Leaving:
        LEAVINGS.append((lay, guard))
        return lay

    return noted


@stopped_by("git runs with the configuration that Kingdom wrote")
async def a_filter_named_by_the_repository(house: House) -> str:
    (house.tree.path / ".gitattributes").write_text("* filter=evil diff=evil merge=evil\n")
    _configure(house.clone, house)
    return await _work_through(house)


@stopped_by("git runs with the configuration that Kingdom wrote")
async def a_monitor_in_the_configuration(house: House) -> str:
    run("config", "core.fsmonitor", _evil(house), cwd=house.tree.path)
    return await _work_through(house)


@stopped_by("git runs no hook")
async def a_hook_in_the_clone(house: House) -> str:
    for name in ("post-checkout", "pre-commit", "post-commit", "reference-transaction", "post-index-change"):
        _program(house.clone / "hooks" / name, house)
    run("config", "core.hooksPath", str(house.clone / "hooks"), cwd=house.tree.path)
    return await _work_through(house)


@stopped_by("git runs with the configuration that Kingdom wrote")
async def an_included_configuration(house: House) -> str:
    (house.tree.path / "more.cfg").write_text(f'[core]\n\tfsmonitor = "{_evil(house)}"\n')
    run("config", "include.path", str(house.tree.path / "more.cfg"), cwd=house.tree.path)
    return await _work_through(house)


@stopped_by("a repository inside is read in a sandbox, and staged with our configuration")
async def a_repository_with_hooks_and_filters_inside(house: House) -> str:
    nested = make_source(house.tree.path / "nested")
    _configure(nested / ".git", house)
    run("config", "core.fsmonitor", _evil(house), cwd=nested)
    (nested / ".gitattributes").write_text("* filter=evil\n")
    for name in ("post-checkout", "pre-push", "post-update", "reference-transaction"):
        _program(nested / ".git" / "hooks" / name, house)
    (nested / "file0.txt").write_text("changed\n")
    return await _work_through(house)


@stopped_by("a repository inside is read in a sandbox")
async def a_repository_inside_that_fetches_by_a_program(house: House) -> str:
    nested = make_source(house.tree.path / "nested")
    blob = run("rev-parse", "HEAD:file0.txt", cwd=nested)
    (nested / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    for name, value in {
        "core.repositoryformatversion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": f"ext::sh -c touch% {house.folder}/was-run",
        "protocol.ext.allow": "always",
    }.items():
        run("config", name, value, cwd=nested)
    return await _work_through(house)


@stopped_by("a repository inside is read in a sandbox that has only the checkout")
async def a_repository_inside_that_is_a_link(house: House) -> str:
    (house.tree.path / "nested").mkdir()
    (house.tree.path / "nested" / ".git").symlink_to(_private(house) / ".git")
    return await _leaked(house)


@stopped_by("a repository inside is read in a sandbox that has only the checkout")
async def a_repository_inside_that_points_elsewhere(house: House) -> str:
    (house.tree.path / "nested").mkdir()
    (house.tree.path / "nested" / ".git").write_text(f"gitdir: {_private(house)}/.git\n")
    return await _leaked(house)


@stopped_by("a repository inside is read in a sandbox that has only the checkout")
async def a_repository_inside_that_borrows_objects(house: House) -> str:
    private = _private(house)
    nested = house.tree.path / "nested"
    nested.mkdir()
    run("init", "--quiet", "-b", "main", cwd=nested)
    (nested / ".git/objects/info/alternates").write_text(f"{private}/.git/objects\n")
    (nested / ".git/refs/heads/main").write_text(run("rev-parse", "HEAD", cwd=private) + "\n")
    return await _leaked(house)


@stopped_by("a repository inside is looked for without following links")
async def a_submodule_that_became_a_link(house: House) -> str:
    private = _private(house)
    commit = run("rev-parse", "HEAD", cwd=house.source)
    run("update-index", "--add", "--cacheinfo", f"160000,{commit},sub", cwd=house.source)
    run("commit", "--quiet", "-m", "submodule", cwd=house.source)
    house.tree = a_tree(house.folder, house.source, "tree3")
    await house.trees.prepare([house.tree])
    (house.tree.path / "sub").rmdir()
    (house.tree.path / "sub").symlink_to(private)
    return await _leaked(house)


@stopped_by("git is told where its data lies, and the pointer is put right")
async def a_pointer_of_the_checkout_to_another_repository(house: House) -> str:
    private = _private(house)
    before = run("rev-parse", "HEAD", cwd=private)
    (house.tree.path / ".git").write_text(f"gitdir: {private}/.git\n")
    (house.tree.path / "new.txt").write_text("mine\n")
    await house.trees.commit([house.tree], "work")
    after = run("rev-parse", "HEAD", cwd=private)
    return "" if after == before else "committed there"


@stopped_by("git keeps a link as a link")
async def a_file_that_became_a_link_to_a_secret(house: House) -> str:
    base = await house.trees.base_of(house.tree)
    (house.tree.path / "file0.txt").unlink()
    (house.tree.path / "file0.txt").symlink_to(house.secret_file)
    shown = await house.trees.diff(house.tree, base)
    await house.trees.commit([house.tree], "work")
    await house.trees.roll_back([house.tree], {}, [house.tree.id], "r1")
    return SECRET if SECRET in shown or house.secret_file.read_text() != SECRET else ""


@stopped_by("only a file of its own is read, without waiting")
async def pipes_where_files_are_expected(house: House) -> str:
    os.mkfifo(house.tree.path / "pipe")
    os.mkfifo(house.space / "result.json")
    await house.trees.commit([house.tree], "work")
    return str(read_result(house.space) or "")


@stopped_by("only a file of its own is read")
async def a_result_that_is_a_link_to_a_secret(house: House) -> str:
    (house.folder / "secret.json").write_text(f'{{"status": "success", "summary": "{SECRET}"}}')
    (house.space / "result.json").symlink_to(house.folder / "secret.json")
    return str(read_result(house.space) or "")


@stopped_by("only a file of fair size is read")
async def a_result_without_end(house: House) -> str:
    (house.space / "result.json").symlink_to("/dev/zero")
    first = read_result(house.space)
    (house.space / "result.json").unlink()
    with (house.space / "result.json").open("wb") as file:
        file.truncate(1 << 32)
    return str(first or read_result(house.space) or "")


@stopped_by("no link is followed when files are laid out")
async def a_folder_for_reports_that_is_a_link(house: House) -> str:
    space = house.folder / "spaces" / "space1"
    space.mkdir(parents=True)
    trap = house.folder / "trap"
    trap.mkdir()
    for name in ("reports", "CLAUDE.md", ".kingdom-task.json"):
        (space / name).symlink_to(trap / name if "." in name else trap)
    work = Work.of("wf-1-w1", WorkDefinition(name="Work", tasks=(TaskDefinition(query="work"),)))
    work_space.lay_out(space, house.folder, work, [house.tree], {"reports/one.md": "A report.\n"})
    return ", ".join(path.name for path in trap.iterdir())


@stopped_by("folders are removed from above, however deep")
async def folders_too_deep_to_remove(house: House) -> str:
    place = os.open(house.tree.path, os.O_RDONLY)
    for _ in range(1200):
        # An ignored name, so that git does not look into it.
        os.mkdir("deep.log", dir_fd=place)
        inner = os.open("deep.log", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inner
    os.close(place)
    refused = await released(house)
    return refused or ("it is still there" if house.tree.path.exists() else "")


def _evil(house: House) -> str:
    return f"touch {house.folder}/was-run; cat"


def _configure(git: Path, house: House) -> None:
    for name in ("filter.evil.clean", "filter.evil.smudge", "diff.evil.textconv", "diff.external", "core.pager"):
        run("config", name, _evil(house), cwd=git)


def _program(path: Path, house: House) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{_evil(house)}\n")
    path.chmod(0o755)


async def _work_through(house: House) -> str:
    """Let the house do with a checkout whatever it does, and tell whether a program of the agent ran."""
    tree: Tree = house.tree
    base = await house.trees.base_of(tree)
    (tree.path / "file0.txt").write_text("changed\n")
    await house.trees.diff(tree, base)
    commits = await checkpointed(house.trees, [tree], "c1", "work")
    await house.trees.roll_back([tree], {}, [tree.id], "r1")
    await house.trees.roll_back([tree], commits, [], "r2")
    await released(house)
    return "was run" if (house.folder / "was-run").exists() else ""


def _private(house: House) -> Path:
    """Return a repository on this machine that is none of the agent's business."""
    private = make_source(house.folder / "private")
    (private / "plans.txt").write_text(SECRET)
    run("add", "--all", cwd=private)
    run("commit", "--quiet", "-m", "plans", cwd=private)
    return private


async def _leaked(house: House) -> str:
    """Release the checkout, and tell whether the clone, which later agents read, has got what is private."""
    await released(house)
    objects = run("cat-file", "--batch-all-objects", "--batch-check=%(objectname)", cwd=house.clone)
    plans = run("rev-parse", "HEAD:plans.txt", cwd=house.folder / "private")
    return f"{plans} is in the clone" if plans in objects else ""
