"""Start agents that speak ACP as processes, and inspect their sessions without a process."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from kingdom.soldiers.agent_tools.relay import answer_tool_call
from kingdom.soldiers.agents.acp.history import AcpHistory
from kingdom.soldiers.agents.acp.invocation import (
    AcpInvocation,
    find_program,
    move_session_files_aside,
    prepare_acp_invocation,
    search_path,
)
from kingdom.soldiers.agents.acp.profile import AcpProfile
from kingdom.soldiers.agents.model_url import model_url
from kingdom.soldiers.agents.port import Agent, AgentClient, Inspection, Launch, return_when_ready
from kingdom.soldiers.agents.session_log import SessionLog, load_history
from kingdom.soldiers.agents.transcript import inspect_transcript
from kingdom.soldiers.processes.program import Program, start_program
from kingdom.soldiers.sandbox.model_proxy import ModelProxy
from kingdom.soldiers.sandbox.prices import Price

if TYPE_CHECKING:
    from kingdom.soldiers.agents.acp.agent import AcpAgent, AcpContext


class AcpAgentClient(AgentClient):
    """Runs the agent of a profile. Its program was installed into `directory` by npm, or is on the PATH of agents.

    `prices` are keyed by model name and override those of the profile. `contained` is whether an agent without a
    sandbox runs in its own pid namespace; by default it does if bubblewrap is installed.
    """

    name = "acp"
    has_process = True

    def __init__(
        self,
        profile: AcpProfile,
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
        """Return the program that `start` runs."""
        return find_program(self.profile, search_path(path, self._directory))

    async def start(self, launch: Launch) -> Agent:
        """Start the process and wait until it has opened its session."""
        # The import runs in a thread, because the library takes long to load.
        agent_class, context_class = await asyncio.to_thread(_import_agent_classes)
        history = await asyncio.to_thread(load_history, launch, AcpHistory, "")
        price = self.profile.price(launch.model or self.profile.model, self._prices)
        url = model_url(launch, self.profile.url)
        invocation = await asyncio.to_thread(prepare_acp_invocation, self.profile, launch, price, url, self._directory)
        if launch.session is not None:
            await asyncio.to_thread(move_session_files_aside, self.profile, invocation, launch.session)
        async with AsyncExitStack() as stack:
            context = context_class(
                profile=self.profile,
                launch=launch,
                price=price,
                session_log=SessionLog(launch, history),
                tools_url=await _tools_url(launch, stack),
            )
            program = await self._start(invocation, launch)
            agent = agent_class(program, context, stack.pop_all())
        return await return_when_ready(agent, agent.wait_until_ready())

    async def inspect(self, launch: Launch, prompt_id: str) -> Inspection:
        """Look up the prompt in Kingdom's transcript, which is the only record of its end."""
        return await asyncio.to_thread(inspect_transcript, launch.transcript, prompt_id)

    async def _start(self, invocation: AcpInvocation, launch: Launch) -> Program:
        return await start_program(
            invocation.argv,
            cwd=launch.work_space,
            environment=invocation.environment,
            errors=launch.errors,
            redaction=launch.redaction,
            contained=self._contained,
            sandbox=invocation.sandbox,
        )


def _import_agent_classes() -> "tuple[type[AcpAgent], type[AcpContext]]":
    from kingdom.soldiers.agents.acp.agent import AcpAgent, AcpContext  # noqa: PLC0415 - the library is optional and slow

    return AcpAgent, AcpContext


async def _tools_url(launch: Launch, stack: AsyncExitStack) -> str:
    """Return the address of Kingdom's tools: the proxy of the sandbox, or else a new proxy that `stack` closes."""
    if launch.tools is None:
        return ""
    if launch.sandbox is not None:
        return f"{launch.sandbox.url}/voice"
    # The socket is not in HOME, because its path must be short.
    folder = stack.enter_context(TemporaryDirectory(prefix="kingdom-voice-"))
    proxy = await stack.enter_async_context(
        ModelProxy(Path(folder, "gate"), (), on_tool_call=partial(answer_tool_call, launch.tools))
    )
    return f"unix:{proxy.socket}"
