"""`kingdom git …`: the repositories that runs may use."""

import re
import socket
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kingdom.bootstrap import data_directory_of
from kingdom.cli.command import Call, command
from kingdom.cli.shape import array, one
from kingdom.errors import NotFound, ProgramFailed
from kingdom.settings import Settings
from kingdom.soldiers.git import GitFailed
from kingdom.soldiers.git import git as run_git
from kingdom.soldiers.repository import without_password
from kingdom.workflow import registry
from kingdom.workflow.hosts import known_hosts
from kingdom.workflow.model.git import REPOSITORY, Git, repo_of
from kingdom.workflow.model.host import HostStatus
from kingdom.workflow.reactions import engine

app = typer.Typer(no_args_is_help=True, add_completion=False, help="The repositories that runs may use.")
_Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name here.")]
_LIMIT = timedelta(seconds=30)
_HEADS = "refs/heads/"
_NAMES_SHOWN = 20


class ShownGit(msgspec.Struct, frozen=True, kw_only=True):
    """A repository and who uses it."""

    git: Git
    users: registry.Users


@command(app, "create", answer=one(Git))
async def create(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name here: lower-case letters, digits, - _ .")],
    url: Annotated[str, typer.Argument(metavar="URL", help="Its address, or a folder of this host.")],
    *,
    branch: Annotated[str, typer.Option(help="Where work starts from; else the branch that its HEAD names.")] = "",
    checkpoint_remote: Annotated[
        str, typer.Option(help="Where checkpoints are pushed, so that another host can go on from them.")
    ] = "",
    repo: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER/NAME",
            help="What events call it, for a mirror or a folder; else what URL names on GitHub, and '' for nothing.",
        ),
    ] = None,
    no_check: Annotated[bool, typer.Option("--no-check", help="Do not look whether it can be reached.")] = False,
) -> None:
    """Make a repository known; it is looked at first.

    Events find it by the repository that they name, whatever its name is here, so one repository is one Git.

    Example: kingdom git create app https://example.org/app.git --branch develop

    Example: kingdom git create shop ./shop --repo acme/shop

    JSON: {id, name, url, defaultBranch, checkpointRemote, repo, deleted, deleting}.
    """
    url, checkpoint_remote = _address(url), _address(checkpoint_remote)
    repo = repo_of(url, call.part("sentinel").sentinel.forge) if repo is None else _checked_repo(repo)
    if no_check:
        branch = branch or "main"
    else:
        home = await _home_of_host(call)
        branch = await _checked_branch(url, branch, home)
        if checkpoint_remote:
            await _ls_remote(checkpoint_remote, home)
    git = Git(id=name, name=name, url=url, default_branch=branch, checkpoint_remote=checkpoint_remote, repo=repo)
    async with call.bus(engine()) as bus:
        git = await registry.create_git(bus, git, actor=call.settings.actor)
    if call.output.json:
        call.output.document(_shown(git))
    call.output.say(
        f"Git {name} is known. Templates refer to it by this name and start from {branch} by default.",
        *([f"Events of {repo} work in it."] if repo else []),
    )


@command(app, "list", answer=array(Git))
async def list_(call: Call) -> None:
    """Show every repository.

    Example: kingdom git list

    JSON: an array of {id, name, url, defaultBranch, checkpointRemote, repo, deleted, deleting}.
    """
    async with call.bus(engine(), create=False) as bus:
        gits = [_shown(git) for git in await registry.list_gits(bus, call.leave_out)]
    if call.output.json:
        call.output.document(gits)
    elif gits:
        rows = [(git.id, git.repo or None, git.url, git.default_branch) for git in gits]
        call.output.table(("name", "repo", "url", "branch"), rows)
    else:
        call.output.say("No repository is known. Add one: kingdom git create NAME URL")


@command(app, "show", answer=one(ShownGit))
async def show(call: Call, name: _Name) -> None:
    """Show a repository and who uses it.

    Example: kingdom git show app

    JSON: {git: {id, name, url, …}, users: {workflows: [id], templates: [id]}}.
    """
    async with call.bus(engine(), create=False) as bus:
        git, users = await registry.show_git(bus, name)
    git = _shown(git)
    if call.output.json:
        call.output.document(ShownGit(git=git, users=users))
        return
    rows = {
        "name": git.id + (" (deleted)" if git.deleted else " (being deleted)" if git.deleting else ""),
        "repo": git.repo or None,
        "url": git.url,
        "branch": git.default_branch,
        "checkpoint remote": git.checkpoint_remote or None,
        "used by workflows": ", ".join(users.workflows) or None,
        "named by templates": ", ".join(users.templates) or None,
    }
    call.output.table(("git", ""), rows.items())


@command(app, "delete", answer=one(Git))
async def delete(call: Call, name: _Name) -> None:
    """Forget a repository; refused while a run uses it, and templates lose their references to it.

    Example: kingdom git delete app

    JSON: {id, name, url, defaultBranch, checkpointRemote, repo, deleted, deleting}.
    """
    async with call.bus(engine(), create=False) as bus:
        _, users = await registry.show_git(bus, name)
        git = await registry.delete_git(bus, name, actor=call.settings.actor)
    if call.output.json:
        call.output.document(_shown(git))
    call.output.say(f"Git {name} is known no more. The repository itself is untouched.")
    if users.templates:
        call.output.say(f"Without it now: template {', '.join(users.templates)}.")


def _shown(git: Git) -> Git:
    """Return a Git without the passwords of its addresses."""
    return msgspec.structs.replace(
        git, url=without_password(git.url), checkpoint_remote=without_password(git.checkpoint_remote)
    )


def _address(text: str) -> str:
    """Return a folder of this host as every process can find it; other addresses stay as they are."""
    is_remote = "://" in text or ":" in text.partition("/")[0]
    return text if is_remote or not text else str(Path(text).expanduser().absolute())


def _checked_repo(said: str) -> str:
    if said and not re.fullmatch(REPOSITORY, said):
        raise typer.BadParameter(f"{said!r} is no repository on GitHub: write it as acme/shop")
    return said


async def _home_of_host(call: Call) -> Path:
    """Return where git of a host here looks for its configuration: a host that runs, else the one that would."""
    with suppress(NotFound):
        async with call.bus(engine(), create=False) as bus, bus.transaction() as transaction:
            for host in await known_hosts(transaction):
                if host.status is HostStatus.UP and host.machine == socket.gethostname():
                    return Path(host.directory)
    return _directory_of_hosts(call.settings, call.part("soldiers").soldiers.directory)


def _directory_of_hosts(settings: Settings, own: str) -> Path:
    return Path(own or data_directory_of(settings)).absolute()


async def _checked_branch(url: str, wanted: str, home: Path) -> str:
    """Return the branch to start from, which the repository has."""
    head, branches = "", []
    for line in (await _ls_remote(url, home)).splitlines():
        value, _, ref = line.partition("\t")
        if ref == "HEAD" and value.startswith("ref: "):
            head = value.removeprefix(f"ref: {_HEADS}")
        elif ref.startswith(_HEADS):
            branches.append(ref.removeprefix(_HEADS))
    branch = wanted or head
    if branch and branch in branches:
        return branch
    has = ", ".join(branches[:_NAMES_SHOWN]) or "none yet, push a first commit"
    missing = f"has no branch {branch!r}" if branch else "does not say which branch is its default"
    raise ProgramFailed(f"{without_password(url)} {missing}: name one with --branch (it has: {has}), or say --no-check")


async def _ls_remote(url: str, home: Path) -> str:
    """Ask a repository for its branches and its HEAD, with the rights of a host; no checkout around here counts."""
    wanted = ("HEAD", f"{_HEADS}*")
    try:
        return await run_git("ls-remote", "--symref", "--", url, *wanted, cwd=Path("/"), home=home, limit=_LIMIT)
    except GitFailed as error:
        shown = without_password(url)
        raise ProgramFailed(
            f"{shown} cannot be reached: check the address and the rights: a host finds credentials in"
            f" {home / '.gitconfig'}, not in that of your home, and keys in ~/.ssh; or say --no-check;"
            f" {str(error).replace(url, shown)}"
        ) from error
