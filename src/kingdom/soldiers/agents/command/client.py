"""Run a program that takes one prompt and ends."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from kingdom.errors import ProgramFailed
from kingdom.soldiers.agents.command.command import (
    CommandInvocation,
    CommandTemplate,
    cost_of,
    find_program,
    prepare_command,
)
from kingdom.soldiers.agents.port import (
    INTERRUPTED,
    Agent,
    AgentClient,
    AgentFailed,
    AgentGone,
    AgentMessage,
    Inspection,
    Launch,
    Prompt,
    TurnAnswer,
    TurnFailed,
    TurnUpdate,
)
from kingdom.soldiers.agents.transcript import TranscriptEntry, append_entry, inspect_transcript, read_entries, to_entry
from kingdom.soldiers.processes.process_table import describe_exit
from kingdom.soldiers.processes.program import Program, start_program

_RETRY_NOTICE = """\
An earlier attempt at this was interrupted. Its changes are in the files: first check how far it got, and do not \
repeat finished work.

"""
# The answer is at most this many characters of the output, each of at most four bytes. More bytes are kept, so that a
# secret is recognized although only its end belongs to the answer.
_OUTPUT_MAX = 64_000
_TAIL_BYTES = 5 * _OUTPUT_MAX
_OUTPUT_SHOWN = 2000


class CommandAgentClient(AgentClient):
    """Runs one program per prompt; its output is the answer, and .kingdom-task.json names the file for its result.

    `contained` is whether a program without a sandbox runs in its own pid namespace; by default it does if bubblewrap
    is installed.
    """

    name = "command"
    has_process = True

    def __init__(self, command: CommandTemplate, *, contained: bool | None = None) -> None:
        self._command = command
        self._contained = contained

    def program(self, path: str) -> Path:
        """Return the program that is run for each prompt."""
        return find_program(self._command, path)

    async def start(self, launch: Launch) -> "CommandAgent":
        """Open a session, which is only a name, because the program keeps no state between prompts."""
        entries = await asyncio.to_thread(_entries, launch)
        sessions = [entry["session"] for entry in entries if entry.get("type") == "session"]
        if launch.session is not None and launch.session != (sessions or [None])[-1]:
            raise AgentGone(
                f"session {launch.session} cannot be continued: {launch.transcript} does not contain it; start a"
                " new session"
            )
        session = launch.session or f"{launch.soldier_id}-{len(set(sessions)) + 1}"
        # This raises an error now if the program is missing.
        await asyncio.to_thread(prepare_command, self._command, launch, "")
        begun = {"type": "session", "session": session, "model": launch.model, "agent": self.name}
        await asyncio.to_thread(append_entry, launch.transcript, begun, redaction=launch.redaction)
        return CommandAgent(session, self._command, launch, contained=self._contained)

    async def inspect(self, launch: Launch, prompt_id: str) -> Inspection:
        """Look up the prompt in the transcript."""
        return await asyncio.to_thread(inspect_transcript, launch.transcript, prompt_id)


class CommandAgent(Agent):
    """A session with a program that handles one prompt and ends; no process runs between prompts."""

    def __init__(self, session: str, command: CommandTemplate, launch: Launch, *, contained: bool | None) -> None:
        self.session = session
        self.pid: int | None = None
        self._command = command
        self._launch = launch
        self._contained = contained
        self._prompt_id: str | None = None
        self._program: Program | None = None
        self._interrupted = False
        self._starting = asyncio.Lock()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def send(self, prompt: Prompt) -> AsyncGenerator[TurnUpdate, None]:
        """Run the program and yield its output line by line; the turn ends with the program."""
        if self._prompt_id is not None:
            raise AgentFailed(
                f"prompt {prompt.id} is refused: the agent is busy with {self._prompt_id}; wait for its end"
            )
        if self._stopping:
            raise AgentGone(await self.wait_for_end())
        self._prompt_id, self._interrupted = prompt.id, False
        self._idle.clear()
        tail, cost = bytearray(), 0.0
        end: TurnAnswer | TurnFailed | None = None
        try:
            async with self._starting:
                program = await self._begin(prompt)
            async for line in program.lines():
                tail += line + b"\n"
                del tail[:-_TAIL_BYTES]
                output_line = line.decode(errors="replace")
                cost = round(cost + cost_of(self._command, output_line), 9)
                yield AgentMessage(f"{output_line}\n")
            end = await self._conclude(program, self._ending(tail), cost)
        except (ProgramFailed, OSError) as error:
            end = AgentFailed(str(error), cost)
        finally:
            if self._program is not None:
                await self._program.kill()
            self._prompt_id = self._program = self.pid = None
            self._idle.set()
            end = self._record_end(prompt, self._ending(tail), AgentFailed(INTERRUPTED, cost) if end is None else end)
        if isinstance(end, TurnFailed):
            raise end
        yield end

    async def interrupt(self) -> None:
        """Kill the program and all processes that it started."""
        self._interrupted = self._prompt_id is not None
        if self._program is not None:
            await self._program.kill()

    async def stop(self, grace: timedelta) -> None:
        """Wait for the program to end within the grace period, then kill it."""
        self._stopping = True
        with suppress(TimeoutError):
            async with asyncio.timeout(grace.total_seconds()):
                await self._idle.wait()
        async with self._starting:
            code = await self._program.kill() if self._program is not None else 0
        if not self._ended.done():
            self._ended.set_result(describe_exit(code))

    async def wait_for_end(self) -> str:
        """Wait until the session is stopped, and return how its program ended."""
        return await asyncio.shield(self._ended)

    async def _begin(self, prompt: Prompt) -> Program:
        """Record the prompt, then start the program with it."""
        text = await asyncio.to_thread(self._text_for, prompt)
        self._record(prompt, "prompt", text=prompt.text, reply=prompt.reply, continues=prompt.continues, sent=text)
        call: CommandInvocation = await asyncio.to_thread(prepare_command, self._command, self._launch, text)
        program = await start_program(
            call.argv,
            cwd=self._launch.work_space,
            environment=call.environment,
            errors=self._launch.errors,
            redaction=self._launch.redaction,
            contained=self._contained,
            sandbox=call.sandbox,
        )
        self._program, self.pid = program, program.pid
        if self._interrupted:
            await program.kill()
        program.write(call.standard_input)
        program.close_input()
        return program

    async def _conclude(self, program: Program, output: str, cost: float) -> TurnAnswer | TurnFailed:
        code = await program.wait()
        if self._interrupted:
            return AgentFailed(INTERRUPTED, cost)
        if self._stopping and code:
            return AgentGone(describe_exit(code), cost)
        if code:
            words = await asyncio.to_thread(program.stderr_tail)
            # A secret that is cut is not recognized, so secrets are removed first.
            shown = self._launch.redaction.ending(output, _OUTPUT_SHOWN).strip()
            last = "\n".join(part for part in (shown, words) if part)
            return AgentFailed(f"{self._command.argv[0]} failed with {program.describe_exit(code)}: {last}", cost)
        return TurnAnswer(output.strip(), cost)

    def _text_for(self, prompt: Prompt) -> str:
        """Return the whole text for the program, which does not know earlier prompts."""
        before = _unanswered_text(_entries(self._launch)) if prompt.continues or prompt.reply else ""
        text = before or prompt.text
        notice = _RETRY_NOTICE if before and prompt.continues and not prompt.reply else ""
        reply = f"\n\nA person has replied: {prompt.reply}" if prompt.reply else ""
        return f"{notice}{text}{reply}"

    def _record_end(self, prompt: Prompt, output: str, end: TurnAnswer | TurnFailed) -> TurnAnswer | TurnFailed:
        """Record how a turn ended, and return the end; the turn fails if the transcript cannot be written."""
        try:
            if output:
                self._record(prompt, "said", durable=False, text=output)
            if isinstance(end, TurnAnswer):
                self._append(to_entry(end, prompt.id))
            else:
                kind = "interrupted" if end.reason == INTERRUPTED else "failed"
                self._record(prompt, kind, reason=end.reason, costUsd=end.cost_usd)
        except OSError as error:
            return AgentFailed(f"the transcript cannot be written: {error}", end.cost_usd)
        return end

    def _ending(self, tail: bytearray) -> str:
        return self._launch.redaction.ending(tail.decode(errors="replace"), _OUTPUT_MAX)

    def _record(self, prompt: Prompt, kind: str, *, durable: bool = True, **fields: Any) -> None:
        self._append({"type": kind, "prompt": prompt.id, **fields}, durable=durable)

    def _append(self, entry: TranscriptEntry, *, durable: bool = True) -> None:
        append_entry(self._launch.transcript, entry, durable=durable, redaction=self._launch.redaction)


def _entries(launch: Launch) -> list[TranscriptEntry]:
    return read_entries(launch.transcript) if launch.transcript.exists() else []


def _unanswered_text(entries: Iterable[TranscriptEntry]) -> str:
    """Return the latest prompt with all replies of people to it; an empty text if it has an answer."""
    asked = ""
    for entry in entries:
        match entry:
            case {"type": "prompt", "text": str(text), "continues": bool(continues)}:
                reply = entry.get("reply", "")
                if not asked or not (continues or reply):
                    asked = text
                if reply:
                    asked += f"\n\nA person has replied: {reply}"
            case {"type": "answered"}:
                asked = ""
    return asked
