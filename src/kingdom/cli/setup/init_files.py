"""The files that `kingdom init` writes."""

import json
from dataclasses import dataclass
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from kingdom.settings import read_environment

GITHUB_API = "https://api.github.com"
_IGNORED = """\
# What Kingdom keeps for itself; the Generals are yours.
/{realm}/*
!/{realm}/generals/
/secrets/
"""
_LOCAL_TIME = Path("/etc/localtime")
_ZONES, _UTC = "zoneinfo/", "UTC"
_SETTINGS = """\
# The settings of Kingdom. What is not said has a good default: `kingdom config check` prints everything that counts.
# No secret is written down here: env:NAME or file:PATH tells where it is.

# Where everything is kept: file:DIRECTORY or embedded:DIRECTORY, a PostgreSQL of its own, on one machine,
# postgresql://user@host/database for several.
database_url: {store}

# Days, schedules and reports go by it.
time_zone: {zone}

# Where people are told, unless a General names another channel.
channel: kingdom

{github}
# Where people are told and asked. Without it the log tells, and `kingdom inbox` asks.
# envoy:
#   slack:
#     bot_token: env:SLACK_BOT_TOKEN
#     app_token: env:SLACK_APP_TOKEN

# How much runs at once, and what a day may cost.
# king: {{soldiers: 3, soldiers_per_repo: 1, daily_usd: 300}}

# What does the work: without a name the scripted agent, which is free and only follows the scripts of Generals.
# Every agent, setup script and check runs in a sandbox: it sees its own work and reaches its model, nothing else.
# soldiers: {{agent: claude, slots: 3, sandbox: strict}}
"""
_NO_GITHUB = """\
# What is watched. Without it you are the outside: `kingdom send`.
# sentinel:
#   github:
#     token: env:GITHUB_TOKEN    # classic, with the scopes notifications and repo
#     logins: [the-account-of-the-token]
#     repos: ["acme/*"]
"""
_WITH_GITHUB = """\
# What is watched.
sentinel:
  github:
    token: env:GITHUB_TOKEN  # classic, with the scopes notifications and repo
    logins: [{login}]  # every account under which we act; the first is the token's
{repos}{api}    # Webhooks are faster than asking once a minute:
    # webhook: {{secrets: ["env:WEBHOOK_SECRET"], port: 8787}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GitHub:
    """Which account acts on GitHub, and in which repository, or in which of an owner."""

    login: str
    repo: str = ""
    api: str = GITHUB_API


def settings_text(store: str, zone: str, github: GitHub | None) -> str:
    """Return a file of settings with a comment on each; what a person has said is quoted."""
    text = _NO_GITHUB
    if github:
        repos = f"    repos: [{json.dumps(github.repo)}]\n"
        api = f"    api_url: {json.dumps(github.api)}\n" if github.api != GITHUB_API else ""
        text = _WITH_GITHUB.format(login=json.dumps(github.login), repos=repos, api=api)
    return _SETTINGS.format(store=_plain(store), zone=_plain(zone), github=text)


def ignored_text(store: Path | None, embedded: Path | None = None) -> str:
    """Return what git shall not keep of a realm, given its directory of files or of a server if it has one inside."""
    realm = store if store and not store.is_absolute() else Path("realm")
    is_beside = embedded and not embedded.is_absolute() and realm not in embedded.parents
    return _IGNORED.format(realm=realm) + (f"/{embedded}/\n" if is_beside else "")


def zone_here() -> str:
    """Return the time zone of this machine; UTC where it does not tell, or tells one that is not known."""
    name = read_environment("TZ") or ""
    if not name and _LOCAL_TIME.is_symlink():
        name = str(_LOCAL_TIME.resolve()).partition(_ZONES)[2]
    try:
        zone = ZoneInfo(name.lstrip(":")).key if name else _UTC
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return _UTC
    return _UTC if zone == "Etc/UTC" else zone


def _plain(said: str) -> str:
    """Return a text as it stands in YAML: as it is where nobody could misread it."""
    return said if said.replace("/", "").replace("_", "").replace(":", "").isalnum() else json.dumps(said)
