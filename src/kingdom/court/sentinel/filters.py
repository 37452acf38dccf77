"""Is it ours? Pure."""

from enum import StrEnum
from fnmatch import fnmatchcase

from kingdom.court.sentinel.happening import Happening
from kingdom.court.sentinel.settings import GitHubSettings

# GitHub tells us of what we did ourselves under this reason.
_OWN_REASON = "your_activity"


class Refusal(StrEnum):
    """Why a happening becomes no event."""

    ELSEWHERE = "its repository is not watched"
    OWN = "we did it ourselves"
    IGNORED = "who did it is ignored"
    UNWANTED = "its reason is not wanted"


def refusal(happening: Happening, settings: GitHubSettings) -> Refusal | None:
    """Return why a happening becomes no event, if it does not."""
    actor = happening.actor.lower()
    if not _fits(happening.event.repo or "", settings.repos):
        return Refusal.ELSEWHERE
    if happening.reason == _OWN_REASON or actor in {login.lower() for login in settings.logins}:
        return Refusal.OWN
    if actor and _fits(actor, settings.ignore_actors):
        return Refusal.IGNORED
    if settings.reasons and happening.reason not in settings.reasons:
        return Refusal.UNWANTED
    return None


def _fits(name: str, globs: tuple[str, ...]) -> bool:
    # Names of GitHub have no case, and a bracket is a part of the names of its apps.
    return any(fnmatchcase(name.lower(), glob.lower().replace("[", "[[]")) for glob in globs)
