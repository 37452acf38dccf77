"""A court that performs petitions against stand-ins, on a real bus with a real Worker."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import aiohttp

from kingdom.bus import (
    EFFECTS,
    Bus,
    Dispatcher,
    Event,
    LogCursor,
    LogEntry,
    Record,
    RecordQuery,
    RetryPolicy,
    Topology,
    Transaction,
    Worker,
    find_ledger,
)
from kingdom.bus.operations import Operations, Situation
from kingdom.bus.sequence import SEQUENCES
from kingdom.clock import utc_now
from kingdom.court import records, streams
from kingdom.court.documents import Assignment, AssignmentStatus, Priority
from kingdom.court.envoy.answers import PersonAnswer, SubmissionResult, submit_answer
from kingdom.court.followups.polls import PULL_POLLS
from kingdom.court.followups.records import FOLLOWUPS
from kingdom.court.package import FollowPolicy, GeneralPolicy, PetitionRule
from kingdom.court.petitions.decision import PETITIONS, Petition, PetitionState
from kingdom.court.petitions.effects import LONGEST_SEND
from kingdom.court.petitions.github.access import GithubAccess, UserToken
from kingdom.court.petitions.github.api import GithubApi
from kingdom.court.petitions.github.check_reruns import CheckReruns
from kingdom.court.petitions.github.effect import GithubPetitions
from kingdom.court.petitions.granting import grant_waiting_petitions
from kingdom.court.petitions.intake import handle_petition
from kingdom.court.petitions.jira import JiraApi, JiraPetitions
from kingdom.court.petitions.records import petitions_of
from kingdom.court.questions import QUESTIONS, QuestionStatus, load_question
from kingdom.standins.faults import ServerFault
from kingdom.standins.jira.application import EMAIL
from kingdom.standins.jira.application import TOKEN as JIRA_TOKEN
from kingdom.standins.server import FAULTS, STATE_FILE, RunningServer
from kingdom.workflow.model.messages.answers import AgentPetitioned
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.records import KINDS as WORKFLOW_KINDS
from kingdom.workflow.verdicts import PetitionVerdict, load_verdict
from tests import warm
from tests.contract.backends import BackendUnderTest
from tests.contract.scene import eventually
from tests.patience import PATIENCE_SECONDS
from tests.unit.workflow.model.scene import NOON, template

ROOT = "task-20261115-001"
REPO = "acme/rocket"
TICKET = "QP-1"
LONGEST_CALL = timedelta(seconds=60)
# A stand-in shows its changes at once, so a lookup does not have to wait for the time limits of calls.
SETTLES_AFTER = timedelta(seconds=0.1) - LONGEST_SEND - LONGEST_CALL
RERUN_SETTLES_AFTER = timedelta(seconds=0.1) - LONGEST_CALL
KINDS = (EFFECTS, SEQUENCES, *WORKFLOW_KINDS, *records.KINDS, PETITIONS, FOLLOWUPS, PULL_POLLS, QUESTIONS)
# Retries follow almost at once, so tests do not wait for them.
_BRISK = replace(
    streams.PETITION_STREAM,
    retry=RetryPolicy(base=timedelta(milliseconds=50), cap=timedelta(milliseconds=200), max_attempts=50),
)
TOPOLOGY = Topology(
    [_BRISK if name == _BRISK.name else streams.TOPOLOGY.stream(name) for name in streams.TOPOLOGY.names()]
)
ALLOWED = GeneralPolicy(
    result_people=("*",),
    petitions=tuple(
        PetitionRule(kind=kind, at_most=3)
        for kind in (
            "github.comment",
            "github.summary",
            "github.review",
            "github.pull_request",
            "github.push",
            "github.reply",
            "jira.comment",
            "jira.transition",
            "slack.message",
        )
    ),
)
RUN = Workflow.copied_from(template(), f"wf-{ROOT}", NOON)


def assignment(**more: Any) -> Assignment:
    fields: dict[str, Any] = {
        "id": ROOT,
        "event_id": "evt-github-1",
        "target_general": "gen-pr",
        "type": "github.pr.review_requested",
        "payload": {"number": 1, "key": TICKET},
        "priority": Priority.NORMAL,
        "created_at": NOON,
        "status": AssignmentStatus.IN_PROGRESS,
        "repo": REPO,
    }
    return Assignment(**fields | more)


def github_effect(url: str) -> GithubPetitions:
    return GithubPetitions(GithubApi(url, UserToken("github-token"), LONGEST_CALL), ["kingdom-bot"], SETTLES_AFTER)


def jira_effect(url: str) -> JiraPetitions:
    return JiraPetitions(JiraApi(url, EMAIL, JIRA_TOKEN, LONGEST_CALL), SETTLES_AFTER)


class Scene:
    """One store, the stand-ins, and petitions of agents."""

    def __init__(self, backend: BackendUnderTest, bus: Bus, github: RunningServer, jira: RunningServer) -> None:
        self.backend = backend
        self.bus = bus
        self.github = github
        self.jira = jira
        self.operations: Operations = backend.operations(bus)
        self._numbers = itertools.count(1)
        # The authorization for running checks again, if it is not the token of a user.
        self.access: GithubAccess | None = None

    async def make_petition(
        self,
        kind: str,
        body: dict[str, Any],
        *,
        policy: GeneralPolicy = ALLOWED,
        run: Workflow = RUN,
        root: Assignment | None = None,
        name: str = "",
        unused_systems: Collection[str] = (),
        follow: FollowPolicy | None = None,
    ) -> Petition:
        """Make a petition as an agent."""
        async with self.bus.transaction() as transaction:
            return await handle_petition(
                transaction,
                root or assignment(),
                policy,
                run,
                AgentPetitioned(
                    host="host-a",
                    epoch=1,
                    attempt=1,
                    work_id="look",
                    task_id="look",
                    petition_id=name or f"petition-{next(self._numbers)}",
                    kind=kind,
                    body=body,
                ),
                at=utc_now(),
                channel="dev",
                unused_systems=unused_systems,
                follow=follow,
            )

    async def comment(self, text: str = "Well done.", **more: Any) -> Petition:
        return await self.make_petition("github.comment", {"body": text}, **more)

    async def check_waiting(self, run: Workflow = RUN) -> None:
        """Let the General check the waiting petitions."""
        async with self.bus.transaction() as transaction:
            await grant_waiting_petitions(transaction, ROOT, run)

    async def answer(self, asked: Petition, text: str, person: str = "anna") -> SubmissionResult:
        """Let a person answer the question about a petition."""
        given = PersonAnswer(
            source="cli", question_id=asked.id, text=text, person=person, at=f"{next(self._numbers)}.0"
        )
        async with self.bus.transaction() as transaction:
            return await submit_answer(transaction, given, utc_now())

    async def question(self, asked: Petition) -> QuestionStatus | None:
        """Return the status of the question about a petition, if there is one."""
        async with self.bus.transaction() as transaction:
            found = await load_question(transaction, asked.id)
        return found[1].status if found else None

    async def verdict(self, name: str) -> PetitionVerdict | None:
        """Return the verdict on the petition that an agent made under this name."""
        async with self.bus.transaction() as transaction:
            return await load_verdict(transaction, name)

    async def petitions(self) -> list[Petition]:
        async with self.bus.transaction() as transaction:
            return await petitions_of(transaction, ROOT)

    async def now(self, asked: Petition) -> Petition:
        [found] = [each for each in await self.petitions() if each.id == asked.id]
        return found

    async def until(self, asked: Petition, state: PetitionState) -> Petition:
        async def reached() -> Petition | None:
            found = await self.now(asked)
            return found if found.state is state else None

        found = await eventually(reached, f"the petition is {state}")
        assert found is not None
        return found

    async def attempts(self, asked: Petition) -> list[str]:
        """Return the states of all attempts at a petition."""
        async with self.bus.transaction() as transaction:
            ledger = await find_ledger(transaction, asked.system, asked.key)
        return [attempt.state for attempt in ledger.document.attempts] if ledger else []

    async def records(self, kind: str) -> list[Record]:
        async with self.bus.transaction() as transaction:
            return await transaction.find(RecordQuery(kind=kind))

    async def settled(self) -> list[tuple[str, str]]:
        """Return the notices to the General about petitions that have ended."""
        rows = [row for row in self.backend.picture().rows if row.stream == streams.SETTLED_STREAM.name]
        return [await self._situation(row.event_id) for row in rows]

    async def _situation(self, event_id: Any) -> tuple[str, str]:
        [situation] = await self.operations.situations(event_id)
        return situation.type, situation.partition_key or ""

    async def log(self, count: int) -> list[LogEntry]:
        """Wait for this many log entries of petitions, and return them. An entry is readable soon after its commit."""

        async def read() -> list[LogEntry]:
            entries = [logged.entry for logged in await self.operations.read_log(LogCursor(), 1000)]
            found = [entry for entry in entries if entry.type.startswith("petition.")]
            return found if len(found) >= count else []

        return await eventually(read, f"{count} entries can be read")

    async def waiting(self) -> list[Situation]:
        """Return the situations of the events in the stream of petitions that have not ended, or ended dead."""
        rows = [row for row in self.backend.picture().rows if row.stream == streams.PETITION_STREAM.name]
        return [(await self.operations.situations(row.event_id))[0] for row in rows]

    def trouble(self, site: RunningServer, **fault: Any) -> None:
        site.application[FAULTS].add([ServerFault(**fault)])

    def made(self, site: RunningServer, call: str, **about: Any) -> int:
        """Return how often a stand-in has executed a call."""
        return site.application[STATE_FILE].count(call, **about)

    def texts(self, kind: str = "comments") -> list[str]:
        """Return the texts of all comments on GitHub, or of another kind."""
        return [each["body"] for each in self.github.application[STATE_FILE].state[kind]]

    async def people(self, site: RunningServer, what: str, **doing: Any) -> Any:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{site.url}/_control/{what}", json=doing) as answer,
        ):
            assert answer.ok, await answer.text()
            return await answer.json()

    @asynccontextmanager
    async def performing(self) -> AsyncIterator[None]:
        """Run a Worker that performs petitions, within the block."""
        effects = {"github": github_effect(self.github.url), "jira": jira_effect(self.jira.url)}
        reruns_api = GithubApi(self.github.url, self.access or UserToken("github-token"), LONGEST_CALL)
        dispatcher = Dispatcher()
        for system, effect in effects.items():
            dispatcher.effect(streams.PETITION_GRANTED[system], effect)
        dispatcher.effect(streams.CHECK_RERUN_DUE, CheckReruns(reruns_api, RERUN_SETTLES_AFTER))
        worker = Worker(self.bus, dispatcher, [streams.PETITION_STREAM.name], poll=timedelta(milliseconds=20))
        running = asyncio.create_task(worker.run())
        try:
            yield
        finally:
            worker.stop()
            await asyncio.wait_for(running, PATIENCE_SECONDS)
            for effect in effects.values():
                await effect._api.close()
            await reruns_api.close()

    @asynccontextmanager
    async def caring(self) -> AsyncIterator[None]:
        """Run a General that checks waiting petitions after each notice, within the block."""
        dispatcher = Dispatcher()

        async def go_on(received: Event[Any], transaction: Transaction) -> None:
            await grant_waiting_petitions(transaction, received.payload.root, RUN)

        for notice in (streams.PETITION_SETTLED, streams.PETITIONS_DUE):
            dispatcher.reaction(notice)(go_on)
        worker = Worker(self.bus, dispatcher, [streams.SETTLED_STREAM.name], poll=timedelta(milliseconds=20))
        running = asyncio.create_task(worker.run())
        try:
            yield
        finally:
            worker.stop()
            await asyncio.wait_for(running, PATIENCE_SECONDS)

    async def run_until_killed(self, moment: str) -> int:
        """Run a worker in its own process, which is killed before or after its first call. Then end its lease."""
        arguments = [self.backend.name, self.backend.place, self.github.url, self.jira.url, moment]
        child = await warm.start("tests.integration.court.petitions.child", *arguments)
        try:
            ended = await asyncio.wait_for(child.wait(), PATIENCE_SECONDS)
        finally:
            await child.end()
        self.backend.expire(self.backend.picture().leases)
        return ended


@asynccontextmanager
async def opened(backend: BackendUnderTest, github: RunningServer, jira: RunningServer) -> AsyncIterator[Scene]:
    """Open a store, with a pull request of another person on GitHub and a ticket in Jira."""
    async with backend.open(TOPOLOGY, KINDS) as bus:
        scene = Scene(backend, bus, github, jira)
        await scene.people(github, "pull_request", repository=REPO, title="Add a fin", head="fin")
        await scene.people(jira, "tickets", project="QP", summary="It does not fly")
        yield scene
