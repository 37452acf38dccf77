"""The scripted agent as a process: `python -m kingdom.soldiers.scripted.program`, told its Opening as JSON.

Prompts come as lines on standard input, updates go as lines to standard output. At the end of its input the agent
finishes what it has been given and ends. It may read its transcript, which its host writes: a sandbox shows the agent
nothing of the host that it could change.
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

from kingdom.soldiers.agent import INTERRUPTED, AgentFailed, Prompt, UsageLimited
from kingdom.soldiers.scripted import wire
from kingdom.soldiers.scripted.history import read_history
from kingdom.soldiers.scripted.session import ScriptedSession
from kingdom.soldiers.scripted.turn import ScriptedContext, ScriptedTurn
from kingdom.soldiers.transcript import Entry, read_entries


class ScriptedProgram:
    """Takes one prompt after the other until its input ends."""

    def __init__(self, opening: wire.SessionOpening) -> None:
        self._session = ScriptedSession(
            opening.session, read_history(read_entries(Path(opening.transcript))), self._write
        )
        self._context = ScriptedContext(work_space=Path.cwd(), environment=None, crash=os._exit, go_deaf=_go_deaf)
        self._prompts: asyncio.Queue[Prompt | None] = asyncio.Queue()
        # What is noted after the end of the input is written too, but nobody can say so.
        self._confirmed = True
        self._written = threading.Semaphore(0)
        self._interrupted: set[str] = set()
        self._turn: tuple[str, asyncio.Task[None] | None] = ("", None)

    async def run(self) -> None:
        """Say that prompts are welcome, and do what they ask."""
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(loop,), daemon=True).start()
        _send(wire.AgentReady(self._session.id))
        while (prompt := await self._prompts.get()) is not None:
            await asyncio.create_task(self._take(prompt))

    async def _take(self, prompt: Prompt) -> None:
        if prompt.id in self._interrupted:
            _send(wire.FailureMessage(prompt.id, INTERRUPTED, 0.0))
            return
        # Not earlier: a task that is cancelled before its first step would end without a word.
        self._turn = (prompt.id, asyncio.current_task())
        turn = ScriptedTurn(self._session, self._context, prompt)
        try:
            async with aclosing(turn.play()) as updates:
                async for update in updates:
                    _send(wire.UpdateMessage(prompt.id, update))
        except AgentFailed as failure:
            until = failure.until if isinstance(failure, UsageLimited) else None
            _send(wire.FailureMessage(prompt.id, failure.reason, turn.cost_usd, until))
        except asyncio.CancelledError:
            _send(wire.FailureMessage(prompt.id, INTERRUPTED, turn.cost_usd))

    def _write(self, entry: Entry) -> None:
        """Have an entry written, and wait for it: what is done next may be seen by others, or kill this process."""
        _send(wire.EntryToWrite(entry))
        if self._confirmed:
            self._written.acquire()

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        for line in sys.stdin.buffer:
            message = wire.decode_for_agent(line)
            if isinstance(message, wire.EntryWritten):
                self._written.release()
            else:
                loop.call_soon_threadsafe(self._receive, message)
        self._confirmed = False
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


def _go_deaf() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(3600)


def _send(message: msgspec.Struct) -> None:
    sys.stdout.buffer.write(wire.encode(message) + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    """Open the session and serve it."""
    opening = msgspec.json.decode(sys.argv[1], type=wire.SessionOpening)
    asyncio.run(ScriptedProgram(opening).run())


if __name__ == "__main__":
    main()
