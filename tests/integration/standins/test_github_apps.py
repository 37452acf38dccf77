"""GitHub Apps on the stand-in for GitHub: authentication, narrowed tokens and enforced permissions."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiohttp import web
from github import Auth, Github, GithubException, GithubIntegration, UnknownObjectException

from kingdom.standins.github.application import build_github
from kingdom.standins.github.apps.permissions import permission_of
from tests.integration.standins.github import REPOSITORY, SECRET, Site, receiving, standing_in
from tests.integration.standins.github_app import (
    APP,
    PERMISSIONS,
    SLUG,
    app_key,
    authorization,
    install,
    other_key,
)

HEAD = "c0ffee" + "0" * 34
PULL = f"/repos/{REPOSITORY}/pulls/1"
# Paths that need no permission of a repository.
WITHOUT_PERMISSION = ("/user", "/users/", "/notifications", "/rate_limit", "/app", "/installation/", "/graphql")


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with standing_in(tmp_path / "github.json") as site:
        await site.pull_request(sha=HEAD)
        await site.people("repository", repository="acme/other")
        yield site


async def token(site: Site, installation: int, **body: Any) -> str:
    path = f"/app/installations/{installation}/access_tokens"
    answer = await site.ask("POST", path, json=body, headers=as_app())
    assert answer.status == 201, await answer.text()
    made: str = (await answer.json())["token"]
    return made


def as_app(**changed: Any) -> dict[str, str]:
    now = int(time.time())
    claims = {"iat": now - 60, "exp": now + 540, "iss": str(APP), **changed}
    return {"Authorization": f"Bearer {jwt.encode(claims, app_key(), algorithm='RS256')}"}


async def test_the_official_client_works_as_an_installation_of_an_app(site: Site) -> None:
    installation = await install(site)

    def work(client: Github) -> list[Any]:
        pull = client.get_repo(REPOSITORY).get_pull(1)
        comment = pull.create_issue_comment("Hello.")
        pull.create_review(event="APPROVE")
        return [comment.user.login, comment.user.type, pull.get_reviews()[0].user.login]

    bot = f"{SLUG}[bot]"
    assert await site.official(work, auth=authorization(installation)) == [bot, "Bot", bot]

    def look(_: Github) -> list[Any]:
        integration = GithubIntegration(auth=Auth.AppAuth(APP, app_key()), base_url=site.url)
        (found,) = integration.get_installations()
        return [integration.get_app().slug, found.id, integration.get_repo_installation("acme", "rocket").id]

    assert await site.official(look) == [SLUG, installation, installation]


async def test_the_official_client_creates_and_completes_a_run_as_an_app(site: Site) -> None:
    installation = await install(site, permissions={"checks": "write"})

    def report(client: Github) -> list[Any]:
        repository = client.get_repo(REPOSITORY)
        run = repository.create_check_run("test", HEAD, status="in_progress")
        run.edit(conclusion="failure", output={"title": "Red", "summary": "1 failed"})
        again = repository.get_check_run(run.id)
        return [again.status, again.conclusion, again.output.title, again.app.slug]

    reported = await site.official(report, auth=authorization(installation))
    assert reported == ["completed", "failure", "Red", SLUG]


async def test_a_narrowed_token_does_only_what_it_was_narrowed_to(site: Site) -> None:
    installation = await install(site)
    narrow = await token(site, installation, permissions={"pull_requests": "read"}, repositories=["rocket"])
    attempts: list[tuple[str, str, Any, int]] = [
        ("GET", PULL, None, 200),
        ("GET", f"/repos/{REPOSITORY}", None, 200),
        ("GET", f"/repos/{REPOSITORY}/issues/1/comments", None, 200),
        ("POST", f"/repos/{REPOSITORY}/issues/1/comments", {"body": "Hello."}, 403),
        ("POST", f"{PULL}/reviews", {"event": "APPROVE"}, 403),
        ("PUT", f"{PULL}/merge", {}, 403),
        ("POST", f"/repos/{REPOSITORY}/git/refs", {"ref": "refs/heads/x", "sha": HEAD}, 403),
        ("GET", f"/repos/{REPOSITORY}/commits/{HEAD}/check-runs", None, 403),
        ("GET", f"/repos/{REPOSITORY}/hooks", None, 403),
        ("GET", "/repos/acme/other", None, 404),
        ("GET", "/user", None, 403),
        ("GET", "/notifications", None, 403),
        ("GET", "/app", None, 401),
    ]
    seen = []
    for method, path, body, _ in attempts:
        answer = await site.ask(method, path, json=body, headers={"Authorization": f"Bearer {narrow}"})
        seen.append((method, path, body, answer.status))
        assert answer.headers.get("X-OAuth-Scopes") is None
    assert seen == attempts
    assert await site.calls() == ["POST access token"]
    refused = await site.ask("PUT", f"{PULL}/merge", json={}, headers={"Authorization": f"Bearer {narrow}"})
    assert refused.headers["X-Accepted-GitHub-Permissions"] == "contents=write"


async def test_graphql_enforces_permissions_and_repositories_too(site: Site) -> None:
    installation = await install(site)
    repository = (await site.read(f"/repos/{REPOSITORY}"))["node_id"]
    update = {"name": "refs/heads/feature", "beforeOid": HEAD, "afterOid": "d" * 40}

    def push(client: Github) -> Any:
        given = {"repositoryId": repository, "refUpdates": [update]}
        with pytest.raises(GithubException) as refused:
            client.requester.graphql_named_mutation("updateRefs", given, "clientMutationId")
        return refused.value.data["errors"][0]["type"]

    narrowed = authorization(installation, contents="read", pull_requests="write")
    assert await site.official(push, auth=narrowed) == "FORBIDDEN"

    elsewhere = await token(site, installation, repositories=["other"])

    def look(client: Github) -> None:
        query = '{ repository(owner: "acme", name: "rocket") { id } }'
        with pytest.raises(UnknownObjectException):
            client.requester.graphql_query(query, {})

    await site.official(look, auth=Auth.Token(elsewhere))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"permissions": {"administration": "write"}}, "The permissions requested are not granted"),
        ({"permissions": {"checks": "write"}}, "The permissions requested are not granted"),
        ({"repositories": ["secret"]}, "There is at least one repository that does not exist"),
    ],
)
async def test_a_token_cannot_have_more_than_its_installation(site: Site, body: Any, message: str) -> None:
    installation = await install(site)
    path = f"/app/installations/{installation}/access_tokens"
    refused = await site.ask("POST", path, json=body, headers=as_app())
    assert refused.status == 422
    assert (await refused.json())["message"].startswith(message)


async def test_a_token_ends_with_its_time_its_revocation_and_a_suspension(site: Site) -> None:
    installation = await install(site, token_seconds=0)
    expired = await token(site, installation)
    await install(site)
    revoked = await token(site, installation)
    headers = {"Authorization": f"Bearer {revoked}"}
    assert (await site.ask("DELETE", "/installation/token", headers=headers)).status == 204
    suspended = await token(site, installation)
    await install(site, suspended=True)
    for each, status in ((expired, 401), (revoked, 401), (suspended, 403)):
        assert (await site.ask("GET", PULL, headers={"Authorization": f"Bearer {each}"})).status == status
    state = await (await site.session.get(f"{site.url}/_control/state")).text()
    assert suspended not in state


async def test_a_json_web_token_must_be_signed_by_the_app_and_be_short(site: Site) -> None:
    await install(site)
    now = int(time.time())
    assert (await site.ask("GET", "/app", headers=as_app())).status == 200
    for claims in ({"exp": now - 1}, {"exp": now + 3600}, {"iss": "12"}, {"iat": now + 3600}):
        assert (await site.ask("GET", "/app", headers=as_app(**claims))).status == 401
    assert (await site.ask("GET", PULL, headers=as_app())).status == 401
    assert (await site.ask("GET", "/app")).status == 401
    forged = jwt.encode({"iat": now, "exp": now + 60, "iss": str(APP)}, other_key(), algorithm="RS256")
    refused = await site.ask("GET", "/app", headers={"Authorization": f"Bearer {forged}"})
    assert (await refused.json())["message"] == "A JSON web token could not be decoded"


async def test_the_webhook_of_an_app_names_the_installation(site: Site) -> None:
    installation = await install(site, repositories=[REPOSITORY])
    async with receiving() as receiver:
        await site.people("hook", url=receiver.url, secret=SECRET, app=APP)
        await site.people("issue", repository="acme/other", title="Elsewhere")
        await site.happen("issue", title="Here")
        names = await receiver.wait_for(2)
    assert names == ["ping", "issues.opened"]
    assert receiver.got[1][2]["installation"] == {"id": installation}
    assert receiver.headers[1]["X-GitHub-Hook-Installation-Target-Type"] == "integration"


def test_every_path_of_a_repository_needs_a_permission(tmp_path: Path) -> None:
    application: web.Application = build_github(tmp_path / "github.json")
    paths = {route.resource.canonical for route in application.router.routes() if route.resource}
    open_paths = [path for path in paths if not path.startswith(("/_", "/orgs/", *WITHOUT_PERMISSION))]
    assert len(open_paths) > 40
    assert [path for path in open_paths if permission_of(path) is None and not path.endswith("/installation")] == []
    assert permission_of("/repos/{owner}/{name}/secrets") is None
    assert set(PERMISSIONS) <= {permission_of(path) for path in open_paths}
