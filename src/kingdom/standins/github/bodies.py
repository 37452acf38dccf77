"""The JSON documents of the API: users, repositories, issues, pull requests and their parts."""

from dataclasses import dataclass
from typing import Any

from kingdom.standins.github.api import user_id
from kingdom.standins.github.commits import files_of
from kingdom.standins.github.merge_state import mergeability

# The end of the login of an App.
_BOT = "[bot]"
_HIDDEN = "********"


@dataclass(frozen=True, slots=True)
class GithubBodies:
    """Builds JSON documents from the state. `base` is the address of the server in links."""

    state: dict[str, Any]
    base: str

    def user(self, login: str) -> dict[str, Any]:
        """Return a user."""
        url = f"{self.base}/users/{login}"
        return {
            "login": login,
            "id": user_id(login),
            "node_id": f"U_{user_id(login)}",
            "avatar_url": f"{self.base}/avatars/{login}",
            "url": url,
            "html_url": f"{self.base}/{login}",
            "repos_url": f"{url}/repos",
            "events_url": f"{url}/events{{/privacy}}",
            "type": "Bot" if login.endswith(_BOT) else "User",
            "site_admin": False,
        }

    def repository(self, name: str) -> dict[str, Any]:
        """Return a repository."""
        stored = self.state["repositories"][name]
        owner, _, short = name.partition("/")
        url = f"{self.base}/repos/{name}"
        return {
            "id": stored["id"],
            "node_id": f"R_{stored['id']}",
            "name": short,
            "full_name": name,
            "owner": self.user(owner),
            "private": stored["private"],
            "html_url": f"{self.base}/{name}",
            "description": None,
            "fork": False,
            "url": url,
            "hooks_url": f"{url}/hooks",
            "issues_url": f"{url}/issues{{/number}}",
            "pulls_url": f"{url}/pulls{{/number}}",
            "issue_comment_url": f"{url}/issues/comments{{/number}}",
            "clone_url": f"{self.base}/{name}.git",
            "default_branch": stored["default_branch"],
            "created_at": stored["created_at"],
            "updated_at": stored["created_at"],
            "archived": False,
            "disabled": False,
            "has_issues": True,
            "visibility": "private" if stored["private"] else "public",
        }

    def issue(self, stored: dict[str, Any]) -> dict[str, Any]:
        """Return an issue. A pull request is also an issue, with a link to the pull request."""
        url = self._url(stored, "issues")
        page = f"{self.base}/{stored['repository']}/{'pull' if stored['pull'] else 'issues'}/{stored['number']}"
        pull = {
            "url": self._url(stored, "pulls"),
            "html_url": page,
            "diff_url": f"{page}.diff",
            "patch_url": f"{page}.patch",
            "merged_at": stored["pull"] and stored["pull"]["merged_at"],
        }
        return {
            **self._common_fields(stored, url, page),
            "repository_url": f"{self.base}/repos/{stored['repository']}",
            "labels_url": f"{url}/labels{{/name}}",
            "events_url": f"{url}/events",
            "comments": len(self.parts_of(stored, "comments")),
            "closed_by": stored["closed_by"] and self.user(stored["closed_by"]),
            "state_reason": stored["state_reason"],
            **({"pull_request": pull, "draft": stored["pull"]["draft"]} if stored["pull"] else {}),
        }

    def pull_request(self, stored: dict[str, Any]) -> dict[str, Any]:
        """Return a pull request in the short form that GitHub uses in lists."""
        pull, name = stored["pull"], stored["repository"]
        url, issue_url = self._url(stored, "pulls"), self._url(stored, "issues")
        page = f"{self.base}/{name}/pull/{stored['number']}"
        statuses = f"{self.base}/repos/{name}/statuses/{pull['head']['sha']}"
        links = {"self": url, "html": page, "issue": issue_url, "comments": f"{issue_url}/comments"}
        return {
            **self._common_fields(stored, url, page),
            "diff_url": f"{page}.diff",
            "patch_url": f"{page}.patch",
            "issue_url": issue_url,
            "comments_url": f"{issue_url}/comments",
            "commits_url": f"{url}/commits",
            "review_comments_url": f"{url}/comments",
            "review_comment_url": f"{self.base}/repos/{name}/pulls/comments{{/number}}",
            "statuses_url": statuses,
            "merged_at": pull["merged_at"],
            "merge_commit_sha": pull["merge_commit_sha"],
            "requested_reviewers": [self.user(each) for each in pull["requested_reviewers"]],
            "requested_teams": [],
            "head": self._branch(name, pull["head"]),
            "base": self._branch(name, pull["base"]),
            "draft": pull["draft"],
            "auto_merge": self._auto_merge(pull.get("auto_merge")),
            "_links": {rel: {"href": href} for rel, href in (links | {"statuses": statuses}).items()},
        }

    def whole_pull_request(self, stored: dict[str, Any]) -> dict[str, Any]:
        """Return a complete pull request."""
        pull, files = stored["pull"], files_of(self.state, stored)
        mergeable, mergeable_state = mergeability(self.state, stored)
        return {
            **self.pull_request(stored),
            "merged": pull["merged_at"] is not None,
            "mergeable": mergeable,
            "mergeable_state": mergeable_state,
            "rebaseable": None,
            "merged_by": pull["merged_by"] and self.user(pull["merged_by"]),
            "comments": len(self.parts_of(stored, "comments")),
            "review_comments": len(self.parts_of(stored, "review_comments")),
            "maintainer_can_modify": False,
            "commits": pull["commits"],
            "additions": sum(each["additions"] for each in files),
            "deletions": sum(each["deletions"] for each in files),
            "changed_files": len(files),
        }

    def comment(self, stored: dict[str, Any]) -> dict[str, Any]:
        """Return a comment on an issue or a pull request."""
        issue_url = self._url(stored, "issues")
        return {
            "url": f"{self.base}/repos/{stored['repository']}/issues/comments/{stored['id']}",
            "html_url": f"{self.base}/{stored['repository']}/issues/{stored['number']}#issuecomment-{stored['id']}",
            "issue_url": issue_url,
            "id": stored["id"],
            "node_id": f"IC_{stored['id']}",
            "user": self.user(stored["user"]),
            "created_at": stored["created_at"],
            "updated_at": stored["updated_at"],
            "author_association": "CONTRIBUTOR",
            "body": stored["body"],
        }

    def review(self, stored: dict[str, Any]) -> dict[str, Any]:
        """Return a review."""
        pull_url = self._url(stored, "pulls")
        page = f"{self.base}/{stored['repository']}/pull/{stored['number']}#pullrequestreview-{stored['id']}"
        return {
            "id": stored["id"],
            "node_id": f"PRR_{stored['id']}",
            "user": self.user(stored["user"]),
            "body": stored["body"],
            "state": stored["state"],
            "html_url": page,
            "pull_request_url": pull_url,
            "author_association": "CONTRIBUTOR",
            "_links": {"html": {"href": page}, "pull_request": {"href": pull_url}},
            "commit_id": stored["commit_id"],
            **({"submitted_at": stored["submitted_at"]} if stored["submitted_at"] else {}),
        }

    def review_comment(self, stored: dict[str, Any]) -> dict[str, Any]:
        """Return a comment on a line of a pull request."""
        url = f"{self.base}/repos/{stored['repository']}/pulls/comments/{stored['id']}"
        page = f"{self.base}/{stored['repository']}/pull/{stored['number']}#discussion_r{stored['id']}"
        return {
            "url": url,
            "pull_request_review_id": stored["review_id"],
            "id": stored["id"],
            "node_id": f"PRRC_{stored['id']}",
            "diff_hunk": "",
            **{name: stored[name] for name in ("path", "body", "line", "position", "side", "start_line")},
            "original_line": stored["line"],
            "commit_id": stored["commit_id"],
            "original_commit_id": stored["commit_id"],
            **({"in_reply_to_id": stored["in_reply_to"]} if stored.get("in_reply_to") else {}),
            "user": self.user(stored["user"]),
            "created_at": stored["created_at"],
            "updated_at": stored.get("updated_at") or stored["created_at"],
            "html_url": page,
            "pull_request_url": self._url(stored, "pulls"),
            "author_association": "CONTRIBUTOR",
            "_links": {"self": {"href": url}, "html": {"href": page}},
        }

    def thread(self, stored: dict[str, Any]) -> dict[str, Any]:
        """Return a notification thread of our user."""
        issue = self.state["issues"][stored["repository"]][str(stored["number"])]
        url = f"{self.base}/notifications/threads/{stored['id']}"
        return {
            "id": stored["id"],
            "unread": stored["unread"],
            "reason": stored["reason"],
            "updated_at": stored["updated_at"],
            "last_read_at": stored["last_read_at"],
            "subject": {
                "title": issue["title"],
                "url": self._url(issue, "pulls" if issue["pull"] else "issues"),
                "latest_comment_url": stored["latest_comment"] and self.base + stored["latest_comment"],
                "type": "PullRequest" if issue["pull"] else "Issue",
            },
            "repository": self.repository(stored["repository"]),
            "url": url,
            "subscription_url": f"{url}/subscription",
        }

    def hook(self, stored: dict[str, Any]) -> dict[str, Any]:
        """Return a webhook, without its secret."""
        url = f"{self.base}/repos/{stored['repository'] or '*'}/hooks/{stored['id']}"
        config = {"url": stored["url"], "content_type": stored["content_type"], "insecure_ssl": "0"}
        return {
            "type": "Repository",
            "id": stored["id"],
            "name": "web",
            "active": True,
            "events": stored["events"],
            "config": config | ({"secret": _HIDDEN} if stored["secret"] else {}),
            "created_at": stored["created_at"],
            "updated_at": stored["created_at"],
            "url": url,
            "test_url": f"{url}/test",
            "ping_url": f"{url}/pings",
            "deliveries_url": f"{url}/deliveries",
            "last_response": {"code": None, "status": "unused", "message": None},
        }

    def label(self, repository: str, name: str) -> dict[str, Any]:
        """Return a label."""
        return {
            "id": user_id(f"{repository} {name}"),
            "node_id": f"LA_{name}",
            "url": f"{self.base}/repos/{repository}/labels/{name}",
            "name": name,
            "color": "ededed",
            "default": False,
            "description": None,
        }

    def parts_of(self, issue: dict[str, Any], kind: str) -> list[dict[str, Any]]:
        """Return the comments, reviews or review comments of an issue or a pull request, oldest first."""
        place = (issue["repository"], issue["number"])
        return [each for each in self.state[kind] if (each["repository"], each["number"]) == place]

    def thread_of_comment(self, pull: dict[str, Any], first: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the line comments of the thread that begins with a comment, oldest first."""
        parts = self.parts_of(pull, "review_comments")
        return [each for each in parts if first["id"] in (each["id"], each.get("in_reply_to"))]

    def _auto_merge(self, stored: dict[str, Any] | None) -> dict[str, Any] | None:
        if stored is None:
            return None
        texts = {"commit_title": None, "commit_message": None}
        return {"enabled_by": self.user(stored["by"]), "merge_method": stored["method"], **texts}

    def _common_fields(self, stored: dict[str, Any], url: str, page: str) -> dict[str, Any]:
        """Return the common fields of issues and pull requests."""
        assignees = [self.user(each) for each in stored["assignees"]]
        return {
            "url": url,
            "html_url": page,
            "id": stored["id"],
            "node_id": f"{'PR' if stored['pull'] else 'I'}_{stored['id']}",
            "number": stored["number"],
            "title": stored["title"],
            "user": self.user(stored["user"]),
            "labels": [self.label(stored["repository"], each) for each in stored["labels"]],
            "state": stored["state"],
            "locked": False,
            "active_lock_reason": None,
            "assignee": assignees[0] if assignees else None,
            "assignees": assignees,
            "milestone": None,
            "comments_url": f"{self._url(stored, 'issues')}/comments",
            "created_at": stored["created_at"],
            "updated_at": stored["updated_at"],
            "closed_at": stored["closed_at"],
            "author_association": "CONTRIBUTOR",
            "body": stored["body"],
        }

    def _branch(self, repository: str, stored: dict[str, Any]) -> dict[str, Any]:
        owner, _, name = repository.partition("/")
        repo = self.repository(repository)
        if stored["owner"] != owner:
            repo |= {"full_name": f"{stored['owner']}/{name}", "owner": self.user(stored["owner"]), "fork": True}
        return {
            "label": f"{stored['owner']}:{stored['ref']}",
            "ref": stored["ref"],
            "sha": stored["sha"],
            "user": self.user(stored["owner"]),
            "repo": repo,
        }

    def _url(self, stored: dict[str, Any], kind: str) -> str:
        return f"{self.base}/repos/{stored['repository']}/{kind}/{stored['number']}"
