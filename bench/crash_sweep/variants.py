"""Ways to get recovery wrong: each breaks the engine or the host in its own process, and the sweep must find it."""

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

import msgspec

from bench.chaos.variants import replace as put_in_place
from bench.crash_sweep import steps
from bench.crash_sweep.steps import ENGINE, HOST, Point
from kingdom.bus.delivery import Delivery
from kingdom.bus.outcome import Done, Outcome
from kingdom.bus.worker.dispatcher import HandlerRoute
from kingdom.bus.worker.execution import Execution, Unit
from kingdom.soldiers import errands
from kingdom.soldiers.agent import AgentClient, Inspection, Launch
from kingdom.soldiers.answering import Tools
from kingdom.soldiers.briefing import Briefing
from kingdom.soldiers.claude.client import ClaudeAgents
from kingdom.soldiers.host import SoldierHost
from kingdom.soldiers.quarters import Lodging
from kingdom.soldiers.scripted.client import ScriptedAgents
from kingdom.workflow.model.answers import Finding
from kingdom.workflow.model.commands import StartAgent
from kingdom.workflow.records import HOSTS


@dataclass(frozen=True, slots=True)
class Variant:
    """Something broken, and the points at which it must show."""

    break_it: Callable[[], None]
    shows_at: tuple[Point, ...]


def settle_first() -> None:
    """Settle what a host says before the run has taken the step that follows from it."""

    async def never_together(execution: Execution, unit: Unit) -> None:
        await execution._one_by_one(unit)

    async def settle_then_react(execution: Execution, unit: Unit, delivery: Delivery) -> Outcome:
        await execution._settle_all(unit, {delivery: Done()})
        async with execution._bus.transaction() as transaction:
            route = execution._dispatcher.route(delivery)
            assert isinstance(route, HandlerRoute)
            return await execution._react(delivery, route, transaction)

    put_in_place(Execution, "_react_together", never_together)
    put_in_place(Execution, "_run_alone", settle_then_react)


def keep_epoch() -> None:
    """Go on after a restart as the host that was registered before."""
    begin = SoldierHost._begin

    async def go_on(host: SoldierHost) -> None:
        async with host._bus.transaction() as transaction:
            known = await transaction.get(HOSTS.name, host._name)
        if known is None:
            await begin(host)

    put_in_place(SoldierHost, "_begin", go_on)


def forget_session() -> None:
    """Begin a new session where an agent should go on with the one that it had."""
    launch = errands._launch

    async def anew(tools: Tools, briefing: Briefing[StartAgent], lodging: Lodging, stack: AsyncExitStack) -> Launch:
        command = msgspec.structs.replace(briefing.command, session=None)
        return await launch(tools, replace(briefing, command=command), lodging, stack)

    put_in_place(errands, "_launch", anew)


def prompt_again() -> None:
    """Take a prompt that nobody saw end for one that never arrived."""

    async def inspect(_client: AgentClient, _launch: Launch, _prompt_id: str) -> Inspection:
        return Inspection(finding=Finding.ABSENT)

    for client in (ScriptedAgents, ClaudeAgents):
        put_in_place(client, "inspect", inspect)


VARIANTS: Mapping[str, Variant] = {
    "settle_first": Variant(settle_first, (Point(ENGINE, steps.COMMIT_AFTER, 8),)),
    "keep_epoch": Variant(keep_epoch, (Point(HOST, steps.AGENT_UPDATE, 3),)),
    "forget_session": Variant(forget_session, (Point(HOST, steps.AGENT_UPDATE, 4),)),
    "prompt_again": Variant(prompt_again, (Point(HOST, steps.AGENT_UPDATE, 6),)),
}
