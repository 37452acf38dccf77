"""Set the repository name of Git resources and memory files that an earlier version identified by a slug.

A Git resource is a registered repository. A slug is ambiguous: acme-web-app stands for acme/web-app and acme-web/app.
"""

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
from kingdom.court.memory import list_legacy_files, migrate_legacy_file
from kingdom.court.package import Package
from kingdom.court.records import ASSIGNMENTS
from kingdom.court.sentinel.settings import SentinelSettings, has_fixed_owner
from kingdom.errors import KingdomError
from kingdom.workflow.model.resources.git import Git, repo_of
from kingdom.workflow.records import ACTIVE, GITS, each_record, load_resource, run_transaction, save_resource
from kingdom.workflow.templates import slug

_log = structlog.get_logger("kingdom.court")


@dataclass(frozen=True, slots=True)
class _KnownRepos:
    """The known repositories, and those of them that are trusted, in lower case.

    A repository that only appears in events of GitHub is not trusted: a stranger may have chosen its name, so that it
    has the same slug as a registered repository.
    """

    repos: frozenset[str]
    trusted: frozenset[str]


async def migrate_slugs(bus: Bus, packages: Collection[Package], sentinel: SentinelSettings) -> None:
    """Set the repository name of Git resources and memory files where it is certain, and warn about uncertain ones.

    The migration can be repeated: a Git resource that has its repository name is not changed.
    """
    files = [
        (Path(package.directory), file)
        for package in packages
        for file in list_legacy_files(Path(package.directory), package.general.memory)
    ]
    async with bus.transaction() as transaction:
        stored = [record async for record in each_record(transaction, RecordQuery(kind=GITS.name, state=ACTIVE))]
        found = list(read_documents(stored, Git))
        gits = [_with_repo_of_url(git, sentinel.repository_host) for git in found]
        is_done = not files and all(git.repo for git in gits)
        assigned = frozenset() if is_done else await _assigned_repos(transaction)
    known = _known_repos(packages, sentinel, [git.repo for git in gits if git.repo], assigned)
    gits = [git if git.repo else _with_repo_of_slug(git, known) for git in gits]
    for before, git in zip(found, gits, strict=True):
        if git != before:
            await _save_repo(bus, git)
    _warn_of_duplicates(gits)
    for directory, file in files:
        _migrate_memory(directory, file, known)


async def _assigned_repos(transaction: Transaction) -> frozenset[str]:
    found = [record async for record in each_record(transaction, RecordQuery(kind=ASSIGNMENTS.name))]
    return frozenset(assignment.repo for assignment in read_documents(found, Assignment) if assignment.repo)


def _known_repos(
    packages: Iterable[Package], sentinel: SentinelSettings, own: Iterable[str], assigned: Iterable[str]
) -> _KnownRepos:
    globs = {glob.lower() for glob in _named_repos(packages, sentinel) if has_fixed_owner(glob)}
    repos = {repo.lower() for repo in (*own, *assigned)} | {glob for glob in globs if not set(glob) & set("*?[")}
    trusted = {repo.lower() for repo in own} | {
        repo for repo in repos if sentinel.github is None or any(fnmatchcase(repo, glob) for glob in globs)
    }
    return _KnownRepos(frozenset(repos), frozenset(trusted))


def _named_repos(packages: Iterable[Package], sentinel: SentinelSettings) -> Iterator[str]:
    """Yield the repositories in the settings and packages, some of which are globs."""
    yield from sentinel.github.repos if sentinel.github else ()
    for general in (package.general for package in packages):
        yield general.default_repo or ""
        yield from (schedule.repo or "" for schedule in general.schedules)
        yield from (glob for subscription in general.subscribes for glob in subscription.repos)


def _with_repo_of_url(git: Git, repository_host: str) -> Git:
    """Return a Git resource with the repository name of its URL, if the URL is on the repository host."""
    return git if git.repo else msgspec.structs.replace(git, repo=repo_of(git.url, repository_host))


def _with_repo_of_slug(git: Git, known: _KnownRepos) -> Git:
    """Return a Git resource with the only trusted repository that its id or URL can stand for, or unchanged."""
    address = git.url.removesuffix("/").removesuffix(".git").lower()
    fitting = {repo for repo in known.repos if git.id == slug(repo) or address.endswith((f"/{repo}", f":{repo}"))}
    if len(certain := fitting & known.trusted) == 1:
        return msgspec.structs.replace(git, repo=certain.pop())
    if fitting:
        _log.warning(
            "the GitHub name of a registered repository is not certain, so no event uses it: add the name under `repos`"
            " of a General and start again, or delete the repository and create it with `kingdom git create --repo`",
            git=git.id,
            may_be=sorted(fitting),
        )
    return git


async def _save_repo(bus: Bus, known: Git) -> None:
    async def act(transaction: Transaction) -> bool:
        record, git = await load_resource(transaction, Git, known.id)
        if git.repo or record.state != ACTIVE:
            return False
        await save_resource(transaction, msgspec.structs.replace(git, repo=known.repo), record)
        return True

    if await run_transaction(bus, act):
        _log.info("a repository of an earlier version now has its GitHub name", git=known.id, repo=known.repo)


def _warn_of_duplicates(gits: Iterable[Git]) -> None:
    by_repo: dict[str, list[str]] = defaultdict(list)
    for git in gits:
        by_repo[git.repo.lower()].append(git.id)
    for repo, (first, *others) in by_repo.items():
        if repo and others:
            _log.warning(
                "several Gits have the same repository, and its events use the first: delete the others, or create"
                ' them again with --repo ""',
                repo=repo,
                first=first,
                others=others,
            )


def _migrate_memory(directory: Path, file: Path, known: _KnownRepos) -> None:
    fitting = {repo for repo in known.repos if file.stem == f"repo-{slug(repo)}"}
    if len(fitting) != 1 or not fitting <= known.trusted:
        _log.warning(
            "the repository of this memory is not certain, so no agent sees it: rename it to"
            " repository-OWNER.NAME.md, or delete it",
            file=str(file),
            may_be=sorted(fitting),
        )
        return
    (repo,) = fitting
    try:
        migrate_legacy_file(directory, file, repo)
    except (KingdomError, OSError) as error:
        _log.warning("cannot migrate memory of an earlier version", file=str(file), error=str(error))
    else:
        _log.info("memory of an earlier version now has its repository", file=str(file), repo=repo)
