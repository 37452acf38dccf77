"""Every internal event of the catalog was logged in a real flow, by a process of the court."""

from functools import partial

import pytest

from kingdom.bus import LogEntry
from kingdom.chronicle.catalog import CATALOG, read_log_entry
from tests.acceptance.court.court import Court, wait
from tests.acceptance.court.opening import SILENT_ROLE
from tests.acceptance.court.packages import TIME_LIMIT
from tests.acceptance.court.stories import Asked, Story

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
]
_NUMBER = 28
_SIGNAL_KILL = -9
# The beginning of an actor in the log; "general" means the role and every General.
_ACTORS = {"general": "gen"}


@pytest.fixture
async def chronicled(
    court: Court,
    review_by_hook: tuple[Story, int],
    question: Asked,
    failure: Story,
    oversleeping: Story,
    unrouted: object,
    orphaned: Story,
    killed: int,
    up_and_down: list[LogEntry],
) -> list[LogEntry]:
    """The log of the court after all stories, and the log of another court that `kingdom up` started and stopped."""
    assert all((review_by_hook, question, failure, oversleeping, unrouted, orphaned, killed))
    await wait(lambda: court.logged_data("system.heartbeat_missed", target=SILENT_ROLE), "the silent role is missed")

    # Some events appear only after the Chamberlain's next round.
    for event_type in CATALOG.keys() - {entry.type for entry in up_and_down}:
        await wait(partial(court.log, event_type), f"{event_type} is logged")
    return [*await court.log(), *up_and_down]


async def test_the_catalog_is_complete() -> None:
    assert len(CATALOG) == _NUMBER


@pytest.mark.parametrize("event_type", CATALOG)
async def test_each_entry_has_the_actor_that_the_catalog_names(chronicled: list[LogEntry], event_type: str) -> None:
    entries = [entry for entry in chronicled if entry.type == event_type]
    assert entries, f"the log has no entry {event_type}"
    actors = tuple(_ACTORS.get(actor, actor) for actor in CATALOG[event_type].actor.split(", "))
    strangers = {entry.actor for entry in entries if not entry.actor.startswith(actors)}
    assert strangers == set()
    assert [entry.data for entry in entries if read_log_entry(entry) is None] == []


async def test_a_review_is_logged_from_its_event_to_its_end(court: Court, review_by_hook: tuple[Story, int]) -> None:
    story, _ = review_by_hook
    ids = {story.event.id, story.task.id}
    logged = [
        each.type for each in await court.log() if each.type in CATALOG and ids & set(map(str, each.data.values()))
    ]
    assert [each for each in logged if each != "message.sent"] == [
        "event.detected",
        "task.created",
        "event.dispatched",
        "task.started",
        "soldier.spawned",
        "soldier.completed",
        "task.completed",
    ]
    assert logged.count("message.sent") == 2


async def test_a_soldier_that_takes_too_long_is_reported(court: Court, oversleeping: Story) -> None:
    (late,) = await court.logged_data("soldier.timeout", task_id=oversleeping.task.id)
    (spawned,) = await court.logged_data("soldier.spawned", task_id=oversleeping.task.id)
    assert (late["soldier_id"], late["timeout_seconds"]) == (spawned["soldier_id"], TIME_LIMIT)
    (killed,) = await court.logged_data("recovery.session_killed", soldier_id=spawned["soldier_id"])
    assert killed["reason"] == "timeout"


async def test_a_silent_role_is_reported_once(court: Court, chronicled: list[LogEntry]) -> None:
    assert chronicled
    assert len(await court.logged_data("system.heartbeat_missed", target=SILENT_ROLE)) == 1


async def test_a_run_is_completed_although_its_session_lost_its_host(orphaned: Story) -> None:
    assert (orphaned.event.outcome, orphaned.task.status) == ("completed", "completed")


async def test_a_leftover_process_is_killed(killed: int) -> None:
    assert killed == _SIGNAL_KILL
