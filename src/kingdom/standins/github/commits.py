"""The commits of a repository, from its git directory if it has one, otherwise from the pushes to the server."""

import re
import subprocess
from io import StringIO
from typing import Any

# The only commit that does not exist in a repository without a git directory.
NO_COMMIT = "0" * 40
_HUNK = re.compile(r"^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")
_STATUSES = {"A": "added", "D": "removed", "M": "modified", "T": "changed"}


def commit_of_ref(state: dict[str, Any], repository: str, ref: str) -> str | None:
    """Return the commit of a ref, or None if the ref does not exist."""
    if directory := _directory(state, repository):
        found = _git(directory, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
        return found.stdout.strip() or None
    sha: str | None = state["refs"].get(repository, {}).get(ref)
    return sha


def refs_of(state: dict[str, Any], repository: str, prefix: str) -> dict[str, str]:
    """Return the refs whose names begin with a prefix, and their commits."""
    if directory := _directory(state, repository):
        listed = _git(directory, "for-each-ref", "--format=%(refname) %(objectname)").stdout.split()
        refs = dict(zip(listed[::2], listed[1::2], strict=True))
    else:
        refs = state["refs"].get(repository, {})
    return {name: sha for name, sha in sorted(refs.items()) if name.startswith(prefix)}


def set_ref(state: dict[str, Any], repository: str, ref: str, sha: str | None, before: str | None = None) -> None:
    """Point a ref to a commit, or remove the ref. `before` is its former commit, if the state has no such ref yet."""
    if directory := _directory(state, repository):
        _git(directory, "update-ref", *(["-d", ref] if sha is None else [ref, sha]), check=True)
        return
    refs = state["refs"].setdefault(repository, {})
    before = refs.pop(ref, before)
    if sha is not None:
        refs[ref] = sha
        if before and before not in (sha, *_ancestors(state, repository, before)):
            state["parents"].setdefault(repository, {}).setdefault(sha, before)


def has_commit(state: dict[str, Any], repository: str, sha: str) -> bool:
    """Return whether a commit was pushed. Without a git directory, every commit counts as pushed."""
    if directory := _directory(state, repository):
        return _git(directory, "cat-file", "-e", f"{sha}^{{commit}}").returncode == 0
    return sha != NO_COMMIT


def is_fast_forward(state: dict[str, Any], repository: str, before: str, after: str) -> bool:
    """Return whether `after` contains `before`.

    Without a git directory, a commit with a known parent contains only its ancestors, and any other commit
    contains all commits except its descendants.
    """
    if directory := _directory(state, repository):
        return _git(directory, "merge-base", "--is-ancestor", before, after).returncode == 0
    if known := _ancestors(state, repository, after):
        return before in (after, *known)
    return after not in _ancestors(state, repository, before)


def has_conflict(state: dict[str, Any], pull: dict[str, Any]) -> bool:
    """Return whether a pull request conflicts with its base."""
    if directory := _directory(state, pull["repository"]):
        base = f"refs/heads/{pull['pull']['base']['ref']}"
        return _git(directory, "merge-tree", "--write-tree", base, pull["pull"]["head"]["sha"]).returncode == 1
    return bool(pull["pull"].get("conflict"))


def merge_commit(state: dict[str, Any], pull: dict[str, Any], message: str) -> str | None:
    """Merge the head into the base in the git directory, and return the commit. Return None without a directory."""
    directory = _directory(state, pull["repository"])
    if not directory:
        return None
    base = f"refs/heads/{pull['pull']['base']['ref']}"
    head = pull["pull"]["head"]["sha"]
    tree = _git(directory, "merge-tree", "--write-tree", base, head, check=True).stdout.split()[0]
    author = ("-c", "user.name=GitHub", "-c", "user.email=noreply@github.invalid")
    sha = _git(
        directory, *author, "commit-tree", tree, "-p", base, "-p", head, "-m", message, check=True
    ).stdout.strip()
    _git(directory, "update-ref", base, sha, check=True)
    return sha


def files_of(state: dict[str, Any], pull: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the files that a pull request changes."""
    directory, branches = _directory(state, pull["repository"]), pull["pull"]
    if not directory:
        files: list[dict[str, Any]] = branches["files"]
        return files
    between = f"{branches['base']['sha']}...{branches['head']['sha']}"
    listed = _git(directory, "diff", "--no-renames", "--name-status", "-z", between).stdout.split("\0")
    found = []
    for status, name in zip(listed[::2], listed[1::2], strict=False):
        patch = _git(directory, "diff", "--no-renames", between, "--", name).stdout
        hunks = patch[patch.find("\n@@ ") + 1 :] if "\n@@ " in patch else ""
        count = {sign: sum(line.startswith(sign) for line in StringIO(hunks)) for sign in "+-"}
        about = {"filename": name, "status": _STATUSES[status], "patch": hunks}
        found.append({**about, "additions": count["+"], "deletions": count["-"]})
    return found


def lines_of_patch(patch: str, side: str) -> set[int]:
    """Return the numbers of the lines that a patch shows on one side."""
    numbers, old, new = set(), 0, 0
    for line in StringIO(patch):
        if hunk := _HUNK.match(line):
            old, new = int(hunk[1]), int(hunk[2])
            continue
        if line.startswith("\\"):
            continue
        if side == "LEFT" and not line.startswith("+"):
            numbers.add(old)
        if side == "RIGHT" and not line.startswith("-"):
            numbers.add(new)
        old, new = old + (not line.startswith("+")), new + (not line.startswith("-"))
    return numbers


def _ancestors(state: dict[str, Any], repository: str, sha: str) -> list[str]:
    parents, found = state["parents"].get(repository, {}), []
    while sha := parents.get(sha, ""):
        found.append(sha)
    return found


def _directory(state: dict[str, Any], repository: str) -> str | None:
    directory: str | None = state["repositories"][repository].get("git")
    return directory


def _git(directory: str, *arguments: str, check: bool = False) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - the arguments are a list, and none of them is an option of a client
        ["git", f"--git-dir={directory}", *arguments],  # noqa: S607 - git of the PATH, as everywhere
        capture_output=True,
        text=True,
        check=check,
    )
