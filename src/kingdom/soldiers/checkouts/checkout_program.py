"""The program that works on the files of a checkout. It runs inside a sandbox, because agents wrote these files.

It reads a `marshal` request from its standard input and answers with one line: `done` and the ids of commits, or
`failed` or `refused` and a reason. A pack of git objects or other content may follow a `done` line. The caller trusts
none of this output. The program starts often, so it imports only what Python has already loaded.
"""

import errno
import marshal
import os
import stat
import sys

from kingdom.soldiers.checkouts.checkout_git import (
    ERROR_LENGTH_MAX,
    CheckoutGit,
    CheckoutRefused,
    GitCallFailed,
    copy,
    join_names,
    lstat,
    quote_name,
    read_content,
    remove,
    write_all,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Request = dict[str, Any]
    Answer = tuple[list[bytes], Callable[[], object] | None]

# The largest sizes of one file in a commit, and of all its changed files together.
_FILE_BYTES_MAX = 1 << 30
_ALL_BYTES_MAX = 4 << 30
# One byte more is written, so that the reader notices a longer diff.
LOCAL_DIFF_BYTES_MAX = 64 << 20
_NAMES_SHOWN = 10
_NESTED_REPOSITORIES_MAX = 100
# Git fails for paths near the limit of Linux (4096 bytes).
_PATH_BYTES_MAX = 3000
_SUBMODULE_MODE = b"160000 "
# Git prints this for a name that it does not accept.
_NAME_REFUSED = "Ignoring path"
_ATTRIBUTES = b".gitattributes"
# Git opens these files in every folder, and would wait forever if one of them is a pipe.
_READ_BY_GIT = (_ATTRIBUTES, b".gitignore", b".gitmodules")


def main() -> None:
    """Run the requested action, and answer."""
    request = marshal.loads(sys.stdin.buffer.read())  # noqa: S302 - the request comes from Kingdom
    head, body = _answer(request)
    write_all(1, b" ".join(head) + b"\n")
    if body is not None and body():
        sys.exit("git pack-objects failed")


def _answer(request: "Request") -> "Answer":
    try:
        git = CheckoutGit(request)
        refuse_unusable_files(git)
        return _ACTIONS[request["action"]](git, request)
    except (GitCallFailed, OSError) as error:
        return [b"failed", _line(error)], None
    except CheckoutRefused as error:
        return [b"refused", _line(error)], None


def _line(error: Exception) -> bytes:
    return " ".join(str(error).split())[:ERROR_LENGTH_MAX].encode(errors="replace")


class FileChanges:
    """The differences between files and an index.

    `repositories` are untracked repositories among the files, `submodules` are the existing tracked repositories.
    """

    def __init__(self, git: CheckoutGit, files: bytes, index: bytes) -> None:
        listing = git.call(
            *("ls-files", "-z", "-t", "--stage", "--others", "--modified", "--deleted", "--exclude-standard"),
            GIT_WORK_TREE=files,
            GIT_INDEX_FILE=index,
        )
        self._git, self._files, self._index = git, files, index
        tracked_submodules: list[bytes] = []
        changed: dict[bytes, bool] = {}
        self.repositories: list[bytes] = []
        for entry in listing.split(b"\0"):
            tag, rest = entry[:2], entry[2:]
            if tag == b"? " and rest.endswith(b"/"):
                self.repositories.append(rest)
            elif tag == b"? ":
                changed[rest] = True
            elif tag == b"H " and rest.startswith(_SUBMODULE_MODE):
                tracked_submodules.append(rest.partition(b"\t")[2])
            elif tag in (b"C ", b"R "):
                name = rest.partition(b"\t")[2]
                changed[name] = _exists(files, name, is_submodule=rest.startswith(_SUBMODULE_MODE))
        self.submodules = [name for name in tracked_submodules if _is_repository(files, name)]
        self._deleted = [name for name, exists in changed.items() if not exists]
        self._existing = [name for name, exists in changed.items() if exists]

    @property
    def names(self) -> list[bytes]:
        """Return the names of all changed files."""
        return [*self._deleted, *self._existing]

    def stage(self) -> str:
        """Add all changed files except nested repositories to the index, and return the tree of the index."""
        self._refuse_large()
        if self._deleted:
            self._update("--force-remove", self._deleted)
        errors = self._update("--replace", self._existing) if self._existing else b""
        if refused := [line for line in errors.decode(errors="replace").splitlines() if _NAME_REFUSED in line]:
            raise CheckoutRefused(f"git refuses some names: {'; '.join(refused)}: rename or remove them")
        return self._git.call("write-tree", GIT_INDEX_FILE=self._index).decode().strip()

    def _refuse_large(self) -> None:
        total = 0
        for name in self._existing:
            found = lstat(self._files + b"/" + name)
            size = found.st_size if found is not None and stat.S_ISREG(found.st_mode) else 0
            total += size
            if size > _FILE_BYTES_MAX or total > _ALL_BYTES_MAX:
                raise CheckoutRefused(
                    f"{quote_name(name)} exceeds the limits of a commit, {_FILE_BYTES_MAX >> 30} GiB per file and"
                    f" {_ALL_BYTES_MAX >> 30} GiB in all: add large files to .gitignore, or remove them"
                )

    def _update(self, option: str, names: list[bytes]) -> bytes:
        # With this threshold git streams all files into one pack. That is much faster than an object file for each of
        # them, and it does no harm if a file shrinks meanwhile.
        arguments = ("-c", "core.bigFileThreshold=1", "update-index", "--add", "--remove", option, "-z", "--stdin")
        variables: dict[str, str | bytes] = {"GIT_WORK_TREE": self._files, "GIT_INDEX_FILE": self._index}
        code, _, errors = self._git.run(arguments, join_names(names), variables)
        if code:
            raise GitCallFailed(f"git update-index failed with exit code {code}: {errors.decode(errors='replace')}")
        return errors


def _exists(files: bytes, name: bytes, *, is_submodule: bool) -> bool:
    """Return whether a tracked file or submodule exists at its path, and no parent folder is a symbolic link."""
    parts = name.split(b"/")
    for end in range(1, len(parts)):
        parent = lstat(files + b"/" + b"/".join(parts[:end]))
        if parent is None or not stat.S_ISDIR(parent.st_mode):
            return False
    found = lstat(files + b"/" + name)
    return found is not None and (is_submodule or not stat.S_ISDIR(found.st_mode))


def refuse_unusable_files(git: CheckoutGit) -> None:
    """Refuse files that git would wait for forever or skip silently, unless they are ignored."""
    found = dict(_find_unusable_files(git.files))
    if special := next(_find_special_files(git.agent_git), None):
        raise CheckoutRefused(
            f"the git directory of the checkout has {quote_name(special)}, which is not a regular file: remove it"
        )
    # Check parent folders first: git reads their .gitignore files, which must be usable themselves.
    for name in sorted(found, key=lambda each: each.count(b"/")):
        # A path may be too long for git. Its beginning suffices, because everything below an ignored folder is ignored.
        folder = name[:_PATH_BYTES_MAX].rpartition(b"/")[0]
        if not folder or git.run(("check-ignore", "-q", "--", folder))[0]:
            raise CheckoutRefused(f"{quote_name(name)} {found[name]}: remove it, or make it readable")


def _find_unusable_files(files: bytes) -> "Iterator[tuple[bytes, str]]":
    waiting = [b""]
    while waiting:
        folder = waiting.pop()
        try:
            entries = list(os.scandir(files + b"/" + folder))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                yield folder, f"cannot be read ({error.strerror})"
            continue
        for entry in entries:
            if entry.name == b".git":
                if folder and next(_find_special_files(entry.path), None):
                    yield folder, "has a .git that git would wait for forever"
            elif entry.is_dir(follow_symlinks=False):
                waiting.append(folder + entry.name + b"/")
            elif entry.name in _READ_BY_GIT and _is_special_file(entry.path):
                yield folder + entry.name, "is not a regular file, and git would wait for it forever"


def _find_special_files(git_directory: bytes) -> "Iterator[bytes]":
    """Yield the files of a git directory that git would wait for forever. The objects are not searched."""
    waiting = [git_directory]
    while waiting:
        folder = waiting.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name != b"objects":
                    waiting.append(entry.path)
            elif _is_special_file(entry.path):
                yield entry.path


def _is_special_file(path: bytes) -> bool:
    """Return whether a path leads to something other than a file or a folder."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _is_repository(files: bytes, name: bytes) -> bool:
    """Return whether a submodule exists at its path, and no part of the path is a symbolic link."""
    path = files + b"/" + name
    return os.path.realpath(path) == os.path.realpath(files) + b"/" + name and os.path.lexists(path + b"/.git")


def commit(git: CheckoutGit, request: "Request") -> "Answer":
    """Commit everything that is not ignored, on top of the tip or of the agent's own commits."""
    agent_tips = _agent_tips(git) if request["agent_can_write_git"] else {}
    parent: str = agent_tips.get("HEAD") or request["tip"]
    git.read_index(parent)
    made = _commit_tree(git, _find_changes(git).stage(), parent, request)
    if made == parent != request["tip"] and git.is_skipped_by_ci(made):
        # CI looks at the last commit only, so a commit of ours on top of the agent's is checked.
        made = git.commit_tree(f"{made}^{{tree}}", made, request["message"])
    branch_tip = agent_tips.get(request["branch"])
    if branch_tip and git.run(("merge-base", "--is-ancestor", branch_tip, made))[0]:
        # The agent switched branches; keep its earlier commits reachable under another name.
        git.set_agent_ref(f"refs/heads/left/{branch_tip}", branch_tip)
    if converted := _converted_files(git):
        for name in converted:
            copy(_fresh_files(git) + name, git.files + b"/" + name)
        git.run(("update-index", "-q", "--refresh"))
    git.publish_index()
    git.set_head(request["branch"], made)
    return [b"done", made.encode()], git.pack(made)


def state(git: CheckoutGit, request: "Request") -> "Answer":
    """Return a commit of the files, the agent's HEAD and its other commits, without changing branch or index."""
    agent_tips: dict[str, str] = git.read_tips(git.agent_git) if request["agent_can_write_git"] else {}
    head: str = agent_tips.get("HEAD") or request["tip"]
    git.read_index(head)
    made = _commit_tree(git, _find_changes(git).stage(), head, request)
    found = [made, head, *(git.agent_commits() if request["agent_can_write_git"] else [])]
    return [b"done", *(each.encode() for each in found)], git.pack(*found)


def diff(git: CheckoutGit, request: "Request") -> "Answer":
    """Write a diff of the files against a commit, including everything that is not committed yet."""
    _read_or_copy_index(git, request)
    options = ("--no-color", "--no-ext-diff", "--no-textconv")
    text = git.call("diff", *options, request["since"], _find_changes(git).stage())
    return [b"done"], lambda: write_all(1, text[: LOCAL_DIFF_BYTES_MAX + 1])


def changed_files(git: CheckoutGit, request: "Request") -> "Answer":
    """Write the names of the first files that differ from the tip in any byte."""
    git.read_index(request["tip"])
    names = [*dict.fromkeys([*_find_changes(git).names, *_converted_files(git)])]
    return [b"done"], lambda: write_all(1, join_names(names[:_NAMES_SHOWN]))


def ignored(git: CheckoutGit, request: "Request") -> "Answer":
    """Write the requested names that git ignores in the checkout."""
    _read_or_copy_index(git, request)
    stdin = join_names([os.fsencode(name) for name in request["names"]])
    code, output, errors = git.run(("check-ignore", "-z", "--stdin"), stdin)
    if code not in (0, 1):
        raise GitCallFailed(f"git check-ignore failed: {errors.decode(errors='replace')}")
    return [b"done"], lambda: write_all(1, output)


def reset_to(git: CheckoutGit, request: "Request") -> "Answer":
    """Reset the files to a commit, except ignored files, and set branch and index to `head`."""
    if not request["agent_can_write_git"] and os.path.exists(git.agent_git + b"/index"):
        # With this index git also removes files that were tracked before and are ignored now.
        git.copy_index()
        git.call("read-tree", "--reset", "-u", request["commit"])
        remove(git.scratch + b"/index")
    # Without an index git writes every file, even if its times are unchanged.
    git.call("read-tree", "--reset", "-u", request["commit"])
    git.call("clean", "--quiet", "-fd")
    if request["head"] != request["commit"]:
        git.call("read-tree", request["head"])
    git.publish_index()
    git.set_head(request["branch"], request["head"])
    return [b"done"], None


def adopt(git: CheckoutGit, request: "Request") -> "Answer":
    """Give the checkout of an earlier version its own git directory; its files stay as they are."""
    git.call("read-tree", request["tip"])
    git.publish_index()
    git.set_head(request["branch"], request["tip"])
    return [b"done"], None


def collect_nested(git: CheckoutGit, request: "Request") -> "Answer":
    """Return commits with the contents of repositories inside the checkout.

    If an agent replaced the file `.git` with a repository, the checkout itself is that repository.
    """
    dot_git = lstat(git.files + b"/.git")
    if dot_git is not None and stat.S_ISDIR(dot_git.st_mode):
        commits = collect_repository(git, git.files, 0)
    else:
        _read_or_copy_index(git, request)
        found = _find_changes(git)
        names = [*found.repositories, *found.submodules]
        commits = [each for name in names for each in collect_repository(git, git.files + b"/" + name.rstrip(b"/"), 0)]
    return [b"done", *(each.encode() for each in commits)], git.pack(*commits)


def collect_repository(git: CheckoutGit, path: bytes, depth: int) -> list[str]:
    """Return a commit of a repository's files on top of its branches, and the same for each repository inside it."""
    if depth > _NESTED_REPOSITORIES_MAX:
        raise CheckoutRefused(f"repositories are nested too deep at {quote_name(path)}: check whether they are needed")
    try:
        tips = [*dict.fromkeys(git.read_tips(path).values())]
        index = git.scratch + b"/nested-%d" % depth
        remove(index)
        found = FileChanges(git, path, index)
        tree = found.stage()
    except (GitCallFailed, CheckoutRefused) as error:
        raise CheckoutRefused(
            f"{quote_name(path)} is a separate repository that cannot be kept: push or copy what is needed from it,"
            f" remove it, and try again; {error}"
        ) from error
    parents = [part for tip in tips for part in ("-p", tip)]
    made = git.call("commit-tree", tree, *parents, "-m", b"Contents of " + path).decode().strip()
    inner = [path + b"/" + name.rstrip(b"/") for name in found.repositories]
    return [made, *(each for deeper in inner for each in collect_repository(git, deeper, depth + 1))]


def _converted_files(git: CheckoutGit) -> list[bytes]:
    """Return the tracked files whose bytes differ from a fresh checkout of the index.

    If there is a `.gitattributes` file, git converts contents, and does not report differences that the conversion
    removes. Without such a file the list is empty, because git itself reports every difference.
    """
    entries = git.call("ls-files", "-z", "--stage").split(b"\0")
    names = [entry.partition(b"\t")[2] for entry in entries if entry.startswith(b"100")]
    if not any(name.rpartition(b"/")[2] == _ATTRIBUTES for name in names):
        return []
    git.call("checkout-index", "--all", "--force", "--quiet", b"--prefix=" + _fresh_files(git))
    return [name for name in names if not _same_content(_fresh_files(git) + name, git.files + b"/" + name)]


def _fresh_files(git: CheckoutGit) -> bytes:
    return git.scratch + b"/fresh/"


def _same_content(one: bytes, other: bytes) -> bool:
    """Return whether two regular files have the same bytes."""
    here, there = lstat(one), lstat(other)
    if here is None or there is None or here.st_size != there.st_size or not stat.S_ISREG(there.st_mode):
        return False
    return read_content(one) == read_content(other)


def _agent_tips(git: CheckoutGit) -> dict[str, str]:
    """Return the agent's own commits by ref, or nothing if the agent damaged its git directory."""
    try:
        return git.read_tips(git.agent_git)
    except GitCallFailed:
        return {}


def _find_changes(git: CheckoutGit) -> FileChanges:
    return FileChanges(git, git.files, git.environment[b"GIT_INDEX_FILE"])


def _read_or_copy_index(git: CheckoutGit, request: "Request") -> None:
    """Start with an index that no agent can have written."""
    if request["agent_can_write_git"]:
        git.read_index(request["tip"])
    else:
        git.copy_index()


def _commit_tree(git: CheckoutGit, tree: str, parent: str, request: "Request") -> str:
    """Return a new commit of a tree on top of `parent`, or `parent` if it already has this tree."""
    before = git.call("rev-parse", f"{parent}^{{tree}}").decode().strip()
    return parent if tree == before else git.commit_tree(tree, parent, request["message"])


_ACTIONS = {
    each.__name__: each for each in (commit, state, diff, changed_files, ignored, reset_to, adopt, collect_nested)
}
