"""The process of the scripted agent: `python -m kingdom.soldiers.agents.scripted.program OPENING`.

OPENING is a SessionOpening as JSON. Prompts arrive as lines on standard input; updates are lines on standard output.
When its input ends, the agent finishes its prompts and ends. The sandbox lets the agent only read its transcript, so
the agent sends new entries to the host, which writes them.
"""

import asyncio
import os
import signal
import sys
import threading
import time
from contextlib import aclosing
from pathlib import Path

import msgspec

from kingdom.soldiers.agents.port import INTERRUPTED, AgentFailed, Prompt, UsageLimited
from kingdom.soldiers.agents.scripted import wire
from kingdom.soldiers.agents.scripted.history import read_history
from kingdom.soldiers.agents.scripted.session import ScriptedSession
from kingdom.soldiers.agents.scripted.turn import ScriptedContext, ScriptedTurn
from kingdom.soldiers.agents.transcript import TranscriptEntry, read_entries


class ScriptedProgram:
    """Takes one prompt after another until its input ends."""

    def __init__(self, opening: wire.SessionOpening) -> None:
        self._session = ScriptedSession(
            opening.session, read_history(read_entries(Path(opening.transcript))), self._write
        )
        self._context = ScriptedContext(
            work_space=Path.cwd(), environment=None, crash=os._exit, block_forever=_block_forever
        )
        self._prompts: asyncio.Queue[Prompt | None] = asyncio.Queue()
        # Whether the host confirms that it has written an entry. It cannot do so after the input has ended.
        self._host_confirms = True
        self._written = threading.Semaphore(0)
        self._interrupted: set[str] = set()
        self._turn: tuple[str, asyncio.Task[None] | None] = ("", None)

    async def run(self) -> None:
        """Announce that the agent is ready, and handle its prompts."""
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(loop,), daemon=True).start()
        _send(wire.AgentReady(self._session.id))
        while (prompt := await self._prompts.get()) is not None:
            await asyncio.create_task(self._handle_prompt(prompt))

    async def _handle_prompt(self, prompt: Prompt) -> None:
        if prompt.id in self._interrupted:
            _send(wire.FailureMessage(prompt.id, INTERRUPTED, 0.0))
            return
        # From here on `_receive` can cancel this task. A task that is cancelled before it runs would send no failure.
        self._turn = (prompt.id, asyncio.current_task())
        turn = ScriptedTurn(self._session, self._context, prompt)
        try:
            async with aclosing(turn.execute()) as updates:
                async for update in updates:
                    _send(wire.UpdateMessage(prompt.id, update))
        except AgentFailed as failure:
            until = failure.until if isinstance(failure, UsageLimited) else None
            _send(wire.FailureMessage(prompt.id, failure.reason, turn.cost_usd, until))
        except asyncio.CancelledError:
            _send(wire.FailureMessage(prompt.id, INTERRUPTED, turn.cost_usd))

    def _write(self, entry: TranscriptEntry) -> None:
        """Send an entry to the host and wait until it is written, because the next step may end this process."""
        _send(wire.EntryToWrite(entry))
        if self._host_confirms:
            self._written.acquire()

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        for line in sys.stdin.buffer:
            message = wire.decode_for_agent(line)
            if isinstance(message, wire.EntryWritten):
                self._written.release()
            else:
                loop.call_soon_threadsafe(self._receive, message)
        self._host_confirms = False
        self._written.release()
        loop.call_soon_threadsafe(self._prompts.put_nowait, None)

    def _receive(self, message: wire.PromptMessage | wire.InterruptMessage) -> None:
        match message:
            case wire.PromptMessage(prompt=prompt):
                self._prompts.put_nowait(prompt)
            case wire.InterruptMessage(prompt_id=prompt_id):
                self._interrupted.add(prompt_id)
                current, task = self._turn
                if task is not None and current == prompt_id:
                    task.cancel()


def _block_forever() -> None:
    """Ignore signals and stop reading messages, so that only a kill ends the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(3600)


def _send(message: msgspec.Struct) -> None:
    sys.stdout.buffer.write(wire.encode(message) + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    """Open the session and handle its prompts."""
    opening = msgspec.json.decode(sys.argv[1], type=wire.SessionOpening)
    asyncio.run(ScriptedProgram(opening).run())


if __name__ == "__main__":
    main()
