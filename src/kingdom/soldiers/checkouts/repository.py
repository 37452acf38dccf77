"""One bare clone per Git repository on this host: fetched branches, Kingdom's refs, and a lock."""

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
from kingdom.soldiers.checkouts.git import (
    LOCAL_LIMIT,
    REMOTE_LIMIT,
    REMOTE_PAUSE,
    REMOTE_TRIES,
    GitFailed,
    retry_git,
    run_git,
)

_log = structlog.get_logger(__name__)

_FETCHED = "refs/remotes/origin"
_FIRST_NAP_SECONDS = 0.002
_LONGEST_NAP_SECONDS = 0.05
_NAMES_SHOWN = 20
_LEFTOVER_SECONDS = 30
_PACK_HEADER_BYTES = 12
# A pack with fewer objects is stored as single files.
_FEW_OBJECTS = 100
_PACKED_REFS_HEADER = "# pack-refs with: sorted"
_CHECKOUT_SETTINGS = "bare = false\n\thooksPath = /dev/null\n[gc]\n\tauto = 0\n[maintenance]\n\tauto = false"
# For git, a ref with this value does not exist.
_NO_COMMIT = "0" * 40
_SMALL_FILE_BYTES_MAX = 1 << 20
_DIGEST_LENGTH = 12
# Files with settings of git that affect all checkouts, although they are not in the configuration.
_FORBIDDEN_FILES = {"info": ("attributes", "exclude", "grafts"), "objects/info": ("alternates", "http-alternates")}
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
    """The clone of one Git repository on this host; the first fetch creates it.

    Remote branches are under refs/remotes/origin, so refs/heads has only the branches of runs. Other refs, such as
    refs/pull/7/head, are under refs/remotes with their own name.

    An agent without a sandbox can write to the configuration, which can name programs that git runs. So the
    configuration is restored before every call of git. A change just before the call still takes effect.
    """

    def __init__(self, path: Path, *, url: str, home: Path, pause: timedelta = REMOTE_PAUSE) -> None:
        self.path = path
        self._url = url
        self._pause = pause
        self.home = home

    @property
    def exists(self) -> bool:
        """Return whether the clone exists."""
        return (self.path / "HEAD").exists()

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Hold the lock of this repository during the block; only one process of this host can hold it."""
        # The kernel releases this file lock when the process ends.
        lock = _open_lock(self.path.with_suffix(".lock"))
        try:
            nap = _FIRST_NAP_SECONDS
            while not _try_lock(lock):
                await asyncio.sleep(nap)
                nap = min(nap * 2, _LONGEST_NAP_SECONDS)
            yield
        finally:
            os.close(lock)

    async def git(
        self,
        *arguments: str,
        limit: timedelta = LOCAL_LIMIT,
        stdin: IO[bytes] | None = None,
        at_most: int | None = None,
    ) -> str:
        """Run git in this repository, and return its output or the first `at_most` bytes of it."""
        if not self.path.is_dir():
            raise ProgramFailed(
                f"there is no clone at {self.path}: the host creates it with the first checkout, and migrates clones of"
                " earlier versions when it starts"
            )
        self._restore_config()
        directory = f"--git-dir={self.path}"
        options = {"cwd": self.path, "home": self.home}
        return await run_git(directory, *arguments, **options, limit=limit, stdin=stdin, at_most=at_most)

    async def import_pack(self, pack: IO[bytes]) -> None:
        """Import a pack from the file's current position; if any object is broken, nothing is imported."""
        start = pack.tell()
        count = int.from_bytes(pack.read(_PACK_HEADER_BYTES)[8:], "big")
        pack.seek(start)
        # Git reads from the descriptor, and its position differs if the file object has read ahead.
        os.lseek(pack.fileno(), start, os.SEEK_SET)
        if count:
            large = ("index-pack", "--stdin", "--fix-thin", "--strict")
            await self.git(*(("unpack-objects", "-q", "--strict") if count < _FEW_OBJECTS else large), stdin=pack)

    async def packed_remote_refs(self) -> str:
        """Return the remote branches and tags that an agent sees, in the format of packed refs."""
        options = ("--format=%(objectname) %(refname)", "--sort=refname")
        return f"{_PACKED_REFS_HEADER}\n{await self.git('for-each-ref', *options, 'refs/remotes', 'refs/tags')}"

    async def fetch(self, base: str) -> None:
        """Fetch all branches and `base`, and create the repository if needed. The caller holds the lock."""
        _remove_locks(self.path)
        self._restore_config()
        await run_git("init", "--quiet", "--bare", "--template=", str(self.path), cwd=self.path.parent, home=self.home)
        write_atomically(self.path / "config", self._config)
        # Agents can read the configuration, so the address of `origin` has no password. Fetch from the full address.
        wanted = [f"+refs/heads/*:{_FETCHED}/*", *([f"+{base}:{_remote_ref(base)}"] if base.startswith(_REFS) else [])]
        await self._run_on_remote(self._url, "fetch", "--prune", "--no-write-fetch-head", *wanted)

    async def fetched_commit(self, branch: str) -> str | None:
        """Return the last fetched commit of a remote branch, or None if there is no such branch."""
        return await self.resolve_commit(_remote_ref(branch))

    async def base_commit(self, branch: str) -> str:
        """Return the last fetched commit of a remote branch; raises ProgramFailed if there is none."""
        if commit := await self.fetched_commit(branch):
            return commit
        names = [name.removeprefix(f"{_FETCHED}/") for name in await self.refs(f"{_FETCHED}/")]
        shown = ", ".join(names[:_NAMES_SHOWN]) + (", …" if len(names) > _NAMES_SHOWN else "")
        raise ProgramFailed(
            f"{without_password(self._url)} has no branch {branch!r}: choose an existing one"
            f" ({shown or 'it has none yet: push a first commit'})"
        )

    async def resolve_commit(self, name: str) -> str | None:
        """Return the commit that a ref or another name stands for, or None if there is no such commit."""
        try:
            found = await self.git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        except GitFailed as error:
            if error.exit_code == 1:
                return None
            raise
        return found.strip()

    async def contains(self, commit: str, ancestor: str) -> bool:
        """Return whether `ancestor` is the commit itself or part of its history."""
        try:
            await self.git("merge-base", "--is-ancestor", ancestor, commit)
        except GitFailed as error:
            if error.exit_code == 1:
                return False
            raise
        return True

    async def merge_base(self, one: str, other: str) -> str:
        """Return the newest common ancestor of two commits."""
        return (await self.git("merge-base", one, other)).strip()

    async def diff(self, since: str, until: str, at_most: int | None) -> str:
        """Return the first `at_most` bytes of a unified diff between two commits."""
        options = ("--no-color", "--no-ext-diff", "--no-textconv", "--end-of-options")
        return await self.git("diff", *options, since, until, "--", at_most=at_most)

    async def changed_paths(self, since: str, until: str, at_most: int) -> list[str] | None:
        """Return every path that differs between two commits, or None if their list has `at_most` bytes or more."""
        options = ("--name-only", "--no-renames", "-z", "--end-of-options")
        listed = await self.git("diff", *options, since, until, "--", at_most=at_most)
        return listed.split("\0")[:-1] if len(listed.encode()) < at_most else None

    async def delete_merged_branch(self, branch: str, *, base: str, start: str) -> None:
        """Delete a branch and its start ref `start`, unless the branch has commits that its base lacks."""
        commit = await self.resolve_commit(f"refs/heads/{branch}")
        if commit is not None and await self.contains(_remote_ref(base), commit):
            await self.set_ref(f"refs/heads/{branch}", _NO_COMMIT, commit)
            await self.set_ref(start, _NO_COMMIT)

    async def refs(self, *patterns: str) -> list[str]:
        """Return the names of all refs that match one of the patterns."""
        return (await self.git("for-each-ref", "--format=%(refname)", *patterns)).splitlines()

    async def set_ref(self, ref: str, commit: str, *before: str) -> None:
        """Set a ref of one checkout to a commit. If `before` is given, git fails unless the ref has this value."""
        # Only one process changes this ref, so an existing lock file is a leftover of a killed git.
        (self.path / f"{ref}.lock").unlink(missing_ok=True)
        await self.git("update-ref", "--no-deref", ref, commit, *before)

    async def keep_commit(self, ref: str, commit: str) -> None:
        """Keep a commit under a ref, or under the same name with a number if the ref has other content."""
        name, number = ref, 1
        while kept := await self.resolve_commit(name):
            if await self._content(kept) == await self._content(commit):
                return
            number += 1
            name = f"{ref}.{number}"
        await self.set_ref(name, commit, _NO_COMMIT)

    async def push(self, remote: str, refs: Sequence[str]) -> None:
        """Push refs to another repository under the same names."""
        await self._run_on_remote(remote, "push", "--quiet", "--no-verify", *(f"+{ref}:{ref}" for ref in refs))

    async def fetch_refs(self, remote: str, pattern: str) -> None:
        """Fetch all refs of another repository that match a pattern. The caller holds the lock."""
        for lock in self.path.glob(f"{pattern.replace('*', '**')}.lock"):
            lock.unlink(missing_ok=True)
        await self._run_on_remote(remote, "fetch", "--no-write-fetch-head", f"+{pattern}:{pattern}")

    @property
    def objects(self) -> Path:
        """Return the folder of the objects."""
        return self.path / "objects"

    @property
    def checkout_config(self) -> str:
        """Return the git configuration of a checkout, without hooks and automatic maintenance."""
        return self._config.replace("bare = true", _CHECKOUT_SETTINGS)

    @property
    def _config(self) -> str:
        url = without_password(self._url).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        return _CONFIG.format(url=url)

    def _restore_config(self) -> None:
        """Restore the configuration, because it can name programs that git runs. Hooks are disabled anyway."""
        if not self.exists:
            return
        config = self.path / "config"
        if read_small_file(config) != self._config:
            write_atomically(config, self._config)
            _log.warning("the git configuration was changed by another program and is restored", file=str(config))
        for folder, names in _FORBIDDEN_FILES.items():
            directory = self.path / folder
            for path in [directory] if directory.is_symlink() else [directory / name for name in names]:
                if path.is_symlink() or path.is_file():
                    path.unlink()
                    _log.warning(
                        "a file that affects all checkouts was added by another program and is removed",
                        file=str(path),
                    )

    async def _content(self, commit: str) -> str:
        """Return the tree and the parents of a commit, which are its content regardless of its time."""
        return await self.git("show", "--no-patch", "--format=%T %P", commit)

    async def _run_on_remote(self, remote: str, verb: str, *arguments: str) -> str:
        """Run a git command with a remote. It is retried, because networks fail temporarily."""
        options = [argument for argument in arguments if argument.startswith("--")]
        names = [argument for argument in arguments if not argument.startswith("--")]

        async def once() -> str:
            return await self.git(verb, *options, "--", remote, *names, limit=REMOTE_LIMIT)

        try:
            return await retry_git(once, tries=REMOTE_TRIES, pause=self._pause)
        except GitFailed as error:
            shown = without_password(remote)
            words = str(error).replace(remote, shown)
            if error.exit_code is None:
                raise GitFailed(f"no answer from {shown}: {words}") from error
            raise GitFailed(
                f"{shown} could not be reached or refused access ({verb}, {REMOTE_TRIES} tries): check the address, and"
                f" that this host may read and write there; {words}",
                error.exit_code,
            ) from error


def read_small_file(file: Path) -> str | None:
    """Return the text of a regular file, or the beginning of a large one; None for anything else, such as a link."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return os.read(descriptor, _SMALL_FILE_BYTES_MAX).decode()
    except (OSError, UnicodeDecodeError):
        return None
    finally:
        os.close(descriptor)


def clone_url(clone: Path) -> str:
    """Return the address of a clone, without a password."""
    found = _URL.search(read_small_file(clone / "config") or "")
    return _ESCAPED.sub(lambda escaped: "\n" if escaped[1] == "n" else escaped[1], found[1]) if found else ""


def without_password(url: str) -> str:
    """Return an HTTP address without user and password, and any other address unchanged."""
    return _CREDENTIALS.sub("", url) if url.startswith(("http://", "https://")) else url


def clone_name(git_id: str, url: str) -> str:
    """Return the folder name of the clone of a Git repository, unique per address."""
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


def remove_stale_locks(repositories: Path) -> None:
    """Remove the lock files that killed git programs left on refs of runs. No program of the host may run meanwhile.

    A checkpoint that is taken again has another ref, so otherwise the lock file of the first attempt would stay.
    """
    for clone in repositories.glob("*.git"):
        for lock in [*(clone / "refs/heads").rglob("*.lock"), *(clone / "refs/kingdom").rglob("*.lock")]:
            # An agent without a sandbox could have put a folder there.
            with suppress(OSError):
                lock.unlink()


def _remove_locks(repository: Path) -> None:
    """Remove lock files that a killed git left. The caller holds the lock of the repository."""
    for lock in [repository / "config.lock", *(repository / _FETCHED).rglob("*.lock")]:
        lock.unlink(missing_ok=True)
    # An agent that deletes a branch holds this lock briefly, so only an old lock file is a leftover.
    packed = repository / "packed-refs.lock"
    with suppress(FileNotFoundError):
        if time.time() - packed.stat().st_mtime > _LEFTOVER_SECONDS:
            packed.unlink()


def _remote_ref(branch: str) -> str:
    """Return the ref of the clone for a remote branch or another remote ref."""
    return f"refs/remotes/{branch.removeprefix(_REFS)}" if branch.startswith(_REFS) else f"{_FETCHED}/{branch}"
