"""Claude Code as an agent that runs: what the SDK hears of it becomes updates, and an end that can be trusted."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
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

from kingdom.soldiers.agent_tools.port import SERVER_NAME, AgentQuestion
from kingdom.soldiers.agents.claude.command import mcp_servers
from kingdom.soldiers.agents.claude.house import ASKS, house_server
from kingdom.soldiers.agents.claude.memory import SYNTHETIC, OwnRecord, Past, own_transcript
from kingdom.soldiers.agents.claude.messages import end_of, outputs_in, updates_in
from kingdom.soldiers.agents.claude.transport import ProgramTransport
from kingdom.soldiers.agents.claude.turn import Turn
from kingdom.soldiers.agents.port import INTERRUPTED, AgentFailed, AgentGone, Launch, Prompt, TurnQuestion
from kingdom.soldiers.agents.program_agent import ProgramAgent
from kingdom.soldiers.agents.session_log import SessionLog
from kingdom.soldiers.processes.program import Program

_MCP_SECONDS = 30.0
# Claude Code writes down what it does within a tenth of a second.
_RECORD_SECONDS = 1.0
_POLL_SECONDS = 0.01


class ClaudeAgent(ProgramAgent[Turn]):
    """An agent whose process runs; `comes_up` makes it take prompts."""

    def __init__(self, program: Program, launch: Launch, session_log: SessionLog[Past]) -> None:
        super().__init__(program, session_log.history.session)
        self._launch = launch
        self._session_log = session_log
        self._transport = ProgramTransport(program)
        self._client = ClaudeSDKClient(self._options(), self._transport)
        self._record = OwnRecord(launch.environment, self.session)
        self._session_usd = 0.0
        self._listening: asyncio.Task[None] | None = None

    async def comes_up(self) -> None:
        """Wait until the agent takes prompts; raises AgentGone if it does not."""
        try:
            await self._client.connect()
        except Exception as error:
            await self._program.kill()
            raise AgentGone(f"Claude Code did not come up: {await self.ended()}") from error
        self._transport.introduced = True
        await self._connect_servers()
        await self._count_cost()
        self._session_log.write(
            {"type": "session", "session": self.session, "model": self._launch.model, "agent": "claude"}, durable=True
        )
        self._listening = asyncio.create_task(self._listen(), name=f"claude {self.pid}")

    def _options(self) -> ClaudeAgentOptions:
        voice = self._launch.tools
        return ClaudeAgentOptions(
            mcp_servers={} if voice is None else {SERVER_NAME: house_server(voice)},
            hooks={
                "PreToolUse": [HookMatcher(hooks=[self._before_tool])],
                "PostToolUse": [HookMatcher(matcher=ASKS, hooks=[self._after_question])],
            },
            # Prompts carry foreign text: no command and no path in it is to be followed.
            verbatim_prompts=True,
        )

    async def _connect_servers(self) -> None:
        servers = mcp_servers(self._launch)
        if not servers:
            return
        answer = await self._transport.request("mcp_set_servers", within=_MCP_SECONDS, servers=servers)
        errors = {"all of them": "no answer"} if answer is None else answer.get("errors") or {}
        if errors:
            await self._program.kill()
            wrong = "; ".join(f"{name}: {error}" for name, error in errors.items())
            raise AgentGone(
                f"Claude Code could not use its MCP servers: {wrong}; see whether they run, or leave them out"
            )

    def _new_turn(self, prompt: Prompt) -> Turn:
        return Turn(prompt, self._session_log)

    async def _begin(self, turn: Turn) -> None:
        """Note the prompt, then send it; one that waits for a reply which has not come is answered at once."""
        prompt, past, launch = turn.prompt, self._session_log.history, self._launch
        turn.before_usd = self._session_usd
        question = past.open_question(prompt)
        if question is not None and past.unfinished is not None:
            text, prompt_uuid = past.unfinished.sent, past.unfinished.uuid
        else:
            own = await asyncio.to_thread(own_transcript, launch.environment, self.session)
            text, prompt_uuid = await asyncio.to_thread(past.text_for, prompt, own), str(uuid.uuid4())
        turn.record_prompt(text, uuid=prompt_uuid)
        if turn.interrupted:
            turn.end(AgentFailed(INTERRUPTED))
        elif question is not None:
            turn.end(TurnQuestion(question.text, question.choices, 0.0))
        else:
            if launch.tools is not None:
                launch.tools.begin(prompt.id, turn.petition)
            await self._client.query(_message(text, prompt_uuid))

    async def _ask_for_end(self) -> None:
        await self._transport.request("interrupt")

    async def _clear_up(self) -> None:
        if self._listening is None:
            await self._client.disconnect()
        else:
            await asyncio.wait([self._listening])

    async def _before_tool(self, used: Any, call: str | None, _context: Any) -> Any:
        """Count the cost before each tool; none is used in a turn that is to end."""
        turn = self._turn
        if turn is None or turn.over.is_set():
            return _refusal("nothing is asked of you at the moment")
        await self._count_cost(turn)
        # Those whom the agent has sent for keep records of their own.
        if call and not used.get("agent_id"):
            await self._until_recorded(call)
        if turn.budget_spent:
            return _refusal("the budget is spent")
        return _refusal(INTERRUPTED) if turn.interrupted else {}

    async def _until_recorded(self, call: str) -> None:
        """Wait until a killed agent would know of all that it has done before this call of a tool."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_RECORD_SECONDS):
                # The file is written by somebody else.
                while not await asyncio.to_thread(self._record.tells_of, call):  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_SECONDS)

    async def _after_question(self, _input: Any, _tool: str | None, _context: Any) -> Any:
        return {"continue_": False, "stopReason": "a person was asked"}

    async def _count_cost(self, turn: Turn | None = None) -> None:
        usage = await self._transport.request("get_usage", skip_behaviors=True)
        match usage:
            case {"session": {"total_cost_usd": int() | float() as total}}:
                self._session_usd = total
        if turn is not None:
            turn.spend(self._session_usd)

    async def _listen(self) -> None:
        """Hear what the agent says until it is gone; nothing must wait for somebody to listen."""
        trouble = ""
        try:
            await self._hear_all()
        except OSError as error:
            trouble = f"; it was ended because its transcript could not be written: {error}"
        finally:
            self._stopping = True
            await self._program.kill()
            why = f"{await self.ended()}{trouble}"
            with suppress(OSError):
                self._session_log.write({"type": "ended", "reason": why}, durable=False)
            if self._turn is not None and not self._turn.over.is_set():
                self._hush()
                self._turn.end(AgentGone(why, self._turn.cost_usd))
            await self._client.disconnect()

    async def _hear_all(self) -> None:
        while True:
            try:
                async for message in self._client.receive_messages():
                    self._hear(message)
            except CLIConnectionError:
                return
            except ClaudeSDKError:
                # The SDK does not know this kind of message yet: so it is none that counts here.
                continue
            return

    def _hear(self, message: Message) -> None:
        turn = self._turn
        match message:
            case ResultMessage():
                self._session_usd = message.total_cost_usd or self._session_usd
                # What the agent does of its own accord has an origin, and is no answer to a prompt.
                if turn is not None and not turn.over.is_set() and message.origin is None:
                    turn.spend(self._session_usd)
                    turn.end(end_of(turn, message, self._hush()), message.usage)
            case _ if turn is None or turn.over.is_set():
                return
            case RateLimitEvent(rate_limit_info=limit) if limit.status == "rejected" and limit.resets_at:
                turn.limited_until = datetime.fromtimestamp(limit.resets_at, UTC)
            case AssistantMessage(error=None, model=model) if model != SYNTHETIC:
                for update, fields in updates_in(message, self._launch.work_space):
                    turn.emit(update, **fields)
            case UserMessage(content=list(blocks)):
                for output in outputs_in(blocks):
                    turn.record("output", **output)
            case SystemMessage(subtype="api_retry", data=data):
                turn.record("noted", text=f"the model is asked again: {data.get('error')}")
                turn.emit_heartbeat()

    def _hush(self) -> AgentQuestion | None:
        """Listen to the voice of the agent no more; return what it asked."""
        return self._launch.tools.end() if self._launch.tools else None


def _refusal(reason: str) -> dict[str, Any]:
    """Return what keeps a tool from being used, and the turn from going on."""
    denied = {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": reason}
    return {"continue_": False, "stopReason": reason, "hookSpecificOutput": denied}


async def _message(text: str, prompt_uuid: str) -> AsyncIterator[dict[str, Any]]:
    yield {
        "type": "user",
        "message": {"role": "user", "content": text},
        "parent_tool_use_id": None,
        "uuid": prompt_uuid,
    }
