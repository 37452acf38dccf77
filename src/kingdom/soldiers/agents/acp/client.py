"""The client of all agents that speak ACP: starts them as processes of their own, and knows sessions without one."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from kingdom.soldiers.agent_tools.relay import answer_tool_call
from kingdom.soldiers.agents.acp.memory import Past
from kingdom.soldiers.agents.acp.outfit import Outfit, outfit, program_of, put_aside, search_path
from kingdom.soldiers.agents.acp.profile import Profile
from kingdom.soldiers.agents.model_url import model_url
from kingdom.soldiers.agents.port import Agent, AgentClient, Inspection, Launch, return_when_ready
from kingdom.soldiers.agents.session_log import SessionLog, load_history
from kingdom.soldiers.agents.transcript import inspect_transcript
from kingdom.soldiers.processes.program import Program, start_program
from kingdom.soldiers.sandbox.gate import Gate
from kingdom.soldiers.sandbox.prices import Price


class AcpAgents(AgentClient):
    """Runs the agent of a profile, which npm has installed into `directory` or which is on the PATH of agents.

    `prices` go by the name of a model and come before those of the profile.
    """

    name = "acp"
    has_process = True

    def __init__(
        self,
        profile: Profile,
        *,
        directory: Path | None = None,
        prices: Mapping[str, Price] | None = None,
        contained: bool | None = None,
    ) -> None:
        self.profile = profile
        self._directory = directory
        self._prices = prices or {}
        self._contained = contained

    def program(self, path: str) -> Path:
        """See the port."""
        return program_of(self.profile, search_path(path, self._directory))

    async def start(self, launch: Launch) -> Agent:
        """Start the process and wait until it has its session."""
        # In a thread, for the library takes long to load.
        module = await asyncio.to_thread(import_module, "kingdom.soldiers.agents.acp.agent")
        past = await asyncio.to_thread(load_history, launch, Past, "")
        price = self.profile.price(launch.model or self.profile.model, self._prices)
        url = model_url(launch, self.profile.url)
        fitted = await asyncio.to_thread(outfit, self.profile, launch, price, url, self._directory)
        if launch.session is not None:
            await asyncio.to_thread(put_aside, self.profile, fitted, launch.session)
        async with AsyncExitStack() as stack:
            kit = module.Kit(
                profile=self.profile,
                launch=launch,
                price=price,
                session_log=SessionLog(launch, past),
                voice_url=await _voice_url(launch, stack),
            )
            program = await self._start(fitted, launch)
            agent = module.AcpAgent(program, kit, stack.pop_all())
        return await return_when_ready(agent, agent.comes_up())

    async def inspect(self, launch: Launch, prompt_id: str) -> Inspection:
        """Look the prompt up in our transcript: where that does not tell its end, nobody knows of one."""
        return await asyncio.to_thread(inspect_transcript, launch.transcript, prompt_id)

    async def _start(self, fitted: Outfit, launch: Launch) -> Program:
        return await start_program(
            fitted.argv,
            cwd=launch.work_space,
            environment=fitted.environment,
            errors=launch.errors,
            redaction=launch.redaction,
            contained=self._contained,
            sandbox=fitted.sandbox,
        )


async def _voice_url(launch: Launch, stack: AsyncExitStack) -> str:
    """Return where the agent finds its voice: at the gate of its sandbox, or at one that is opened for it."""
    if launch.tools is None:
        return ""
    if launch.sandbox is not None:
        return f"{launch.sandbox.url}/voice"
    # Not in HOME: the name of a socket must be short.
    folder = stack.enter_context(TemporaryDirectory(prefix="kingdom-voice-"))
    gate = await stack.enter_async_context(
        Gate(Path(folder, "gate"), (), voice=partial(answer_tool_call, launch.tools))
    )
    return f"unix:{gate.socket}"
