"""Looks of a Sentinel at a followed pull request, at moments that a test chooses."""

from datetime import datetime, timedelta
from typing import Any

import aiohttp

from kingdom.clock import utc_now
from kingdom.court.documents import ExternalEvent
from kingdom.court.followups.records import load_followup
from kingdom.court.package import FollowPolicy
from kingdom.court.sentinel.followed_pulls import PullTokens, poll_followed_pulls
from tests.integration.court.sentinel.scene import Watch, github_settings
from tests.integration.standins.github import REPOSITORY, TOKEN, Site

FILES = [{"filename": "fin.py", "patch": "@@ -1,2 +1,3 @@\n one\n+two\n three"}]
LINE = {"path": "fin.py", "line": 2, "body": "Why two?"}
HOUR = timedelta(hours=1)
# The conditional requests of a look that finds no change.
REQUESTS_PER_LOOK = 4


class Look:
    """Looks of a Sentinel at a moment that the test chooses, and the requests that they send."""

    def __init__(self, watch: Watch, site: Site) -> None:
        self.watch = watch
        self.site = site
        self.now = utc_now()
        self.requests: list[tuple[str, int]] = []
        self.policy: FollowPolicy | None = FollowPolicy()
        self.tokens: PullTokens = user_token

    async def __call__(self, *, later: timedelta = HOUR, **settings: Any) -> list[ExternalEvent]:
        """Look after a time, and return the new events."""
        self.now += later
        self.requests = []
        before = {event.id for event in await self.watch.events()}

        async def count(_session: object, _context: object, done: aiohttp.TraceRequestEndParams) -> None:
            self.requests.append((done.url.path, done.response.status))

        trace = aiohttp.TraceConfig()
        trace.on_request_end.append(count)
        async with aiohttp.ClientSession(trace_configs=[trace]) as session:
            await poll_followed_pulls(
                self.watch.bus,
                session,
                github_settings(self.site.url, **settings),
                self.tokens,
                lambda _: self.policy,
                self.clock,
            )
        return [event for event in await self.watch.events() if event.id not in before]

    def clock(self) -> datetime:
        return self.now


async def user_token(_repo: str, *, with_members: bool) -> str:  # noqa: ARG001 - the same for every poll
    return TOKEN


async def submit(site: Site, by: str = "anna", **more: Any) -> Any:
    return await site.happen("review", number=1, by=by, **{"event": "REQUEST_CHANGES", "body": "Please.", **more})


async def end_of(watch: Watch) -> str:
    """Return why the followup has ended, or "" if it has not."""
    async with watch.bus.transaction() as transaction:
        _, followup = await load_followup(transaction, f"{REPOSITORY}#1")
    return followup.reason if followup.is_over else ""
