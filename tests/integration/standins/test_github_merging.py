"""Heads, mergeability, labels and merging on the stand-in for GitHub, as the official client sees them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from github import Github, GithubException, UnknownObjectException

from tests.integration.standins.bare_git import BareGit
from tests.integration.standins.github import REPOSITORY, SECRET, Site, receiving, standing_in

FIRST, SECOND, OTHER = ("a" * 40, "b" * 40, "c" * 40)
HEADS = f"/repos/{REPOSITORY}/git/refs/heads"


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with standing_in(tmp_path / "github.json") as site:
        yield site


@pytest.fixture
def git(tmp_path: Path) -> BareGit:
    return BareGit(tmp_path / "rocket.git")


def update_refs(client: Github, before: str, after: str) -> Any:
    repository = client.get_repo(REPOSITORY).raw_data["node_id"]
    update = {"name": "refs/heads/feature", "beforeOid": before, "afterOid": after, "force": False}
    given = {"repositoryId": repository, "refUpdates": [update]}
    return client.requester.graphql_named_mutation("updateRefs", given, "clientMutationId")


async def test_a_push_moves_the_head_of_a_pull_request_and_is_announced(site: Site) -> None:
    await site.pull_request(sha=FIRST)
    async with receiving() as receiver:
        await site.happen("hook", url=receiver.url, secret=SECRET)
        await site.happen("push", number=1, by="alice", sha=SECOND)
        names = await receiver.wait_for(3)
        pushed = receiver.got[1][2]
    assert names == ["ping", "push", "pull_request.synchronize"]
    assert (pushed["ref"], pushed["before"], pushed["after"]) == ("refs/heads/feature", FIRST, SECOND)

    def look(client: Github) -> list[Any]:
        repository = client.get_repo(REPOSITORY)
        return [repository.get_pull(1).head.sha, repository.get_branch("feature").commit.sha]

    assert await site.official(look) == [SECOND, SECOND]


async def test_a_branch_moves_only_forward_unless_it_is_forced(site: Site) -> None:
    await site.pull_request(sha=FIRST)
    await site.happen("push", number=1, sha=SECOND)

    def rewind(client: Github) -> list[Any]:
        ref = client.get_repo(REPOSITORY).get_git_ref("heads/feature")
        with pytest.raises(GithubException) as refused:
            ref.edit(FIRST)
        ref.edit(FIRST, force=True)
        rewound = client.get_repo(REPOSITORY).get_pull(1).head.sha
        ref.delete()
        with pytest.raises(UnknownObjectException):
            client.get_repo(REPOSITORY).get_git_ref("heads/feature")
        return [refused.value.data["message"], rewound, client.get_repo(REPOSITORY).get_pull(1).state]

    assert await site.official(rewind) == ["Update is not a fast forward", FIRST, "closed"]


async def test_a_push_that_names_the_expected_head_fails_if_another_push_came_first(site: Site, git: BareGit) -> None:
    await site.happen("repository", git=git.directory)
    await site.pull_request()
    theirs = git.commit("feature", "one\nzwei\ntheirs\n", git.head)
    ours = git.run("commit-tree", f"{git.head}^{{tree}}", "-p", git.head, "-m", "Ours")
    on_top = git.run("commit-tree", f"{theirs}^{{tree}}", "-p", theirs, "-m", "Ours on top")
    await site.happen("push", number=1, by="anna")

    def push(client: Github) -> list[str]:
        messages = []
        for before in (git.head, theirs):
            with pytest.raises(GithubException) as refused:
                update_refs(client, before, ours)
            messages.append(refused.value.data["errors"][0]["message"])
        update_refs(client, theirs, on_top)
        return [*messages, client.get_repo(REPOSITORY).get_pull(1).head.sha]

    stale = f"Expected refs/heads/feature to point to {git.head}, but it points to {theirs}"
    assert await site.official(push) == [stale, "Update is not a fast forward", on_top]
    assert git.run("rev-parse", "feature") == on_top


async def test_a_git_directory_decides_about_files_and_conflicts_and_receives_the_merge(
    site: Site, git: BareGit
) -> None:
    await site.happen("repository", git=git.directory)
    await site.pull_request()

    def look(client: Github) -> tuple[Any, ...]:
        pull = client.get_repo(REPOSITORY).get_pull(1)
        files = [(file.filename, file.additions, file.deletions) for file in pull.get_files()]
        pull = client.get_repo(REPOSITORY).get_pull(1)
        return (files, pull.mergeable, pull.mergeable_state)

    assert await site.official(look) == ([("a.txt", 1, 1)], True, "clean")
    git.commit("main", "one\ndos\n", git.base)
    await site.happen("push", branch="main")
    assert (await site.official(look))[1:] == (False, "dirty")
    refused = await site.ask("PUT", f"/repos/{REPOSITORY}/pulls/1/merge", json={})
    assert refused.status == 405
    git.commit("feature", "one\ndos\nzwei\n", git.run("rev-parse", "main"))
    await site.happen("push", number=1)

    def merge(client: Github) -> list[Any]:
        pull = client.get_repo(REPOSITORY).get_pull(1)
        with pytest.raises(GithubException) as stale:
            pull.merge(sha=git.head)
        done = pull.merge(sha=pull.head.sha)
        return [stale.value.status, done.merged, done.sha, pull.is_merged()]

    status, merged, sha, is_merged = await site.official(merge)
    assert (status, merged, is_merged, sha) == (409, True, True, git.run("rev-parse", "main"))
    assert git.run("show", "main:a.txt") == "one\ndos\nzwei"


async def test_whether_a_pull_request_can_be_merged_is_unknown_at_first(site: Site) -> None:
    await site.pull_request()
    seen = []
    for change in ({}, {"branch": "main", "conflict": True}, {"number": 1}):
        if change:
            await site.happen("push", **change)
        for _ in range(2):
            pull = await site.read(f"/repos/{REPOSITORY}/pulls/1")
            seen.append((pull["mergeable"], pull["mergeable_state"]))
    unknown = (None, "unknown")
    assert seen == [unknown, (True, "clean"), unknown, (False, "dirty"), unknown, (True, "clean")]


async def test_a_required_check_blocks_a_merge_and_another_one_only_warns(site: Site) -> None:
    await site.pull_request()
    await site.read(f"/repos/{REPOSITORY}/pulls/1")
    await site.happen("protection", checks=["test"])
    states = []
    for name, conclusion in (("test", "failure"), ("test", "success"), ("lint", "failure")):
        await site.happen("check", number=1, name=name, conclusion=conclusion)
        states.append((await site.read(f"/repos/{REPOSITORY}/pulls/1"))["mergeable_state"])
    assert states == ["blocked", "clean", "unstable"]


async def test_an_automatic_merge_waits_for_the_checks_of_the_expected_head(site: Site) -> None:
    await site.pull_request(sha=FIRST)
    await site.happen("protection", checks=["test"])

    def enable(client: Github) -> list[Any]:
        pull = client.get_repo(REPOSITORY).get_pull(1)
        with pytest.raises(GithubException) as other:
            pull.enable_automerge(expected_head_oid=OTHER)
        pull.enable_automerge(merge_method="SQUASH", expected_head_oid=FIRST)
        by = client.get_repo(REPOSITORY).get_pull(1).raw_data["auto_merge"]
        pull.disable_automerge()
        off = client.get_repo(REPOSITORY).get_pull(1).raw_data["auto_merge"]
        pull.enable_automerge(expected_head_oid=FIRST)
        return [other.value.data["errors"][0]["type"], by["merge_method"], by["enabled_by"]["login"], off]

    assert await site.official(enable) == ["UNPROCESSABLE", "squash", "kingdom-bot", None]
    await site.happen("check", number=1, name="test", conclusion="success")
    pull = await site.read(f"/repos/{REPOSITORY}/pulls/1")
    assert (pull["merged"], pull["merged_by"]["login"]) == (True, "kingdom-bot")


async def test_labels_are_added_and_removed_with_a_webhook_each(site: Site) -> None:
    await site.pull_request()
    async with receiving() as receiver:
        await site.happen("hook", url=receiver.url, secret=SECRET)
        await site.happen("label", number=1, by="alice", label="autofix")

        def change(client: Github) -> list[str]:
            pull = client.get_repo(REPOSITORY).get_pull(1)
            pull.add_to_labels("bug")
            pull.remove_from_labels("autofix")
            with pytest.raises(GithubException, match="Label does not exist"):
                pull.remove_from_labels("autofix")
            return [label.name for label in pull.get_labels()]

        assert await site.official(change) == ["bug"]
        names = await receiver.wait_for(4)
        labeled = receiver.got[1][2]
    assert names[1:] == ["pull_request.labeled", "pull_request.labeled", "pull_request.unlabeled"]
    assert (labeled["label"]["name"], labeled["sender"]["login"]) == ("autofix", "alice")


async def test_the_official_client_asks_for_the_permission_of_a_user(site: Site) -> None:
    for login, permission in (("alice", "write"), ("bob", "triage"), ("carol", "maintain")):
        await site.happen("permission", login=login, permission=permission)

    def ask(client: Github) -> dict[str, str]:
        repository = client.get_repo(REPOSITORY)
        logins = ("Alice", "bob", "carol", "mallory", "acme")
        return {login: repository.get_collaborator_permission(login) for login in logins}

    assert await site.official(ask) == {
        "Alice": "write",
        "bob": "read",
        "carol": "write",
        "mallory": "read",
        "acme": "admin",
    }
