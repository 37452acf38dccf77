"""Run stand-ins for GitHub, Jira and Slack on loopback, and act there as the people of the demo."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import aiohttp

from kingdom.demo import toy_repository
from kingdom.errors import ProgramFailed
from kingdom.standins.github.application import build_github
from kingdom.standins.jira.application import build_jira
from kingdom.standins.server import CONTROL, RunningServer, start
from kingdom.standins.slack.application import build_slack

REPO = "acme/shop"
CHANNEL = "shop"
BOT = "kingdom-bot"
# The number of the first pull request of a new repository.
PULL_REQUEST = 1
# The calls whose effects people would notice: the stand-in, and the name of the call in its records.
_VISIBLE_CALLS = {
    "reviews": ("github", "POST review"),
    "comments": ("github", "POST issue comment"),
    "pull_requests": ("github", "POST pull request"),
    "ticket_comments": ("jira", "POST comment"),
    "slack_messages": ("slack", "chat.postMessage"),
}


@dataclass(frozen=True, slots=True)
class DemoServices:
    """The running stand-ins by name; Slack is included only if its client is installed."""

    standins: Mapping[str, RunningServer]
    session: aiohttp.ClientSession

    @property
    def has_slack(self) -> bool:
        """Return whether the Slack stand-in runs."""
        return "slack" in self.standins

    def url(self, name: str) -> str:
        """Return the address of a stand-in."""
        return self.standins[name].url

    async def request_review(self) -> None:
        """Open the pull request and request a review from the bot."""
        about = {"repository": REPO, "by": "anna", "title": "Show whole amounts", "head": toy_repository.BRANCH}
        await self._post("github", "pull_request", about)
        await self._post("github", "review_request", {"repository": REPO, "number": PULL_REQUEST, "by": "anna"})

    async def assign_ticket(self) -> None:
        """Assign a ticket to the bot."""
        await self._post("jira", "tickets", {"project": "SHOP", "summary": "Write the currency too", "assignee": "me"})

    async def mention_bot(self) -> None:
        """Open an issue that mentions the bot."""
        about = {"repository": REPO, "by": "ben", "title": "Is anybody there?", "body": f"@{BOT} are you there?"}
        await self._post("github", "issue", about)

    async def count_visible_calls(self) -> dict[str, int]:
        """Return how many calls of each visible kind the stand-ins have recorded."""
        calls = {name: await self._get(name, "calls") for name in self.standins}
        return {
            kind: sum(made["call"] == call for made in calls.get(name, ()))
            for kind, (name, call) in _VISIBLE_CALLS.items()
        }

    async def set_up(self) -> None:
        """Create a Slack channel with one member, and allow polling GitHub every second."""
        await self._post("github", "limits", {"poll_interval": 1})
        if self.has_slack:
            person = await self._post("slack", "users", {"name": "anna"})
            await self._post("slack", "channels", {"name": CHANNEL, "members": [person["id"]]})

    async def _post(self, name: str, what: str, body: Mapping[str, Any]) -> Any:
        async with self.session.post(f"{self.url(name)}{CONTROL}/{what}", json=dict(body)) as answer:
            if not answer.ok:
                raise ProgramFailed(f"the stand-in for {name} refuses {what}: {await answer.text()}")
            return await answer.json()

    async def _get(self, name: str, what: str) -> Any:
        async with self.session.get(f"{self.url(name)}{CONTROL}/{what}") as answer:
            return await answer.json()


@asynccontextmanager
async def start_services(directory: Path) -> AsyncIterator[DemoServices]:
    """Run the stand-ins on free ports until the block ends. Their state is in files of the directory."""
    applications = {
        "github": build_github(directory / "github.json", login=BOT),
        "jira": build_jira(directory / "jira.json"),
    }
    if find_spec("slack_bolt"):
        applications["slack"] = build_slack(directory / "slack.json")
    async with AsyncExitStack() as stack:
        standins: dict[str, RunningServer] = {}
        for name, application in applications.items():
            standins[name] = await start(application)
            stack.push_async_callback(standins[name].stop)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        services = DemoServices(standins, session)
        await services.set_up()
        yield services
