"""A running ACP agent, whose messages become the updates and the end of a turn."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

import structlog
from acp import PROTOCOL_VERSION, Client, RequestError, connect_to_agent, text_block
from acp.schema import (
    AllowedOutcome,
    ClientCapabilities,
    DeniedOutcome,
    Implementation,
    PermissionOption,
    RequestPermissionResponse,
    ToolCallUpdate,
)

from kingdom.soldiers.agents.acp.history import AcpHistory
from kingdom.soldiers.agents.acp.profile import AcpProfile
from kingdom.soldiers.agents.acp.servers import mcp_servers
from kingdom.soldiers.agents.acp.transport import AcpTransport
from kingdom.soldiers.agents.acp.turn import AcpTurn
from kingdom.soldiers.agents.limits import parse_usage_limit
from kingdom.soldiers.agents.port import (
    INTERRUPTED,
    AgentFailed,
    AgentGone,
    BudgetSpent,
    Launch,
    Prompt,
    TurnAnswer,
    TurnQuestion,
    UsageLimited,
)
from kingdom.soldiers.agents.program_agent import ProgramAgent
from kingdom.soldiers.agents.recorded_turn import TurnEnd
from kingdom.soldiers.agents.session_log import SessionLog
from kingdom.soldiers.processes.program import Program
from kingdom.soldiers.sandbox.prices import Price

# A loaded session first replays its whole history, and does not say when it is done. It counts as done after this long
# without an update.
_REPLAY_PAUSE_SECONDS = 0.3
# How long an agent may take to exit after it has closed the connection.
_EXIT_SECONDS = 2.0
_log = structlog.get_logger("kingdom.soldiers")


@dataclass(frozen=True, slots=True, kw_only=True)
class AcpContext:
    """Everything that one agent needs; `tools_url` is the address of Kingdom's tools, or empty."""

    profile: AcpProfile
    launch: Launch
    price: Price
    session_log: SessionLog[AcpHistory]
    tools_url: str


class AcpAgent(ProgramAgent[AcpTurn]):
    """An agent whose process runs; it takes prompts after `wait_until_ready`, and closes `resources` when it ends."""

    # The protocol has no answer to a cancellation, so nothing shows whether one is still to be handled.
    _late_interrupt_seconds = 1.0

    def __init__(self, program: Program, context: AcpContext, resources: AsyncExitStack) -> None:
        super().__init__(program, context.session_log.history.session)
        self._ends_with_input = context.profile.ends_with_input
        self._context = context
        self._resources = resources
        self._update_received = asyncio.Event()
        self._connection = connect_to_agent(
            cast("Client", _PermissionHandler(self)), AcpTransport(program, self._receive)
        )
        self._prompt_task: asyncio.Task[None] | None = None
        self._cleanup_task = asyncio.create_task(
            self._clean_up_after_program(), name=f"{context.profile.name} {program.pid}"
        )

    async def wait_until_ready(self) -> None:
        """Wait until the agent has opened its session; raises AgentGone if it fails to."""
        name = self._context.profile.name
        try:
            await self._connection.initialize(
                protocol_version=PROTOCOL_VERSION,
                client_capabilities=ClientCapabilities(),
                client_info=Implementation(name="kingdom", version="1"),
            )
            await self._open_session()
            if self._context.profile.session_mode:
                await self._connection.set_session_mode(
                    session_id=self.session, mode_id=self._context.profile.session_mode
                )
        except (RequestError, ConnectionError, ValueError) as error:
            why = await self._describe_end() if isinstance(error, ConnectionError) else _error_text(error)
            await self._program.kill()
            if self._context.session_log.history.prompted:
                raise AgentGone(f"session {self.session} of {name} cannot be continued: {why}") from error
            raise AgentGone(f"{name} failed to start: {why}") from error
        model = self._context.launch.model or self._context.profile.model
        self._context.session_log.history.session = self.session
        self._context.session_log.write(
            {"type": "session", "session": self.session, "model": model, "agent": name}, durable=True
        )

    async def wait_for_end(self) -> str:
        """Wait until the process exits; return its exit code and, if it failed, the last part of its standard error."""
        code = await self._program.wait()
        how = self._program.describe_exit(code)
        # Agents write warnings even when they end normally.
        words = await asyncio.to_thread(self._program.stderr_tail) if code else ""
        return f"{how}; its last output: {words}" if words else how

    def allow_tool_call(self, call: Mapping[str, Any]) -> bool:
        """Return whether the agent may use a tool now, and report the tool call if so."""
        turn = self._turn
        if turn is None or turn.over.is_set() or turn.interrupted or turn.budget_spent:
            return False
        turn.report_tool_call(call)
        return True

    async def _open_session(self) -> None:
        launch, history = self._context.launch, self._context.session_log.history
        space, servers = str(launch.work_space), mcp_servers(launch, self._context.tools_url)
        if not history.prompted:
            # Most agents do not keep a session without a prompt, so a new session is opened.
            new = await self._connection.new_session(cwd=space, mcp_servers=[*servers])
            self.session = new.session_id
        elif self._context.profile.loads_session:
            await self._connection.load_session(cwd=space, session_id=self.session, mcp_servers=[*servers])
            with suppress(TimeoutError):
                while True:
                    self._update_received.clear()
                    async with asyncio.timeout(_REPLAY_PAUSE_SECONDS):
                        await self._update_received.wait()
        else:
            await self._connection.resume_session(cwd=space, session_id=self.session, mcp_servers=[*servers])

    def _new_turn(self, prompt: Prompt) -> AcpTurn:
        context = self._context
        return AcpTurn(prompt, context.session_log, context.profile, context.price, launch=context.launch)

    async def _begin(self, turn: AcpTurn) -> None:
        """Record the prompt and send it; if a person has not replied yet, end the turn with the question again."""
        prompt, history = turn.prompt, self._context.session_log.history
        question, text = history.open_question(prompt), history.text_for(prompt)
        turn.record_prompt(text)
        if turn.interrupted:
            turn.end(AgentFailed(INTERRUPTED))
        elif question is not None:
            turn.end(TurnQuestion(question.text, question.choices, 0.0))
        else:
            if self._context.launch.tools is not None:
                self._context.launch.tools.begin(prompt.id, turn.emit_petition)
            self._prompt_task = asyncio.create_task(self._prompt(turn, text), name=f"prompt {prompt.id}")

    async def _prompt(self, turn: AcpTurn, text: str) -> None:
        """Send a prompt, wait for the response, and end the turn accordingly."""
        end: TurnEnd
        try:
            response = await self._connection.prompt(session_id=self.session, prompt=[text_block(text)])
        except RequestError as error:
            gone = bool(self._context.profile.gone_error) and self._context.profile.gone_error in _error_text(error)
            if gone:
                await self._program.kill()
            end = self._to_failure(turn, _error_text(error), gone=gone)
        except ConnectionError:
            end = AgentGone(await self._describe_end(), turn.cost_usd)
        except Exception as error:  # noqa: BLE001 - any other error of the library ends the turn
            end = self._to_failure(turn, f"the agent violated the protocol: {error}")
        else:
            document = response.model_dump(mode="json", by_alias=True, exclude_none=True)
            turn.count_usage(document)
            end = self._conclude(turn, document["stopReason"])
        question = self._context.launch.tools.end() if self._context.launch.tools else None
        if question is not None and not turn.interrupted and not isinstance(end, AgentGone | BudgetSpent):
            end = TurnQuestion(question.text, question.choices, turn.cost_usd)
        turn.end(end)

    async def _describe_end(self) -> str:
        """Return how a disconnected agent ended; kill it if it still runs."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_SECONDS):
                await self._program.wait()
        await self._program.kill()
        return await self.wait_for_end()

    def _conclude(self, turn: AcpTurn, reason: str) -> TurnEnd:
        if turn.failed:
            return self._to_failure(turn, turn.notice or "the agent gives no reason")
        if reason == "end_turn":
            return TurnAnswer(turn.answer, turn.cost_usd)
        return self._to_failure(turn, f"the agent stopped: {reason}")

    def _to_failure(self, turn: AcpTurn, why: str, *, gone: bool = False) -> TurnEnd:
        cost = turn.cost_usd
        if gone:
            return AgentGone(why, cost)
        if turn.interrupted:
            return AgentFailed(INTERRUPTED, cost)
        if turn.budget_spent:
            return BudgetSpent(f"the turn has cost ${cost:g} and may cost ${turn.prompt.budget_usd:g}", cost)
        until = parse_usage_limit(why, datetime.now(UTC))
        return AgentFailed(why, cost) if until is None else UsageLimited(why, until, cost)

    def _receive(self, session: str, update: Mapping[str, Any]) -> None:
        self._update_received.set()
        turn = self._turn
        if session == self.session and turn is not None and not turn.over.is_set():
            turn.receive(update)
            if turn.budget_spent:
                self._ensure_end(turn)

    async def _ask_for_end(self) -> None:
        with suppress(ConnectionError):
            await self._connection.cancel(session_id=self.session)

    async def _wait_for_cleanup(self) -> None:
        await asyncio.wait([self._cleanup_task])

    async def _clean_up_after_program(self) -> None:
        """Wait until the program and its turn have ended, record the end, and close the resources."""
        why = await self.wait_for_end()
        await self._connection.close()
        if self._prompt_task is not None:
            await asyncio.wait([self._prompt_task])
        try:
            if self._context.session_log.history.session:
                self._context.session_log.write({"type": "ended", "reason": why}, durable=False)
        except OSError as error:
            _log.warning("the end of an agent could not be recorded", pid=self.pid, error=str(error))
        finally:
            await self._resources.aclose()


class _PermissionHandler:
    """Answers the requests of an agent for permission to use a tool."""

    def __init__(self, agent: AcpAgent) -> None:
        self._agent = agent

    async def request_permission(
        self, session_id: str, tool_call: ToolCallUpdate, options: list[PermissionOption], **_: Any
    ) -> RequestPermissionResponse:
        """Allow a tool once; a permanent permission would be stored in a file of the WorkSpace."""
        call = tool_call.model_dump(mode="json", by_alias=True, exclude_none=True)
        once = next((option for option in options if option.kind == "allow_once"), None)
        if once is None or session_id != self._agent.session or not self._agent.allow_tool_call(call):
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=once.option_id))


def _error_text(error: Exception) -> str:
    """Return the message of an error with the details that agents attach to it."""
    data = error.data if isinstance(error, RequestError) else None
    details = data.get("details") if isinstance(data, dict) else data if isinstance(data, str) else None
    return f"{error}: {details}" if details else str(error)
