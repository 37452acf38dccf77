"""Users, repositories, issues and all that hangs on them, as GitHub prints them."""

from dataclasses import dataclass
from typing import Any

from kingdom.standins.github.api import user_id

_HIDDEN = "********"


@dataclass(frozen=True, slots=True)
class GithubBodies:
    """What is kept, in the words of the API; addresses lead to the server that was asked."""

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
            "type": "User",
            "site_admin": False,
        }

    def repository(self, name: str) -> dict[str, Any]:
        """Return a repository."""
        kept = self.state["repositories"][name]
        owner, _, short = name.partition("/")
        url = f"{self.base}/repos/{name}"
        return {
            "id": kept["id"],
            "node_id": f"R_{kept['id']}",
            "name": short,
            "full_name": name,
            "owner": self.user(owner),
            "private": kept["private"],
            "html_url": f"{self.base}/{name}",
            "description": None,
            "fork": False,
            "url": url,
            "hooks_url": f"{url}/hooks",
            "issues_url": f"{url}/issues{{/number}}",
            "pulls_url": f"{url}/pulls{{/number}}",
            "issue_comment_url": f"{url}/issues/comments{{/number}}",
            "clone_url": f"{self.base}/{name}.git",
            "default_branch": kept["default_branch"],
            "created_at": kept["created_at"],
            "updated_at": kept["created_at"],
            "archived": False,
            "disabled": False,
            "has_issues": True,
            "visibility": "private" if kept["private"] else "public",
        }

    def issue(self, kept: dict[str, Any]) -> dict[str, Any]:
        """Return an issue; a pull request is one as well, with a pointer to what more it is."""
        url = self._url(kept, "issues")
        page = f"{self.base}/{kept['repository']}/{'pull' if kept['pull'] else 'issues'}/{kept['number']}"
        pull = {
            "url": self._url(kept, "pulls"),
            "html_url": page,
            "diff_url": f"{page}.diff",
            "patch_url": f"{page}.patch",
            "merged_at": kept["pull"] and kept["pull"]["merged_at"],
        }
        return {
            **self._thing(kept, url, page),
            "repository_url": f"{self.base}/repos/{kept['repository']}",
            "labels_url": f"{url}/labels{{/name}}",
            "events_url": f"{url}/events",
            "comments": len(self.of(kept, "comments")),
            "closed_by": kept["closed_by"] and self.user(kept["closed_by"]),
            "state_reason": kept["state_reason"],
            **({"pull_request": pull, "draft": kept["pull"]["draft"]} if kept["pull"] else {}),
        }

    def pull_request(self, kept: dict[str, Any]) -> dict[str, Any]:
        """Return a pull request as it stands in a list."""
        pull, name = kept["pull"], kept["repository"]
        url, issue_url = self._url(kept, "pulls"), self._url(kept, "issues")
        page = f"{self.base}/{name}/pull/{kept['number']}"
        statuses = f"{self.base}/repos/{name}/statuses/{pull['head']['sha']}"
        links = {"self": url, "html": page, "issue": issue_url, "comments": f"{issue_url}/comments"}
        return {
            **self._thing(kept, url, page),
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
            "auto_merge": None,
            "_links": {rel: {"href": href} for rel, href in (links | {"statuses": statuses}).items()},
        }

    def whole_pull_request(self, kept: dict[str, Any]) -> dict[str, Any]:
        """Return a pull request as it stands alone."""
        pull = kept["pull"]
        return {
            **self.pull_request(kept),
            "merged": pull["merged_at"] is not None,
            "mergeable": None if kept["state"] == "closed" else True,
            "mergeable_state": "unknown" if kept["state"] == "closed" else "clean",
            "rebaseable": None,
            "merged_by": pull["merged_by"] and self.user(pull["merged_by"]),
            "comments": len(self.of(kept, "comments")),
            "review_comments": len(self.of(kept, "review_comments")),
            "maintainer_can_modify": False,
            "commits": pull["commits"],
            "additions": sum(each["additions"] for each in pull["files"]),
            "deletions": sum(each["deletions"] for each in pull["files"]),
            "changed_files": len(pull["files"]),
        }

    def comment(self, kept: dict[str, Any]) -> dict[str, Any]:
        """Return a comment on an issue or a pull request."""
        issue_url = self._url(kept, "issues")
        return {
            "url": f"{self.base}/repos/{kept['repository']}/issues/comments/{kept['id']}",
            "html_url": f"{self.base}/{kept['repository']}/issues/{kept['number']}#issuecomment-{kept['id']}",
            "issue_url": issue_url,
            "id": kept["id"],
            "node_id": f"IC_{kept['id']}",
            "user": self.user(kept["user"]),
            "created_at": kept["created_at"],
            "updated_at": kept["updated_at"],
            "author_association": "CONTRIBUTOR",
            "body": kept["body"],
        }

    def review(self, kept: dict[str, Any]) -> dict[str, Any]:
        """Return a review."""
        pull_url = self._url(kept, "pulls")
        page = f"{self.base}/{kept['repository']}/pull/{kept['number']}#pullrequestreview-{kept['id']}"
        return {
            "id": kept["id"],
            "node_id": f"PRR_{kept['id']}",
            "user": self.user(kept["user"]),
            "body": kept["body"],
            "state": kept["state"],
            "html_url": page,
            "pull_request_url": pull_url,
            "author_association": "CONTRIBUTOR",
            "_links": {"html": {"href": page}, "pull_request": {"href": pull_url}},
            "commit_id": kept["commit_id"],
            **({"submitted_at": kept["submitted_at"]} if kept["submitted_at"] else {}),
        }

    def review_comment(self, kept: dict[str, Any]) -> dict[str, Any]:
        """Return a remark on a line of a pull request."""
        url = f"{self.base}/repos/{kept['repository']}/pulls/comments/{kept['id']}"
        page = f"{self.base}/{kept['repository']}/pull/{kept['number']}#discussion_r{kept['id']}"
        return {
            "url": url,
            "pull_request_review_id": kept["review_id"],
            "id": kept["id"],
            "node_id": f"PRRC_{kept['id']}",
            "diff_hunk": "",
            **{name: kept[name] for name in ("path", "body", "line", "position", "side", "start_line")},
            "commit_id": kept["commit_id"],
            "original_commit_id": kept["commit_id"],
            "user": self.user(kept["user"]),
            "created_at": kept["created_at"],
            "updated_at": kept["created_at"],
            "html_url": page,
            "pull_request_url": self._url(kept, "pulls"),
            "author_association": "CONTRIBUTOR",
            "_links": {"self": {"href": url}, "html": {"href": page}},
        }

    def thread(self, kept: dict[str, Any]) -> dict[str, Any]:
        """Return what our user is notified of."""
        about = self.state["issues"][kept["repository"]][str(kept["number"])]
        url = f"{self.base}/notifications/threads/{kept['id']}"
        return {
            "id": kept["id"],
            "unread": kept["unread"],
            "reason": kept["reason"],
            "updated_at": kept["updated_at"],
            "last_read_at": kept["last_read_at"],
            "subject": {
                "title": about["title"],
                "url": self._url(about, "pulls" if about["pull"] else "issues"),
                "latest_comment_url": kept["latest_comment"] and self.base + kept["latest_comment"],
                "type": "PullRequest" if about["pull"] else "Issue",
            },
            "repository": self.repository(kept["repository"]),
            "url": url,
            "subscription_url": f"{url}/subscription",
        }

    def hook(self, kept: dict[str, Any]) -> dict[str, Any]:
        """Return a webhook, without its secret."""
        url = f"{self.base}/repos/{kept['repository'] or '*'}/hooks/{kept['id']}"
        config = {"url": kept["url"], "content_type": kept["content_type"], "insecure_ssl": "0"}
        return {
            "type": "Repository",
            "id": kept["id"],
            "name": "web",
            "active": True,
            "events": kept["events"],
            "config": config | ({"secret": _HIDDEN} if kept["secret"] else {}),
            "created_at": kept["created_at"],
            "updated_at": kept["created_at"],
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

    def of(self, issue: dict[str, Any], kind: str) -> list[dict[str, Any]]:
        """Return the comments, reviews or review comments of an issue or a pull request, oldest first."""
        place = (issue["repository"], issue["number"])
        return [each for each in self.state[kind] if (each["repository"], each["number"]) == place]

    def _thing(self, kept: dict[str, Any], url: str, page: str) -> dict[str, Any]:
        """Return what issues and pull requests have in common."""
        assignees = [self.user(each) for each in kept["assignees"]]
        return {
            "url": url,
            "html_url": page,
            "id": kept["id"],
            "node_id": f"{'PR' if kept['pull'] else 'I'}_{kept['id']}",
            "number": kept["number"],
            "title": kept["title"],
            "user": self.user(kept["user"]),
            "labels": [self.label(kept["repository"], each) for each in kept["labels"]],
            "state": kept["state"],
            "locked": False,
            "active_lock_reason": None,
            "assignee": assignees[0] if assignees else None,
            "assignees": assignees,
            "milestone": None,
            "comments_url": f"{self._url(kept, 'issues')}/comments",
            "created_at": kept["created_at"],
            "updated_at": kept["updated_at"],
            "closed_at": kept["closed_at"],
            "author_association": "CONTRIBUTOR",
            "body": kept["body"],
        }

    def _branch(self, repository: str, kept: dict[str, Any]) -> dict[str, Any]:
        return {
            "label": f"{kept['owner']}:{kept['ref']}",
            "ref": kept["ref"],
            "sha": kept["sha"],
            "user": self.user(kept["owner"]),
            "repo": self.repository(repository),
        }

    def _url(self, kept: dict[str, Any], kind: str) -> str:
        return f"{self.base}/repos/{kept['repository']}/{kind}/{kept['number']}"
