"""The transport between the SDK and the program of Claude Code, which Kingdom starts and ends itself."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

from claude_agent_sdk import ProcessError, Transport

from kingdom.soldiers.agents.transcript import try_decode_message
from kingdom.soldiers.processes.program import Program

_ANSWER_SECONDS = 10.0
_Answer = asyncio.Future[dict[str, Any] | None]


class ClaudeTransport(Transport):
    """Carries messages to and from a running program; `request` sends control requests that the SDK lacks."""

    def __init__(self, program: Program) -> None:
        self.is_initialized = False
        self._program = program
        self._requests: dict[str, _Answer] = {}

    async def connect(self) -> None:
        """Do nothing, because the program already runs."""

    def is_ready(self) -> bool:
        """Return whether the program runs."""
        return self._program.running

    async def write(self, data: str) -> None:
        """Write to the program."""
        self._program.write(data.encode())

    async def end_input(self) -> None:
        """Close the input of the program."""
        self._program.close_input()

    async def close(self) -> None:
        """Kill the program and all processes that it started."""
        await self._program.kill()

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the messages of the program, except the answers to `request`."""
        try:
            async for line in self._program.lines():
                message = try_decode_message(line)
                if message is not None and not self._take_answer(message):
                    yield message
        finally:
            for waiting in self._requests.values():
                _resolve(waiting, None)
        code = await self._program.wait()
        if not self.is_initialized:
            # Without an error the SDK would wait forever for the initialization.
            raise ProcessError("Claude Code ended before it was ready", exit_code=code)

    async def request(
        self, subtype: str, *, limit_seconds: float | None = None, **fields: Any
    ) -> dict[str, Any] | None:
        """Send a control request; return its answer, or None if the request is refused or not answered in time."""
        if not self._program.running:
            return None
        request_id = f"kingdom-{uuid.uuid4()}"
        request = {"type": "control_request", "request_id": request_id, "request": {"subtype": subtype, **fields}}
        answer: _Answer = asyncio.get_running_loop().create_future()
        self._requests[request_id] = answer
        try:
            self._program.write(json.dumps(request).encode() + b"\n")
            async with asyncio.timeout(_ANSWER_SECONDS if limit_seconds is None else limit_seconds):
                return await answer
        except TimeoutError:
            return None
        finally:
            del self._requests[request_id]

    def _take_answer(self, message: dict[str, Any]) -> bool:
        match message:
            case {"type": "control_response", "response": {"request_id": str(request_id), **response}}:
                if request_id in self._requests:
                    answer = response.get("response")
                    _resolve(self._requests[request_id], answer if isinstance(answer, dict) else None)
                    return True
        return False


def _resolve(waiting: _Answer, answer: dict[str, Any] | None) -> None:
    if not waiting.done():
        waiting.set_result(answer)
