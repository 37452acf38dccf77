"""Filters: which GitHub activity is relevant. Pure functions."""

from enum import StrEnum
from fnmatch import fnmatchcase

from kingdom.court.sentinel.github_activity import GitHubActivity
from kingdom.court.sentinel.settings import GitHubSettings

# GitHub's notification reason for our own activity.
_OWN_REASON = "your_activity"


class FilterReason(StrEnum):
    """Why an activity becomes no event."""

    ELSEWHERE = "its repository is not watched"
    OWN = "we did it ourselves"
    IGNORED = "its author is ignored"
    UNWANTED = "its reason is not wanted"


def why_filtered(activity: GitHubActivity, settings: GitHubSettings) -> FilterReason | None:
    """Return why an activity becomes no event, or None."""
    actor = activity.actor.lower()
    if not _fits(activity.event.repo or "", settings.repos):
        return FilterReason.ELSEWHERE
    if activity.reason == _OWN_REASON or actor in {login.lower() for login in settings.logins}:
        return FilterReason.OWN
    if actor and _fits(actor, settings.ignore_actors):
        return FilterReason.IGNORED
    if settings.reasons and activity.reason not in settings.reasons:
        return FilterReason.UNWANTED
    return None


def _fits(name: str, globs: tuple[str, ...]) -> bool:
    # GitHub names are case-insensitive. The bracket in the name of an app such as dependabot[bot] is not a wildcard.
    return any(fnmatchcase(name.lower(), glob.lower().replace("[", "[[]")) for glob in globs)
