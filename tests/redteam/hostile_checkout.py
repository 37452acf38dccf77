"""A stranger's branch: attacks by files that the host runs, copies or reads before any agent starts."""

import asyncio
import subprocess
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from kingdom.errors import ProgramFailed
from kingdom.soldiers.checkouts.checkout import checkout_paths
from kingdom.soldiers.checkouts.run_checkouts import CheckoutSpec, RunCheckouts
from kingdom.soldiers.checkouts.worktree_include import copy_included
from kingdom.soldiers.processes.program import run_program
from kingdom.soldiers.sandbox.agent_sandbox import build_agent_sandbox
from kingdom.soldiers.sandbox.sandbox import Sandbox, SandboxProfile
from kingdom.soldiers.workplace.checkout_setup import CheckoutSetup, set_up_checkout
from tests.integration.soldiers.sources import a_tree, bare, make_source, run
from tests.patience import PATIENCE_SECONDS
from tests.redteam.defended import AttemptClass, Ground

CHECKOUT = AttemptClass("checkout")
_KEY = "the private key of the operator"
_SANDBOX = "the sandbox of every run, for setup scripts and checks too"
# Commands of a hostile script; each leaves a mark outside of the checkout or in it.
_DEEDS = {
    "reads a key": "cat {operator}/key > seen.log",
    "plants a file": "touch {operator}/planted",
    "reaches a service": "exec {python} -I -c \"import socket; socket.create_connection(('127.0.0.1', {port}))\"",
}


@CHECKOUT.stopped_by(_SANDBOX, _DEEDS)
async def a_setup_script_that(ground: Ground, deed: str) -> str:
    return await _run_deed(ground, deed, by_setup=True)


@CHECKOUT.stopped_by(_SANDBOX, _DEEDS)
async def a_check_that(ground: Ground, deed: str) -> str:
    return await _run_deed(ground, deed, by_setup=False)


@CHECKOUT.stopped_by("the script is searched inside of the sandbox")
async def a_setup_script_that_is_a_link_to_one_of_the_operator(ground: Ground) -> str:
    script = ground.folder / "deploy.sh"
    script.write_text(f"touch {ground.folder}/deployed\n")
    source = make_source(ground.folder / "app")
    (source / ".kingdom").mkdir()
    (source / ".kingdom" / "setup.sh").symlink_to(script)
    _keep(source)
    tree, trees = await _checked_out(ground, source)
    with suppress(ProgramFailed):
        await _prepare(ground, tree, trees)
    return "deployed" if (ground.folder / "deployed").exists() else ""


@CHECKOUT.stopped_by(
    ".worktreeinclude is read and obeyed without following links, for files below one folder",
    {"the target folder is a link": "folder", "the list is a link": "itself"},
    quick=True,
)
async def request_files_through_links(ground: Ground, what: str) -> str:
    """Request files through links: into a folder of the operator, or through a list there."""
    checkout, files, operator = (ground.folder / name for name in ("checkout", "files", "operator"))
    for folder in (checkout, files / "folder", operator):
        folder.mkdir(parents=True)
    (files / "folder" / "evil").write_text("evil\n")
    if what == "folder":
        (checkout / ".worktreeinclude").write_text("evil\n")
        (checkout / "folder").symlink_to(operator)
    else:
        (operator / "list").write_text("evil\n")
        (checkout / ".worktreeinclude").symlink_to(operator / "list")
    if ground.is_defended:
        await copy_included(files, checkout, ignored=_all)
    else:
        _copy_plainly(files, checkout)
    written = [str(each) for each in (operator / "evil", checkout / "folder" / "evil") if each.exists()]
    return ", ".join(written)


@CHECKOUT.stopped_by("git runs no program that a branch can choose", {"lfs": "lfs", "another filter": "evil"})
async def attributes_that_run_a_filter_program(ground: Ground, name: str) -> str:
    home, ran = ground.folder / "home", ground.folder / "ran"
    home.mkdir()
    program = f"touch {ran}; cat"
    (home / ".gitconfig").write_text(f'[filter "{name}"]\n\tsmudge = "{program}"\n\tclean = "{program}"\n')
    source = make_source(ground.folder / "app")
    (source / ".gitattributes").write_text(f"*.bin filter={name}\n")
    (source / ".lfsconfig").write_text("[lfs]\n\turl = http://127.0.0.1:1/\n")
    (source / "large.bin").write_text("version https://git-lfs.github.com/spec/v1\n")
    _keep(source)
    if ground.is_defended:
        tree, trees = await _checked_out(ground, source, home)
        (tree.path / "new.bin").write_text("new\n")
        await trees.commit([tree], "new")
    else:
        _clone_plainly(source, ground.folder / "plain", home)
    return "a program ran" if ran.exists() else ""


@CHECKOUT.stopped_by("submodules are not fetched")
async def a_submodule_that_leads_into_the_host(ground: Ground) -> str:
    private = make_source(ground.folder / "private")
    (private / "plans.txt").write_text(_KEY)
    _keep(private)
    source = make_source(ground.folder / "app")
    (source / ".gitmodules").write_text(f'[submodule "sub"]\n\tpath = sub\n\turl = {private}\n')
    run("add", ".gitmodules", cwd=source)
    run("update-index", "--add", "--cacheinfo", f"160000,{run('rev-parse', 'HEAD', cwd=private)},sub", cwd=source)
    run("commit", "--quiet", "-m", "submodule", cwd=source)
    if ground.is_defended:
        tree, _ = await _checked_out(ground, source)
        place = tree.path
    else:
        place = ground.folder / "plain"
        _clone_plainly(source, place, ground.folder, "--recurse-submodules")
    return _KEY if (place / "sub" / "plans.txt").exists() else ""


async def _run_deed(ground: Ground, deed: str, *, by_setup: bool) -> str:
    operator = ground.folder / "operator"
    operator.mkdir()
    (operator / "key").write_text(_KEY)
    reached: list[str] = []

    def take(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append("reached")
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    source = make_source(ground.folder / "app")
    script = deed.format(operator=operator, port=port, python=sys.executable)
    (source / ".kingdom").mkdir()
    (source / ".kingdom" / "setup.sh").write_text(f"{script}\n")
    _keep(source)
    tree, trees = await _checked_out(ground, source)
    try:
        with suppress(ProgramFailed):
            if by_setup:
                await _prepare(ground, tree, trees)
            else:
                await run_program(
                    ["/bin/sh", "-c", "sh .kingdom/setup.sh"],
                    cwd=tree.path,
                    environment={"PATH": "/usr/bin:/bin"},
                    timeout=timedelta(seconds=PATIENCE_SECONDS),
                    sandbox=_sandbox(ground, tree),
                )
    finally:
        server.close()
    seen = tree.path / "seen.log"
    planted = "planted" if (operator / "planted").exists() else ""
    return " ".join([*reached, planted, seen.read_text() if seen.exists() else ""]).strip()


async def _prepare(ground: Ground, tree: CheckoutSpec, trees: RunCheckouts) -> None:
    await set_up_checkout(
        tree,
        CheckoutSetup(),
        folder=ground.folder / "outfit",
        environment={"PATH": "/usr/bin:/bin"},
        ignored=lambda names: trees.ignored(tree, names),
        sandbox=_sandbox(ground, tree),
    )


def _sandbox(ground: Ground, tree: CheckoutSpec) -> Sandbox:
    space, home = ground.folder / "space", ground.folder / "home-of-run"
    for folder in (space, home):
        folder.mkdir(exist_ok=True)
    return build_agent_sandbox(
        SandboxProfile.STRICT if ground.is_defended else SandboxProfile.OFF,
        space=space,
        home=home,
        checkouts=[checkout_paths(tree.path, bare(ground.folder / "host", tree) / "objects")],
        reports=ground.folder / "reports",
    )


async def _checked_out(ground: Ground, source: Path, home: Path | None = None) -> tuple[CheckoutSpec, RunCheckouts]:
    host = ground.folder / "host"
    trees = RunCheckouts(host / "repositories", home=home)
    tree = a_tree(host, source)
    await trees.prepare([tree])
    return tree, trees


async def _all(names: list[str]) -> list[str]:
    return names


def _keep(source: Path) -> None:
    run("add", "--all", cwd=source)
    run("commit", "--quiet", "-m", "hostile", cwd=source)


def _copy_plainly(files: Path, checkout: Path) -> None:
    for name in (checkout / ".worktreeinclude").read_text().split():
        for file in files.rglob(name):
            target = checkout / file.relative_to(files)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())


def _clone_plainly(source: Path, target: Path, home: Path, *options: str) -> None:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home), "GIT_ALLOW_PROTOCOL": "file"}
    argv = ["git", "-c", "protocol.file.allow=always", "clone", "--quiet", *options, str(source), str(target)]
    subprocess.run(argv, env=environment, capture_output=True, check=False)
