"""The story of the demo: what people do, what is killed, and what is waited for; the rest happens by itself."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from kingdom.bus.port import Transaction
from kingdom.clock import utc_now
from kingdom.court.documents import Assignment, AssignmentStatus
from kingdom.court.envoy.answers import PersonAnswer, SubmissionResult, submit_answer
from kingdom.court.heartbeat import ROLES
from kingdom.court.questions import HumanQuestion
from kingdom.demo.house import House
from kingdom.demo.narration import Line, Tone
from kingdom.demo.report import Kill, Report, ended, findings, places
from kingdom.demo.stage import Stage
from kingdom.demo.watching import Standing, Watcher
from kingdom.errors import ProgramFailed
from kingdom.soldiers.agent_files import AgentFile
from kingdom.soldiers.folders import Folders
from kingdom.workflow.model.machine import QueryStatus
from kingdom.workflow.model.work import Work
from kingdom.workflow.records import change

T = TypeVar("T")
DEFAULT_ANSWER = "no"
_DEMO = "demo"
TICKET = "gen-ticket"
_REVIEW, _GREETER = "gen-review", "gen-greeter"
_BUILD, _BUILT = "build", "build/finished"
_WAITS_FOR_BUILD = "wait for the build"
_POLL_SECONDS = 0.15
# A loaded machine takes its time to start six processes.
_PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Step:
    """One part of the story: what it is called, what to look at, and what is done."""

    title: str
    words: str
    play: Callable[["Story"], Awaitable[None]]


class Story:
    """Plays the steps one after the other, and tells everything that the store says meanwhile."""

    def __init__(self, house: House, stage: Stage, *, person: str) -> None:
        self.house = house
        self.watcher = Watcher(house.bus, house.realm)
        self._stage = stage
        self._person = person
        self._kills: list[Kill] = []
        self._ask: HumanQuestion
        self._began = time.monotonic()

    async def play(self) -> Report:
        """Play it all, and return what it has shown."""
        for number, step in enumerate(STEPS, start=1):
            self._stage.begin(number, len(STEPS), step.title, step.words)
            await step.play(self)
            await self._rest()
        return await self._report()

    async def start(self) -> None:
        """Wait for a sign of life of every role."""

        def all_live(standing: Standing) -> bool:
            return set(ROLES) <= standing.signs.keys()

        outside = self.house.outside
        for name in outside.standins:
            self._tell("outside", f"a stand-in for {name} listens on {outside.url(name)}")
        if not outside.has_slack:
            self._tell("outside", "slack is left out, its client is not installed: pip install 'kingdom[slack]'")
        await self.until(all_live, "every role gives a sign of life")
        for role in ROLES:
            self._tell(role, f"runs as process {self.house.pid(role)}")

    async def review(self) -> None:
        """Have a review asked for, and wait until its agent asks a person."""
        await self.house.outside.ask_for_review()
        (self._ask,) = await self.until(lambda standing: standing.asks, "the agent asks a person")

    async def answer(self) -> None:
        """Have the question answered, and wait for the end of the review."""
        asking = asyncio.create_task(self._stage.ask(self._ask, DEFAULT_ANSWER))
        try:
            # Somebody may be faster, by `kingdom answer` in another terminal.
            await self.until(lambda standing: asking.done() or not standing.asks, "somebody answers")
        finally:
            asking.cancel()
            (given,) = await asyncio.gather(asking, return_exceptions=True)
        text, person = (given, self._person) if isinstance(given, str) else (DEFAULT_ANSWER, _DEMO)
        await self._answer(self._ask, text, person)
        await self._until_completed(_REVIEW)

    async def kill_agent(self) -> None:
        """Have a ticket implemented, kill its agent in the middle, and wait for the next one."""
        await self.house.outside.assign_ticket()
        await self.until(lambda _: self._waits(1), "the agent waits for the build")
        await self._kill_agent()

    async def kill_king(self) -> None:
        """Kill the King, let something happen, and wait until he has decided it."""
        pid, since = self.house.pid("king"), utc_now()
        self.house.processes.children["king"].signal(signal.SIGKILL)
        self._tell(_DEMO, f"kill -9 {pid}: the King is dead", Tone.BAD)
        await self.house.outside.mention_us()

        def successor(_: Standing) -> int | None:
            found = self.house.pid("king")
            return found if found != pid else None

        again = await self.until(successor, "the King is started again")
        self._tell("king", f"is started again as process {again}", Tone.GOOD)
        back = await self.until(lambda standing: _newer(standing.signs.get("king"), since), "the King is back")
        self._kills.append(Kill(what="king", pid=pid or 0, back_after_seconds=_seconds(since, back)))
        await self._until_completed(_GREETER)

    async def go_back(self) -> None:
        """Kill the agent again, wait for the way back to a checkpoint, and let the build end."""
        await self._kill_agent()
        await self.until(lambda _: self._waits(2), "the agent waits for the build again")
        work = await self.until(_building, "the agent runs")
        AgentFile(Folders(self.house.realm).space(TICKET, work.work_space_id or ""), _BUILT).write("")
        self._tell(_DEMO, "lets the build end")
        await self._until_completed(TICKET)

    async def until(self, look: Callable[[Standing], T | None], what: str) -> T:
        """Tell what happens until something is there, and return it."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not (found := look(await self._look())):
            if time.monotonic() > deadline:
                raise ProgramFailed(
                    f"the demo waited {_PATIENCE_SECONDS:g} s in vain until {what}: `kingdom demo --keep` leaves"
                    f" realm/logs/system.log to look into; the roles said last: {' '.join(self.house.lines)[-2000:]}"
                )
            await asyncio.sleep(_POLL_SECONDS)
        return found

    async def _rest(self) -> None:
        """Give a person time to read; what happens meanwhile is told too."""
        until = time.monotonic() + self._stage.rest_seconds
        while time.monotonic() < until:
            await self._look()
            await asyncio.sleep(_POLL_SECONDS)

    async def _look(self) -> Standing:
        for line in await self.watcher.news():
            self._stage.tell(line)
        standing = await self.watcher.standing()
        self._stage.show(standing)
        return standing

    async def _until_completed(self, general: str) -> Assignment:
        def over(standing: Standing) -> Assignment | None:
            found = standing.assignment_of(general)
            is_over = found and found.status in (AssignmentStatus.COMPLETED, AssignmentStatus.FAILED)
            return found if is_over else None

        return await self.until(over, f"{general} is done")

    async def _kill_agent(self) -> None:
        work = await self.until(_building, "the agent runs")
        pid, attempt, since = work.agent.pid or 0, work.agent.attempt, utc_now()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self._tell(_DEMO, f"kill -9 {pid}: the agent is dead", Tone.BAD)

        def next_one(standing: Standing) -> Work | None:
            found = _building(standing)
            return found if found and found.agent.attempt > attempt else None

        again = await self.until(next_one, "another agent goes on")
        self._kills.append(Kill(what="agent", pid=pid, back_after_seconds=_seconds(since, utc_now())))
        how = "goes on in the same session" if again.agent.session == work.agent.session else "begins a new session"
        self._tell("agent", f"{how} as process {again.agent.pid}", Tone.GOOD)

    async def _answer(self, ask: HumanQuestion, text: str, person: str) -> None:
        now = utc_now()
        given = PersonAnswer(source="cli", question_id=ask.id, text=text, person=person, at=f"{now.timestamp():.6f}")

        async def act(transaction: Transaction) -> SubmissionResult:
            return await submit_answer(transaction, given, now)

        # Of several answers the first one counts, which may be somebody else's.
        await change(self.house.bus, act)

    def _waits(self, times: int) -> bool:
        return sum(_WAITS_FOR_BUILD in words for words in self.watcher.words) >= times

    def _tell(self, who: str, what: str, tone: Tone = Tone.PLAIN) -> None:
        self._stage.tell(Line(who, what, tone))

    async def _report(self) -> Report:
        standing = await self._look()
        outside = await self.house.outside.noticed()
        log = self.watcher.log
        resumed = [entry.data["checkpointId"] for entry in log if entry.type == "RolledBack"]
        assignments = ended(standing)
        found = list(findings(assignments, outside, resumed[0] if resumed else ""))
        return Report(
            ok=not found,
            seconds=round(time.monotonic() - self._began, 1),
            directory=str(self.house.directory),
            has_slack=self.house.outside.has_slack,
            question=await self.watcher.answered(),
            kills=self._kills,
            checkpoints=[entry.data["checkpointId"] for entry in log if entry.type == "CheckpointCreated"],
            resumed_from=resumed[0] if resumed else "",
            assignments=assignments,
            cost_usd=round(standing.cost_usd, 4),
            outside=outside,
            places=list(places(standing)),
            findings=found,
        )


def _building(standing: Standing) -> Work | None:
    """Return the Work that builds, while its agent is at it."""
    run = standing.run_of(TICKET)
    work = run.current_work if run else None
    if run is None or work is None or work.definition.name != _BUILD or not work.agent.alive or not work.agent.pid:
        return None
    return work if work.tasks[0].query.status is QueryStatus.SENT else None


def _newer(sign: datetime | None, than: datetime) -> datetime | None:
    return sign if sign and sign > than else None


def _seconds(since: datetime, until: datetime) -> float:
    return round((until - since).total_seconds(), 1)


STEPS = (
    Step(
        "A court starts",
        "Six roles, each a process of its own. All they know of each other stands in files.",
        Story.start,
    ),
    Step(
        "A pull request asks for review",
        "The Sentinel notices, the King decides, a General has it done by an agent in a checkout of its own.",
        Story.review,
    ),
    Step(
        "The agent asks you",
        "The run waits without a process. Your answer lets the same session go on.",
        Story.answer,
    ),
    Step(
        "A ticket, and kill -9 for its agent",
        "In the middle of its work. Another process goes on in the same session, where it was.",
        Story.kill_agent,
    ),
    Step(
        "kill -9 for the King",
        "While he is dead, somebody mentions us in an issue. It waits for the next King.",
        Story.kill_king,
    ),
    Step(
        "kill -9 again, and back to a checkpoint",
        "A session that failed twice is given up: its run goes back to the commit behind the last good Work.",
        Story.go_back,
    ),
)
