"""Broken variants of the recovery: each changes the engine or the host, and the sweep must detect it."""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

import msgspec

from bench.chaos.variants import replace as put_in_place
from bench.crash_sweep import steps
from bench.crash_sweep.course import Variant
from bench.crash_sweep.steps import ENGINE, HOST, Point
from kingdom.bus.delivery import Delivery
from kingdom.bus.outcome import Done, Outcome
from kingdom.bus.worker.dispatcher import HandlerRoute
from kingdom.bus.worker.execution import Execution, _MustRunAlone
from kingdom.bus.worker.unit import Unit
from kingdom.soldiers.agents.claude.client import ClaudeAgentClient
from kingdom.soldiers.agents.port import AgentClient, Inspection, Launch
from kingdom.soldiers.agents.scripted.client import ScriptedAgentClient
from kingdom.soldiers.host import command_handlers
from kingdom.soldiers.host.command_input import CommandInput
from kingdom.soldiers.host.host import SoldierHost
from kingdom.soldiers.host.replies import HostContext
from kingdom.soldiers.workplace.agent_environment import Workplace
from kingdom.workflow.model.messages.answers import TranscriptFinding
from kingdom.workflow.model.messages.commands import StartAgent
from kingdom.workflow.model.references import SessionRef
from kingdom.workflow.records import HOSTS


def settle_first() -> None:
    """Settle the message of a host before the run has taken its step."""

    async def never_together(_: Execution, _unit: Unit, _group: Sequence[Delivery]) -> None:
        raise _MustRunAlone

    async def settle_then_react(execution: Execution, unit: Unit, delivery: Delivery) -> Outcome:
        await execution._settle_alone(unit, delivery, Done())
        async with execution._bus.transaction() as transaction:
            route = execution._dispatcher.route(delivery)
            assert isinstance(route, HandlerRoute)
            return await execution._react(delivery, route, transaction)

    put_in_place(Execution, "_react_together", never_together)
    put_in_place(Execution, "_run_alone", settle_then_react)


def keep_epoch() -> None:
    """Continue after a restart under the old registration of the host."""
    begin = SoldierHost._register

    async def go_on(host: SoldierHost) -> None:
        async with host._bus.transaction() as transaction:
            known = await transaction.get(HOSTS.name, host._name)
        if known is None:
            await begin(host)

    put_in_place(SoldierHost, "_register", go_on)


def forget_session() -> None:
    """Start a new session where an agent should continue its old one."""
    launch = command_handlers._launch

    async def launch_new_session(
        context: HostContext,
        command_input: CommandInput[StartAgent],
        workplace: Workplace,
        stack: AsyncExitStack,
        _earlier: SessionRef | None,
    ) -> Launch:
        command = msgspec.structs.replace(command_input.command, session=None)
        return await launch(context, replace(command_input, command=command), workplace, stack, None)

    put_in_place(command_handlers, "_launch", launch_new_session)


def prompt_again() -> None:
    """Treat a prompt whose end is unknown as a prompt that never arrived."""

    async def inspect(_client: AgentClient, _launch: Launch, _prompt_id: str) -> Inspection:
        return Inspection(finding=TranscriptFinding.ABSENT)

    for client in (ScriptedAgentClient, ClaudeAgentClient):
        put_in_place(client, "inspect", inspect)


VARIANTS: Mapping[str, Variant] = {
    "settle_first": Variant(settle_first, (Point(ENGINE, steps.COMMIT_AFTER, 8),)),
    "keep_epoch": Variant(keep_epoch, (Point(HOST, steps.AGENT_UPDATE, 3),)),
    "forget_session": Variant(forget_session, (Point(HOST, steps.AGENT_UPDATE, 4),)),
    "prompt_again": Variant(prompt_again, (Point(HOST, steps.AGENT_UPDATE, 6),)),
}
