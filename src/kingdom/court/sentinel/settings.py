"""The section `sentinel` of the settings."""

from datetime import timedelta
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

_Period = Annotated[float, Meta(gt=0)]
_Count = Annotated[int, Meta(ge=1)]
_MEGABYTE = 1 << 20
_GITHUB = "github.com"
_WILDCARDS = frozenset("*?[")


class _SentinelSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the settings. An unknown field is an error."""


class _SourceSettings(_SentinelSection, frozen=True, kw_only=True):
    """Settings of a polled source."""

    # How long a received event is recognized as already seen.
    seen_days: _Period = 30.0

    @property
    def seen_kept(self) -> timedelta:
        """Return how long a received event is recognized as already seen."""
        return timedelta(days=self.seen_days)


class GitHubWebhookSettings(_SentinelSection, frozen=True, kw_only=True):
    """Where to receive webhooks. Each of the secrets is valid, so that secrets can be rotated."""

    secrets: tuple[Annotated[str, Meta(min_length=1)], ...]
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8787
    # GitHub sends no larger body.
    body_bytes_max: _Count = 25 * _MEGABYTE
    body_seconds: _Period = 10.0
    # This is shorter than the ten seconds that GitHub waits for a reply.
    store_seconds: _Period = 8.0


class GitHubAppSettings(_SentinelSection, frozen=True, kw_only=True):
    """An installation of a GitHub App, which performs petitions. `key` is a private key of the App in PEM format."""

    id: _Count
    key: Annotated[str, Meta(min_length=1)]
    installation: _Count


class GitHubSettings(_SourceSettings, frozen=True, kw_only=True):
    """Which GitHub activity is relevant. `logins` are all our accounts; the first one owns the token.

    `repos` and `ignore_actors` are globs. If `reasons` is empty, all reasons are relevant.
    GitHub has notifications only for users, so they are polled only with a token. An App performs petitions.
    """

    token: str = ""
    app: GitHubAppSettings | None = None
    logins: Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Meta(min_length=1)]
    api_url: str = "https://api.github.com"
    poll_seconds: _Period = 60.0
    repos: tuple[str, ...] = ("*",)
    reasons: tuple[str, ...] = ()
    ignore_actors: tuple[str, ...] = ()
    webhook: GitHubWebhookSettings | None = None
    # How far back the first poll looks.
    look_back_hours: _Period = 24.0

    def __post_init__(self) -> None:
        if not self.token and not self.app:
            raise ValueError("a token or an app is missing: Kingdom needs one of them to use GitHub")
        if not self.token and not self.webhook:
            raise ValueError("a webhook is missing: without a token, an app receives events only by webhook")

    @property
    def host(self) -> str:
        """Return the host name in the URLs of GitHub repositories."""
        api = urlsplit(self.api_url.lower())
        host = api.netloc.rpartition("@")[2]
        # GitHub Enterprise Server has its API at HOST/api/v3.
        return host if api.path.startswith("/api/") else host.removeprefix("api.")


class JiraSettings(_SourceSettings, frozen=True, kw_only=True):
    """Which Jira tickets are relevant.

    `own_accounts` are the ids of all our accounts. If it is empty, the account of the token is our only account.
    """

    url: str
    email: str
    token: str
    own_accounts: tuple[str, ...] = ()
    jql: Annotated[str, Meta(min_length=1)] = "assignee = currentUser()"
    poll_seconds: _Period = 300.0
    look_back_hours: _Period = 24.0


class SentinelSettings(_SentinelSection, frozen=True, kw_only=True):
    """The sources to watch. A missing source is not watched."""

    github: GitHubSettings | None = None
    jira: JiraSettings | None = None

    @property
    def repository_host(self) -> str:
        """Return the host name in the URLs of repositories, such as github.com."""
        return self.github.host if self.github else _GITHUB

    @property
    def accepts_strangers(self) -> bool:
        """Return whether any GitHub user can create an event by mentioning us in their own repository."""
        return self.github is not None and not all(map(has_fixed_owner, self.github.repos))


def has_fixed_owner(glob: str) -> bool:
    """Return whether a glob matches repositories of one owner only."""
    owner, slash, _ = glob.partition("/")
    return bool(owner and slash) and not _WILDCARDS & set(owner)
