from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from aiohttp import web

from bench.servers import free_port
from kingdom.standins.github.application import build_github
from kingdom.standins.jira import application as jira
from kingdom.standins.server import start
from tests.integration.doctor.scene import look, look_at, write_settings
from tests.integration.standins.github import TOKEN, Site, standing_in
from tests.integration.standins.github_app import APP, PERMISSIONS, SLUG, app_key, install, other_key
from tests.integration.standins.slack_scene import APP_TOKEN, BOT_TOKEN, workspace

WRONG = "a-wrong-secret"


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"OUR_TOKEN": TOKEN, "WRONG": WRONG, "BOT": BOT_TOKEN, "APP": APP_TOKEN}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("JIRA", jira.TOKEN)


def with_github(directory: Path, url: str, source: str = "env:OUR_TOKEN", login: str = "kingdom-bot") -> Path:
    return write_settings(directory, sentinel={"github": {"token": source, "logins": [login], "api_url": url}})


def with_jira(directory: Path, url: str, more: Mapping[str, Any] = MappingProxyType({})) -> Path:
    return write_settings(directory, sentinel={"jira": {"url": url, "email": jira.EMAIL, "token": "env:JIRA", **more}})


def with_slack(directory: Path, url: str, more: Mapping[str, Any] = MappingProxyType({})) -> Path:
    return write_settings(directory, envoy={"slack": {"bot_token": "env:BOT", "base_url": f"{url}/api/", **more}})


@asynccontextmanager
async def github_that_says(state: Path, **headers: str) -> AsyncIterator[str]:
    """A GitHub that answers as if the token were of another kind."""
    application = build_github(state)

    async def change(_: web.Request, answer: web.StreamResponse) -> None:
        answer.headers.update({name.replace("_", "-"): value for name, value in headers.items()})

    application.on_response_prepare.append(change)
    running = await start(application)
    try:
        yield running.url
    finally:
        await running.stop()


async def test_a_token_that_github_takes_is_well(tmp_path: Path) -> None:
    async with standing_in(tmp_path / "github.json") as site:
        report = await look_at("github", config=with_github(tmp_path, site.url))
    assert report.status == "ok"
    assert report.found.startswith("kingdom-bot, scopes notifications, repo; ")


async def test_a_token_that_github_refuses_is_reported_with_its_source(tmp_path: Path) -> None:
    async with standing_in(tmp_path / "github.json") as site:
        report = await look_at("github", config=with_github(tmp_path, site.url, "env:WRONG"))
    assert (report.status, report.found) == ("fail", "GitHub rejects the token: 401")
    assert report.fix.endswith("in the environment variable WRONG")
    assert WRONG not in repr(report)


async def test_a_token_without_its_scopes_is_reported(tmp_path: Path) -> None:
    async with github_that_says(tmp_path / "github.json", X_OAuth_Scopes="read:user, gist") as url:
        report = await look_at("github", config=with_github(tmp_path, url))
    assert (report.status, "lacks the scope notifications and repo" in report.found) == ("fail", True)


async def test_a_token_that_may_not_read_notifications_is_reported(tmp_path: Path) -> None:
    async with standing_in(tmp_path / "github.json") as site:
        await site.faults({"path": "/notifications", "kind": "refuse", "status": 403})
        report = await look_at("github", config=with_github(tmp_path, site.url))
    assert (report.status, "may not read notifications: 403" in report.found) == ("fail", True)


async def test_a_token_of_another_account_is_reported(tmp_path: Path) -> None:
    async with standing_in(tmp_path / "github.json") as site:
        report = await look_at("github", config=with_github(tmp_path, site.url, login="somebody"))
    assert (report.status, report.fix) == ("fail", "write kingdom-bot first in sentinel.github.logins")


async def test_a_used_up_request_limit_is_reported(tmp_path: Path) -> None:
    async with github_that_says(tmp_path / "github.json", X_RateLimit_Remaining="0") as url:
        report = await look_at("github", config=with_github(tmp_path, url))
    assert (report.status, "no requests left this hour" in report.found) == ("warn", True)


async def test_offline_calls_no_external_server(tmp_path: Path) -> None:
    async with standing_in(tmp_path / "github.json") as site:
        report = await look_at("github", config=with_github(tmp_path, site.url), offline=True)
        assert (report.status, await site.calls()) == ("skipped", [])


async def test_systems_that_cannot_be_reached_are_reported(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    for name, write in (("github", with_github), ("jira", with_jira), ("slack-bot", with_slack)):
        report = await look_at(name, config=write(tmp_path, url))
        assert (report.status, f"does not answer at {url}" in report.found) == ("fail", True)
        assert report.fix.startswith("check the address in kingdom.yaml")


async def test_jira_is_checked_by_its_account_and_its_search(tmp_path: Path) -> None:
    running = await start(jira.build_jira(tmp_path / "jira.json"))
    try:
        fine = await look_at("jira", config=with_jira(tmp_path, running.url))
        refused = await look_at("jira", config=with_jira(tmp_path, running.url, {"token": "env:WRONG"}))
        odd = await look_at("jira", config=with_jira(tmp_path, running.url, {"jql": "assignee = "}))
    finally:
        await running.stop()
    assert fine.status == "ok"
    assert (refused.status, refused.found) == ("fail", "Jira rejects the token: 401")
    assert refused.fix.endswith("the environment variable WRONG")
    assert (odd.status, odd.fix) == ("fail", "correct sentinel.jira.jql")


async def test_slack_is_asked_for_the_bot_and_for_a_socket(tmp_path: Path) -> None:
    async with workspace(tmp_path / "slack.json") as slack:
        found = await look(
            "slack-bot", "slack-socket", config=with_slack(tmp_path, slack.url, {"app_token": "env:APP"})
        )
        assert {report.status for report in found.values()} == {"ok"}
        wrong = with_slack(tmp_path, slack.url, {"bot_token": "env:WRONG", "app_token": "env:BOT"})
        found = await look("slack-bot", "slack-socket", config=wrong)
        silent = await look_at("slack-socket", config=with_slack(tmp_path, slack.url))
    assert (found["slack-bot"].status, found["slack-socket"].status, silent.status) == ("fail", "fail", "warn")
    assert found["slack-bot"].found.endswith("invalid_auth")
    assert found["slack-socket"].found == "Slack opens no socket: not_allowed_token_type"
    assert "connections:write in the environment variable BOT" in found["slack-socket"].fix
    assert WRONG not in repr(found)


async def test_a_bot_without_its_scopes_is_reported(tmp_path: Path) -> None:
    async def answer(_: web.Request) -> web.Response:
        headers = {"X-OAuth-Scopes": "chat:write,im:write"}
        return web.json_response({"ok": True, "user": "kingdom", "team": "Acme"}, headers=headers)

    application = web.Application()
    application.router.add_post("/api/auth.test", answer)
    running = await start(application)
    try:
        report = await look_at("slack-bot", config=with_slack(tmp_path, running.url))
    finally:
        await running.stop()
    assert (report.status, "reactions:write" in report.found, "chat:write" in report.found) == ("fail", True, False)


def with_app(directory: Path, site: Site, installation: int, *, key: str = "", login: str = f"{SLUG}[bot]") -> Path:
    (directory / "app.pem").write_text(key or app_key())
    app = {"id": APP, "key": "file:app.pem", "installation": installation}
    github = {"app": app, "logins": [login], "api_url": site.url, "webhook": {"secrets": ["hush"]}}
    return write_settings(directory, sentinel={"github": github})


async def test_an_app_with_every_permission_is_well_and_needs_no_token(tmp_path: Path) -> None:
    async with standing_in(tmp_path / "github.json") as site:
        config = with_app(tmp_path, site, await install(site))
        report, token = await look_at("github-app", config=config), await look_at("github", config=config)
    assert (report.status, report.found.startswith(f"{SLUG}[bot] may ")) == ("ok", True)
    assert token.status == "skipped"


async def test_permissions_that_the_installation_of_an_app_lacks_are_named(tmp_path: Path) -> None:
    async with standing_in(tmp_path / "github.json") as site:
        installation = await install(site, permissions={**PERMISSIONS, "contents": "read", "issues": "read"})
        report = await look_at("github-app", config=with_app(tmp_path, site, installation))
    lacks = f"the installation of {SLUG} lacks the permissions contents=write, issues=write"
    assert (report.status, report.found) == ("fail", lacks)


@pytest.mark.parametrize(
    ("problem", "found"),
    [
        ("key", f"GitHub rejects the key of the App {APP}: 401"),
        ("no key", "sentinel.github.app.key is not a private key in PEM format"),
        ("installation", f"{SLUG} has no installation 99: 404"),
        ("suspended", f"of {SLUG} is suspended"),
        ("login", f"{SLUG}[bot] is not in sentinel.github.logins"),
    ],
)
async def test_each_problem_of_an_app_is_reported(tmp_path: Path, problem: str, found: str) -> None:
    key = {"key": other_key(), "no key": "hello"}.get(problem, "")
    async with standing_in(tmp_path / "github.json") as site:
        installation = await install(site, suspended=problem == "suspended")
        number, login = (
            99 if problem == "installation" else installation,
            "bot" if problem == "login" else f"{SLUG}[bot]",
        )
        report = await look_at("github-app", config=with_app(tmp_path, site, number, key=key, login=login))
    assert report.status == "fail"
    assert found in report.found
    assert "PRIVATE KEY" not in repr(report)
