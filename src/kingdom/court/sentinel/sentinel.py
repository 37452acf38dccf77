"""The Sentinel: polls GitHub and Jira at their own intervals, and receives webhooks."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextlib import AsyncExitStack, suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import aiohttp
import structlog

from kingdom.bus.port import Bus
from kingdom.bus.stream import RetryPolicy
from kingdom.clock import utc_now
from kingdom.court.followups.summary import FollowPolicies
from kingdom.court.sentinel.followed_pulls import PullTokens, poll_followed_pulls, poll_interval
from kingdom.court.sentinel.github_poll import poll_github
from kingdom.court.sentinel.http_requests import TIMEOUT, PollResult
from kingdom.court.sentinel.jira_poll import poll_jira
from kingdom.court.sentinel.labeled_pulls import poll_labels
from kingdom.court.sentinel.receiver import WebhookReceiver
from kingdom.court.sentinel.records import end_old_records
from kingdom.court.sentinel.settings import GitHubSettings, SentinelSettings
from kingdom.errors import Transient
from kingdom.failure_log import log_failure

_BACKOFF = RetryPolicy(base=timedelta(seconds=2), cap=timedelta(minutes=5))
_END_RECORDS_EVERY = timedelta(hours=1)
# How often the store is asked which followed pull requests are due. This sends no request to GitHub.
_CHECK_DUE_EVERY = timedelta(seconds=5)
_log = structlog.get_logger("kingdom.court.sentinel")


class Sentinel:
    """Runs until stopped. Even if several Sentinels run, each activity becomes one event.

    Without `tokens`, it does not poll followed pull requests. `label_repos` returns the repositories whose labels
    are events.
    """

    def __init__(
        self,
        bus: Bus,
        settings: SentinelSettings,
        *,
        tokens: PullTokens | None = None,
        policies: FollowPolicies = lambda _: None,
        label_repos: Callable[[], Collection[str]] = tuple,
        clock: Callable[[], datetime] = utc_now,
        backoff: RetryPolicy = _BACKOFF,
    ) -> None:
        self._bus = bus
        self._settings = settings
        self._tokens = tokens
        self._policies = policies
        self._label_repos = label_repos
        self._clock = clock
        self._backoff = backoff
        self._stopped = asyncio.Event()
        self._hinted = asyncio.Event()
        self._label_hinted = asyncio.Event()
        github = settings.github
        self.receiver = WebhookReceiver(bus, github, clock, self._hint) if github and github.webhook else None

    async def run(self) -> None:
        """Poll and receive until stopped."""
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(aiohttp.ClientSession(timeout=TIMEOUT))
            if self.receiver:
                stack.push_async_callback(self.receiver.stop)
                await self.receiver.start()
            group = await stack.enter_async_context(asyncio.TaskGroup())
            watching = [group.create_task(each) for each in self._watches(session)]
            await self._stopped.wait()
            # A poll stores what belongs together in one transaction, so it can be cancelled at any time.
            for task in watching:
                task.cancel()

    def stop(self, *, at_once: bool = False) -> None:  # noqa: ARG002 - it always stops at once
        """Ask the Sentinel to stop."""
        self._stopped.set()

    def _watches(self, session: aiohttp.ClientSession) -> list[Coroutine[Any, Any, None]]:
        watches = [self._repeat("memory", self._end_old_records)]
        github = self._settings.github
        # GitHub has notifications only for users.
        if github and github.token:
            poll = partial(poll_github, self._bus, session, github, self._clock)
            watches.append(self._repeat("github", partial(_poll_and_log, "github", poll)))
        if github and self._tokens:
            poll_pulls = partial(self._poll_followed_pulls, session, github, self._tokens)
            watches.append(self._repeat("followups", poll_pulls))
            watches.append(self._repeat("labels", partial(self._poll_labels, session, github, self._tokens)))
        if jira := self._settings.jira:
            poll = partial(poll_jira, self._bus, session, jira, self._clock)
            watches.append(self._repeat("jira", partial(_poll_and_log, "jira", poll)))
        return watches

    async def _poll_followed_pulls(
        self, session: aiohttp.ClientSession, github: GitHubSettings, tokens: PullTokens
    ) -> timedelta:
        """Poll the followed pull requests that are due. Then wait for a hint, or for the next check of the store."""
        self._hinted.clear()
        await poll_followed_pulls(self._bus, session, github, tokens, self._policies, self._clock)
        with suppress(TimeoutError):
            async with asyncio.timeout(_CHECK_DUE_EVERY.total_seconds()):
                await self._hinted.wait()
        return timedelta()

    async def _poll_labels(
        self, session: aiohttp.ClientSession, github: GitHubSettings, tokens: PullTokens
    ) -> timedelta:
        """Poll new labels, then wait for a webhook or for the next poll."""
        self._label_hinted.clear()
        await poll_labels(self._bus, session, github, tokens, self._label_repos(), self._clock)
        with suppress(TimeoutError):
            async with asyncio.timeout(poll_interval(github).total_seconds()):
                await self._label_hinted.wait()
        return timedelta()

    def _hint(self) -> None:
        self._hinted.set()
        self._label_hinted.set()

    async def _end_old_records(self) -> timedelta:
        await end_old_records(self._bus, self._clock())
        return _END_RECORDS_EVERY

    async def _repeat(self, name: str, act: Callable[[], Awaitable[timedelta]]) -> None:
        """Call a function again and again. Its result is the pause before the next call."""
        failures = 0
        while True:
            try:
                pause = await act()
                failures = 0
            except Exception as error:  # noqa: BLE001 - one failing source must not stop the others
                failures += 1
                asked = error.after if isinstance(error, Transient) else None
                pause = max(self._backoff.delay(failures), asked or timedelta())
                log_failure(
                    _log, "a watch failed, trying again", error, watch=name, again_in_seconds=pause.total_seconds()
                )
            await asyncio.sleep(pause.total_seconds())


async def _poll_and_log(name: str, poll: Callable[[], Awaitable[PollResult]]) -> timedelta:
    result = await poll()
    if result.received:
        _log.info(
            "received events from a poll",
            source=name,
            received=result.received,
            seen=result.seen,
            dropped=result.dropped,
        )
    return result.again_after
