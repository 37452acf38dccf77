"""A store of the court, and the steps of a Sentinel on it, one by one."""

import hashlib
import hmac
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from kingdom.bus import Bus, LogCursor, Operations, RecordQuery, Transaction
from kingdom.court import records, streams
from kingdom.court.documents import EventStatus, ExternalEvent
from kingdom.court.followups.polls import PULL_POLLS
from kingdom.court.followups.records import FOLLOWUPS
from kingdom.court.questions import QUESTIONS
from kingdom.court.sentinel import records as remembered
from kingdom.court.sentinel.github_poll import poll_github
from kingdom.court.sentinel.http_requests import PollResult
from kingdom.court.sentinel.jira_poll import poll_jira
from kingdom.court.sentinel.receiver import PATH, WebhookReceiver
from kingdom.court.sentinel.settings import GitHubSettings, GitHubWebhookSettings, JiraSettings
from kingdom.errors import Permanent
from kingdom.standins.jira import application as jira
from tests.contract.backends import BackendUnderTest
from tests.integration.standins.github import SECRET, TOKEN
from tests.patience import PATIENCE_SECONDS

US = "kingdom-bot"
KINDS = (*records.KINDS, *remembered.KINDS, FOLLOWUPS, PULL_POLLS, QUESTIONS)
_numbers = itertools.count(1)


def github_settings(url: str, **more: Any) -> GitHubSettings:
    patient = {"body_seconds": PATIENCE_SECONDS, "store_seconds": PATIENCE_SECONDS}
    webhook = GitHubWebhookSettings(**{"secrets": (SECRET,), "port": 0, **patient, **more.pop("webhook", {})})
    return GitHubSettings(**{"token": TOKEN, "logins": (US,), "api_url": url, "webhook": webhook, **more})


def jira_settings(url: str, **more: Any) -> JiraSettings:
    ours = {"email": jira.EMAIL, "token": jira.TOKEN, "own_accounts": (jira.ACCOUNT_ID,)}
    return JiraSettings(**{"url": url, **ours, **more})


def signed(body: bytes, secret: str = SECRET) -> str:
    return f"sha256={hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}"


class Watch:
    """A store with the actions of a Sentinel."""

    def __init__(self, bus: Bus, operations: Operations, session: aiohttp.ClientSession) -> None:
        self.bus = bus
        self.operations = operations
        self.session = session

    async def look_at_github(self, url: str, **more: Any) -> PollResult:
        return await poll_github(self.bus, self.session, github_settings(url, **more))

    async def look_at_jira(self, url: str, **more: Any) -> PollResult:
        return await poll_jira(self.bus, self.session, jira_settings(url, **more))

    @asynccontextmanager
    async def receiving(self, **more: Any) -> AsyncIterator[WebhookReceiver]:
        receiver = WebhookReceiver(self.bus, github_settings("http://nowhere", **more))
        await receiver.start()
        try:
            yield receiver
        finally:
            await receiver.stop()

    async def post(self, receiver: WebhookReceiver, event: str, document: Any, **headers: str) -> tuple[int, str]:
        """Send a webhook as GitHub does."""
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        given = {
            "Content-Type": "application/json",
            "X-GitHub-Event": event,
            "X-GitHub-Delivery": f"delivery-{next(_numbers)}",
            "X-Hub-Signature-256": signed(body),
        }
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.post(receiver.url + PATH, data=body, headers=given) as answer:
            return answer.status, (await answer.text()).strip()

    async def events(self) -> list[ExternalEvent]:
        """Return the events that were received, by id."""
        async with self.bus.transaction() as transaction:
            found = await transaction.find(RecordQuery(kind="event", limit=1000))
        return [msgspec.convert(record.doc, ExternalEvent) for record in found]

    async def drop(self, event: ExternalEvent, status: EventStatus = EventStatus.PENDING) -> None:
        """Store an event as if a person had put it into the queue, without marking it as seen."""
        async with self.bus.transaction() as transaction:
            await records.save(transaction, msgspec.structs.replace(event, status=status))

    async def types(self) -> list[str]:
        return sorted(event.type for event in await self.events())

    async def announced(self) -> int:
        """Return how many events the King was notified of."""
        stream = streams.EVENT_STREAM.name
        return sum(stats.pending for stats in await self.operations.stats() if stats.stream == stream)

    async def detected(self) -> int:
        """Return how many events the log shows as detected."""
        page = await self.operations.read_log(LogCursor(), 1000)
        return sum(logged.entry.type == "event.detected" and logged.entry.actor == "sentinel" for logged in page)

    async def cursor(self, name: str) -> remembered.PollCursor | None:
        async with self.bus.transaction() as transaction:
            return (await remembered.load_state(transaction, remembered.PollCursor, name))[1]


class RefusingBus:
    """A store that refuses each transaction that writes a record with a certain word."""

    def __init__(self, bus: Bus, word: str) -> None:
        self._bus = bus
        self.word = word

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        async with self._bus.transaction() as transaction:
            yield transaction
            puts = transaction.changes.puts.items()
            if any(self.word in str(put.record.doc) for (kind, _), put in puts if kind == "event"):
                raise Permanent(f"the store refuses {self.word}")


@asynccontextmanager
async def opened(backend: BackendUnderTest, session: aiohttp.ClientSession) -> AsyncIterator[Watch]:
    async with backend.open(streams.TOPOLOGY, KINDS) as bus:
        yield Watch(bus, backend.operations(bus), session)
