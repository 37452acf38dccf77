"""Traps that a hostile agent or repository leaves for the host, which works outside of the sandbox.

Each function lays a trap and lets the host do its work. It returns evidence of success, or an empty text.
"""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from kingdom.soldiers.checkouts.run_checkouts import CheckoutSpec
from kingdom.soldiers.turns.result import read_result
from kingdom.soldiers.workplace import work_space
from kingdom.workflow.model.resources.template import TaskDefinition, WorkDefinition
from kingdom.workflow.model.run.work import Work
from tests.integration.soldiers.sources import a_tree, checkpointed, make_source, run
from tests.redteam.target_host import SECRET, TargetHost, released

HostTrap = Callable[[TargetHost], Awaitable[str]]
HOST_TRAPS: list[tuple[HostTrap, str]] = []


def stopped_by(guard: str) -> Callable[[HostTrap], HostTrap]:
    """Register an attempt with the defense against it."""

    def register(lay: HostTrap) -> HostTrap:
        HOST_TRAPS.append((lay, guard))
        return lay

    return register


@stopped_by("git runs with the configuration that Kingdom wrote")
async def a_filter_named_by_the_repository(host: TargetHost) -> str:
    (host.tree.path / ".gitattributes").write_text("* filter=evil diff=evil merge=evil\n")
    _configure(host.clone, host)
    return await _work_through(host)


@stopped_by("git runs with the configuration that Kingdom wrote")
async def a_monitor_in_the_configuration(host: TargetHost) -> str:
    run("config", "core.fsmonitor", _evil(host), cwd=host.tree.path)
    return await _work_through(host)


@stopped_by("git runs no hook")
async def a_hook_in_the_clone(host: TargetHost) -> str:
    for name in ("post-checkout", "pre-commit", "post-commit", "reference-transaction", "post-index-change"):
        _program(host.clone / "hooks" / name, host)
    run("config", "core.hooksPath", str(host.clone / "hooks"), cwd=host.tree.path)
    return await _work_through(host)


@stopped_by("git runs with the configuration that Kingdom wrote")
async def an_included_configuration(host: TargetHost) -> str:
    (host.tree.path / "more.cfg").write_text(f'[core]\n\tfsmonitor = "{_evil(host)}"\n')
    run("config", "include.path", str(host.tree.path / "more.cfg"), cwd=host.tree.path)
    return await _work_through(host)


@stopped_by("a nested repository is read in a sandbox, and staged with the configuration of Kingdom")
async def a_nested_repository_with_hooks_and_filters(host: TargetHost) -> str:
    nested = make_source(host.tree.path / "nested")
    _configure(nested / ".git", host)
    run("config", "core.fsmonitor", _evil(host), cwd=nested)
    (nested / ".gitattributes").write_text("* filter=evil\n")
    for name in ("post-checkout", "pre-push", "post-update", "reference-transaction"):
        _program(nested / ".git" / "hooks" / name, host)
    (nested / "file0.txt").write_text("changed\n")
    return await _work_through(host)


@stopped_by("a nested repository is read in a sandbox")
async def a_nested_repository_that_fetches_by_a_program(host: TargetHost) -> str:
    nested = make_source(host.tree.path / "nested")
    blob = run("rev-parse", "HEAD:file0.txt", cwd=nested)
    (nested / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    for name, value in {
        "core.repositoryformatversion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": f"ext::sh -c touch% {host.folder}/was-run",
        "protocol.ext.allow": "always",
    }.items():
        run("config", name, value, cwd=nested)
    return await _work_through(host)


@stopped_by("a nested repository is read in a sandbox that has only the checkout")
async def a_nested_repository_that_is_a_link(host: TargetHost) -> str:
    (host.tree.path / "nested").mkdir()
    (host.tree.path / "nested" / ".git").symlink_to(_private(host) / ".git")
    return await _leaked(host)


@stopped_by("a nested repository is read in a sandbox that has only the checkout")
async def a_nested_repository_that_points_elsewhere(host: TargetHost) -> str:
    (host.tree.path / "nested").mkdir()
    (host.tree.path / "nested" / ".git").write_text(f"gitdir: {_private(host)}/.git\n")
    return await _leaked(host)


@stopped_by("a nested repository is read in a sandbox that has only the checkout")
async def a_nested_repository_that_borrows_objects(host: TargetHost) -> str:
    private = _private(host)
    nested = host.tree.path / "nested"
    nested.mkdir()
    run("init", "--quiet", "-b", "main", cwd=nested)
    (nested / ".git/objects/info/alternates").write_text(f"{private}/.git/objects\n")
    (nested / ".git/refs/heads/main").write_text(run("rev-parse", "HEAD", cwd=private) + "\n")
    return await _leaked(host)


@stopped_by("a nested repository is looked for without following links")
async def a_submodule_that_became_a_link(host: TargetHost) -> str:
    private = _private(host)
    commit = run("rev-parse", "HEAD", cwd=host.source)
    run("update-index", "--add", "--cacheinfo", f"160000,{commit},sub", cwd=host.source)
    run("commit", "--quiet", "-m", "submodule", cwd=host.source)
    host.tree = a_tree(host.folder, host.source, "tree3")
    await host.trees.prepare([host.tree])
    (host.tree.path / "sub").rmdir()
    (host.tree.path / "sub").symlink_to(private)
    return await _leaked(host)


@stopped_by("Kingdom names the git directory and restores the pointer")
async def a_pointer_of_the_checkout_to_another_repository(host: TargetHost) -> str:
    private = _private(host)
    before = run("rev-parse", "HEAD", cwd=private)
    (host.tree.path / ".git").write_text(f"gitdir: {private}/.git\n")
    (host.tree.path / "new.txt").write_text("mine\n")
    await host.trees.commit([host.tree], "work")
    after = run("rev-parse", "HEAD", cwd=private)
    return "" if after == before else "committed there"


@stopped_by("git keeps a link as a link")
async def a_file_that_became_a_link_to_a_secret(host: TargetHost) -> str:
    base = await host.trees.base_commit(host.tree)
    (host.tree.path / "file0.txt").unlink()
    (host.tree.path / "file0.txt").symlink_to(host.secret_file)
    shown = await host.trees.diff(host.tree, base)
    await host.trees.commit([host.tree], "work")
    await host.trees.roll_back([host.tree], {}, [host.tree.id], "r1")
    return SECRET if SECRET in shown or host.secret_file.read_text() != SECRET else ""


@stopped_by("only a regular file is read, and a pipe is not waited for")
async def pipes_where_files_are_expected(host: TargetHost) -> str:
    os.mkfifo(host.tree.path / "pipe")
    os.mkfifo(host.space / "result.json")
    await host.trees.commit([host.tree], "work")
    return str(read_result(host.space) or "")


@stopped_by("only a regular file is read")
async def a_result_that_is_a_link_to_a_secret(host: TargetHost) -> str:
    (host.folder / "secret.json").write_text(f'{{"status": "success", "summary": "{SECRET}"}}')
    (host.space / "result.json").symlink_to(host.folder / "secret.json")
    return str(read_result(host.space) or "")


@stopped_by("only a small file is read")
async def an_endless_result(host: TargetHost) -> str:
    (host.space / "result.json").symlink_to("/dev/zero")
    first = read_result(host.space)
    (host.space / "result.json").unlink()
    with (host.space / "result.json").open("wb") as file:
        file.truncate(1 << 32)
    return str(first or read_result(host.space) or "")


@stopped_by("no link is followed when files are laid out")
async def a_folder_for_reports_that_is_a_link(host: TargetHost) -> str:
    space = host.folder / "spaces" / "space1"
    space.mkdir(parents=True)
    trap = host.folder / "trap"
    trap.mkdir()
    for name in ("reports", "CLAUDE.md", ".kingdom-task.json"):
        (space / name).symlink_to(trap / name if "." in name else trap)
    work = Work.of("wf-1-w1", WorkDefinition(name="Work", tasks=(TaskDefinition(query="work"),)))
    work_space.lay_out_work_space(space, host.folder, work, [host.tree], {"reports/one.md": "A report.\n"})
    return ", ".join(path.name for path in trap.iterdir())


@stopped_by("folders are removed from the top, however deep they are")
async def folders_too_deep_to_remove(host: TargetHost) -> str:
    place = os.open(host.tree.path, os.O_RDONLY)
    for _ in range(1200):
        # An ignored name, so git does not look into it.
        os.mkdir("deep.log", dir_fd=place)
        inner = os.open("deep.log", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inner
    os.close(place)
    refused = await released(host)
    return refused or ("it is still there" if host.tree.path.exists() else "")


def _evil(host: TargetHost) -> str:
    return f"touch {host.folder}/was-run; cat"


def _configure(git: Path, host: TargetHost) -> None:
    for name in ("filter.evil.clean", "filter.evil.smudge", "diff.evil.textconv", "diff.external", "core.pager"):
        run("config", name, _evil(host), cwd=git)


def _program(path: Path, host: TargetHost) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{_evil(host)}\n")
    path.chmod(0o755)


async def _work_through(host: TargetHost) -> str:
    """Let the host do all its work on a checkout; return whether a program of the agent ran."""
    tree: CheckoutSpec = host.tree
    base = await host.trees.base_commit(tree)
    (tree.path / "file0.txt").write_text("changed\n")
    await host.trees.diff(tree, base)
    commits = await checkpointed(host.trees, [tree], "c1", "work")
    await host.trees.roll_back([tree], {}, [tree.id], "r1")
    await host.trees.roll_back([tree], commits, [], "r2")
    await released(host)
    return "was run" if (host.folder / "was-run").exists() else ""


def _private(host: TargetHost) -> Path:
    """Return a private repository on this machine."""
    private = make_source(host.folder / "private")
    (private / "plans.txt").write_text(SECRET)
    run("add", "--all", cwd=private)
    run("commit", "--quiet", "-m", "plans", cwd=private)
    return private


async def _leaked(host: TargetHost) -> str:
    """Release the checkout; return whether private objects reached the clone, which later agents read."""
    await released(host)
    objects = run("cat-file", "--batch-all-objects", "--batch-check=%(objectname)", cwd=host.clone)
    plans = run("rev-parse", "HEAD:plans.txt", cwd=host.folder / "private")
    return f"{plans} is in the clone" if plans in objects else ""
