"""One bare repository per Git on this host: what was fetched, the refs that Kingdom keeps, and the lock around it."""

import asyncio
import fcntl
import os
import re
import stat
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import IO
from urllib.parse import quote

import structlog

from kingdom.atomic_write import write_atomically
from kingdom.errors import ProgramFailed
from kingdom.soldiers.git import LOCAL_LIMIT, REMOTE_LIMIT, REMOTE_PAUSE, REMOTE_TRIES, GitFailed, git, retried

_log = structlog.get_logger(__name__)

_FETCHED = "refs/remotes/origin"
_FIRST_NAP_SECONDS = 0.002
_LONGEST_NAP_SECONDS = 0.05
_NAMES_SHOWN = 20
_LEFT_OVER_SECONDS = 30
_PACK_HEADER = 12
_FEW_OBJECTS = 100
_PACKED = "# pack-refs with: sorted"
_OF_CHECKOUT = "bare = false\n\thooksPath = /dev/null\n[gc]\n\tauto = 0\n[maintenance]\n\tauto = false"
_NOTHING = "0" * 40
_SMALL_BYTES = 1 << 20
_DIGEST_LENGTH = 12
# What counts for all checkouts without being in the configuration: whose files are which, and objects of others.
_PLANTED = {"info": ("attributes", "exclude", "grafts"), "objects/info": ("alternates", "http-alternates")}
_REFS = "refs/"
_CONFIG = f"""\
[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = true
[remote "origin"]
\turl = "{{url}}"
\tfetch = +refs/heads/*:{_FETCHED}/*
"""
_URL = re.compile(r'^\turl = "(.*)"$', re.MULTILINE)
_ESCAPED = re.compile(r"\\(.)")
_CREDENTIALS = re.compile(r"(?<=://)[^/@]*@")


class Repository:
    """All objects and refs of one Git on this host; it is made at its first fetch.

    Its remote branches lie under refs/remotes/origin, so that refs/heads has only the branches of runs. What is no
    branch, such as refs/pull/7/head, lies under refs/remotes with its own name.

    An agent without a sandbox can write to its configuration, which names programs that git runs. So before every call
    of git it is brought back to what Kingdom wrote; what such an agent changes between that and the call is obeyed.
    """

    def __init__(self, path: Path, *, url: str, home: Path, pause: timedelta = REMOTE_PAUSE) -> None:
        self.path = path
        self._url = url
        self._pause = pause
        self.home = home

    @property
    def is_there(self) -> bool:
        """Tell whether it was ever fetched here."""
        return (self.path / "HEAD").exists()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold the lock of this repository, against all processes of this host, during the block."""
        # Only the open file is locked, so that whatever ends the process frees it too.
        lock = _open_lock(self.path.with_suffix(".lock"))
        try:
            nap = _FIRST_NAP_SECONDS
            while not _try_lock(lock):
                await asyncio.sleep(nap)
                nap = min(nap * 2, _LONGEST_NAP_SECONDS)
            yield
        finally:
            os.close(lock)

    async def git(self, *arguments: str, limit: timedelta = LOCAL_LIMIT, told: IO[bytes] | None = None) -> str:
        """Run git in this repository."""
        if not self.path.is_dir():
            raise ProgramFailed(
                f"there is no clone at {self.path}: the host makes it with its first checkout, and takes over one of an"
                " earlier version when it starts"
            )
        self._disown_changes()
        place = f"--git-dir={self.path}"
        return await git(place, *arguments, cwd=self.path, home=self.home, limit=limit, told=told)

    async def take_in(self, pack: IO[bytes]) -> None:
        """Take in the objects of a pack from where the file stands, all or none; broken ones are refused."""
        start = pack.tell()
        count = int.from_bytes(pack.read(_PACK_HEADER)[8:], "big")
        pack.seek(start)
        # Not by the position of the file object: it may have read further.
        os.lseek(pack.fileno(), start, os.SEEK_SET)
        if count:
            large = ("index-pack", "--stdin", "--fix-thin", "--strict")
            await self.git(*(("unpack-objects", "-q", "--strict") if count < _FEW_OBJECTS else large), told=pack)

    async def shown_refs(self) -> str:
        """Return what an agent sees of the branches and tags of the remote, as git packs refs."""
        options = ("--format=%(objectname) %(refname)", "--sort=refname")
        return f"{_PACKED}\n{await self.git('for-each-ref', *options, 'refs/remotes', 'refs/tags')}"

    async def fetch(self, base: str) -> None:
        """Fetch all branches and `base`, and make the repository if there is none; the lock must be held."""
        _remove_locks(self.path)
        self._disown_changes()
        await git("init", "--quiet", "--bare", "--template=", str(self.path), cwd=self.path.parent, home=self.home)
        write_atomically(self.path / "config", self._config)
        # Not by the name of the remote: the agents read the configuration, and shall find no password there.
        wanted = [f"+refs/heads/*:{_FETCHED}/*", *([f"+{base}:{_kept_as(base)}"] if base.startswith(_REFS) else [])]
        await self._remotely(self._url, "fetch", "--prune", "--no-write-fetch-head", *wanted)

    async def fetched(self, branch: str) -> str | None:
        """Return the last fetched commit of a branch of the remote, or None if it has no such branch."""
        return await self.commit(_kept_as(branch))

    async def base(self, branch: str) -> str:
        """Return the last fetched commit of a branch that the remote must have."""
        if commit := await self.fetched(branch):
            return commit
        names = [name.removeprefix(f"{_FETCHED}/") for name in await self.refs(f"{_FETCHED}/")]
        shown = ", ".join(names[:_NAMES_SHOWN]) + (", …" if len(names) > _NAMES_SHOWN else "")
        raise ProgramFailed(
            f"{without_password(self._url)} has no branch {branch!r}: choose one that it has"
            f" ({shown or 'it has none yet: push a first commit'})"
        )

    async def commit(self, name: str) -> str | None:
        """Return the commit that a name stands for, or None if there is none."""
        try:
            found = await self.git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        except GitFailed as error:
            if error.exit_code == 1:
                return None
            raise
        return found.strip()

    async def contains(self, commit: str, ancestor: str) -> bool:
        """Tell whether a commit leads to another one, or is it."""
        try:
            await self.git("merge-base", "--is-ancestor", ancestor, commit)
        except GitFailed as error:
            if error.exit_code == 1:
                return False
            raise
        return True

    async def common(self, one: str, other: str) -> str:
        """Return the newest commit that leads to both."""
        return (await self.git("merge-base", one, other)).strip()

    async def forget(self, branch: str, *, base: str, start: str) -> None:
        """Remove a branch and the ref of its start, unless it has commits that its base has not."""
        commit = await self.commit(f"refs/heads/{branch}")
        if commit is not None and await self.contains(_kept_as(base), commit):
            await self.point(f"refs/heads/{branch}", _NOTHING, commit)
            await self.point(start, _NOTHING)

    async def refs(self, *patterns: str) -> list[str]:
        """Return the names of all refs that fit one of the patterns."""
        return (await self.git("for-each-ref", "--format=%(refname)", *patterns)).splitlines()

    async def point(self, ref: str, commit: str, *before: str) -> None:
        """Let a ref of one tree point to a commit, if it still points to the one named as `before`."""
        # Nobody else changes it, so that a lock file is left over from a killed git.
        (self.path / f"{ref}.lock").unlink(missing_ok=True)
        await self.git("update-ref", "--no-deref", ref, commit, *before)

    async def keep(self, ref: str, commit: str) -> None:
        """Let a ref point to a commit; where it keeps other content already, a numbered one beside it."""
        name, number = ref, 1
        while kept := await self.commit(name):
            if await self._content(kept) == await self._content(commit):
                return
            number += 1
            name = f"{ref}.{number}"
        await self.point(name, commit, _NOTHING)

    async def push(self, remote: str, refs: Sequence[str]) -> None:
        """Give refs to another repository, under the same names."""
        await self._remotely(remote, "push", "--quiet", "--no-verify", *(f"+{ref}:{ref}" for ref in refs))

    async def fetch_refs(self, remote: str, pattern: str) -> None:
        """Get all refs of another repository that fit a pattern; the lock must be held."""
        for lock in self.path.glob(f"{pattern.replace('*', '**')}.lock"):
            lock.unlink(missing_ok=True)
        await self._remotely(remote, "fetch", "--no-write-fetch-head", f"+{pattern}:{pattern}")

    @property
    def objects(self) -> Path:
        """Return where its objects lie."""
        return self.path / "objects"

    @property
    def checkout_config(self) -> str:
        """Return the configuration of the git directory of a checkout: no hook is run, and nothing is tidied up."""
        return self._config.replace("bare = true", _OF_CHECKOUT)

    @property
    def _config(self) -> str:
        url = without_password(self._url).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        return _CONFIG.format(url=url)

    def _disown_changes(self) -> None:
        """Bring back what tells git which programs to run; no hook is run anyway."""
        if not self.is_there:
            return
        config = self.path / "config"
        if read_own(config) != self._config:
            write_atomically(config, self._config)
            _log.warning("somebody else changed the configuration of git: it was brought back", file=str(config))
        for folder, names in _PLANTED.items():
            place = self.path / folder
            for planted in [place] if place.is_symlink() else [place / name for name in names]:
                if planted.is_symlink() or planted.is_file():
                    planted.unlink()
                    _log.warning("somebody else told git what counts for all checkouts: removed", file=str(planted))

    async def _content(self, commit: str) -> str:
        """Return what makes two commits equal, whenever they were made."""
        return await self.git("show", "--no-patch", "--format=%T %P", commit)

    async def _remotely(self, remote: str, verb: str, *arguments: str) -> str:
        """Run git with a remote, more than once: networks fail for moments."""
        options = [argument for argument in arguments if argument.startswith("--")]
        names = [argument for argument in arguments if not argument.startswith("--")]

        async def once() -> str:
            return await self.git(verb, *options, "--", remote, *names, limit=REMOTE_LIMIT)

        try:
            return await retried(once, tries=REMOTE_TRIES, pause=self._pause)
        except GitFailed as error:
            shown = without_password(remote)
            words = str(error).replace(remote, shown)
            if error.exit_code is None:
                raise GitFailed(f"{shown} did not answer in time: {words}") from error
            raise GitFailed(
                f"{shown} could not be reached or refused ({verb}, {REMOTE_TRIES} tries): check the address, and that"
                f" this host may read and write there; {words}",
                error.exit_code,
            ) from error


def read_own(file: Path) -> str | None:
    """Return the text of a small file, or None where something else lies: a link, or a pipe that never ends."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return os.read(descriptor, _SMALL_BYTES).decode()
    except (OSError, UnicodeDecodeError):
        return None
    finally:
        os.close(descriptor)


def url_of(clone: Path) -> str:
    """Return the address that a clone was made from, without a password."""
    found = _URL.search(read_own(clone / "config") or "")
    return _ESCAPED.sub(lambda escaped: "\n" if escaped[1] == "n" else escaped[1], found[1]) if found else ""


def without_password(url: str) -> str:
    """Return an address as it may be shown."""
    return _CREDENTIALS.sub("", url) if url.startswith(("http://", "https://")) else url


def clone_name(git_id: str, url: str) -> str:
    """Return the name of the clone of a Git, which no other address shares."""
    return f"{quote(git_id, safe='')}-{sha256(without_password(url).encode()).hexdigest()[:_DIGEST_LENGTH]}.git"


def _open_lock(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_locks(repository: Path) -> None:
    """Remove the lock files that a killed git left where only the holder of our lock writes."""
    for lock in [repository / "config.lock", *(repository / _FETCHED).rglob("*.lock")]:
        lock.unlink(missing_ok=True)
    # An agent that deletes a branch writes here too, but not for long.
    packed = repository / "packed-refs.lock"
    with suppress(FileNotFoundError):
        if time.time() - packed.stat().st_mtime > _LEFT_OVER_SECONDS:
            packed.unlink()


def _kept_as(branch: str) -> str:
    """Return the ref that holds what was fetched of a branch, or of another ref of the remote."""
    return f"refs/remotes/{branch.removeprefix(_REFS)}" if branch.startswith(_REFS) else f"{_FETCHED}/{branch}"
