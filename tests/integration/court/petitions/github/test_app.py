"""A GitHub App performs petitions with tokens that are narrowed, replaced in time, and never written down."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bench.servers import free_port
from kingdom.bus.effects.effect import Acked, Attempt, CallResult, Rejected, Throttled
from kingdom.clock import utc_now
from kingdom.court.petitions.github.access import AppInstallation
from kingdom.court.petitions.github.api import GithubApi
from kingdom.court.petitions.github.effect import GithubPetitions
from kingdom.court.petitions.http_api import NotAuthorized
from kingdom.court.sentinel.settings import GitHubAppSettings
from tests.integration.standins.github import REPOSITORY, Site, standing_in
from tests.integration.standins.github_app import APP, PERMISSIONS, SLUG, app_key, install, other_key

HEAD = "c0ffee" + "0" * 34
NEXT = "decade" + "0" * 34
COMMENTS = f"/repos/{REPOSITORY}/issues/1/comments"


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with standing_in(tmp_path / "github.json") as site:
        await site.pull_request()
        yield site


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def __call__(self) -> datetime:
        return utc_now() + self.ahead


def app_settings(installation: int, key: str = "") -> GitHubAppSettings:
    return GitHubAppSettings(id=APP, key=key or app_key(), installation=installation)


async def perform(url: str, settings: GitHubAppSettings, *petitions: tuple[str, dict[str, Any]]) -> list[CallResult]:
    """Perform petitions as an App and return their results."""
    effect = GithubPetitions(api := GithubApi(url, AppInstallation(url, settings)), [f"{SLUG}[bot]"])
    results = []
    for number, (kind, body) in enumerate(petitions):
        request = {"kind": kind, "body": {"repo": REPOSITORY, **body}, "mark": f"mark{number}", "commands": []}
        results.append(await effect.call(Attempt(number=1, identifier=f"{kind}-{number}", request=request, fence=1)))
    await api.close()
    return results


async def tokens(site: Site) -> list[Any]:
    """Return the permissions of every token that was requested."""
    async with site.session.get(f"{site.url}/_control/calls") as answer:
        calls = [call for call in await answer.json() if call["call"] == "POST access token"]
    assert all(call["repositories"] == [REPOSITORY] for call in calls)
    return [{name: level for name, level in call["permissions"].items() if name != "metadata"} for call in calls]


async def test_each_call_gets_a_token_for_its_repository_and_its_permission_only(site: Site) -> None:
    installation = await install(site)
    await site.happen("protection", checks=["test"])
    results = await perform(
        site.url,
        app_settings(installation),
        ("github.comment", {"number": 1, "body": "Hello."}),
        ("github.comment", {"number": 1, "body": "Again."}),
        ("github.summary", {"number": 1, "body": "So far."}),
        ("github.summary", {"number": 1, "body": "Finally."}),
        ("github.review", {"number": 1, "event": "COMMENT", "body": "Fine."}),
        ("github.pull_request", {"title": "Fix", "head": "fix", "head_sha": HEAD, "base": "main"}),
        ("github.push", {"number": 2, "branch": "fix", "before": HEAD, "head_sha": NEXT}),
        ("github.auto_merge", {"number": 2, "head_sha": NEXT}),
        ("github.label", {"number": 1, "labels": ["ready"]}),
        ("github.issue", {"title": "It wobbles."}),
    )
    assert [type(result) for result in results] == [Acked] * 10
    assert await tokens(site) == [
        {"issues": "write"},
        {"issues": "read"},
        {"pull_requests": "write"},
        {"contents": "write"},
        {"contents": "read", "pull_requests": "read"},
        {"contents": "read"},
        {"pull_requests": "read"},
        {"contents": "write", "pull_requests": "write"},
    ]
    authors = {each["user"]["login"] for each in await site.read(COMMENTS)}
    assert authors == {f"{SLUG}[bot]"}
    assert len(await site.read(COMMENTS)) == 3


async def test_a_token_is_reused_and_replaced_five_minutes_before_its_end(site: Site) -> None:
    clock = Clock()
    access = AppInstallation(site.url, app_settings(await install(site)), clock=clock)
    first = [await access.token_for("GET", COMMENTS) for _ in range(2)]
    clock.ahead = timedelta(minutes=54)
    kept = await access.token_for("GET", COMMENTS)
    clock.ahead = timedelta(minutes=56)
    renewed = await access.token_for("GET", COMMENTS)
    await access.close()
    assert first == [kept, kept]
    assert renewed != kept
    assert len(await tokens(site)) == 2


async def test_a_rejected_token_is_replaced_once_and_the_call_is_sent_again(site: Site) -> None:
    access = AppInstallation(site.url, app_settings(await install(site)))
    api = GithubApi(site.url, access)
    revoked = await access.token_for("GET", COMMENTS)
    await site.ask("DELETE", "/installation/token", headers={"Authorization": f"Bearer {revoked}"})
    assert (await api.ask(COMMENTS)).status == 200
    await site.faults({"path": COMMENTS, "kind": "refuse", "status": 401, "times": 2})
    assert (await api.ask(COMMENTS)).status == 401
    await api.close()
    assert len(await tokens(site)) == 3


async def test_a_missing_permission_rejects_a_petition_and_is_named(site: Site) -> None:
    installation = await install(site, permissions={**PERMISSIONS, "issues": "read"})
    [result] = await perform(site.url, app_settings(installation), ("github.comment", {"number": 1, "body": "Hello."}))
    assert isinstance(result, Rejected)
    assert f"the installation {installation} of the App {APP} grants no issues=write for {REPOSITORY}" in result.reason
    assert await site.read(COMMENTS) == []


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        ("another key", f"GitHub rejects the key of the App {APP}"),
        ("no key", "sentinel.github.app.key is not a private key in PEM format"),
        ("another installation", f"the App {APP} has no installation 99"),
        ("suspended", "(GitHub answered 403: This installation has been suspended)"),
    ],
)
async def test_the_error_for_a_rejected_app_says_what_to_correct(site: Site, problem: str, reason: str) -> None:
    installation = await install(site, suspended=problem == "suspended")
    keys = {"another key": other_key(), "no key": "secret words"}
    settings = app_settings(99 if problem == "another installation" else installation, keys.get(problem, ""))
    [result] = await perform(site.url, settings, ("github.comment", {"number": 1, "body": "Hello."}))
    assert isinstance(result, Rejected)
    assert reason in result.reason
    assert "secret words" not in result.reason


@pytest.mark.parametrize("status", [500, 429])
async def test_a_petition_waits_if_no_token_can_be_requested_now(site: Site, status: int) -> None:
    installation = await install(site)
    await site.faults({"path": "*/access_tokens", "kind": "refuse", "status": status, "retry_after": 7})
    comment = ("github.comment", {"number": 1, "body": "Hello."})
    waiting, done = await perform(site.url, app_settings(installation), comment, comment)
    assert (type(waiting), type(done)) == (Throttled, Acked)
    [unreachable] = await perform(f"http://127.0.0.1:{free_port()}", app_settings(installation), comment)
    assert isinstance(unreachable, Throttled)
    assert len(await site.read(COMMENTS)) == 1


async def test_an_app_sends_no_request_outside_of_repositories(site: Site) -> None:
    access = AppInstallation(site.url, app_settings(await install(site)))
    for path in ("/notifications", "/user", "/repos/acme"):
        with pytest.raises(NotAuthorized, match="not about a repository"):
            await access.token_for("GET", path)
    await access.close()
    assert await tokens(site) == []
