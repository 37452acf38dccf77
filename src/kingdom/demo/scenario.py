"""The scenario of the demo: what people do, which processes are killed, and what the demo waits for."""

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
from kingdom.demo.demo_court import DemoCourt
from kingdom.demo.display import DemoDisplay
from kingdom.demo.narration import NarrationLine, Tone
from kingdom.demo.report import DemoReport, KilledProcess, find_problems, list_assignments, list_files
from kingdom.demo.store_watcher import DemoState, StoreWatcher
from kingdom.errors import ProgramFailed
from kingdom.soldiers.files.agent_files import AgentFile
from kingdom.soldiers.workplace.host_folders import HostFolders
from kingdom.workflow.model.run.work import Work
from kingdom.workflow.model.status import QueryStatus
from kingdom.workflow.records import run_transaction

T = TypeVar("T")
DEFAULT_ANSWER = "no"
_ACTOR = "demo"
TICKET = "gen-ticket"
_REVIEW, _GREETER = "gen-review", "gen-greeter"
_BUILD, _BUILD_FINISHED = "build", "build/finished"
_WAITS_FOR_BUILD = "wait for the build"
_POLL_SECONDS = 0.15
# The limit is long, because a busy machine takes long to start six processes.
_TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class ScenarioStep:
    """One step of the scenario: its title, an explanation, and its action."""

    title: str
    explanation: str
    run: Callable[["Scenario"], Awaitable[None]]


class Scenario:
    """Runs the steps one after the other, and shows everything that the store logs meanwhile."""

    def __init__(
        self, court: DemoCourt, display: DemoDisplay, *, person: str, timeout_seconds: float = _TIMEOUT_SECONDS
    ) -> None:
        self.court = court
        self.watcher = StoreWatcher(court.bus, court.realm)
        self._display = display
        self._person = person
        self._timeout_seconds = timeout_seconds
        self._killed: list[KilledProcess] = []
        self._ask: HumanQuestion
        self._began = time.monotonic()

    async def run(self) -> DemoReport:
        """Run all steps and return the report."""
        for number, step in enumerate(STEPS, start=1):
            self._display.begin(number, len(STEPS), step.title, step.explanation)
            await step.run(self)
            await self._pause()
        return await self._create_report()

    async def start(self) -> None:
        """Wait for a heartbeat of every role."""

        def all_running(state: DemoState) -> bool:
            return set(ROLES) <= state.heartbeats.keys()

        services = self.court.services
        for name in services.standins:
            self._tell("outside", f"a stand-in for {name} listens on {services.url(name)}")
        if not services.has_slack:
            self._tell("outside", "slack is left out, since its client is missing: pip install 'kingdom[slack]'")
        await self.wait_until(all_running, "every role sends heartbeats")
        for role in ROLES:
            self._tell(role, f"runs as process {self.court.pid(role)}")

    async def review(self) -> None:
        """Request a review, and wait until its agent asks a person."""
        await self.court.services.request_review()
        (self._ask,) = await self.wait_until(lambda state: state.asks, "the agent asks a person")

    async def answer(self) -> None:
        """Get an answer to the question, and wait for the end of the review."""
        asking = asyncio.create_task(self._display.ask(self._ask, DEFAULT_ANSWER))
        try:
            # The answer may also come from `kingdom answer` in another terminal.
            await self.wait_until(lambda state: asking.done() or not state.asks, "the question is answered")
        finally:
            asking.cancel()
            (given,) = await asyncio.gather(asking, return_exceptions=True)
        text, person = (given, self._person) if isinstance(given, str) else (DEFAULT_ANSWER, _ACTOR)
        await self._answer(self._ask, text, person)
        await self._wait_until_completed(_REVIEW)

    async def kill_agent(self) -> None:
        """Assign a ticket, kill its agent in the middle of its work, and wait for the next agent."""
        await self.court.services.assign_ticket()
        await self.wait_until(lambda _: self._has_waited(1), "the agent waits for the build")
        await self._kill_agent()

    async def kill_king(self) -> None:
        """Kill the King, create an event, and wait until the restarted King has handled the event."""
        pid, since = self.court.pid("king"), utc_now()
        self.court.processes.children["king"].signal(signal.SIGKILL)
        self._tell(_ACTOR, f"kill -9 {pid}: the King is dead", Tone.BAD)
        await self.court.services.mention_bot()

        def successor(_: DemoState) -> int | None:
            found = self.court.pid("king")
            return found if found != pid else None

        restarted = await self.wait_until(successor, "the King is restarted")
        self._tell("king", f"is restarted as process {restarted}", Tone.GOOD)
        back = await self.wait_until(lambda state: _newer(state.heartbeats.get("king"), since), "the King is back")
        self._killed.append(KilledProcess(what="king", pid=pid or 0, back_after_seconds=_seconds(since, back)))
        await self._wait_until_completed(_GREETER)

    async def go_back(self) -> None:
        """Kill the agent again, wait for the rollback to a checkpoint, and finish the build."""
        await self._kill_agent()
        await self.wait_until(lambda _: self._has_waited(2), "the agent waits for the build again")
        work = await self.wait_until(_find_build, "the agent runs")
        AgentFile(HostFolders(self.court.realm).work_space(TICKET, work.work_space_id or ""), _BUILD_FINISHED).write("")
        self._tell(_ACTOR, "finishes the build")
        await self._wait_until_completed(TICKET)

    async def wait_until(self, find: Callable[[DemoState], T | None], what: str) -> T:
        """Show what happens until `find` returns a value, and return it. `what` is for the error after a timeout."""
        deadline = time.monotonic() + self._timeout_seconds
        while not (found := find(await self._refresh())):
            if time.monotonic() > deadline:
                raise ProgramFailed(
                    f"the demo waited {self._timeout_seconds:g} s, but this did not happen: {what}. Run"
                    " `kingdom demo --keep` and read realm/logs/system.log; last lines of the roles:"
                    f" {' '.join(self.court.log_lines)[-2000:]}"
                )
            await asyncio.sleep(_POLL_SECONDS)
        return found

    async def _pause(self) -> None:
        """Give the user time to read, and keep showing what happens."""
        until = time.monotonic() + self._display.pause_seconds
        while time.monotonic() < until:
            await self._refresh()
            await asyncio.sleep(_POLL_SECONDS)

    async def _refresh(self) -> DemoState:
        """Show new lines and the current state; return the state."""
        for line in await self.watcher.read_new_lines():
            self._display.tell(line)
        state = await self.watcher.read_state()
        self._display.show(state)
        return state

    async def _wait_until_completed(self, general: str) -> Assignment:
        def find_finished(state: DemoState) -> Assignment | None:
            found = state.assignment_of(general)
            is_over = found and found.status in (AssignmentStatus.COMPLETED, AssignmentStatus.FAILED)
            return found if is_over else None

        return await self.wait_until(find_finished, f"{general} is done")

    async def _kill_agent(self) -> None:
        work = await self.wait_until(_find_build, "the agent runs")
        pid, attempt, since = work.agent.pid or 0, work.agent.attempt, utc_now()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self._tell(_ACTOR, f"kill -9 {pid}: the agent is dead", Tone.BAD)

        def find_next_attempt(state: DemoState) -> Work | None:
            found = _find_build(state)
            return found if found and found.agent.attempt > attempt else None

        retried = await self.wait_until(find_next_attempt, "another agent continues")
        self._killed.append(KilledProcess(what="agent", pid=pid, back_after_seconds=_seconds(since, utc_now())))
        is_same = retried.agent.session == work.agent.session
        how = "continues the same session" if is_same else "starts a new session"
        self._tell("agent", f"{how} as process {retried.agent.pid}", Tone.GOOD)

    async def _answer(self, ask: HumanQuestion, text: str, person: str) -> None:
        now = utc_now()
        given = PersonAnswer(source="cli", question_id=ask.id, text=text, person=person, at=f"{now.timestamp():.6f}")

        async def act(transaction: Transaction) -> SubmissionResult:
            return await submit_answer(transaction, given, now)

        # The first answer counts. If one came from another terminal, this answer is ignored.
        await run_transaction(self.court.bus, act)

    def _has_waited(self, times: int) -> bool:
        return sum(_WAITS_FOR_BUILD in utterance for utterance in self.watcher.utterances) >= times

    def _tell(self, who: str, what: str, tone: Tone = Tone.PLAIN) -> None:
        self._display.tell(NarrationLine(who, what, tone))

    async def _create_report(self) -> DemoReport:
        state = await self._refresh()
        visible_calls = await self.court.services.count_visible_calls()
        log = self.watcher.log
        resumed = [entry.data["checkpointId"] for entry in log if entry.type == "RolledBack"]
        assignments = list_assignments(state)
        problems = list(find_problems(assignments, visible_calls, resumed[0] if resumed else ""))
        return DemoReport(
            ok=not problems,
            seconds=round(time.monotonic() - self._began, 1),
            directory=str(self.court.directory),
            has_slack=self.court.services.has_slack,
            question=await self.watcher.read_question(),
            kills=self._killed,
            checkpoints=[entry.data["checkpointId"] for entry in log if entry.type == "CheckpointCreated"],
            resumed_from=resumed[0] if resumed else "",
            assignments=assignments,
            cost_usd=round(state.cost_usd, 4),
            outside=visible_calls,
            places=list(list_files(state)),
            findings=problems,
        )


def _find_build(state: DemoState) -> Work | None:
    """Return the Work `build` while its agent runs."""
    run = state.run_of(TICKET)
    work = run.current_work if run else None
    if run is None or work is None or work.definition.name != _BUILD or not work.agent.alive or not work.agent.pid:
        return None
    return work if work.tasks[0].query.status is QueryStatus.SENT else None


def _newer(heartbeat: datetime | None, than: datetime) -> datetime | None:
    return heartbeat if heartbeat and heartbeat > than else None


def _seconds(since: datetime, until: datetime) -> float:
    return round((until - since).total_seconds(), 1)


STEPS = (
    ScenarioStep(
        "A court starts",
        "Six roles, each in its own process. They communicate only through files.",
        Scenario.start,
    ),
    ScenarioStep(
        "A pull request asks for review",
        "The Sentinel notices it, the King assigns it, and a General runs an agent in its own checkout.",
        Scenario.review,
    ),
    ScenarioStep(
        "The agent asks you",
        "The run waits without a process. Your answer continues the same session.",
        Scenario.answer,
    ),
    ScenarioStep(
        "A ticket, and kill -9 for its agent",
        "The agent is killed while it works. Another process continues its session where it stopped.",
        Scenario.kill_agent,
    ),
    ScenarioStep(
        "kill -9 for the King",
        "While the King is dead, an issue mentions the bot. The event waits for the next King.",
        Scenario.kill_king,
    ),
    ScenarioStep(
        "kill -9 again, and back to a checkpoint",
        "After a session fails twice, its run rolls back to the commit of the last completed Work.",
        Scenario.go_back,
    ),
)
