"""What earlier versions knew by a slug, acme-web-app for acme/web-app and acme-web/app alike, gets its repository."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec
import structlog

from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import RecordQuery, read_documents
from kingdom.court.documents import Assignment
from kingdom.court.memory import earlier_files, take_over_file
from kingdom.court.package import Package
from kingdom.court.records import ASSIGNMENTS
from kingdom.court.sentinel.settings import SentinelSettings, names_owner
from kingdom.errors import KingdomError
from kingdom.workflow.model.git import Git, repo_of
from kingdom.workflow.records import ACTIVE, GITS, change, each, load, save
from kingdom.workflow.templates import slug

_log = structlog.get_logger("kingdom.court")


@dataclass(frozen=True, slots=True)
class _Known:
    """Repositories, in lower case; those that only events name are not `trusted` where these come from outside.

    Strangers choose the names of their repositories, so they could choose one whose slug is that of a Git.
    """

    repos: frozenset[str]
    trusted: frozenset[str]


async def take_over_slugs(bus: Bus, packages: Collection[Package], sentinel: SentinelSettings) -> None:
    """Give Gits and memory of earlier versions their repositories as far as these are certain, and tell of the others.

    It can be repeated: what has its repository is left alone.
    """
    files = [
        (Path(package.directory), file)
        for package in packages
        for file in earlier_files(Path(package.directory), package.general.memory)
    ]
    async with bus.transaction() as transaction:
        stored = [record async for record in each(transaction, RecordQuery(kind=GITS.name, state=ACTIVE))]
        found = list(read_documents(stored, Git))
        gits = [_with_address(git, sentinel.forge) for git in found]
        is_done = not files and all(git.repo for git in gits)
        assigned = frozenset() if is_done else await _assigned(transaction)
    known = _known(packages, sentinel, [git.repo for git in gits if git.repo], assigned)
    gits = [git if git.repo else _with_slug(git, known) for git in gits]
    for before, git in zip(found, gits, strict=True):
        if git != before:
            await _keep_repo(bus, git)
    _tell_of_twins(gits)
    for directory, file in files:
        _take_over_memory(directory, file, known)


async def _assigned(transaction: Transaction) -> frozenset[str]:
    found = [record async for record in each(transaction, RecordQuery(kind=ASSIGNMENTS.name))]
    return frozenset(assignment.repo for assignment in read_documents(found, Assignment) if assignment.repo)


def _known(
    packages: Iterable[Package], sentinel: SentinelSettings, own: Iterable[str], assigned: Iterable[str]
) -> _Known:
    globs = {glob.lower() for glob in _globs(packages, sentinel) if names_owner(glob)}
    repos = {repo.lower() for repo in (*own, *assigned)} | {glob for glob in globs if not set(glob) & set("*?[")}
    trusted = {repo.lower() for repo in own} | {
        repo for repo in repos if sentinel.github is None or any(fnmatchcase(repo, glob) for glob in globs)
    }
    return _Known(frozenset(repos), frozenset(trusted))


def _globs(packages: Iterable[Package], sentinel: SentinelSettings) -> Iterator[str]:
    """Yield the repositories that people name in their files."""
    yield from sentinel.github.repos if sentinel.github else ()
    for general in (package.general for package in packages):
        yield general.default_repo or ""
        yield from (schedule.repo or "" for schedule in general.schedules)
        yield from (glob for subscription in general.subscribes for glob in subscription.repos)


def _with_address(git: Git, forge: str) -> Git:
    return git if git.repo else msgspec.structs.replace(git, repo=repo_of(git.url, forge))


def _with_slug(git: Git, known: _Known) -> Git:
    """Return a Git with the repository that earlier versions took it for, if there is one that this can be."""
    address = git.url.removesuffix("/").removesuffix(".git").lower()
    fitting = {repo for repo in known.repos if git.id == slug(repo) or address.endswith((f"/{repo}", f":{repo}"))}
    if len(certain := fitting & known.trusted) == 1:
        return msgspec.structs.replace(git, repo=certain.pop())
    if fitting:
        _log.warning(
            "it is not certain of which repository a Git is, so no event works in it: name the right one under `repos`"
            " of a General and start again, or delete the Git and create it with --repo",
            git=git.id,
            may_be=sorted(fitting),
        )
    return git


async def _keep_repo(bus: Bus, known: Git) -> None:
    async def act(transaction: Transaction) -> bool:
        record, git = await load(transaction, Git, known.id)
        if git.repo or record.state != ACTIVE:
            return False
        await save(transaction, msgspec.structs.replace(git, repo=known.repo), record)
        return True

    if await change(bus, act):
        _log.info("a Git of an earlier version has its repository now", git=known.id, repo=known.repo)


def _tell_of_twins(gits: Iterable[Git]) -> None:
    twins: dict[str, list[str]] = defaultdict(list)
    for git in gits:
        twins[git.repo.lower()].append(git.id)
    for repo, (first, *others) in twins.items():
        if repo and others:
            _log.warning(
                "several Gits are of one repository, and its events work in the first: delete the others, or create"
                ' them again with --repo ""',
                repo=repo,
                first=first,
                others=others,
            )


def _take_over_memory(directory: Path, file: Path, known: _Known) -> None:
    fitting = {repo for repo in known.repos if file.stem == f"repo-{slug(repo)}"}
    if len(fitting) != 1 or not fitting <= known.trusted:
        _log.warning(
            "it is not certain of which repository this memory is, so no agent is shown it: rename it to"
            " repository-OWNER.NAME.md, or delete it",
            file=str(file),
            may_be=sorted(fitting),
        )
        return
    (repo,) = fitting
    try:
        take_over_file(directory, file, repo)
    except (KingdomError, OSError) as error:
        _log.warning("memory of an earlier version could not be taken over", file=str(file), error=str(error))
    else:
        _log.info("memory of an earlier version has its repository now", file=str(file), repo=repo)
