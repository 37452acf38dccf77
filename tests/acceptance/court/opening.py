"""Open a court: stand-ins, people, Generals, and a process for each role."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from bench.court.court_processes import CHANNEL, REPO, ROLES, SECRET, STANDINS, CourtProcesses, opened
from kingdom.bootstrap import directory_of, open_bus, operations_of
from kingdom.clock import utc_now
from kingdom.court.heartbeat import FileHeartbeatWriter
from kingdom.court.text_logs import NAMES, log_path
from kingdom.realm import Realm
from kingdom.roles import declare_application
from tests.acceptance.court.court import Court, wait
from tests.acceptance.court.packages import REPOSITORIES, gates, write_packages

# This repository has no webhook, so it must be polled.
POLLED = "acme/polled"
OLD_PROMPT = "task-20200101-001.md"
SILENT_ROLE = "herald"
# In these two time zones the date always differs.
_WEST, _EAST = "Etc/GMT+12", "Pacific/Kiritimati"
_NEVER = 1000
# More than all roles write during the stories, so only the logs that exist at the start are rotated.
_LOG_MAX_MB = 0.2
_HEALTHY = {"yellow": _NEVER, "orange": _NEVER, "red": _NEVER, "disk_yellow": _NEVER, "disk_orange": _NEVER}
# On a busy machine an answer may be late without a failure.
_PATIENT_SLACK = {"call_seconds": 30}
_CHAMBERLAIN: Mapping[str, Any] = {
    "every_seconds": 1,
    "channel": CHANNEL,
    "report_hour": 0,
    "health": _HEALTHY,
    # The first review costs more than this share of the day's money.
    "budget": {"warning_percent": 0.01},
    "retention": {"log_max_mb": _LOG_MAX_MB},
    "heartbeat": {"threshold_seconds": 15},
}


@asynccontextmanager
async def opened_court(directory: Path, url: str) -> AsyncIterator[Court]:
    """Open a court whose Chamberlain has finished a first day, and in which nothing else has happened."""
    async with empty_court(directory, url) as court:
        await _run_first_day(court)
        # After the first day: a role that is killed right after it removed a file has not logged the removal.
        await _create_old_files(court.processes)
        court.processes.write_settings(_settings(court.processes, _EAST, _CHAMBERLAIN))
        await asyncio.gather(*(court.processes.start(name) for name in ROLES))
        yield court


@asynccontextmanager
async def opened_court_with(directory: Path, url: str, soldiers: Mapping[str, Any]) -> AsyncIterator[Court]:
    """Open a new court with other soldiers than the scripted ones."""
    async with empty_court(directory, url) as court:
        court.processes.write_settings({"soldiers": soldiers, "envoy": {"slack": _PATIENT_SLACK}})
        await asyncio.gather(*(court.processes.start(name) for name in ROLES))
        yield court


@asynccontextmanager
async def empty_court(directory: Path, url: str) -> AsyncIterator[Court]:
    """Open a court with stand-ins, people and Generals, but without roles."""
    application = declare_application(Realm())
    async with opened(directory, url) as processes:
        write_packages(processes)
        source = str(processes.source)
        await processes.kingdom("git", "create", "polled", source, "--repo", POLLED, "--checkpoint-remote", source)
        await asyncio.gather(*(processes.start(name) for name in STANDINS))
        person = await _create_channel_and_hooks(processes)
        async with open_bus(processes.url, application.topology, application.kinds) as bus:
            yield Court(processes=processes, bus=bus, operations=operations_of(bus), person=person)


async def _run_first_day(court: Court) -> None:
    """Run a Chamberlain on an overloaded machine, in a time zone in which it is still yesterday."""
    overloaded = {**_CHAMBERLAIN, "health": {**_HEALTHY, "yellow": 0.001}}
    court.processes.write_settings(_settings(court.processes, _WEST, overloaded))
    await court.processes.start("chamberlain")

    async def has_finished_its_day() -> bool:
        statistics = await court.document("statistics", "stats") or {}
        is_logged = any("system.health_changed" in day["counts"] for day in statistics.get("days", {}).values())
        # A new day is noticed only if the budget of an earlier day is stored.
        return is_logged and await court.document("chamberlain", "budget") is not None

    await wait(has_finished_its_day, "the Chamberlain's first day")
    await court.processes.kill("chamberlain")


def _settings(processes: CourtProcesses, zone: str, chamberlain: Mapping[str, Any]) -> dict[str, Any]:
    changes: dict[str, Any] = {"time_zone": zone, "heartbeat_seconds": 1, "chamberlain": chamberlain}
    # Warnings do not stop any work.
    changes["king"] = {"warning_percent": 70}
    changes["envoy"] = {"slack": _PATIENT_SLACK}
    gates(processes).mkdir(exist_ok=True)
    changes["soldiers"] = {"path": [str(gates(processes))]}
    if directory_of(processes.url):
        # Transcripts are then in the directory that the source documents name.
        changes["soldiers"]["directory"] = str(processes.realm)
    return changes


async def _create_old_files(processes: CourtProcesses) -> None:
    """Create files that are older than today."""
    before = utc_now() - timedelta(days=30)
    prompt = processes.realm / "state" / "prompts" / OLD_PROMPT
    prompt.parent.mkdir(parents=True, exist_ok=True)
    prompt.write_text("Do something.\n")
    for name in NAMES:
        log = log_path(processes.realm, name)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("2020-01-01T00:00:00.000Z info king: a long day\n" * int(_LOG_MAX_MB * (1 << 20) / 40))
    os.utime(prompt, (before.timestamp(), before.timestamp()))
    await FileHeartbeatWriter(processes.realm, SILENT_ROLE).beat(utc_now() - timedelta(hours=1))
    if directory_of(processes.url):
        yesterday = (utc_now() - timedelta(days=1)).timestamp()
        os.utime(processes.realm / "logs" / "events.log", (yesterday, yesterday))


async def _create_channel_and_hooks(processes: CourtProcesses) -> str:
    """Create a channel with a person in it, and webhooks for all repositories but one. Return the person."""
    person = await processes.people("slack", "users", name="dana")
    await processes.people("slack", "channels", name=CHANNEL, members=[person["id"]])
    await processes.people("github", "limits", poll_interval=1)
    for repository in (REPO, *REPOSITORIES):
        url = f"http://127.0.0.1:{processes.webhook_port}/webhooks/github"
        await processes.people("github", "hook", url=url, secret=SECRET, repository=repository)
    return str(person["id"])
