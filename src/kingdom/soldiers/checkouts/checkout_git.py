"""Run git on a checkout, with a temporary git directory instead of the agent's.

The configuration and hooks that an agent wrote are not used. The agent's objects are copied with `git fetch`, which
computes their names from their contents. This module is loaded for each call, so it imports only what Python has
already loaded.
"""

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

ERROR_LENGTH_MAX = 2000
_NAME_LENGTH_MAX = 300
_CHUNK_BYTES = 1 << 20
# The prefixes of refs under which an agent can have commits of its own.
_AGENT_REFS = ("HEAD", "refs/heads/", "refs/stash")
_REFLOG_ENTRIES_MAX = 1000
_HEX = frozenset("0123456789abcdef")
_UNFINISHED_OPERATIONS = (b"rebase-merge", b"rebase-apply", b"MERGE_HEAD", b"CHERRY_PICK_HEAD", b"REVERT_HEAD")
# CI skips a commit whose message contains one of these, in upper or lower case.
_CI_SKIPS = (b"[skip ", b"[skip-", b" skip]", b"-skip]", b"[no ci]", b"***no_ci***", b"skip-checks:")


class GitCallFailed(Exception):
    """Git failed; another try may succeed."""


class CheckoutRefused(Exception):
    """The checkout cannot be used until a person changes something."""


class CheckoutGit:
    """Git on the files of a checkout; `agent_git` is the git directory that its agent sees."""

    def __init__(self, request: "dict[str, Any]") -> None:
        self.files = os.fsencode(request["files"])
        self.agent_git = os.fsencode(request["agent_git"])
        self.scratch = os.fsencode(request["scratch"])
        self.tip = request["tip"]
        self.git_directory = self.scratch + b"/git"
        self.environment = {
            **os.environb,
            b"GIT_DIR": self.git_directory,
            b"GIT_WORK_TREE": self.files,
            b"GIT_INDEX_FILE": self.scratch + b"/index",
            b"GIT_OBJECT_DIRECTORY": self.git_directory + b"/objects",
            b"GIT_ALTERNATE_OBJECT_DIRECTORIES": os.fsencode(request["objects"]),
            b"GIT_CONFIG_GLOBAL": self.scratch + b"/config",
        }
        for folder in (self.git_directory + b"/refs", self.git_directory + b"/objects"):
            os.makedirs(folder, exist_ok=True)
        _write(self.git_directory + b"/HEAD", b"ref: refs/heads/none\n")
        _write(self.scratch + b"/config", request["settings"])
        self._write_git_pointer()
        self._repair_head(request["branch"])

    def call(self, *arguments: str | bytes, stdin: bytes = b"", **changes: str | bytes) -> bytes:
        """Run git, with changed environment variables, and return its output; raise GitCallFailed if git fails."""
        code, output, errors = self.run(arguments, stdin, changes)
        if code:
            raise GitCallFailed(
                f"git {_verb(arguments)} failed with exit code {code}: {errors.decode(errors='replace')}"
            )
        return output

    def query(self, *arguments: str | bytes, **changes: str | bytes) -> str | None:
        """Return the output of git without surrounding spaces, or None if git fails."""
        code, output, _ = self.run(arguments, b"", changes)
        return None if code else output.decode().strip()

    def read_index(self, commit: str) -> None:
        """Start with the index of a commit, and compare every file with it, even files with unchanged times."""
        self.call("read-tree", commit)
        # The exit code only says whether files differ.
        self.run(("update-index", "-q", "--really-refresh"))

    def copy_index(self) -> None:
        """Start with the index of the checkout: files with unchanged times count as unchanged."""
        copy(self.agent_git + b"/index", self.scratch + b"/index")

    def publish_index(self) -> None:
        """Copy the index to the checkout."""
        copy(self.scratch + b"/index", self.agent_git + b"/index.new")
        os.rename(self.agent_git + b"/index.new", self.agent_git + b"/index")

    def set_head(self, branch: str, commit: str) -> None:
        """Set HEAD of the checkout to a branch at a commit, and remove traces of unfinished operations."""
        # A killed git of the agent may have left lock files.
        locks = [name for name in os.listdir(self.agent_git) if name.endswith(b".lock")]
        for path in (*locks, os.fsencode(branch) + b".lock", *_UNFINISHED_OPERATIONS):
            remove(os.path.join(self.agent_git, path))
        self.set_agent_ref(branch, commit)
        _write(self.agent_git + b"/HEAD", b"ref: " + os.fsencode(branch) + b"\n")

    def set_agent_ref(self, ref: str, commit: str) -> None:
        """Set a ref in the git directory of the checkout."""
        file = os.path.join(self.agent_git, os.fsencode(ref))
        os.makedirs(os.path.dirname(file), exist_ok=True)
        _write(file, commit.encode() + b"\n")

    def read_tips(self, path: bytes) -> dict[str, str]:
        """Return the commits of HEAD, the branches and the stash of another repository, by name."""
        lines = self.call("ls-remote", "--", path).decode(errors="replace").splitlines()
        tips = {name: tip for tip, _, name in (line.partition("\t") for line in lines) if name.startswith(_AGENT_REFS)}
        commits = self._fetch_commits(path, tips.values())
        return {name: tip for name, tip in tips.items() if tip in commits}

    def agent_commits(self) -> list[str]:
        """Return the commits in the agent's refs and reflogs, except ancestors of other commits among them."""
        # If this fails, the agent has damaged its reflogs; its branches are read separately.
        arguments = ("rev-list", "--walk-reflogs", "--all", f"--max-count={_REFLOG_ENTRIES_MAX}")
        reflogs = (
            self.query(*arguments, GIT_DIR=self.agent_git, GIT_OBJECT_DIRECTORY=self.agent_git + b"/objects") or ""
        )
        found = {*self.read_tips(self.agent_git).values(), *self._fetch_commits(self.agent_git, reflogs.split())}
        return self.call("merge-base", "--independent", *sorted(found)).decode().split() if found else []

    def _fetch_commits(self, path: bytes, tips: "Iterable[str]") -> set[str]:
        """Fetch objects of another repository with their history, and return those that are commits."""
        # Git prints zeros for a ref without a target.
        wanted = sorted({tip for tip in tips if set(tip) <= _HEX and tip.strip("0")})
        if not wanted:
            return set()
        self.call("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--", path, *wanted)
        kinds = self.call("cat-file", "--batch-check", stdin="".join(f"{tip}\n" for tip in wanted).encode()).decode()
        commits = [line.split()[0] for line in kinds.splitlines() if line.split()[1] == "commit"]
        # A shallow repository returns commits without their parents, and `git fetch` succeeds. This call then fails.
        self.call("rev-list", "--objects", "--quiet", *commits, "--not", self.tip)
        return {*commits}

    def pack(self, *commits: str) -> "Callable[[], object] | None":
        """Return a function that writes a pack with the objects that these commits add to the tip.

        Return None if they add no objects.
        """
        if all(commit == self.tip for commit in commits):
            return None
        revisions = "".join(f"{commit}\n" for commit in commits) + f"^{self.tip}\n"
        # Searching for deltas would take longer than everything else.
        options = ("--revs", "--stdout", "--quiet", "--window=0")
        return lambda: self.run(("pack-objects", *options), revisions.encode(), output=1)[0]

    def commit_tree(self, tree: str, parent: str, message: str) -> str:
        """Create a commit of a tree, and return its id."""
        return self.call("commit-tree", tree, "-p", parent, "-m", message).decode().strip()

    def is_skipped_by_ci(self, commit: str) -> bool:
        """Return whether the message of a commit makes CI skip it."""
        message = self.call("cat-file", "commit", commit).lower()
        return any(each in message for each in _CI_SKIPS)

    def _write_git_pointer(self) -> None:
        """Make the file `.git` point to the git directory. A folder `.git` stays, because it may hold commits."""
        link, words = self.files + b"/.git", b"gitdir: " + self.agent_git + b"\n"
        found = lstat(link)
        if found is not None and (
            stat.S_ISDIR(found.st_mode) or (stat.S_ISREG(found.st_mode) and read_content(link) == words)
        ):
            return
        if os.path.isdir(self.files):
            _write(link, words)

    def _repair_head(self, branch: str) -> None:
        """Repair HEAD if the agent damaged it, because git shows no branches without a valid HEAD."""
        head, found = self.agent_git + b"/HEAD", lstat(self.agent_git + b"/HEAD")
        words = read_content(head).strip() if found is not None and stat.S_ISREG(found.st_mode) else b""
        if not words.startswith(b"ref: refs/") and not (words and {*words.decode(errors="replace")} <= _HEX):
            _write(head, b"ref: " + os.fsencode(branch) + b"\n")

    def run(
        self,
        arguments: "tuple[str | bytes, ...]",
        stdin: bytes = b"",
        changes: "dict[str, str | bytes] | None" = None,
        output: int | None = None,
    ) -> tuple[int, bytes, bytes]:
        """Run git; return its exit code, output and errors. If a descriptor `output` is given, it gets the output."""
        given, errors = os.memfd_create("stdin"), os.memfd_create("errors")
        printed = os.memfd_create("printed") if output is None else output
        try:
            write_all(given, stdin)
            os.lseek(given, 0, os.SEEK_SET)
            actions = [(os.POSIX_SPAWN_DUP2, fd, to) for fd, to in ((given, 0), (printed, 1), (errors, 2))]
            changed = {name.encode(): os.fsencode(value) for name, value in (changes or {}).items()}
            environment = {**self.environment, **changed}
            pid = os.posix_spawnp("git", ["git", *arguments], environment, file_actions=actions)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            return code, b"" if output is not None else _content(printed), _content(errors)[-ERROR_LENGTH_MAX:]
        finally:
            os.close(given)
            os.close(errors)
            if output is None:
                os.close(printed)


def _verb(arguments: "tuple[str | bytes, ...]") -> str:
    return next((os.fsdecode(each) for each in arguments if not os.fsdecode(each).startswith("-")), "")


def join_names(names: "Iterable[bytes]") -> bytes:
    """Return a list of names in the format that git reads with `-z`."""
    return b"".join(name + b"\0" for name in names)


def quote_name(name: bytes) -> str:
    """Return a name for messages."""
    return repr(os.fsdecode(name[:_NAME_LENGTH_MAX]))[1:-1]


def lstat(path: bytes) -> os.stat_result | None:
    """Return the status of a path, or None if nothing exists there."""
    try:
        return os.lstat(path)
    except OSError:
        return None


def remove(path: bytes) -> None:
    """Remove a file or a folder with everything in it, if it exists."""
    if os.path.isdir(path) and not os.path.islink(path):
        for name in os.listdir(path):
            remove(os.path.join(path, name))
        os.rmdir(path)
    elif os.path.lexists(path):
        os.unlink(path)


def copy(source: bytes, target: bytes) -> None:
    """Copy a file, if it exists. Its mode and times are kept, because git compares them with an index."""
    try:
        opened = os.open(source, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    try:
        found = os.fstat(opened)
        _write(target, _content(opened))
        os.chmod(target, stat.S_IMODE(found.st_mode))
        os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
    finally:
        os.close(opened)


def read_content(path: bytes) -> bytes:
    """Return the content of a file."""
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        return _content(opened)
    finally:
        os.close(opened)


def _write(path: bytes, content: bytes) -> None:
    """Write a file, replacing anything at its path."""
    remove(path)
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        write_all(opened, content)
    finally:
        os.close(opened)


def write_all(descriptor: int, content: bytes) -> None:
    """Write a whole content to an open file."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _content(descriptor: int) -> bytes:
    os.lseek(descriptor, 0, os.SEEK_SET)
    parts = []
    while part := os.read(descriptor, _CHUNK_BYTES):
        parts.append(part)
    return b"".join(parts)
