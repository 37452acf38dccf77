"""An Envoy running on a real bus and on the Slack stand-in; the test acts for the other roles."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from zoneinfo import ZoneInfo

import msgspec

from kingdom.bus import (
    EFFECTS,
    Bus,
    Delivery,
    Dispatcher,
    LogCursor,
    LogEntry,
    RecordQuery,
    RetryPolicy,
    Topology,
    Transaction,
    Worker,
    find_ledger,
)
from kingdom.bus.operations import DeadFilter
from kingdom.bus.sequence import SEQUENCES
from kingdom.clock import utc_now
from kingdom.court import records, streams
from kingdom.court.documents import (
    Assignment,
    AssignmentStatus,
    EventStatus,
    ExternalEvent,
    Message,
    MessageType,
    Priority,
)
from kingdom.court.envoy.envoy import Envoy
from kingdom.court.envoy.records import ENVOYS
from kingdom.court.envoy.settings import EnvoySettings, SlackSettings
from kingdom.court.king.context import KingContext
from kingdom.court.king.reactions import STREAMS, register
from kingdom.court.king.records import KINDS as KING_KINDS
from kingdom.court.package import Package
from kingdom.court.questions import HumanQuestion, load_question, save_question
from kingdom.court.records import load, queue_message, save
from kingdom.errors import Unavailable
from kingdom.workflow.records import KINDS as WORKFLOW_KINDS
from tests import warm
from tests.contract.backends import BackendUnderTest
from tests.integration.running import eventually
from tests.integration.standins.slack_scene import APP_TOKEN, BOT_TOKEN
from tests.integration.standins.slack_scene import Scene as Slack
from tests.patience import PATIENCE_SECONDS

# An id of a past day, so that no new assignment gets the same number.
TASK = "task-20260207-001"
EVENT = "evt-github-1"
DEV = "dev"
SEOUL = ZoneInfo("Asia/Seoul")
KINDS = (EFFECTS, SEQUENCES, *WORKFLOW_KINDS, *records.KINDS, *KING_KINDS, ENVOYS)
POLL = timedelta(milliseconds=20)
_CALL_SECONDS = 10
# A stand-in shows a message at once, so a lookup does not have to wait for the time limit of a post.
_SETTLES_SECONDS = 1 - 2 * _CALL_SECONDS
# Retries follow almost at once, so tests do not wait for them.
_BRISK = replace(
    streams.MESSAGE_STREAM,
    retry=RetryPolicy(base=timedelta(milliseconds=50), cap=timedelta(milliseconds=200), max_attempts=50),
)
TOPOLOGY = Topology(
    [_BRISK if name == _BRISK.name else streams.TOPOLOGY.stream(name) for name in streams.TOPOLOGY.names()]
)


def slack_settings(url: str, *, listens: bool = True) -> SlackSettings:
    return SlackSettings(
        bot_token=BOT_TOKEN,
        app_token=APP_TOKEN if listens else "",
        base_url=f"{url}/api/",
        settles_after_seconds=_SETTLES_SECONDS,
        call_seconds=_CALL_SECONDS,
    )


class Clock:
    """The current time, plus an offset."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead


class BarredBus:
    """A bus that can be unreachable for all callers except its worker."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.barred = False
        self.refused = 0

    def transaction(
        self, hold: Sequence[Delivery] = (), *, optimistic: bool = False
    ) -> AbstractAsyncContextManager[Transaction]:
        if self.barred:
            self.refused += 1
            raise Unavailable("the store is barred")
        return self._bus.transaction(hold, optimistic=optimistic)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)


class Scene:
    """One store and one workspace with the channel #dev."""

    def __init__(self, backend: BackendUnderTest, bus: Bus, slack: Slack, channel: str) -> None:
        self.backend = backend
        self.bus = bus
        self.slack = slack
        self.channel = channel
        self.clock = Clock()
        self.operations = backend.operations(bus)

    @asynccontextmanager
    async def envoy(
        self, *, listens: bool = True, settings: EnvoySettings | None = None, bus: BarredBus | None = None
    ) -> AsyncIterator[Envoy]:
        """Run an Envoy until the block ends."""
        chosen = settings or EnvoySettings(
            slack=slack_settings(self.slack.url, listens=listens), channel=DEV, every_seconds=3600
        )
        store = self.bus if bus is None else cast("Bus", bus)
        envoy = Envoy(store, chosen, zone=SEOUL, clock=self.clock, poll=POLL)
        running = asyncio.create_task(envoy.run())
        try:
            if listens and chosen.slack:
                await self.slack.wait_until_connected()
            yield envoy
        finally:
            envoy.stop()
            await asyncio.wait_for(running, PATIENCE_SECONDS)

    @asynccontextmanager
    async def king(self, *packages: Package) -> AsyncIterator[None]:
        """Run a King until the block ends. Without Generals, he accepts or ignores answers."""
        dispatcher = Dispatcher()
        register(dispatcher, KingContext(packages=lambda: packages, zone=SEOUL, clock=self.clock))
        worker = Worker(self.bus, dispatcher, STREAMS, poll=POLL)
        running = asyncio.create_task(worker.run())
        try:
            yield
        finally:
            worker.stop()
            await asyncio.wait_for(running, PATIENCE_SECONDS)

    async def run_until_killed(self, moment: str) -> int:
        """Run a worker in its own process, which is killed before or after its first post. Then end its lease."""
        arguments = [self.backend.name, self.backend.place, self.slack.url, moment]
        child = await warm.start("tests.integration.court.envoy.child", *arguments)
        try:
            ended = await asyncio.wait_for(child.wait(), PATIENCE_SECONDS)
        finally:
            await child.end()
        self.backend.expire(self.backend.picture().leases)
        return ended

    async def send_message(self, kind: MessageType, content: str, *, channel: str = DEV, **context: Any) -> Message:
        """Queue a message as the other roles do."""
        async with self.bus.transaction() as transaction:
            return await queue_message(
                transaction,
                kind,
                content,
                channel=channel,
                thread=str(context.get("task_id") or "chamberlain"),
                today=self.clock().date(),
                context=context,
            )

    async def begin(self, content: str = "gen-pr takes it on.", **more: Any) -> Message:
        return await self.send_message(MessageType.THREAD_START, content, task_id=TASK, **more)

    async def update(self, content: str, **more: Any) -> Message:
        return await self.send_message(MessageType.THREAD_UPDATE, content, task_id=TASK, **more)

    async def assignment(self, status: AssignmentStatus = AssignmentStatus.IN_PROGRESS, event_id: str = EVENT) -> None:
        """Store an assignment that is in progress."""
        assignment = Assignment(
            id=TASK,
            event_id=event_id,
            target_general="gen-pr",
            type="github.pr.comment",
            payload={},
            priority=Priority.NORMAL,
            created_at=self.clock(),
            status=status,
        )
        async with self.bus.transaction() as transaction:
            known = await transaction.get(records.ASSIGNMENTS.name, TASK)
            await save(transaction, assignment, known)

    async def ask_person(
        self, question: str = "Merge it?", *choices: str, event_id: str = EVENT, **more: Any
    ) -> Message:
        """Store a question of the assignment as its General does, and queue its message."""
        await self.assignment(AssignmentStatus.NEEDS_HUMAN, event_id)
        now = self.clock()
        fields = {"asked_at": now, "due_at": now + timedelta(days=30), "choices": choices, **more}
        ask = HumanQuestion(
            id=TASK, assignment_id=TASK, general="gen-pr", workflow_id=f"wf-{TASK}", text=question, **fields
        )
        async with self.bus.transaction() as transaction:
            known = await load_question(transaction, TASK)
            await save_question(transaction, ask, known[0] if known else None)
        times = {"asked_at": ask.asked_at.isoformat(), "due_at": ask.due_at.isoformat()}
        context: dict[str, Any] = {"task_id": TASK, "choices": list(choices), **times}
        return await self.send_message(MessageType.HUMAN_INPUT_REQUEST, question, **context)

    async def message_ids(self) -> list[str]:
        async with self.bus.transaction() as transaction:
            return [record.id for record in await transaction.find(RecordQuery(kind=records.MESSAGES.name))]

    async def message(self, message: Message) -> Message:
        async with self.bus.transaction() as transaction:
            return (await load(transaction, Message, message.id))[1]

    async def is_sent(self, *messages: Message) -> None:
        """Wait until messages are recorded as sent."""

        async def are_sent() -> bool:
            return all([(await self.message(each)).status == "sent" for each in messages])

        await eventually(are_sent)

    async def dead(self, count: int = 1) -> list[str]:
        """Wait for dead letters and return why they died."""

        async def are_dead() -> bool:
            return len(await self.operations.dead_letters(DeadFilter(), 10)) == count

        await eventually(are_dead)
        return [str(letter.error_message) for letter in await self.operations.dead_letters(DeadFilter(), 10)]

    async def app_messages(self, channel: str = "") -> list[dict[str, Any]]:
        """Return the messages of the app in a channel and its threads, oldest first."""
        state = await self.slack.look("state")
        return [each for each in state["messages"].get(channel or self.channel, []) if "bot_id" in each]

    async def texts(self) -> list[str]:
        return [each["text"] for each in await self.app_messages()]

    async def posted(self) -> int:
        return len(await self.slack.calls("chat.postMessage"))

    async def remembered(self, what: str) -> dict[str, Any]:
        async with self.bus.transaction() as transaction:
            record = await transaction.get(ENVOYS.name, what)
        return dict(record.doc) if record else {}

    async def events(self) -> list[ExternalEvent]:
        async with self.bus.transaction() as transaction:
            found = await transaction.find(RecordQuery(kind=records.EVENTS.name))
        return [msgspec.convert(record.doc, ExternalEvent) for record in found]

    async def wait_for_events(self, count: int = 1) -> list[ExternalEvent]:
        """Wait until this many events have arrived and all are acknowledged to Slack."""

        async def came() -> bool:
            return len(await self.events()) >= count

        await eventually(came)
        await self.slack.wait_until_nothing_is_pending()
        return await self.events()

    async def slack_event(self, ts: str) -> str:
        """Store the event of a person's message in #dev, and return its id."""
        event = ExternalEvent(
            id=f"evt-slack-app_mention-{self.channel}-{ts}",
            type="slack.app_mention",
            source="slack",
            repo=None,
            payload={"channel": self.channel, "ts": ts},
            priority=Priority.NORMAL,
            created_at=utc_now(),
            status=EventStatus.DISPATCHED,
        )
        async with self.bus.transaction() as transaction:
            await save(transaction, event)
        return event.id

    async def open_question(self) -> HumanQuestion:
        async with self.bus.transaction() as transaction:
            found = await load_question(transaction, TASK)
        assert found
        return found[1]

    async def is_answered(self) -> None:
        """Wait until the King has accepted an answer."""

        async def has_an_answer() -> bool:
            return (await self.open_question()).status == "answered"

        await eventually(has_an_answer)

    async def log(self, *types: str) -> list[LogEntry]:
        entries = [logged.entry for logged in await self.operations.read_log(LogCursor(), 1000)]
        return [entry for entry in entries if entry.type in types]

    async def attempts(self, message: Message) -> list[str]:
        """Return the states of all attempts at a message."""
        async with self.bus.transaction() as transaction:
            ledger = await find_ledger(transaction, "slack", message.id)
        return [attempt.state for attempt in ledger.document.attempts] if ledger else []

    async def click(self, message: dict[str, Any], user: str, number: int = 0) -> Any:
        action = f"kingdom_answer_{number}"
        return await self.slack.do("clicks", channel=DEV, ts=message["ts"], user=user, action_id=action)

    async def reply(self, thread_ts: str, user: str, text: str, **more: Any) -> Any:
        return await self.slack.do("messages", channel=DEV, user=user, text=text, thread_ts=thread_ts, **more)
