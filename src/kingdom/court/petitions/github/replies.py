"""Reply to review threads on GitHub, and resolve the threads that we opened."""

from collections.abc import Collection
from datetime import UTC
from typing import Any

from kingdom.bus.effects.effect import Absent, Acked, Attempt, CallResult, Present, ReconcileResult, Rejected
from kingdom.court.petitions.bodies import GithubReply
from kingdom.court.petitions.effects import earliest_time
from kingdom.court.petitions.github.api import GithubApi, github_result, response_of
from kingdom.court.petitions.github.marks import is_by, is_marked, marked

_BOT = "[bot]"
_FIELDS = """\
      id
      isResolved
      pullRequest { number repository { nameWithOwner } }
      comments(first: 1) { nodes { databaseId author { login } } }
"""
_THREAD = f"""\
query($thread: ID!) {{
  node(id: $thread) {{
    ... on PullRequestReviewThread {{
{_FIELDS}    }}
  }}
}}"""
_THREADS = f"""\
query($owner: String!, $name: String!, $number: Int!, $after: String) {{
  repository(owner: $owner, name: $name) {{ pullRequest(number: $number) {{ reviewThreads(first: 100, after: $after) {{
    pageInfo {{ hasNextPage endCursor }}
    nodes {{
{_FIELDS}    }}
  }} }} }}
}}"""
_RESOLVE = "mutation($thread: ID!) { resolveReviewThread(input: {threadId: $thread}) { thread { isResolved } } }"


async def send_reply(api: GithubApi, logins: Collection[str], reply: GithubReply, attempt: Attempt) -> CallResult:
    """Write the reply unless it is there already, and then resolve the thread if that is wanted."""
    thread = await _read_thread(api, reply)
    if reason := _why_no_reply(thread, reply, logins):
        return Rejected(reason)
    if found := await _find_comment(api, logins, reply, attempt):
        result: CallResult = Acked(response_of(found))
    else:
        first = thread["comments"]["nodes"][0]["databaseId"]
        path = f"/repos/{reply.repo}/pulls/{reply.number}/comments/{first}/replies"
        result = github_result(await api.send(path, {"body": marked(reply.body, attempt)}))
    if isinstance(result, Acked) and reply.resolve and not thread["isResolved"]:
        await api.graphql(reply.repo, {"pull_requests": "write"}, _RESOLVE, {"thread": thread["id"]})
    return result


async def find_reply(api: GithubApi, logins: Collection[str], reply: GithubReply, attempt: Attempt) -> ReconcileResult:
    """Return whether the reply was written, and the thread resolved if that is wanted."""
    found = await _find_comment(api, logins, reply, attempt)
    is_done = found and (not reply.resolve or (await _read_thread(api, reply)).get("isResolved"))
    return Present(response_of(found)) if found and is_done else Absent()


async def _read_thread(api: GithubApi, reply: GithubReply) -> dict[str, Any]:
    """Return a thread by its id, or by the number of its first comment, which is what REST and our events have."""
    permissions = {"pull_requests": "read"}
    if not reply.thread.isdecimal():
        return (await api.graphql(reply.repo, permissions, _THREAD, {"thread": reply.thread}))["node"] or {}
    owner, _, name = reply.repo.partition("/")
    variables = {"owner": owner, "name": name, "number": reply.number, "after": None}
    while True:
        found = await api.graphql(reply.repo, permissions, _THREADS, variables)
        page = found["repository"]["pullRequest"]["reviewThreads"]
        for thread in page["nodes"]:
            if str(thread["comments"]["nodes"][0]["databaseId"]) == reply.thread:
                return dict(thread)
        if not page["pageInfo"]["hasNextPage"]:
            return {}
        variables["after"] = page["pageInfo"]["endCursor"]


async def _find_comment(
    api: GithubApi, logins: Collection[str], reply: GithubReply, attempt: Attempt
) -> dict[str, Any] | None:
    """Return our comment with the mark of this petition, or None."""
    since = f"{earliest_time(attempt).astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    async for comment in api.every(f"/repos/{reply.repo}/pulls/{reply.number}/comments", since=since):
        if is_by(logins, comment) and is_marked(comment.get("body"), attempt):
            return comment
    return None


def _why_no_reply(thread: dict[str, Any], reply: GithubReply, logins: Collection[str]) -> str:
    pull = thread.get("pullRequest")
    place = f"{pull['repository']['nameWithOwner']}#{pull['number']}".lower() if pull else ""
    if place != reply.target.lower():
        return f"{reply.thread} is not a review thread of {reply.target}"
    author = str((thread["comments"]["nodes"][0]["author"] or {}).get("login")).lower()
    if reply.resolve and author not in {login.removesuffix(_BOT) for login in logins}:
        return f"{author} opened the thread, and we resolve only our own: reply without `resolve`"
    return ""
