"""Budgets in the whole court: a run that reaches its budget stops within the turn, and the ledger has every cent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path

import pytest

from kingdom.bus import RecordQuery
from kingdom.court.documents import Assignment, AssignmentStatus, EventStatus
from kingdom.court.general.context import run_id_of_root
from kingdom.court.king.release import BILLS
from kingdom.court.quota import MONEY, QUOTAS
from kingdom.court.streams import TOPOLOGY
from kingdom.soldiers.agent_kinds import AGENT_KINDS, build_agent_environment
from kingdom.soldiers.agents.transcript import read_entries
from kingdom.soldiers.host.host import SoldierHost
from kingdom.soldiers.settings import AgentName, ModelSettings, SoldierSettings
from kingdom.soldiers.workplace.host_folders import HostFolders
from kingdom.workflow import lifecycle
from kingdom.workflow.model.resources.template import OverBudget
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkflowStatus
from tests.contract.backends import BackendUnderTest
from tests.fakes.model.stub import ModelStub
from tests.integration.court.general.scene import EVERY_KIND, CourtScene, opened, reports, work
from tests.integration.running import eventually
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.usefixtures("patient_with_claude")
SUCCESS = reports(status="success", summary="done")
# The first Work stays within the budget. The turn of the second exceeds it and has more steps.
CHEAP = work("cheap", SUCCESS, {"cost": 0.25})
COSTLY = work("dear", SUCCESS, {"cost": 0.5}, {"run": "true"}, {"cost": 0.5}, {"wait_for": "may-go"}, {"cost": 0.25})
# Claude asks its model again for the response that exceeded the budget, because that response had no effect yet.
COST_IN_ALL = {"scripted": 1.5, "claude": 2.0}


@pytest.fixture
async def model() -> AsyncIterator[ModelStub]:
    async with ModelStub() as model:
        yield model


@pytest.fixture
async def court(
    backend: BackendUnderTest, tmp_path: Path, model: ModelStub, agent: AgentName
) -> AsyncIterator[CourtScene]:
    """A court whose host runs one kind of agent, in its sandbox if it has one."""
    settings = SoldierSettings(agent=agent, model=ModelSettings(url=model.url, key="a-key-of-nobody"))
    async with opened(backend, tmp_path / "machine", with_host=False) as court, _host(backend, court, settings):
        yield court


@asynccontextmanager
async def _host(backend: BackendUnderTest, court: CourtScene, settings: SoldierSettings) -> AsyncIterator[None]:
    async with backend.open(TOPOLOGY, EVERY_KIND) as bus:
        host = SoldierHost(
            bus,
            "host-a",
            AGENT_KINDS[settings.agent].client(settings),
            HostFolders(court.folder / "host-a"),
            slots=2,
            agent_environment=build_agent_environment(settings, lambda _: None, set()),
        )
        running = asyncio.create_task(host.run())
        try:
            yield
        finally:
            host.stop()
            await asyncio.wait_for(running, PATIENCE_SECONDS)


async def until_event(court: CourtScene, event_id: str, status: EventStatus) -> None:
    async def there() -> bool:
        return (await court.event(event_id)).status is status

    await eventually(there, PATIENCE_SECONDS)


async def until_asking(court: CourtScene) -> Assignment:
    async def asks() -> bool:
        return [each.status for each in await court.assignments()] == [AssignmentStatus.NEEDS_HUMAN]

    await eventually(asks, PATIENCE_SECONDS)
    return (await court.assignments())[0]


async def run_of(court: CourtScene, root_id: str) -> Workflow:
    return await lifecycle.show(court.bus, run_id_of_root(root_id))


def cost_in_transcripts(court: CourtScene) -> float:
    """Return the costs in the transcripts, the last one of each turn."""
    turns: dict[tuple[str, str], float] = {}
    for transcript in HostFolders(court.folder / "host-a").sessions.glob("*.json"):
        for entry in read_entries(transcript):
            if "costUsd" in entry:
                turns[transcript.name, entry["prompt"]] = entry["costUsd"]
    return sum(turns.values())


async def until_ledger_has(court: CourtScene, usd: float) -> None:
    """Wait until the bills and the spending of the day reach an amount."""

    async def booked() -> bool:
        async with court.bus.transaction() as transaction:
            bills = await transaction.find(RecordQuery(kind=BILLS.name))
            money = await transaction.get(QUOTAS.name, MONEY)
        billed = sum((Decimal(record.doc["usd"]) for record in bills), Decimal(0))
        of_the_day = Decimal(money.doc.get("spent", 0)) if money else None
        return billed == of_the_day == Decimal(str(round(usd, 6)))

    await eventually(booked)


@pytest.mark.parametrize(
    ("backend", "agent"),
    [("files", "scripted"), ("postgres", "scripted"), ("postgres", "claude")],
    indirect=["backend"],
)
async def test_a_run_that_hits_its_budget_stops_within_the_turn_and_the_ledger_has_its_cost(
    court: CourtScene, model: ModelStub, agent: AgentName
) -> None:
    court.has(CHEAP, COSTLY, budget_usd=1)
    event_id = await court.send_event()
    asking = await until_asking(court)
    assert asking.reason.endswith("has cost $1.25 of its budget of $1.00. Should it go on with another $1.00?")
    stopped = await run_of(court, asking.id)
    assert stopped.status is WorkflowStatus.AWAITING
    assert stopped.cost_usd == pytest.approx(1.25, abs=1e-4)
    assert stopped.cost_usd == pytest.approx(cost_in_transcripts(court), abs=1e-6)
    assert len(await court.logged("QuerySent")) == 2
    await until_ledger_has(court, stopped.cost_usd)
    assert await court.held() == {}
    asked = len(model.asked)

    space = stopped.works[1].work_space_id
    assert space
    (HostFolders(court.folder / "host-a").work_space(stopped.general, space) / "may-go").touch()
    await court.answer(asking.id, "go on")
    await until_event(court, event_id, EventStatus.COMPLETED)
    completed = await run_of(court, asking.id)
    assert completed.works[1].agent.session == stopped.works[1].agent.session
    assert completed.cost_usd == pytest.approx(COST_IN_ALL[agent], abs=1e-4)
    assert completed.cost_usd == pytest.approx(cost_in_transcripts(court), abs=1e-6)
    await until_ledger_has(court, completed.cost_usd)
    if agent == "claude":
        assert len(model.asked) > asked
        assert completed.cost_usd == pytest.approx(model.charged_usd, abs=1e-6)


@pytest.mark.parametrize("backend", ["files"], indirect=True)
@pytest.mark.parametrize("agent", ["scripted", "claude"])
async def test_no_request_is_sent_to_the_model_once_the_budget_is_spent(
    court: CourtScene, model: ModelStub, agent: AgentName
) -> None:
    tried = ({"write": "app/tried.txt"}, {"answer": "done"})
    court.has(
        work("look", SUCCESS, {"cost": 1.25}, {"wait_for": "never"}, *tried),
        budget_usd=1,
        over_budget=OverBudget.STOP,
    )
    event_id = await court.send_event()
    await until_event(court, event_id, EventStatus.FAILED)
    assert (await court.event(event_id)).reason.endswith("has cost $1.25 of its budget of $1.00")
    stopped = await run_of(court, (await court.assignments())[0].id)
    assert stopped.cost_usd == pytest.approx(cost_in_transcripts(court), abs=1e-6)
    await until_ledger_has(court, stopped.cost_usd)
    assert list(court.folder.rglob("tried.txt")) == []
    if agent == "claude":
        assert stopped.cost_usd == pytest.approx(model.charged_usd, abs=1e-6) == pytest.approx(1.25)
        last = model.asked[-1].answer
        assert last
        assert last.usage
