"""The transport between the ACP library and the program of an agent, which Kingdom starts and ends itself."""

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

import msgspec

from kingdom.soldiers.agents.transcript import try_decode_message
from kingdom.soldiers.processes.program import Program

_UPDATE = "session/update"


class AcpTransport:
    """Carries messages as lines; session updates go to `on_update` immediately and in order."""

    def __init__(self, program: Program, on_update: Callable[[str, Mapping[str, Any]], None]) -> None:
        self._program = program
        self._on_update = on_update
        self._messages = self._read()

    async def send(self, message: dict[str, Any]) -> None:
        """Write a message to the program."""
        self._program.write(msgspec.json.encode(message) + b"\n")

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message other than an update, or None at the end."""
        return await anext(self._messages, None)

    async def close(self) -> None:
        """Do nothing, because Kingdom ends the program itself."""

    async def _read(self) -> AsyncGenerator[dict[str, Any], None]:
        async for line in self._program.lines():
            match try_decode_message(line):
                case {"method": method, "params": {"sessionId": str(session), "update": dict(update)}} if (
                    method == _UPDATE
                ):
                    self._on_update(session, update)
                case dict(message):
                    yield message
