"""`kingdom git …`: manage the repositories that runs can use."""

import re
import socket
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kingdom.bootstrap import data_directory_of
from kingdom.cli.framework.command import CommandCall, command
from kingdom.cli.framework.json_result import array, one
from kingdom.errors import NotFound, ProgramFailed
from kingdom.settings import Settings
from kingdom.soldiers.checkouts.git import GitFailed, run_git
from kingdom.soldiers.checkouts.repository import without_password
from kingdom.views.registry import GitDetails
from kingdom.workflow import registry
from kingdom.workflow.hosts import known_hosts
from kingdom.workflow.model.resources.git import REPOSITORY, Git, repo_of
from kingdom.workflow.model.resources.host import HostStatus
from kingdom.workflow.reactions import engine

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Manage the repositories that runs can use.")
_Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of a registered repository.")]
# A repository that does not answer in this time counts as unreachable.
_GIT_TIMEOUT = timedelta(seconds=30)
_HEADS = "refs/heads/"
_BRANCHES_SHOWN = 20


@command(app, "create", result=one(Git))
async def create(
    call: CommandCall,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name in Kingdom: lower-case letters, digits, - _ .")],
    url: Annotated[str, typer.Argument(metavar="URL", help="Its address, or a folder on this host.")],
    *,
    branch: Annotated[str, typer.Option(help="The branch that work starts from; by default the branch of HEAD.")] = "",
    checkpoint_remote: Annotated[
        str, typer.Option(help="The remote for checkpoints, so that another host can continue from them.")
    ] = "",
    repo: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER/NAME",
            help="Its name on GitHub, by which events find it; by default taken from URL, '' means none.",
        ),
    ] = None,
    no_check: Annotated[bool, typer.Option("--no-check", help="Do not check whether it can be reached.")] = False,
) -> None:
    """Register a repository, after checking that it can be reached.

    Events find a repository by its name on GitHub, so a GitHub name can be registered only once.
    Templates refer to the repository by NAME.

    Example: kingdom git create app https://example.org/app.git --branch develop

    Example: kingdom git create shop ./shop --repo acme/shop

    JSON: {id, name, url, defaultBranch, checkpointRemote, repo, deleted, deleting}.
    """
    url, checkpoint_remote = _address(url), _address(checkpoint_remote)
    repo = repo_of(url, call.part("sentinel").sentinel.repository_host) if repo is None else _checked_repo(repo)
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
        call.output.document(_without_passwords(git))
    call.output.say(
        f"Registered git {name}. Templates refer to it by this name and start from {branch} by default.",
        *([f"Events of {repo} use it."] if repo else []),
    )


@command(app, "list", result=array(Git))
async def list_(call: CommandCall) -> None:
    """List every repository.

    Example: kingdom git list

    JSON: an array of {id, name, url, defaultBranch, checkpointRemote, repo, deleted, deleting}.
    """
    async with call.bus(engine(), create=False) as bus:
        gits = [_without_passwords(git) for git in await registry.list_gits(bus, call.note_unreadable)]
    if call.output.json:
        call.output.document(gits)
    elif gits:
        rows = [(git.id, git.repo or None, git.url, git.default_branch) for git in gits]
        call.output.table(("name", "repo", "url", "branch"), rows)
    else:
        call.output.say("There are no repositories. Add one: kingdom git create NAME URL")


@command(app, "show", result=one(GitDetails))
async def show(call: CommandCall, name: _Name) -> None:
    """Show a repository, and the runs and templates that use it.

    Example: kingdom git show app

    JSON: {git: {id, name, url, …}, users: {workflows: [id], templates: [id]}}.
    """
    async with call.bus(engine(), create=False) as bus:
        git, users = await registry.show_git(bus, name, call.note_unreadable)
    git = _without_passwords(git)
    if call.output.json:
        call.output.document(GitDetails(git=git, users=users))
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


@command(app, "delete", result=one(Git))
async def delete(call: CommandCall, name: _Name) -> None:
    """Unregister a repository, unless a run uses it; templates lose their references to it.

    Example: kingdom git delete app

    JSON: {id, name, url, defaultBranch, checkpointRemote, repo, deleted, deleting}.
    """
    async with call.bus(engine(), create=False) as bus:
        _, users = await registry.show_git(bus, name, call.note_unreadable)
        git = await registry.delete_git(bus, name, actor=call.settings.actor)
    if call.output.json:
        call.output.document(_without_passwords(git))
    call.output.say(f"Unregistered git {name}. The repository itself is not changed.")
    if users.templates:
        call.output.say(f"These templates no longer refer to it: {', '.join(users.templates)}.")


def _without_passwords(git: Git) -> Git:
    """Return a registered repository without the passwords of its addresses."""
    return msgspec.structs.replace(
        git, url=without_password(git.url), checkpoint_remote=without_password(git.checkpoint_remote)
    )


def _address(text: str) -> str:
    """Return the absolute path of a local folder; return other addresses unchanged."""
    is_remote = "://" in text or ":" in text.partition("/")[0]
    return text if is_remote or not text else str(Path(text).expanduser().absolute())


def _checked_repo(repo_name: str) -> str:
    if repo_name and not re.fullmatch(REPOSITORY, repo_name):
        raise typer.BadParameter(f"{repo_name!r} is not a repository on GitHub: write it as acme/shop")
    return repo_name


async def _home_of_host(call: CommandCall) -> Path:
    """Return the directory in which the soldier host of this machine keeps its `.gitconfig`."""
    with suppress(NotFound):
        async with call.bus(engine(), create=False) as bus, bus.transaction() as transaction:
            for host in await known_hosts(transaction):
                if host.status is HostStatus.UP and host.machine == socket.gethostname():
                    return Path(host.directory)
    return _directory_of_hosts(call.settings, call.part("soldiers").soldiers.directory)


def _directory_of_hosts(settings: Settings, configured: str) -> Path:
    return Path(configured or data_directory_of(settings)).absolute()


async def _checked_branch(url: str, wanted: str, home: Path) -> str:
    """Return the branch to start from, after checking that the repository has it."""
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
    has = ", ".join(branches[:_BRANCHES_SHOWN]) or "none yet, push a first commit"
    missing = f"has no branch {branch!r}" if branch else "does not say which branch is its default"
    raise ProgramFailed(f"{without_password(url)} {missing}: name one with --branch (it has: {has}), or add --no-check")


async def _ls_remote(url: str, home: Path) -> str:
    """List the branches and HEAD of a repository, with the credentials that a soldier host uses."""
    wanted = ("HEAD", f"{_HEADS}*")
    try:
        return await run_git("ls-remote", "--symref", "--", url, *wanted, cwd=Path("/"), home=home, limit=_GIT_TIMEOUT)
    except GitFailed as error:
        shown = without_password(url)
        raise ProgramFailed(
            f"{shown} cannot be reached: check the address and the credentials, or add --no-check; a host reads"
            f" credentials from {home / '.gitconfig'}, not from your own .gitconfig, and keys from ~/.ssh;"
            f" {str(error).replace(url, shown)}"
        ) from error
