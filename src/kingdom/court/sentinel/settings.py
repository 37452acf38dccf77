"""What the Sentinel watches, whose it counts as ours, and where it listens."""

from datetime import timedelta
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

_Period = Annotated[float, Meta(gt=0)]
_Count = Annotated[int, Meta(ge=1)]
_MEGABYTE = 1 << 20
_GITHUB = "github.com"
_WILD = frozenset("*?[")


class _SentinelSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that the file of settings says; a field that nobody knows is an error."""


class _SourceSettings(_SentinelSection, frozen=True, kw_only=True):
    """What is watched."""

    # For so long something that was seen is not taken for new.
    seen_days: _Period = 30.0

    @property
    def seen_kept(self) -> timedelta:
        """Return for how long something that was seen is not taken for new."""
        return timedelta(days=self.seen_days)


class GitHubWebhookSettings(_SentinelSection, frozen=True, kw_only=True):
    """Where GitHub reaches us; each of the secrets is good, so that one can follow another."""

    secrets: tuple[Annotated[str, Meta(min_length=1)], ...]
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8787
    # GitHub sends nothing larger.
    body_bytes_max: _Count = 25 * _MEGABYTE
    body_seconds: _Period = 10.0
    # GitHub waits no longer than ten seconds for an answer.
    store_seconds: _Period = 8.0


class GitHubSettings(_SourceSettings, frozen=True, kw_only=True):
    """What of GitHub is ours; `logins` are all names under which we act there, the first that of the token.

    `repos` and `ignore_actors` are globs; no `reasons` means every one.
    """

    token: str
    logins: Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Meta(min_length=1)]
    api_url: str = "https://api.github.com"
    poll_seconds: _Period = 60.0
    repos: tuple[str, ...] = ("*",)
    reasons: tuple[str, ...] = ()
    ignore_actors: tuple[str, ...] = ()
    webhook: GitHubWebhookSettings | None = None
    # How far the very first look goes back.
    look_back_hours: _Period = 24.0

    @property
    def host(self) -> str:
        """Return the host of the addresses of its repositories."""
        api = urlsplit(self.api_url.lower())
        host = api.netloc.rpartition("@")[2]
        # GitHub Enterprise Server answers at HOST/api/v3.
        return host if api.path.startswith("/api/") else host.removeprefix("api.")


class JiraSettings(_SourceSettings, frozen=True, kw_only=True):
    """Which tickets are ours; `own_accounts` are the ids of all accounts under which we act there.

    Where none is named, it is the account of the token.
    """

    url: str
    email: str
    token: str
    own_accounts: tuple[str, ...] = ()
    jql: Annotated[str, Meta(min_length=1)] = "assignee = currentUser()"
    poll_seconds: _Period = 300.0
    look_back_hours: _Period = 24.0


class SentinelSettings(_SentinelSection, frozen=True, kw_only=True):
    """What the Sentinel watches; what is not there is not watched."""

    github: GitHubSettings | None = None
    jira: JiraSettings | None = None

    @property
    def forge(self) -> str:
        """Return the host of the repositories that events name."""
        return self.github.host if self.github else _GITHUB

    @property
    def accepts_strangers(self) -> bool:
        """Tell whether anybody can make an event by mentioning us in a repository of their own."""
        return self.github is not None and not all(map(names_owner, self.github.repos))


def names_owner(glob: str) -> bool:
    """Tell whether all repositories that fit a glob are of one owner."""
    owner, slash, _ = glob.partition("/")
    return bool(owner and slash) and not _WILD & set(owner)
