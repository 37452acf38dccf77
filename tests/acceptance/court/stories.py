"""The stories that run in the court, each from its external cause to its external effect."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bench.court.court_processes import REPO
from kingdom.bus import Record
from kingdom.clock import utc_now
from kingdom.court.documents import Assignment, ExternalEvent, Message
from kingdom.court.king.schedules import SCHEDULES
from tests.acceptance.court.court import Court, buttons, wait
from tests.acceptance.court.opening import POLLED
from tests.acceptance.court.packages import (
    ASLEEP,
    BROKEN,
    BUSY,
    NOBODYS,
    QUESTION,
    QUESTIONS,
    REFUSED,
    SCHEDULE,
    gate,
    write_late_package,
)

BOT = "kingdom-bot"


@dataclass(frozen=True, kw_only=True)
class Story:
    """What happened: the event, its assignment, and its thread in Slack."""

    event: ExternalEvent
    task: Assignment
    thread: list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Asked(Story):
    """A story with a question: the shown question, its record, the assignment that waited, and the one that resumed it.

    `paths` are the files in the realm while the question was open.
    """

    question: dict[str, Any]
    awaited: dict[str, Any]
    waiting: Assignment
    resumed: Assignment
    paths: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Unrouted:
    """An unrouted event: how the command line showed it, and how it ended."""

    listed: list[dict[str, Any]]
    shown: dict[str, Any]
    why: dict[str, Any]
    later: Story


@dataclass(frozen=True, kw_only=True)
class Superseded:
    """Two requests for the same review; the newer replaced the older. `paths` are the files while the older waited."""

    busy: Story
    older: ExternalEvent
    newer: Story
    paths: frozenset[str]


async def review(court: Court, repository: str) -> tuple[Story, int]:
    """Request a review. Return the number of the pull request too."""
    pull = await court.processes.people(
        "github", "pull_request", repository=repository, title="Add a thing", head="thing"
    )
    await court.processes.people("github", "review_request", repository=repository, number=pull["number"])
    return await ended(court, repo=repository, number=pull["number"]), pull["number"]


async def review_by_hook(court: Court) -> tuple[Story, int]:
    """Request a review in a repository with a webhook."""
    return await review(court, REPO)


async def review_by_poll(court: Court) -> tuple[Story, int]:
    """Request a review in a repository that is polled."""
    return await review(court, POLLED)


async def ticket(court: Court) -> Asked:
    """Assign a ticket to the bot, and let a person approve the plan with a click."""
    opened = await court.processes.people("jira", "tickets", project="QP", summary="Write the manual", assignee="me")
    task = await court.assignment(until="needs_human", key=opened["key"])
    question = (await court.thread_with(task.id, "Continue?"))[-1]
    awaited = await _awaited(court, task.id)
    paths = court.paths()
    await court.processes.people(
        "slack",
        "clicks",
        channel="dev",
        ts=question["ts"],
        user=court.person,
        action_id=buttons(question)["approve"],
    )
    story = await ended(court, key=opened["key"], type="jira.ticket.assigned")
    return await _asked(court, story, question, awaited, task, paths)


async def question(court: Court) -> Asked:
    """Let an agent ask a question and a person answer it in the thread."""
    await mention(court, QUESTIONS)
    task = await court.assignment(until="needs_human", repo=QUESTIONS)
    asked = (await court.thread_with(task.id, QUESTION))[-1]
    awaited, paths = await _awaited(court, task.id), court.paths()
    words = {"channel": "dev", "user": court.person, "text": "green", "thread_ts": asked["thread_ts"]}
    await court.processes.people("slack", "messages", **words)
    story = await ended(court, repo=QUESTIONS)
    return await _asked(court, story, asked, awaited, task, paths)


async def schedule(court: Court) -> Story:
    """Set the next time of a schedule to a time that has passed, as if the court had missed it."""

    async def known() -> Record | None:
        async with court.bus.transaction() as transaction:
            return await transaction.get(SCHEDULES.name, SCHEDULE)

    await wait(known, "the King knows the schedule")
    missed = datetime(utc_now().year, 1, 1, tzinfo=UTC)
    async with court.bus.transaction() as transaction:
        record = await transaction.get(SCHEDULES.name, SCHEDULE)
        assert record
        await transaction.put(
            Record(
                kind=record.kind,
                id=record.id,
                version=record.version,
                state=record.state,
                due_at=missed,
                doc={**record.doc, "next_run_at": missed.isoformat()},
            )
        )
    return await ended(court, source="schedule")


async def failure(court: Court) -> Story:
    """Let an agent fail at every attempt."""
    await mention(court, BROKEN)
    return await ended(court, status="failed", repo=BROKEN)


async def refusal(court: Court) -> Story:
    """Let an agent petition for a review of something that is not a pull request, and report success."""
    await mention(court, REFUSED)
    return await ended(court, status="failed", repo=REFUSED)


async def oversleeping(court: Court) -> Story:
    """Let an agent exceed its time limit."""
    await mention(court, ASLEEP)
    return await ended(court, status="failed", repo=ASLEEP)


async def unrouted(court: Court) -> Unrouted:
    """Send an event without a subscriber, then add a General that subscribes to it."""
    await mention(court, NOBODYS)
    event = await court.event(until="completed", repo=NOBODYS)
    listed = await court.processes.kingdom("event", "list", "--outcome", "unrouted")
    shown = await court.processes.kingdom("event", "show", event.id)
    why = await court.processes.kingdom("why", event.id, "--rules", "generals")
    write_late_package(court.processes)
    for role in ("king", "general"):
        await court.logs_say(role, "gen-late")
    await court.processes.kingdom("event", "reroute", event.id)
    await court.assignment(until="completed", event_id=event.id)
    return Unrouted(listed=listed, shown=shown, why=why, later=await ended(court, repo=NOBODYS))


async def superseded(court: Court) -> Superseded:
    """Request a review twice while another review has the only slot."""
    busy = await _request(court, "The first")
    await court.assignment(until="in_progress", repo=BUSY)
    number = await _request(court, "The second")
    older = await _parked(court, number)
    paths = court.paths()
    # The times of GitHub have a precision of one second.
    second = utc_now().replace(microsecond=0)

    async def a_second_later() -> bool:
        return utc_now().replace(microsecond=0) > second

    await wait(a_second_later, "another second")
    await court.processes.people("github", "review_request", repository=BUSY, number=number)
    older = await court.event(until="completed", repo=BUSY, id=older.id)
    gate(court.processes).touch()
    return Superseded(
        busy=await ended(court, repo=BUSY, number=busy),
        older=older,
        newer=await ended(court, repo=BUSY, number=number, outcome="completed"),
        paths=paths,
    )


async def _request(court: Court, title: str) -> int:
    pull = await court.processes.people("github", "pull_request", repository=BUSY, title=title, head=title.lower()[4:])
    await court.processes.people("github", "review_request", repository=BUSY, number=pull["number"])
    return int(pull["number"])


async def _parked(court: Court, number: int) -> ExternalEvent:
    async def waits() -> ExternalEvent | None:
        found = await court.events(repo=BUSY, number=number)
        place = await court.document("waiting", found[0].routes[0].waiting) if found and found[0].routes else None
        return found[0] if place and place.get("reason") else None

    return await wait(waits, "the second waits for the slot")


async def mention(court: Court, repository: str) -> None:
    """Mention the bot in an issue."""
    issue = {"repository": repository, "title": "Something is odd", "body": f"@{BOT} please look at this."}
    await court.processes.people("github", "issue", issue)


async def _awaited(court: Court, assignment_id: str) -> dict[str, Any]:
    async def there() -> dict[str, Any] | None:
        entries = await court.document("envoy", "awaiting-responses") or {}
        return entries.get(assignment_id)

    return dict(await wait(there, f"an answer to {assignment_id} is awaited"))


async def _asked(
    court: Court,
    story: Story,
    asked: dict[str, Any],
    awaited: dict[str, Any],
    waiting: Assignment,
    paths: frozenset[str],
) -> Asked:
    (resumed,) = await court.assignments(root=waiting.id)
    return Asked(
        event=story.event,
        task=story.task,
        thread=story.thread,
        question=asked,
        awaited=awaited,
        waiting=waiting,
        resumed=resumed,
        paths=paths,
    )


async def ended(court: Court, *, status: str = "completed", **fields: object) -> Story:
    """Wait until an event has ended and people know."""
    event = await court.event(until=status, **fields)
    task = await court.assignment(until=status, id=event.routes[0].assignment_id)
    words = f"{task.id} is {status}"
    thread = await court.thread_with(task.id, words)
    (last,) = [each.id for each in await court.documents(Message) if each.content.startswith(words)]
    # A message can be read in Slack before the Envoy records it as sent.
    await wait(lambda: court.logged_data("message.sent", msg_id=last), f"{words!r} is told")
    return Story(event=event, task=task, thread=thread)
