"""A repository that runs may use."""

import re
from collections.abc import Collection
from hashlib import sha256

import msgspec

from kingdom.workflow.model.messages.events import GitCreated, GitDeleted
from kingdom.workflow.model.resources.registered_resource import RegisteredResource

# A repository name on GitHub. It becomes part of paths and URLs, so a name of only dots is not allowed.
REPOSITORY = r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}/(?!\.+\Z)[A-Za-z0-9._-]{1,100}"
_WEB = re.compile(r"https?://(?:[^/@]*@)?(?P<host>[^/@]+)/(?P<path>.+)", re.IGNORECASE)
_SSH = re.compile(r"(?:ssh|git)://(?:[^/@]*@)?(?P<host>[^/@:]+)(?::\d+)?/(?P<path>.+)", re.IGNORECASE)
_LIKE_SCP = re.compile(r"(?:[^/@:]+@)?(?P<host>[^/@:]+):(?!//)(?P<path>.+)")
_ID_LENGTH_MAX = 60
_DIGEST_LENGTH = 12


class Git(RegisteredResource, frozen=True, kw_only=True):
    """A registered repository. `repo` is its repository name in events, such as acme/shop; empty if it gets no events.

    Hosts push checkpoints to `checkpoint_remote`, so another host can continue a run. Without this remote, a run whose
    host is lost waits for that host.
    """

    name: str
    url: str
    default_branch: str = "main"
    checkpoint_remote: str = ""
    repo: str = ""

    def matches(self, repo: str) -> bool:
        """Return whether an event with this repository name is about this Git."""
        return bool(repo) and self.repo.lower() == repo.lower()

    def created_event(self) -> GitCreated:
        """Return the event of a new Git."""
        return GitCreated(git_id=self.id)

    def delete(self, users: Collection[str]) -> tuple["Git", GitDeleted]:
        """Return the deleted Git and its event. Refuse the deletion while a Workflow uses the Git."""
        self.refuse_while_used("git", "delete", users)
        return msgspec.structs.replace(self, deleted=True, deleting=False), GitDeleted(git_id=self.id)


def repo_of(address: str, forge: str) -> str:
    """Return the repository name in the address of a repository; empty if the repository is not on the `forge`.

    The forge is the server of the repositories, such as github.com.
    """
    web, host = _WEB.fullmatch(address), forge.lower().partition(":")[0]
    found = web or _SSH.fullmatch(address) or _LIKE_SCP.fullmatch(address)
    # GitHub also accepts SSH at ssh.github.com, on the HTTPS port.
    hosts = {forge.lower()} if web else {host, f"ssh.{host}"}
    if found is None or found["host"].lower() not in hosts:
        return ""
    repo = found["path"].strip("/").removesuffix(".git")
    return repo if re.fullmatch(REPOSITORY, repo) else ""


def unique_name(repo: str) -> str:
    """Return a name that only this repository has, such as acme.shop for acme/shop. Files and Git ids use this name."""
    folded = repo.lower()
    name = folded.replace("/", ".")
    # An owner contains no dot, so the first dot always stands for the slash.
    if re.fullmatch(REPOSITORY, repo) and len(name) <= _ID_LENGTH_MAX:
        return name
    readable = re.sub(r"[^a-z0-9]+", "-", folded).strip("-")[: _ID_LENGTH_MAX - _DIGEST_LENGTH - 1]
    return f"{readable}-{sha256(folded.encode()).hexdigest()[:_DIGEST_LENGTH]}".lstrip("-")
