"""Branches and tags on the stand-in for GitHub, as the official client makes and finds them."""

from pathlib import Path
from typing import Any

import pytest
from github import Github, GithubException, UnknownObjectException

from tests.integration.standins.github import REPOSITORY, SECRET, receiving, standing_in

COMMIT = "c0ffee" + "0" * 34


async def test_the_official_client_makes_a_branch_once_and_opens_a_pull_request_of_it(tmp_path: Path) -> None:
    def work(client: Github) -> list[Any]:
        repository = client.get_repo(REPOSITORY)
        with pytest.raises(UnknownObjectException):
            repository.get_git_ref("heads/fix")
        made = repository.create_git_ref("refs/heads/fix", COMMIT)
        with pytest.raises(GithubException) as twice:
            repository.create_git_ref("refs/heads/fix", COMMIT)
        with pytest.raises(GithubException) as unknown:
            repository.create_git_ref("refs/heads/other", "0" * 40)
        pull = repository.create_pull(title="Fix", body="It works.", head="fix", base="main")
        found = repository.get_git_ref("heads/fix").object.sha
        words = [error.value.data["message"] for error in (twice, unknown)]
        return [made.ref, found, pull.head.sha, *words, twice.value.status]

    async with standing_in(tmp_path / "github.json") as site:
        await site.happen("repository", private=True)
        seen = await site.official(work)
    assert seen == [
        "refs/heads/fix",
        COMMIT,
        COMMIT,
        "Reference already exists",
        "Object does not exist",
        422,
    ]


async def test_only_a_branch_is_announced_as_pushed_and_not_a_tag(tmp_path: Path) -> None:
    def move_and_delete(client: Github) -> list[str]:
        repository = client.get_repo(REPOSITORY)
        for ref in ("refs/tags/v1", "refs/heads/fix"):
            made = repository.create_git_ref(ref, COMMIT)
            made.edit("d" * 40, force=True)
            made.delete()
        return [ref.ref for ref in repository.get_git_matching_refs("")]

    async with standing_in(tmp_path / "github.json") as site, receiving() as receiver:
        await site.happen("repository", private=True)
        await site.happen("hook", url=receiver.url, secret=SECRET)
        assert await site.official(move_and_delete) == []
        assert await receiver.wait_for(3) == ["ping", "push", "push"]
    pushes = [(body["ref"], body["deleted"]) for _, name, body in receiver.got if name == "push"]
    assert pushes == [("refs/heads/fix", False), ("refs/heads/fix", True)]
