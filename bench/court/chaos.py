"""Chaos over the whole court: kill all processes at random while events arrive, then count everything."""

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench.court.court_processes import CHANNEL, REPO, ROLES, SECRET, STANDINS, CourtProcesses
from bench.court.judge import CourtCounts, judge, read_counts

# How long a killed process stays down.
_AWAY_SECONDS = (0.1, 2.0)
_STRIKE_EVERY_SECONDS = (0.8, 2.2)
# Continue until there were this many kills, even on a slow machine.
_KILLS_MIN = 3
_LOOK_SECONDS = 1.0
# How long to wait for a broken court, which may never become idle.
_QUIET_SECONDS = 60.0
DATABASE = "database"
SETTINGS: Mapping[str, Any] = {
    "lease_seconds": 2,
    "heartbeat_seconds": 3,
    "king": {"every_seconds": 1, "soldiers": 8, "soldiers_per_repo": 8, "reserved_usd": 0.1},
}
GENERAL = "gen-chaos"


@dataclass(slots=True)
class Report:
    """The kills in a court, and the findings afterwards."""

    seed: int
    events: int
    kills: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    counts: CourtCounts | None = None
    fault_seconds: float = 0.0
    drain_seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the figures."""
        return {
            "seed": self.seed,
            "events": self.events,
            "kills": dict(self.kills),
            "killed": sum(self.kills.values()),
            "torment_seconds": round(self.fault_seconds, 1),
            "drain_seconds": round(self.drain_seconds, 1),
            "findings": len(self.findings),
            "details": self.findings[:20],
            **(self.counts.to_json() if self.counts else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How many events to send, for how long to kill processes, and the time limit to finish afterwards.

    The processes of the server with the pid `postmaster` are killed too. `broken` is a role and its broken variant.
    """

    seconds: float
    events: int
    seed: int
    drain_seconds: float = 600.0
    postmaster: int | None = None
    broken: tuple[str, str] | None = None


async def run_chaos(court: CourtProcesses, plan: Plan, say: Callable[[str], None] = lambda _: None) -> Report:
    """Send events and kill processes, restart everything, wait, and count."""
    report = Report(plan.seed, plan.events)
    chance = random.Random(plan.seed)
    prepare(court)
    if plan.broken:
        court.break_role(*plan.broken)
    await _begin(court)
    began = time.monotonic()
    # The bench must not repeat a request to the GitHub stand-in, so the stand-in is not killed during a request.
    asking = asyncio.Lock()
    flowing = asyncio.create_task(_request_reviews(court, plan, asking))
    await _kill_processes(court, plan, chance, report, asking, began)
    await flowing
    report.fault_seconds = time.monotonic() - began
    say(f"{plan.events} events, {sum(report.kills.values())} kills; draining")
    report.drain_seconds = await _drain(court, plan, say)
    report.counts = await read_counts(court)
    await court.end()
    report.findings = judge(report.counts, plan.events, left_processes(court.directory))
    return report


async def run_without_kills(
    court: CourtProcesses, events: int, faults: Sequence[Mapping[str, Any]] = ()
) -> CourtCounts:
    """Send events without kills, and return the counts afterwards."""
    plan = Plan(seconds=1, events=events, seed=0, drain_seconds=_QUIET_SECONDS)
    await _begin(court)
    await court.people("github", "faults", faults)
    await _request_reviews(court, plan, asyncio.Lock())
    await _drain(court, plan, lambda _: None)
    return await read_counts(court)


async def _begin(court: CourtProcesses) -> None:
    await court.start(*STANDINS)
    await court.people("slack", "channels", name=CHANNEL)
    await court.people("github", "limits", poll_interval=1)
    await court.people("github", "hook", url=f"http://127.0.0.1:{court.webhook_port}/webhooks/github", secret=SECRET)
    await court.start(*ROLES)


def prepare(court: CourtProcesses) -> None:
    """Write the settings and the one General, whose agent asks for a comment on its pull request."""
    court.write_settings(
        {
            **SETTINGS,
            "soldiers": {"name": "host-a", "slots": 8, "directory": str(court.directory / "host"), "lease_seconds": 3},
        }
    )
    steps = [
        {"write": "acme-shop/note.txt", "text": "looked\n"},
        {"petition": "github.comment", "body": {"body": "Looked at it."}},
        {"write": "result.json", "text": json.dumps({"status": "success", "summary": "looked"})},
        {"cost": 0.01},
        {"answer": "looked"},
    ]
    query = "Look.\n```script\n" + "\n".join(map(json.dumps, steps)) + "\n```\n"
    court.write_general(
        GENERAL,
        {
            "subscribes": [{"type": "github.pr.review_requested"}],
            "policy": {
                "retries": 5,
                "retry_after_seconds": 1,
                "petitions": [{"kind": "github.comment", "at_most": 1}],
            },
        },
        {"name": "Look", "gitRefs": ["event-repo"], "works": [{"name": "look", "tasks": [query]}]},
    )


def left_processes(directory: Path) -> list[str]:
    """Return processes that still run after the end: agents, git, checks."""
    mark = str(directory)
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "cwd"]):
        words = " ".join(process.info["cmdline"] or ())
        if process.pid != os.getpid() and (mark in words or str(process.info["cwd"] or "").startswith(mark)):
            found.append(f"{process.pid}: {words[:200]}")
    return found


async def _request_reviews(court: CourtProcesses, plan: Plan, asking: asyncio.Lock) -> None:
    """Request a review on one pull request after another, spread over the time."""
    pause = plan.seconds / plan.events
    for number in range(1, plan.events + 1):
        async with asking:
            await court.people("github", "pull_request", repository=REPO, title=f"Change {number}", head=f"b{number}")
            await court.people("github", "review_request", repository=REPO, number=number)
        await asyncio.sleep(pause)


async def _kill_processes(
    court: CourtProcesses, plan: Plan, chance: random.Random, report: Report, asking: asyncio.Lock, began: float
) -> None:
    """Kill one process after another, and restart each one later."""
    victims = [*ROLES, *STANDINS, *([DATABASE] if plan.postmaster else [])]
    returning: dict[str, asyncio.Task[None]] = {}
    while time.monotonic() - began < plan.seconds or report.kills.total() < _KILLS_MIN:
        away_now = {name for name, task in returning.items() if not task.done()}
        there = [each for each in victims if each == DATABASE or each in set(court.names()) - away_now]
        # Every process is killed once before any is killed twice.
        fewest = min(report.kills[each] for each in there)
        victim = chance.choice([each for each in there if report.kills[each] == fewest])
        if victim == DATABASE:
            _kill_backend(plan.postmaster, chance)
        elif victim in STANDINS:
            async with asking:
                await court.kill(victim)
                await court.start(victim)
        else:
            await court.kill(victim)
            away = chance.uniform(*_AWAY_SECONDS)
            returning[victim] = asyncio.create_task(_restart_later(court, victim, away))
        report.kills[victim] += 1
        await asyncio.sleep(chance.uniform(*_STRIKE_EVERY_SECONDS))
    await asyncio.gather(*returning.values())


async def _restart_later(court: CourtProcesses, name: str, away: float) -> None:
    await asyncio.sleep(away)
    # A role whose database is in recovery ends at once, and is restarted.
    while name not in court.names():
        with suppress(AssertionError):
            await court.start(name)


def _kill_backend(postmaster: int | None, chance: random.Random) -> None:
    """Kill a server process, so that the server drops every connection and recovers."""
    if postmaster is None:
        return
    children = [child for child in psutil.Process(postmaster).children() if "postgres" in child.name()]
    if children:
        with suppress(psutil.NoSuchProcess):
            chance.choice(children).send_signal(signal.SIGKILL)


async def _drain(court: CourtProcesses, plan: Plan, say: Callable[[str], None]) -> float:
    """Wait with all processes running until nothing is open."""
    began = time.monotonic()
    shown = 0.0
    while time.monotonic() - began < plan.drain_seconds:
        for name in (*STANDINS, *ROLES):
            if name not in court.names():
                await court.start(name)
        with suppress(Exception):
            counts = await read_counts(court)
            if counts.ended >= plan.events and not counts.open_events:
                break
            if time.monotonic() - shown > 15:
                shown = time.monotonic()
                say(f"{counts.ended} of {plan.events} ended, open: {counts.open_events}")
        await asyncio.sleep(_LOOK_SECONDS)
    return time.monotonic() - began
