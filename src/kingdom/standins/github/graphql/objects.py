"""The objects of the GraphQL API, as dictionaries of values and of functions of arguments."""

from typing import Any

from kingdom.standins.github.action_context import ActionContext
from kingdom.standins.github.api import GithubCaller
from kingdom.standins.github.apps.permissions import require
from kingdom.standins.github.commits import commit_of_ref, files_of, lines_of_patch
from kingdom.standins.github.graphql.document import GraphqlError
from kingdom.standins.github.merge_state import mergeability

_MERGEABLE = {None: "UNKNOWN", True: "MERGEABLE", False: "CONFLICTING"}


class GraphqlObjects:
    """Builds the objects that a caller may see."""

    def __init__(self, context: ActionContext, caller: GithubCaller) -> None:
        self._context = context
        self._caller = caller
        self._state = context.state_file.state

    def query(self) -> dict[str, Any]:
        """Return the root of queries."""
        return {"__typename": "Query", "repository": self._repository, "node": self._node}

    def actor(self, login: str) -> dict[str, Any]:
        """Return a user or an App."""
        url = f"{self._context.base}/{login}"
        about = {"login": login.removesuffix("[bot]"), "url": url, "resourcePath": f"/{login}", "avatarUrl": url}
        return {"__typename": "Bot" if login.endswith("[bot]") else "User", **about}

    def pull_request(self, stored: dict[str, Any]) -> dict[str, Any]:
        """Return a pull request."""
        require(self._caller, "pull_requests", "read")
        pull = stored["pull"]
        mergeable, merge_state = mergeability(self._state, stored)
        automatic = pull.get("auto_merge")
        state = "MERGED" if pull["merged_at"] else stored["state"].upper()
        return {
            "__typename": "PullRequest",
            "id": f"PR_{stored['id']}",
            "number": stored["number"],
            "repository": {"__typename": "Repository", "nameWithOwner": stored["repository"]},
            "title": stored["title"],
            "url": f"{self._context.base}/{stored['repository']}/pull/{stored['number']}",
            "state": state,
            "merged": state == "MERGED",
            "isCrossRepository": pull["head"]["owner"] != stored["repository"].partition("/")[0],
            "headRefName": pull["head"]["ref"],
            "headRefOid": pull["head"]["sha"],
            "baseRefName": pull["base"]["ref"],
            "mergeable": _MERGEABLE[mergeable],
            "mergeStateStatus": merge_state.upper(),
            "autoMergeRequest": automatic
            and {"mergeMethod": automatic["method"].upper(), "enabledBy": self.actor(automatic["by"])},
            "reviewThreads": lambda first=100, after=None: _page(self._threads(stored), first, after),
        }

    def thread(self, first: dict[str, Any]) -> dict[str, Any]:
        """Return the thread that begins with a line comment."""
        require(self._caller, "pull_requests", "read")
        stored = self._state["issues"][first["repository"]][str(first["number"])]
        comments = [self._comment(each) for each in self._context.bodies.thread_of_comment(stored, first)]
        resolved_by = first.get("resolved_by")
        return {
            "__typename": "PullRequestReviewThread",
            "id": f"PRRT_{first['id']}",
            "isResolved": resolved_by is not None,
            "resolvedBy": resolved_by and self.actor(resolved_by),
            "isOutdated": self._is_outdated(stored, first),
            "pullRequest": lambda: self.pull_request(stored),
            "path": first["path"],
            "line": first["line"],
            "diffSide": first["side"],
            "comments": lambda first=100, after=None: _page(comments, first, after),
        }

    def find_pull_request(self, node: str) -> dict[str, Any]:
        """Return the stored pull request with a node id."""
        for name, issues in self._state["issues"].items():
            for stored in issues.values():
                if stored["pull"] and f"PR_{stored['id']}" == node and self._caller.can_see(name):
                    found: dict[str, Any] = stored
                    return found
        raise unknown_node(node)

    def find_thread(self, node: str) -> dict[str, Any]:
        """Return the first comment of the thread with a node id."""
        for stored in self._state["review_comments"]:
            is_first = f"PRRT_{stored['id']}" == node and not stored.get("in_reply_to")
            if is_first and self._caller.can_see(stored["repository"]):
                found: dict[str, Any] = stored
                return found
        raise unknown_node(node)

    def find_repository(self, node: str) -> str:
        """Return the name of the repository with a node id."""
        for name, stored in self._state["repositories"].items():
            if f"R_{stored['id']}" == node and self._caller.can_see(name):
                found: str = name
                return found
        raise unknown_node(node)

    def _repository(self, owner: str, name: str) -> dict[str, Any]:
        full = f"{owner}/{name}"
        if full not in self._state["repositories"] or not self._caller.can_see(full):
            raise GraphqlError("NOT_FOUND", f"Could not resolve to a Repository with the name '{full}'.")
        number = self._state["repositories"][full]["id"]

        def pull_request(number: int) -> dict[str, Any]:
            stored = self._state["issues"][full].get(str(number))
            if stored is None or not stored["pull"]:
                raise GraphqlError("NOT_FOUND", f"Could not resolve to a PullRequest with the number of {number}.")
            return self.pull_request(stored)

        def ref(qualifiedName: str) -> dict[str, Any] | None:  # noqa: N803 - the name of the argument in the API
            require(self._caller, "contents", "read")
            sha = commit_of_ref(self._state, full, qualifiedName)
            target = {"__typename": "Commit", "oid": sha}
            return {"__typename": "Ref", "name": qualifiedName, "target": target} if sha else None

        about = {"__typename": "Repository", "id": f"R_{number}", "nameWithOwner": full}
        return {**about, "pullRequest": pull_request, "ref": ref}

    def _node(self, id: str) -> dict[str, Any]:  # noqa: A002 - the name of the argument in the API
        return (
            self.thread(self.find_thread(id))
            if id.startswith("PRRT_")
            else self.pull_request(self.find_pull_request(id))
        )

    def _threads(self, stored: dict[str, Any]) -> list[dict[str, Any]]:
        bodies = self._context.bodies
        pending = {each["id"] for each in bodies.parts_of(stored, "reviews") if each["state"] == "PENDING"}
        comments = bodies.parts_of(stored, "review_comments")
        first = [each for each in comments if not each.get("in_reply_to") and each["review_id"] not in pending]
        return [self.thread(each) for each in first]

    def _comment(self, stored: dict[str, Any]) -> dict[str, Any]:
        return {
            "__typename": "PullRequestReviewComment",
            "id": f"PRRC_{stored['id']}",
            "databaseId": stored["id"],
            "body": stored["body"],
            "author": self.actor(stored["user"]),
            "path": stored["path"],
            "createdAt": stored["created_at"],
        }

    def _is_outdated(self, stored: dict[str, Any], first: dict[str, Any]) -> bool:
        """Return whether a later push removed the line of a thread from the diff."""
        if first["commit_id"] == stored["pull"]["head"]["sha"]:
            return False
        patches = {each["filename"]: each["patch"] for each in files_of(self._state, stored)}
        return any(patches.values()) and first["line"] not in lines_of_patch(
            patches.get(first["path"], ""), first["side"]
        )


def unknown_node(node: str) -> GraphqlError:
    """Return the error for a node id that does not exist."""
    return GraphqlError("NOT_FOUND", f"Could not resolve to a node with the global id of '{node}'")


def _page(items: list[dict[str, Any]], first: int, after: str | None) -> dict[str, Any]:
    """Return a connection: some of the items, and where the next ones begin."""
    start = int(after) if after else 0
    shown = items[start : start + first]
    end = start + len(shown)
    info = {"__typename": "PageInfo", "hasNextPage": end < len(items), "endCursor": str(end)}
    return {"__typename": "Connection", "nodes": shown, "totalCount": len(items), "pageInfo": info}
