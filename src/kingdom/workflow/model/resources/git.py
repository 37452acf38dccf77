"""A repository that runs may use."""

import re
from collections.abc import Collection
from hashlib import sha256

import msgspec

from kingdom.workflow.model.messages.events import GitCreated, GitDeleted
from kingdom.workflow.model.resources.registered_resource import RegisteredResource

# The name of a repository on GitHub. It becomes a part of paths and addresses, where dots alone would lead elsewhere.
REPOSITORY = r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}/(?!\.+\Z)[A-Za-z0-9._-]{1,100}"
_WEB = re.compile(r"https?://(?:[^/@]*@)?(?P<host>[^/@]+)/(?P<path>.+)", re.IGNORECASE)
_SSH = re.compile(r"(?:ssh|git)://(?:[^/@]*@)?(?P<host>[^/@:]+)(?::\d+)?/(?P<path>.+)", re.IGNORECASE)
_LIKE_SCP = re.compile(r"(?:[^/@:]+@)?(?P<host>[^/@:]+):(?!//)(?P<path>.+)")
_ID_LENGTH_MAX = 60
_DIGEST_LENGTH = 12


class Git(RegisteredResource, frozen=True, kw_only=True):
    """A repository known by name and address; `repo` is what events call it, as acme/shop, if they ever name it.

    Checkpoints are pushed to `checkpoint_remote`, so that another host can go on from them; without one a run waits
    for its host.
    """

    name: str
    url: str
    default_branch: str = "main"
    checkpoint_remote: str = ""
    repo: str = ""

    def is_of(self, repo: str) -> bool:
        """Tell whether this is the repository that an event names."""
        return bool(repo) and self.repo.lower() == repo.lower()

    def created(self) -> GitCreated:
        """Return what is said once a new Git is stored."""
        return GitCreated(git_id=self.id)

    def delete(self, users: Collection[str]) -> tuple["Git", GitDeleted]:
        """Return the Git as deleted, unless a Workflow uses it."""
        self.refuse_while_used("git", "delete", users)
        return msgspec.structs.replace(self, deleted=True, deleting=False), GitDeleted(git_id=self.id)


def repo_of(address: str, forge: str) -> str:
    """Return the repository that an address names on a forge such as github.com; nothing where it leads elsewhere."""
    web, host = _WEB.fullmatch(address), forge.lower().partition(":")[0]
    found = web or _SSH.fullmatch(address) or _LIKE_SCP.fullmatch(address)
    # At ssh.github.com GitHub listens for networks that let only the port of https pass.
    hosts = {forge.lower()} if web else {host, f"ssh.{host}"}
    if found is None or found["host"].lower() not in hosts:
        return ""
    repo = found["path"].strip("/").removesuffix(".git")
    return repo if re.fullmatch(REPOSITORY, repo) else ""


def unique_name(repo: str) -> str:
    """Return a name for the files and the Git of a repository that no other one has: acme.shop for acme/shop."""
    folded = repo.lower()
    name = folded.replace("/", ".")
    # An owner has no dot, so the first one stands for the slash.
    if re.fullmatch(REPOSITORY, repo) and len(name) <= _ID_LENGTH_MAX:
        return name
    readable = re.sub(r"[^a-z0-9]+", "-", folded).strip("-")[: _ID_LENGTH_MAX - _DIGEST_LENGTH - 1]
    return f"{readable}-{sha256(folded.encode()).hexdigest()[:_DIGEST_LENGTH]}".lstrip("-")
