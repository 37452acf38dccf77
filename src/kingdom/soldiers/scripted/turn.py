"""One turn of a scripted agent: the steps of a script, done one after the other and noted when done."""

import asyncio
import os
import re
import tempfile
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from kingdom.clock import utc_now
from kingdom.errors import MalformedEvent
from kingdom.soldiers.agent import (
    AgentFailed,
    Answered,
    Asked,
    Petitioned,
    Prompt,
    Said,
    Spent,
    ToolCalled,
    Update,
    UsageLimited,
)
from kingdom.soldiers.process_table import end_group
from kingdom.soldiers.scripted import script
from kingdom.soldiers.scripted.memory import DEFAULT_ANSWER, Unfinished
from kingdom.soldiers.scripted.session import Session
from kingdom.soldiers.voice.calls import Remember, ReportResult, read_call
from kingdom.soldiers.voice.report import add_memory, write_report
from kingdom.text import with_reason

_POLL_SECONDS = 0.01
_OUTPUT_TAIL = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """Where and how an agent acts; without an `environment` its tools inherit the agent's own."""

    work_space: Path
    environment: Mapping[str, str] | None
    crash: Callable[[int], None]
    go_deaf: Callable[[], None]


class Turn:
    """What a scripted agent does about one prompt; `cost_usd` is what that has cost so far."""

    def __init__(self, session: Session, body: Body, prompt: Prompt) -> None:
        self.cost_usd = 0.0
        self._session = session
        self._body = body
        self._prompt = prompt
        self._output = ""

    async def play(self) -> AsyncGenerator[Update, None]:
        """Yield what the agent does; raises AgentFailed."""
        last: Asked | Answered | None = None
        try:
            steps = self._begin(self._session.memory.continued(self._prompt))
            async for update in self._follow(steps or ()):
                if isinstance(update, Asked):
                    last = update
                else:
                    yield update
            if last is None:
                last = Answered(self._final_text(scripted=steps is not None), self.cost_usd)
                self._note(answer=last.text)
        except AgentFailed as failure:
            self._note(failed=failure.reason)
            failure.cost_usd = self.cost_usd
            raise
        except (asyncio.CancelledError, GeneratorExit):
            self._note(failed="interrupted")
            raise
        yield last

    def _begin(self, continued: Unfinished | None) -> tuple[script.Step, ...] | None:
        """Note the prompt before anything is done about it; return the steps of its script."""
        prompt = self._prompt
        text = prompt.text if continued is None else continued.text
        scripted = script.has_script(text)
        self._session.note(
            prompt=prompt.id, text=prompt.text, reply=prompt.reply, goesOn=continued is not None, scripted=scripted
        )
        return script.parse_script(text)

    async def _follow(self, steps: tuple[script.Step, ...]) -> AsyncIterator[Update]:
        memory = self._session.memory
        done = memory.unfinished.done if memory.unfinished else 0
        if memory.unfinished and memory.unfinished.asking:
            # Nobody has replied yet: the question is put again.
            done -= 1
        for number, written in enumerate(steps[done:], start=done + 1):
            if written.first_time_only:
                if memory.began_before(number, written):
                    continue
                self._note(begun=number, does=msgspec.to_builtins(written))
            step = written.with_reply(memory.reply)
            self._output = ""
            if isinstance(step, script.Cost):
                self.cost_usd = round(self.cost_usd + step.cost, 9)
            if isinstance(step, script.Ask | script.Petition | script.UsageLimit | script.Cost):
                # Noted first: what somebody else may act upon is told once at most, and found in the transcript.
                self._note(step=number, does=msgspec.to_builtins(step))
                if isinstance(step, script.UsageLimit):
                    raise UsageLimited("usage limit reached", utc_now() + timedelta(seconds=step.usage_limit))
                if isinstance(step, script.Ask):
                    yield Asked(step.ask, step.choices, self.cost_usd)
                    return
                yield Spent(self.cost_usd) if isinstance(step, script.Cost) else Petitioned(step.petition, step.body)
                continue
            async for update in self._do(step):
                yield update
            self._note(
                step=number, does=msgspec.to_builtins(step), **({"output": self._output} if self._output else {})
            )

    async def _do(self, step: script.Step) -> AsyncIterator[Update]:
        match step:
            case script.Say(say=text):
                yield Said(text)
            case script.Stream(stream=text, every=seconds):
                for word in re.findall(r"\S+\s*|\s+", text):
                    yield Said(word)
                    await asyncio.sleep(seconds)
            case script.Write(write=path, text=text):
                yield ToolCalled("write", path)
                self._write(path, text, mode="w")
            case script.Append(append=path, text=text):
                yield ToolCalled("append", path)
                self._write(path, text, mode="a")
            case script.Run(run=command, may_fail=may_fail):
                yield ToolCalled("run", command)
                await self._run(command, may_fail=may_fail)
            case script.Result(result=arguments):
                yield ToolCalled("report_result", str(arguments.get("summary", "")))
                self._report_or_remember("report_result", arguments)
            case script.Remember(remember=arguments):
                yield ToolCalled("remember", str(arguments.get("text", "")))
                self._report_or_remember("remember", arguments)
            case _:
                await self._wait_or_end(step)

    async def _wait_or_end(self, step: script.Step) -> None:
        match step:
            case script.WaitFor(wait_for=path):
                while not self._exists(path):  # noqa: ASYNC110 - the file is made by somebody else
                    await asyncio.sleep(_POLL_SECONDS)
            case script.Fail(fail=reason):
                raise AgentFailed(reason)
            case script.Hang(hang="deaf"):
                self._body.go_deaf()
            case script.Hang(hang=True):
                await asyncio.Event().wait()
            case script.Crash(crash=code):
                self._body.crash(code)

    async def _run(self, command: str, *, may_fail: bool) -> None:
        # A file takes the output, for a pipe would have to wait for everything that the command leaves behind.
        with tempfile.TemporaryFile() as output:
            starting = asyncio.ensure_future(
                asyncio.create_subprocess_exec(
                    "/bin/sh",
                    "-c",
                    command,
                    cwd=self._body.work_space,
                    env=self._body.environment,
                    stdin=DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            )
            try:
                code = await (await asyncio.shield(starting)).wait()
            finally:
                # Half a start cannot be undone: who is interrupted waits for the whole.
                process = await starting
                if process.returncode is None:
                    await end_group(process.pid)
                    await process.wait()
            output.seek(max(0, output.seek(0, os.SEEK_END) - _OUTPUT_TAIL))
            self._output = output.read().decode(errors="replace")
        if code and not may_fail:
            raise AgentFailed(with_reason(f"{command!r} failed with exit code {code}", self._output))

    def _write(self, path: str, text: str, *, mode: str) -> None:
        target = self._body.work_space / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open(mode, encoding="utf-8", newline="") as file:
                file.write(text)
        except OSError as error:
            raise AgentFailed(f"{path} could not be written: {error}") from error

    def _report_or_remember(self, tool: str, arguments: Mapping[str, Any]) -> None:
        try:
            match read_call(tool, arguments):
                case ReportResult() as report:
                    write_report(self._body.work_space, report)
                case Remember() as memory:
                    add_memory(self._body.work_space, memory)
        except (MalformedEvent, OSError) as error:
            raise AgentFailed(str(error)) from error

    def _exists(self, path: str) -> bool:
        return (self._body.work_space / path).exists()

    def _final_text(self, *, scripted: bool) -> str:
        memory = self._session.memory
        if scripted:
            return memory.unfinished.answer if memory.unfinished else DEFAULT_ANSWER
        first_line = self._prompt.text.strip().partition("\n")[0]
        return memory.report_for(self._prompt.id) or f"I was asked: {first_line}"

    def _note(self, **entry: object) -> None:
        self._session.note(prompt=self._prompt.id, **entry, costUsd=self.cost_usd)
