"""Webhooks as GitHub sends them for a review request."""

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import aiohttp

from bench.court.court_processes import REPO, SECRET, CourtProcesses
from kingdom.clock import utc_now
from kingdom.court.sentinel.github import parse_webhook
from kingdom.court.sentinel.github_activity import GitHubActivity

LOGIN = "kingdom-bot"
EVENT = "pull_request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """One delivery, which can be sent again."""

    document: Mapping[str, Any]
    delivery: str

    @property
    def event_id(self) -> str:
        """Return the id of the event that the webhook causes."""
        return self.activity.event.id

    @property
    def activity(self) -> GitHubActivity:
        """Return the activity that the webhook describes."""
        activity = parse_webhook(EVENT, self.document, [LOGIN], utc_now())
        assert isinstance(activity, GitHubActivity)
        return activity

    async def send(self, session: aiohttp.ClientSession, court: CourtProcesses) -> tuple[int, str]:
        """Sign the webhook, send it to the receiver of a court, and return the status and the text of the answer."""
        body = json.dumps(self.document).encode()
        headers = {
            "Content-Type": "application/json",
            "X-GitHub-Event": EVENT,
            "X-GitHub-Delivery": self.delivery,
            "X-Hub-Signature-256": f"sha256={hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()}",
        }
        url = f"http://127.0.0.1:{court.webhook_port}/webhooks/github"
        async with session.post(url, data=body, headers=headers) as answer:
            return answer.status, (await answer.text()).strip()


def review_asked(number: int, at: datetime | None = None) -> Webhook:
    """Return the webhook of a review request for a pull request."""
    api = f"https://api.github.com/repos/{REPO}/pulls/{number}"
    document = {
        "action": "review_requested",
        "number": number,
        "pull_request": {
            "number": number,
            "url": api,
            "html_url": f"https://github.com/{REPO}/pull/{number}",
            "title": f"Change {number}",
            "body": "It should do what it says.",
            "user": {"login": "a-colleague"},
            "requested_reviewers": [{"login": LOGIN}],
            "updated_at": (at or utc_now()).isoformat(),
        },
        "requested_reviewer": {"login": LOGIN},
        "repository": {"id": 4711, "full_name": REPO},
        "sender": {"login": "a-colleague"},
    }
    return Webhook(document=document, delivery=f"delivery-{number}")
