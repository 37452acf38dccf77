"""The world around the demo: stand-ins for GitHub, Jira and Slack on loopback, and what people do there."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import aiohttp

from kingdom.demo import toy
from kingdom.errors import ProgramFailed
from kingdom.standins.github.application import build_github
from kingdom.standins.jira.application import build_jira
from kingdom.standins.server import CONTROL, RunningServer, start
from kingdom.standins.slack.application import build_slack

REPO = "acme/shop"
CHANNEL = "shop"
BOT = "kingdom-bot"
# The first thing in a new repository.
PULL = 1
# How each call that people would notice is written down by its stand-in.
_NOTICED = {
    "reviews": ("github", "POST review"),
    "comments": ("github", "POST issue comment"),
    "pull_requests": ("github", "POST pull request"),
    "ticket_comments": ("jira", "POST comment"),
    "slack_messages": ("slack", "chat.postMessage"),
}


@dataclass(frozen=True, slots=True)
class Outside:
    """The stand-ins by name; Slack is one of them where its client is installed."""

    standins: Mapping[str, RunningServer]
    session: aiohttp.ClientSession

    @property
    def has_slack(self) -> bool:
        """Tell whether people are told in Slack."""
        return "slack" in self.standins

    def url(self, name: str) -> str:
        """Return where a stand-in listens."""
        return self.standins[name].url

    async def ask_for_review(self) -> None:
        """Let somebody open the pull request and ask us for a review."""
        about = {"repository": REPO, "by": "anna", "title": "Show whole amounts", "head": toy.BRANCH}
        await self._do("github", "pull_request", about)
        await self._do("github", "review_request", {"repository": REPO, "number": PULL, "by": "anna"})

    async def assign_ticket(self) -> None:
        """Let somebody give us a ticket."""
        await self._do("jira", "tickets", {"project": "SHOP", "summary": "Write the currency too", "assignee": "me"})

    async def mention_us(self) -> None:
        """Let somebody ask in an issue whether we are there."""
        about = {"repository": REPO, "by": "ben", "title": "Is anybody there?", "body": f"@{BOT} are you there?"}
        await self._do("github", "issue", about)

    async def noticed(self) -> dict[str, int]:
        """Return how often people outside saw something of us, as the stand-ins wrote it down."""
        calls = {name: await self._look(name, "calls") for name in self.standins}
        return {
            what: sum(made["call"] == call for made in calls.get(name, ())) for what, (name, call) in _NOTICED.items()
        }

    async def invite_people(self) -> None:
        """Have a channel with a person in it, and a GitHub that may be asked every second."""
        await self._do("github", "limits", {"poll_interval": 1})
        if self.has_slack:
            person = await self._do("slack", "users", {"name": "anna"})
            await self._do("slack", "channels", {"name": CHANNEL, "members": [person["id"]]})

    async def _do(self, name: str, what: str, body: Mapping[str, Any]) -> Any:
        async with self.session.post(f"{self.url(name)}{CONTROL}/{what}", json=dict(body)) as answer:
            if not answer.ok:
                raise ProgramFailed(f"the stand-in for {name} refuses {what}: {await answer.text()}")
            return await answer.json()

    async def _look(self, name: str, what: str) -> Any:
        async with self.session.get(f"{self.url(name)}{CONTROL}/{what}") as answer:
            return await answer.json()


@asynccontextmanager
async def opened_outside(directory: Path) -> AsyncIterator[Outside]:
    """Let the stand-ins listen on free ports while the block runs; what they know lies in the directory."""
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
        outside = Outside(standins, session)
        await outside.invite_people()
        yield outside
