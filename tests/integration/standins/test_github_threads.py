"""Line comments and their threads on the stand-in for GitHub, as the official client sees them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from github import Github, GithubException, UnknownObjectException

from tests.integration.standins.github import REPOSITORY, SECRET, Site, receiving, standing_in

PATCH = "@@ -1,3 +1,4 @@\n one\n-two\n+zwei\n+drei\n four\n"
THREADS = """
query($owner: String!, $name: String!, $number: Int!) {
  repository(owner: $owner, name: $name) {
    pull: pullRequest(number: $number) {
      reviewThreads(first: 1) {
        totalCount
        pageInfo { hasNextPage endCursor }
        nodes { id isResolved isOutdated path line comments(first: 10) { nodes { body author { login } } } }
      }
    }
  }
}
"""


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with standing_in(tmp_path / "github.json") as site:
        await site.pull_request(by="alice", files=[{"filename": "a.py", "patch": PATCH}])
        yield site


async def test_a_review_comments_on_lines_of_the_diff_only(site: Site) -> None:
    def review(client: Github) -> list[Any]:
        pull = client.get_repo(REPOSITORY).get_pull(1)
        refusals = []
        for place in (
            {"path": "a.py", "line": 9},
            {"path": "b.py", "line": 1},
            {"path": "a.py", "line": 4, "side": "LEFT"},
        ):
            with pytest.raises(GithubException) as refused:
                pull.create_review(event="COMMENT", comments=[{**place, "body": "Why?"}])  # type: ignore[typeddict-item]  # a place outside the diff
            refusals.append(refused.value.data["errors"])
        places: Any = [{"path": "a.py", "line": line, "body": f"Line {line}?"} for line in (2, 3)]
        made = pull.create_review(event="REQUEST_CHANGES", body="See below.", comments=places)
        return [refusals, [(each.line, each.body) for each in pull.get_single_review_comments(made.id)]]

    refusals, comments = await site.official(review)
    line, path = ["Line could not be resolved"], ["Path could not be resolved"]
    assert refusals == [line, path, line]
    assert comments == [(2, "Line 2?"), (3, "Line 3?")]
    assert len(await site.read(f"/repos/{REPOSITORY}/pulls/1/reviews")) == 1


async def test_the_official_client_replies_in_a_thread_and_edits_its_reply(site: Site) -> None:
    remark = [{"path": "a.py", "line": 2, "body": "Why?"}]
    await site.happen("review", number=1, by="bob", event="REQUEST_CHANGES", body="Hm.", comments=remark)

    def reply(client: Github) -> list[Any]:
        pull = client.get_repo(REPOSITORY).get_pull(1)
        (first,) = pull.get_review_comments()
        answer = pull.create_review_comment_reply(first.id, "Because.")
        answer.edit("Because of that.")
        with pytest.raises(GithubException) as to_reply:
            pull.create_review_comment_reply(answer.id, "And?")
        with pytest.raises(UnknownObjectException):
            pull.create_review_comment_reply(4711, "Hello?")
        again = pull.get_review_comment(answer.id)
        return [again.body, again.in_reply_to_id == first.id, again.line, to_reply.value.status]

    assert await site.official(reply) == ["Because of that.", True, 2, 422]
    assert await site.calls() == ["POST review comment reply", "PATCH review comment"]


async def test_the_official_client_comments_on_one_line(site: Site) -> None:
    def comment(client: Github) -> list[Any]:
        repository = client.get_repo(REPOSITORY)
        pull = repository.get_pull(1)
        commit = repository.get_commit(pull.head.sha)
        made = pull.create_review_comment("Nice.", commit, "a.py", line=3)
        with pytest.raises(GithubException) as outside:
            pull.create_review_comment("Where?", commit, "a.py", line=9)
        return [made.line, made.commit_id == commit.sha, outside.value.data["errors"][0]["field"]]

    assert await site.official(comment) == [3, True, "pull_request_review_thread.line"]


async def test_threads_are_listed_page_by_page_and_resolved(site: Site) -> None:
    remarks = [{"path": "a.py", "line": line, "body": f"Line {line}?"} for line in (2, 3)]
    await site.happen("review", number=1, by="bob", body="Hm.", comments=remarks)

    def resolve(client: Github) -> list[Any]:
        owner, _, name = REPOSITORY.partition("/")
        variables = {"owner": owner, "name": name, "number": 1}
        requester = client.requester

        def look() -> Any:
            return requester.graphql_query(THREADS, variables)[1]["data"]["repository"]["pull"]["reviewThreads"]

        before = look()
        thread = before["nodes"][0]["id"]
        schema = "thread { isResolved resolvedBy { login } }"
        resolved = requester.graphql_named_mutation("resolveReviewThread", {"threadId": thread}, schema)[1]
        after = look()["nodes"][0]["isResolved"]
        requester.graphql_named_mutation("unresolveReviewThread", {"threadId": thread}, "thread { id }")
        with pytest.raises(UnknownObjectException):
            requester.graphql_named_mutation("resolveReviewThread", {"threadId": "PRRT_0"}, "thread { id }")
        return [before, resolved, after, look()["nodes"][0]["isResolved"]]

    async with receiving() as receiver:
        await site.happen("hook", url=receiver.url, secret=SECRET)
        before, resolved, after, at_last = await site.official(resolve)
        names = await receiver.wait_for(3)
    (node,) = before["nodes"]
    comments = {"nodes": [{"body": "Line 2?", "author": {"login": "bob"}}]}
    about = {"isResolved": False, "isOutdated": False, "path": "a.py", "line": 2, "comments": comments}
    assert node == {"id": node["id"], **about}
    assert (before["totalCount"], before["pageInfo"]) == (2, {"hasNextPage": True, "endCursor": "1"})
    assert resolved == {"thread": {"isResolved": True, "resolvedBy": {"login": "kingdom-bot"}}}
    assert (after, at_last) == (True, False)
    assert names[1:] == ["pull_request_review_thread.resolved", "pull_request_review_thread.unresolved"]


async def test_an_unknown_field_is_an_error_of_the_query(site: Site) -> None:
    def ask(client: Github) -> Any:
        with pytest.raises(GithubException) as refused:
            client.requester.graphql_query('{ repository(owner: "acme", name: "rocket") { stars } }', {})
        return refused.value.data["errors"][0]["message"]

    assert await site.official(ask) == "Field 'stars' doesn't exist on type 'Repository'"


async def test_a_dismissed_review_no_longer_blocks(site: Site) -> None:
    await site.happen("protection", approvals=1)
    await site.happen("review", number=1, by="bob", event="APPROVE")
    review = await site.happen("review", number=1, by="carol", event="REQUEST_CHANGES", body="No.")

    def dismiss(client: Github) -> list[str]:
        pull = client.get_repo(REPOSITORY).get_pull(1)
        states = [client.get_repo(REPOSITORY).get_pull(1).mergeable_state]
        pull.get_review(review["id"]).dismiss("Outdated.")
        states.append(client.get_repo(REPOSITORY).get_pull(1).mergeable_state)
        return states

    assert await site.official(dismiss) == ["blocked", "clean"]


async def test_the_official_client_edits_and_deletes_a_comment(site: Site) -> None:
    def edit(client: Github) -> list[str]:
        pull = client.get_repo(REPOSITORY).get_pull(1)
        kept, dropped = pull.create_issue_comment("Summary"), pull.create_issue_comment("Mistake")
        kept.edit("Summary, again")
        dropped.delete()
        return [each.body for each in pull.get_issue_comments()]

    assert await site.official(edit) == ["Summary, again"]
    assert await site.calls() == ["POST issue comment"] * 2 + ["PATCH issue comment", "DELETE issue comment"]
