"""A host and its store: an outage of the store, lost answers, and a second host in the same directory."""

from datetime import timedelta

import msgspec
import pytest

from kingdom.bus import Bus, Record, Transaction
from kingdom.errors import Misconfigured, Unavailable
from kingdom.soldiers.agents.scripted.client import ScriptedAgentClient
from kingdom.soldiers.host import host as hosting
from kingdom.soldiers.host.host import SoldierHost
from kingdom.workflow import lifecycle
from kingdom.workflow.model.messages import answers, commands
from kingdom.workflow.model.messages.answers import TranscriptFinding
from kingdom.workflow.model.resources.host import HostStatus
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkflowStatus, WorkTreeStatus
from kingdom.workflow.records import ACCEPTED, COMMANDS, HOSTS
from tests.fakes.agent_environment import UNCONFINED
from tests.integration.running import eventually
from tests.integration.soldiers.host_barriers import BarredBus, Barrier, accepts, publishes
from tests.integration.soldiers.host_scene import ANNA, APP, LEASE, HostScene, task, work, writes

ONE_BACKEND = pytest.mark.parametrize("backend", ["files"], indirect=True)
LOOKS_OFTEN = pytest.mark.usefixtures("looks_often")
ENDS_EARLY = pytest.mark.usefixtures("ends_early")
# Long enough for a slow machine to renew the lease in time, and to end the agents of a host before it expires.
EXPIRING_LEASE = timedelta(seconds=15)
MORE_THAN_A_PAGE = 110


class Outage:
    """Makes the store unreachable for a host, and counts the answers of a type that the host could not send."""

    def __init__(self, answer: type[answers.HostAnswer] = answers.QueryResponded) -> None:
        self.is_on = False
        self.refused = 0
        self._answer = answer

    def wrap(self, bus: Bus) -> Bus:
        return BarredBus(bus, self._refuse)

    async def _refuse(self, transaction: Transaction) -> None:
        if self.is_on:
            self.refused += publishes(transaction, self._answer.__name__)
            raise Unavailable("the store is unavailable")


class LostConfirmation:
    """Commits the first acceptance of a command of a type, but drops the confirmation to the host."""

    def __init__(self, command: type[commands.HostCommand]) -> None:
        self.happened = False
        self._command = command

    def wrap(self, bus: Bus) -> Bus:
        return BarredBus(bus, self._forget)

    async def _forget(self, transaction: Transaction) -> None:
        if not self.happened and accepts(transaction, self._command):
            self.happened = True
            transaction.changes.after_commit.clear()


class LostAnswer:
    """Drops the first answer to a prompt, with everything that its transaction would write."""

    def __init__(self) -> None:
        self.happened = False

    def wrap(self, bus: Bus) -> Bus:
        return BarredBus(bus, self._lose)

    async def _lose(self, transaction: Transaction) -> None:
        if not self.happened and publishes(transaction, answers.QueryResponded.__name__):
            self.happened = True
            transaction.changes.copies.clear()
            transaction.changes.puts.clear()


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make hosts search for unanswered commands a few times a second, with a long lease."""
    monkeypatch.setattr(hosting, "_RENEWALS_PER_LEASE", LEASE / timedelta(seconds=0.2))


@pytest.fixture
def ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make agents end after half of a lease that was not renewed."""
    # The power keeps a share of 1 or more at 1 or more, so the test fails if the real share is that large.
    monkeypatch.setattr(hosting, "_SAFE_SHARE", hosting._SAFE_SHARE**3)
    monkeypatch.setattr(hosting, "_RENEWALS_PER_LEASE", 15)


async def test_an_answer_of_an_agent_during_an_outage_of_the_store_is_not_lost(scene: HostScene) -> None:
    outage = Outage()
    await scene.start_host(wrap=outage.wrap)
    point = scene.wait_point("one")
    workflow = await scene.begin(writes("one", *point.steps))
    await point.reached()

    outage.is_on = True
    point.release()

    async def refused() -> bool:
        return outage.refused > 0

    await eventually(refused)
    assert len(await scene.accepted()) == 1
    outage.is_on = False
    completed = await scene.until(workflow, WorkflowStatus.COMPLETED)
    assert completed.works[0].tasks[0].query.attempt == 1


@pytest.mark.timing
@ONE_BACKEND
@ENDS_EARLY
async def test_a_host_that_cannot_renew_its_lease_ends_its_agents_before_they_are_replaced(
    scene: HostScene,
) -> None:
    outage = Outage()
    await scene.start_host(wrap=outage.wrap, lease=EXPIRING_LEASE)
    point = scene.wait_point("one")
    workflow = await scene.begin(writes("one", *point.steps))
    await point.reached()
    session = (await scene.show(workflow)).works[0].agent.session

    outage.is_on = True

    async def alone() -> bool:
        return not scene.processes()

    await eventually(alone)
    assert await _is_up(scene, "host-a")
    await scene.until_lost("host-a")
    outage.is_on = False
    point.release()
    completed = await scene.until(workflow, WorkflowStatus.COMPLETED)
    assert await scene.epoch_of("host-a") == 2
    assert completed.works[0].agent.session == session


@pytest.mark.timing
@ONE_BACKEND
@ENDS_EARLY
async def test_agents_end_before_the_lease_expires_while_its_renewal_hangs(scene: HostScene) -> None:
    await scene.share_checkpoints()
    point = scene.wait_point("one")
    barrier = Barrier(lambda transaction: point.is_there.exists() and _is_search(transaction))
    await scene.start_host("host-a", wrap=barrier.wrap, lease=EXPIRING_LEASE)
    workflow = await scene.begin(writes("one", *point.steps))
    await barrier.reached()
    assert scene.processes("host-a") != []
    await scene.start_host("host-b")

    async def alone() -> bool:
        return not scene.processes("host-a")

    await eventually(alone)
    assert await _is_up(scene, "host-a")

    def goes_on_elsewhere(_: Workflow) -> bool:
        assert scene.processes("host-a") == []
        return scene.processes("host-b") != []

    await scene.until_true(workflow, goes_on_elsewhere)
    point.release()
    completed = await scene.until(workflow, WorkflowStatus.COMPLETED)
    assert completed.placement is not None
    assert completed.placement.host == "host-b"
    barrier.open()
    await scene.until_registered("host-a", 2)


@LOOKS_OFTEN
async def test_a_command_with_an_unconfirmed_acceptance_is_executed(scene: HostScene) -> None:
    lost = LostConfirmation(commands.StartAgent)
    await scene.start_host(wrap=lost.wrap)
    workflow = await scene.begin(writes("one", report=False))
    completed = await scene.until(workflow, WorkflowStatus.COMPLETED)
    assert lost.happened
    assert completed.works[0].agent.attempt == 1


@ONE_BACKEND
@LOOKS_OFTEN
async def test_a_prompt_whose_answer_was_lost_is_not_sent_again(scene: HostScene) -> None:
    lost = LostAnswer()
    assert await _finding_after_loss(scene, lost) is TranscriptFinding.ANSWERED
    assert lost.happened


@ONE_BACKEND
@LOOKS_OFTEN
async def test_a_prompt_whose_acceptance_was_not_confirmed_is_looked_up_and_sent(scene: HostScene) -> None:
    lost = LostConfirmation(commands.SendQuery)
    assert await _finding_after_loss(scene, lost) is TranscriptFinding.ABSENT
    assert lost.happened


@ONE_BACKEND
@LOOKS_OFTEN
async def test_one_search_finds_all_unanswered_commands_even_on_several_pages(scene: HostScene) -> None:
    diary: list[str] = []

    async def note(transaction: Transaction) -> None:
        for put in transaction.changes.puts.values():
            if put.record.kind == HOSTS.name:
                diary.append("looks again")
            elif put.record.kind == COMMANDS.name:
                diary.append(put.record.id)

    await scene.start_host(wrap=lambda bus: BarredBus(bus, note))
    forgotten = await _leave_accepted(scene, commands.ReleaseWorkTree, MORE_THAN_A_PAGE)

    async def all_found() -> bool:
        return set(forgotten) <= set(diary)

    await eventually(all_found)
    found = [index for index, word in enumerate(diary) if word in forgotten]
    assert "looks again" not in diary[found[0] : found[-1]]


@ONE_BACKEND
async def test_a_restarted_host_gives_up_all_commands_that_it_had_accepted_before(scene: HostScene) -> None:
    await _leave_accepted(scene, commands.StartAgent, MORE_THAN_A_PAGE)
    await scene.start_host()
    assert await scene.accepted() == []


@ONE_BACKEND
@LOOKS_OFTEN
async def test_an_unanswered_command_that_is_obsolete_is_not_executed(scene: HostScene) -> None:
    lost = LostConfirmation(commands.StartAgent)
    looks = Barrier(lambda transaction: lost.happened and _is_search(transaction))
    await scene.start_host(wrap=lambda bus: looks.wrap(lost.wrap(bus)))
    workflow = await scene.begin(writes("one"))

    async def forgotten() -> bool:
        return any(record.doc["type"] == commands.StartAgent.__name__ for record in await scene.accepted())

    await eventually(forgotten)
    await lifecycle.cancel(scene.bus, workflow.id, actor=ANNA)
    await scene.until(workflow, WorkflowStatus.CANCELLED)
    looks.open()
    await scene.until_all_answered()
    assert lost.happened
    assert not list(scene.folders().sessions.iterdir())


@ONE_BACKEND
@LOOKS_OFTEN
async def test_commands_accepted_under_an_earlier_placement_are_not_executed(scene: HostScene) -> None:
    await scene.start_host()
    point = scene.wait_point("one")
    workflow = await scene.begin(writes("one", *point.steps))
    await point.reached()
    earlier = commands.StartAgent(
        workflow_id=workflow.id,
        host="host-a",
        epoch=0,
        attempt=1,
        work_id=workflow.works[0].id,
        work_space_id="earlier",
        model="",
        session=None,
        work_tree_ids=(),
        mcp_server_refs=(),
        reports=(),
    )
    document = {"type": commands.StartAgent.__name__, **msgspec.to_builtins(earlier)}
    left = Record(
        kind=COMMANDS.name, id=f"{workflow.id}.earlier", state=ACCEPTED, indexed={"host": "host-a"}, doc=document
    )
    async with scene.bus.transaction() as transaction:
        await transaction.put(left)

    async def given_up() -> bool:
        return left.id not in {record.id for record in await scene.accepted()}

    await eventually(given_up)
    point.release()
    await scene.until(workflow, WorkflowStatus.COMPLETED)
    assert len(list(scene.folders().sessions.glob("*.json"))) == 1


@ONE_BACKEND
@LOOKS_OFTEN
async def test_the_checkout_of_an_ended_run_is_removed_although_the_host_ends_in_between(scene: HostScene) -> None:
    lost = LostConfirmation(commands.ReleaseWorkTree)
    host = await scene.start_host(wrap=lost.wrap)
    workflow = await scene.begin(work("one", task({"write": f"{APP}/one.txt"})))
    completed = await scene.until(workflow, WorkflowStatus.COMPLETED)
    await lifecycle.release(scene.bus, workflow.id, actor=ANNA)

    async def happened() -> bool:
        return lost.happened

    await eventually(happened)
    await scene.stop_host(host)
    await scene.start_host()
    await scene.until_true(workflow, lambda now: now.work_trees[0].status is WorkTreeStatus.RELEASED)
    assert not scene.tree(completed).exists()


@ONE_BACKEND
@LOOKS_OFTEN
async def test_a_host_whose_lease_renewal_fails_because_of_a_bug_ends_with_all_it_runs(scene: HostScene) -> None:
    point = scene.wait_point("one")

    async def break_renewal(transaction: Transaction) -> None:
        if point.is_there.exists() and any(kind == HOSTS.name for kind, _ in transaction.changes.puts):
            raise ZeroDivisionError

    host = await scene.start_host(wrap=lambda bus: BarredBus(bus, break_renewal))
    await scene.begin(writes("one", *point.steps))
    await point.reached()
    with pytest.raises(ZeroDivisionError):
        await scene.ended(host)
    assert scene.processes() == []


@ONE_BACKEND
async def test_a_second_host_in_the_same_directory_is_refused(scene: HostScene) -> None:
    await scene.start_host("host-a")
    second = SoldierHost(
        scene.bus, "host-b", ScriptedAgentClient(), scene.folders("host-a"), slots=1, agent_environment=UNCONFINED
    )
    with pytest.raises(Misconfigured, match=r"another host uses .*: stop it, or give this host its own directory"):
        await second.run()
    assert await scene.host("host-b") is None


async def _finding_after_loss(scene: HostScene, lost: LostAnswer | LostConfirmation) -> TranscriptFinding:
    """Run a Task whose command or answer is lost once. Return what the host then found about its prompt."""
    await scene.start_host(wrap=lost.wrap)
    workflow = await scene.begin(work("one", task({"append": f"{APP}/one.txt", "text": "once\n"})))
    completed = await scene.until(workflow, WorkflowStatus.COMPLETED)
    assert (scene.tree(completed) / "one.txt").read_text() == "once\n"
    (looked_up,) = await scene.logged(workflow, answers.QueryReconciled)
    return TranscriptFinding(looked_up.data["finding"])


async def _is_up(scene: HostScene, name: str) -> bool:
    host = await scene.host(name)
    return host is not None and host.status is HostStatus.UP


async def _leave_accepted(scene: HostScene, command: type[commands.HostCommand], count: int) -> list[str]:
    """Store this many accepted but obsolete commands of a host, and return the ids of their records."""
    workflow = await scene.create_run(writes("one"))
    over = commands.ReleaseWorkTree(workflow_id=workflow.id, host="host-a", epoch=0, attempt=1, work_tree_id="gone")
    document = {**msgspec.to_builtins(over), "type": command.__name__}
    names = [f"{workflow.id}.{number:03d}" for number in range(count)]
    async with scene.bus.transaction() as transaction:
        for name in names:
            await transaction.put(
                Record(kind=COMMANDS.name, id=name, state=ACCEPTED, indexed={"host": "host-a"}, doc=document)
            )
    return names


def _is_search(transaction: Transaction) -> bool:
    """Return whether a transaction is the search of a host for unanswered commands."""
    return not (transaction.held or transaction.changes.puts or transaction.changes.copies)
