"""Which activities concern us: by repository, by reason and by author, but never our own."""

from datetime import UTC, datetime
from typing import Any

import pytest

from kingdom.court.sentinel.filters import FilterReason, why_filtered
from kingdom.court.sentinel.github import parse_notification, parse_webhook
from kingdom.court.sentinel.github_activity import GitHubActivity
from kingdom.court.sentinel.settings import GitHubSettings
from tests.unit.court.sentinel.bodies import US, notification, review_requested, user

NOW = datetime(2026, 2, 7, 10, 5, tzinfo=UTC)


def judged(activity: GitHubActivity, **settings: Any) -> FilterReason | None:
    return why_filtered(activity, GitHubSettings(token="t", logins=(US, "kingdom[bot]"), **settings))  # noqa: S106


def by(login: str) -> GitHubActivity:
    activity = parse_webhook("pull_request", review_requested() | {"sender": user(login)}, [US], NOW)
    assert isinstance(activity, GitHubActivity)
    return activity


@pytest.mark.parametrize(
    ("repos", "is_watched"),
    [(("*",), True), (("acme/*",), True), (("ACME/App",), True), (("acme/a?p",), True), (("other/*", "x/y"), False)],
)
def test_only_repositories_that_fit_are_watched(repos: tuple[str, ...], *, is_watched: bool) -> None:
    assert (judged(by("octocat"), repos=repos) is None) is is_watched


@pytest.mark.parametrize("login", [US, "Kingdom-BOT", "kingdom[bot]"])
def test_activity_of_any_of_our_accounts_is_our_own(login: str) -> None:
    assert judged(by(login)) is FilterReason.OWN


def test_activity_that_github_marks_as_our_own_is_our_own() -> None:
    assert judged(parse_notification(notification("your_activity"), NOW)) is FilterReason.OWN


@pytest.mark.parametrize(("login", "is_ignored"), [("renovate[bot]", True), ("robot", False), ("CI-runner", True)])
def test_some_people_and_programs_are_not_listened_to(login: str, *, is_ignored: bool) -> None:
    assert (judged(by(login), ignore_actors=("*[bot]", "ci-*")) is FilterReason.IGNORED) is is_ignored


def test_an_event_without_a_known_author_is_not_ignored() -> None:
    assert judged(parse_notification(notification(), NOW), ignore_actors=("*",)) is None


def test_if_reasons_are_configured_other_reasons_are_unwanted() -> None:
    assert judged(by("octocat"), reasons=("mention",)) is FilterReason.UNWANTED
    assert judged(by("octocat"), reasons=("mention", "review_requested")) is None
