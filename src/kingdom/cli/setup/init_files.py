"""The files that `kingdom init` writes."""

import json
from dataclasses import dataclass
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from kingdom.settings import read_environment

GITHUB_API = "https://api.github.com"
_IGNORED = """\
# Files of Kingdom itself; the Generals are yours.
/{realm}/*
!/{realm}/generals/
/secrets/
"""
_LOCAL_TIME = Path("/etc/localtime")
_ZONES, _UTC = "zoneinfo/", "UTC"
_SETTINGS = """\
# The settings of Kingdom. Everything has a default: `kingdom config check` prints the effective settings.
# Do not write secrets here: env:NAME or file:PATH says where a secret is.

# The store: file:DIRECTORY or embedded:DIRECTORY (an embedded PostgreSQL) on one machine,
# postgresql://user@host/database for several.
database_url: {store}

# The time zone of days, schedules and reports.
time_zone: {zone}

# The channel for messages to people, unless a General names another one.
channel: kingdom

{github}
# Where people get messages and questions. By default messages are in the log and questions in `kingdom inbox`.
# envoy:
#   slack:
#     bot_token: env:SLACK_BOT_TOKEN
#     app_token: env:SLACK_APP_TOKEN

# How many agents run at once, and what a day may cost.
# king: {{soldiers: 3, soldiers_per_repo: 1, daily_usd: 300}}

# The agent. The default is the scripted agent, which is free and only follows the scripts of Generals.
# Every agent, setup script and check runs in a sandbox: it sees only its own work and reaches only its model.
# soldiers: {{agent: claude, slots: 3, sandbox: strict}}
"""
_NO_GITHUB = """\
# What the Sentinel watches. By default it watches nothing, and events come only from `kingdom send`.
# sentinel:
#   github:
#     token: env:GITHUB_TOKEN    # classic, with the scopes notifications and repo
#     logins: [the-account-of-the-token]
#     repos: ["acme/*"]
"""
_WITH_GITHUB = """\
# What the Sentinel watches.
sentinel:
  github:
    token: env:GITHUB_TOKEN  # classic, with the scopes notifications and repo
    logins: [{login}]  # every account that Kingdom uses; the first one owns the token
{repos}{api}    # Webhooks are faster than polling once a minute:
    # webhook: {{secrets: ["env:WEBHOOK_SECRET"], port: 8787}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GitHub:
    """The GitHub account that reviews, the repository (or OWNER/*) that it reviews, and the address of the API."""

    login: str
    repo: str = ""
    api: str = GITHUB_API


def settings_text(store: str, zone: str, github: GitHub | None) -> str:
    """Return a settings file with comments; values are quoted where YAML needs it."""
    text = _NO_GITHUB
    if github:
        repos = f"    repos: [{json.dumps(github.repo)}]\n"
        api = f"    api_url: {json.dumps(github.api)}\n" if github.api != GITHUB_API else ""
        text = _WITH_GITHUB.format(login=json.dumps(github.login), repos=repos, api=api)
    return _SETTINGS.format(store=_plain(store), zone=_plain(zone), github=text)


def ignored_text(store: Path | None, embedded: Path | None = None) -> str:
    """Return the .gitignore of a realm. `store` is the directory of a store of files, `embedded` that of a server."""
    realm = store if store and not store.is_absolute() else Path("realm")
    is_outside = embedded and not embedded.is_absolute() and realm not in embedded.parents
    return _IGNORED.format(realm=realm) + (f"/{embedded}/\n" if is_outside else "")


def zone_here() -> str:
    """Return the time zone of this machine, or UTC if the zone is not set or not known."""
    name = read_environment("TZ") or ""
    if not name and _LOCAL_TIME.is_symlink():
        name = str(_LOCAL_TIME.resolve()).partition(_ZONES)[2]
    try:
        zone = ZoneInfo(name.lstrip(":")).key if name else _UTC
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return _UTC
    return _UTC if zone == "Etc/UTC" else zone


def _plain(value: str) -> str:
    """Return a text for YAML, quoted only if needed."""
    return value if value.replace("/", "").replace("_", "").replace(":", "").isalnum() else json.dumps(value)
