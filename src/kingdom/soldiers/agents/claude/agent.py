"""A running Claude Code agent, whose messages become the updates and the end of a turn."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    ClaudeSDKClient,
    ClaudeSDKError,
    CLIConnectionError,
    HookMatcher,
    Message,
    RateLimitEvent,
    ResultMessage,
    SystemMessage,
    UserMessage,
)

from kingdom.clock import utc_now
from kingdom.soldiers.agent_tools.port import SERVER_NAME, AgentQuestion
from kingdom.soldiers.agents.claude.command import mcp_server_configs
from kingdom.soldiers.agents.claude.history import SYNTHETIC, ClaudeHistory, SessionFileTail, find_session_file
from kingdom.soldiers.agents.claude.messages import conclude_turn, outputs_in, updates_in
from kingdom.soldiers.agents.claude.tool_server import ASK_HUMAN, create_tool_server
from kingdom.soldiers.agents.claude.transport import ClaudeTransport
from kingdom.soldiers.agents.claude.turn import ClaudeTurn
from kingdom.soldiers.agents.claude.usage_limit import reset_at
from kingdom.soldiers.agents.port import INTERRUPTED, AgentFailed, AgentGone, Launch, Prompt, TurnQuestion
from kingdom.soldiers.agents.program_agent import ProgramAgent
from kingdom.soldiers.agents.session_log import SessionLog
from kingdom.soldiers.processes.program import Program

# How long Claude Code may take to connect to the MCP servers.
_MCP_SECONDS = 30.0
# How long to wait for an entry in the session file. Claude Code usually writes it within a tenth of a second.
_SESSION_FILE_SECONDS = 1.0
_POLL_SECONDS = 0.01


class ClaudeAgent(ProgramAgent[ClaudeTurn]):
    """An agent whose process runs; it takes prompts after `wait_until_ready`."""

    def __init__(self, program: Program, launch: Launch, session_log: SessionLog[ClaudeHistory]) -> None:
        super().__init__(program, session_log.history.session)
        self._launch = launch
        self._session_log = session_log
        self._transport = ClaudeTransport(program)
        self._client = ClaudeSDKClient(self._options(), self._transport)
        self._session_file_tail = SessionFileTail(launch.environment, self.session)
        self._session_usd = 0.0
        self._listen_task: asyncio.Task[None] | None = None

    async def wait_until_ready(self) -> None:
        """Wait until the agent takes prompts; raises AgentGone if it fails to start."""
        try:
            await self._client.connect()
        except Exception as error:
            await self._program.kill()
            raise AgentGone(f"Claude Code failed to start: {await self.wait_for_end()}") from error
        self._transport.is_initialized = True
        await self._connect_servers()
        await self._count_cost()
        self._session_log.write(
            {"type": "session", "session": self.session, "model": self._launch.model, "agent": "claude"}, durable=True
        )
        self._listen_task = asyncio.create_task(self._listen(), name=f"claude {self.pid}")

    def _options(self) -> ClaudeAgentOptions:
        tools = self._launch.tools
        return ClaudeAgentOptions(
            mcp_servers={} if tools is None else {SERVER_NAME: create_tool_server(tools)},
            hooks={
                "PreToolUse": [HookMatcher(hooks=[self._before_tool])],
                "PostToolUse": [HookMatcher(matcher=ASK_HUMAN, hooks=[self._after_question])],
            },
            # Prompts contain untrusted text, so slash commands and file references in them must not be expanded.
            verbatim_prompts=True,
        )

    async def _connect_servers(self) -> None:
        servers = mcp_server_configs(self._launch)
        if not servers:
            return
        answer = await self._transport.request("mcp_set_servers", limit_seconds=_MCP_SECONDS, servers=servers)
        errors = {"all servers": "no answer"} if answer is None else answer.get("errors") or {}
        if errors:
            await self._program.kill()
            wrong = "; ".join(f"{name}: {error}" for name, error in errors.items())
            raise AgentGone(f"Claude Code could not use its MCP servers: {wrong}; check that they run, or remove them")

    def _new_turn(self, prompt: Prompt) -> ClaudeTurn:
        return ClaudeTurn(prompt, self._session_log)

    async def _begin(self, turn: ClaudeTurn) -> None:
        """Record the prompt and send it; if a person has not replied yet, end the turn with the question again."""
        prompt, history, launch = turn.prompt, self._session_log.history, self._launch
        turn.before_usd = self._session_usd
        question = history.open_question(prompt)
        if question is not None and history.unfinished is not None:
            text, prompt_uuid = history.unfinished.sent, history.unfinished.uuid
        else:
            session_file = await asyncio.to_thread(find_session_file, launch.environment, self.session)
            text, prompt_uuid = await asyncio.to_thread(history.text_for, prompt, session_file), str(uuid.uuid4())
        turn.record_prompt(text, uuid=prompt_uuid)
        if turn.interrupted:
            turn.end(AgentFailed(INTERRUPTED))
        elif question is not None:
            turn.end(TurnQuestion(question.text, question.choices, 0.0))
        else:
            if launch.tools is not None:
                launch.tools.begin(prompt.id, turn.emit_petition)
            await self._client.query(_prompt_message(text, prompt_uuid))

    async def _ask_for_end(self) -> None:
        await self._transport.request("interrupt")

    async def _wait_for_cleanup(self) -> None:
        if self._listen_task is None:
            await self._client.disconnect()
        else:
            await asyncio.wait([self._listen_task])

    async def _before_tool(self, used: Any, call: str | None, _context: Any) -> Any:
        """Update the cost before each tool call; deny the call if the turn has to end."""
        turn = self._turn
        if turn is None or turn.over.is_set():
            return _deny("there is no prompt at the moment")
        await self._count_cost(turn)
        # The calls of subagents are in other session files.
        if call and not used.get("agent_id"):
            await self._wait_until_recorded(call)
        if turn.budget_spent:
            return _deny("the budget is spent")
        return _deny(INTERRUPTED) if turn.interrupted else {}

    async def _wait_until_recorded(self, call: str) -> None:
        """Wait until the session file contains a tool call, so that a resumed agent knows about the call."""
        tail = self._session_file_tail
        with suppress(TimeoutError):
            async with asyncio.timeout(_SESSION_FILE_SECONDS):
                while not await asyncio.to_thread(tail.mentions, call):  # noqa: ASYNC110 - another process writes it
                    await asyncio.sleep(_POLL_SECONDS)

    async def _after_question(self, _input: Any, _tool: str | None, _context: Any) -> Any:
        return {"continue_": False, "stopReason": "a person was asked"}

    async def _count_cost(self, turn: ClaudeTurn | None = None) -> None:
        usage = await self._transport.request("get_usage", skip_behaviors=True)
        match usage:
            case {"session": {"total_cost_usd": int() | float() as total}}:
                self._session_usd = total
        if turn is not None:
            turn.spend(self._session_usd)

    async def _listen(self) -> None:
        """Receive messages until the agent has ended, also between turns, so that the agent can always write."""
        write_failure = ""
        try:
            await self._receive_all()
        except OSError as error:
            write_failure = f"; it was ended because its transcript could not be written: {error}"
        finally:
            self._stopping = True
            await self._program.kill()
            why = f"{await self.wait_for_end()}{write_failure}"
            with suppress(OSError):
                self._session_log.write({"type": "ended", "reason": why}, durable=False)
            if self._turn is not None and not self._turn.over.is_set():
                self._end_tool_calls()
                self._turn.end(AgentGone(why, self._turn.cost_usd))
            await self._client.disconnect()

    async def _receive_all(self) -> None:
        while True:
            try:
                async for message in self._client.receive_messages():
                    self._receive(message)
            except CLIConnectionError:
                return
            except ClaudeSDKError:
                # The SDK cannot parse this kind of message, so Kingdom does not need it.
                continue
            return

    def _receive(self, message: Message) -> None:
        turn = self._turn
        match message:
            case ResultMessage():
                self._session_usd = message.total_cost_usd or self._session_usd
                # A result with an origin is not the answer to Kingdom's prompt.
                if turn is not None and not turn.over.is_set() and message.origin is None:
                    turn.spend(self._session_usd)
                    turn.end(conclude_turn(turn, message, self._end_tool_calls()), message.usage)
            case _ if turn is None or turn.over.is_set():
                return
            case RateLimitEvent(rate_limit_info=limit) if limit.status == "rejected" and limit.resets_at:
                turn.limited_until = reset_at(limit.resets_at, utc_now())
            case AssistantMessage(error=None, model=model) if model != SYNTHETIC:
                for update, fields in updates_in(message, self._launch):
                    turn.emit(update, **fields)
            case UserMessage(content=list(blocks)):
                for output in outputs_in(blocks, self._launch.redaction):
                    turn.record("output", **output)
            case SystemMessage(subtype="api_retry", data=data):
                turn.record("noted", text=f"the call of the model is retried: {data.get('error')}")
                turn.emit_heartbeat()

    def _end_tool_calls(self) -> AgentQuestion | None:
        """Stop accepting tool calls for the turn; return the question that the agent asked, if any."""
        return self._launch.tools.end() if self._launch.tools else None


def _deny(reason: str) -> dict[str, Any]:
    """Return a hook result that denies the tool call and ends the turn."""
    denied = {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": reason}
    return {"continue_": False, "stopReason": reason, "hookSpecificOutput": denied}


async def _prompt_message(text: str, prompt_uuid: str) -> AsyncIterator[dict[str, Any]]:
    yield {
        "type": "user",
        "message": {"role": "user", "content": text},
        "parent_tool_use_id": None,
        "uuid": prompt_uuid,
    }
