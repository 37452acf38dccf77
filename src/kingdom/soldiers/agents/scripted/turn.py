"""One turn of a scripted agent: it executes the steps of a script in order and records each."""

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
from kingdom.soldiers.agent_tools.calls import RememberInput, ReportResultInput, parse_tool_input
from kingdom.soldiers.agent_tools.result_file import add_memory, write_result
from kingdom.soldiers.agents.port import (
    AgentFailed,
    AgentMessage,
    CostUpdate,
    PetitionRequest,
    Prompt,
    ToolUse,
    TurnAnswer,
    TurnQuestion,
    TurnUpdate,
    UsageLimited,
)
from kingdom.soldiers.agents.scripted import script
from kingdom.soldiers.agents.scripted.history import DEFAULT_ANSWER, UnfinishedScript
from kingdom.soldiers.agents.scripted.session import ScriptedSession
from kingdom.soldiers.processes.process_table import kill_group
from kingdom.text import with_reason

_POLL_SECONDS = 0.01
_OUTPUT_TAIL = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedContext:
    """Where an agent acts, and how the steps `crash` and `hang` end or block its process.

    If `environment` is None, the commands of the agent inherit its own environment.
    """

    work_space: Path
    environment: Mapping[str, str] | None
    crash: Callable[[int], None]
    block_forever: Callable[[], None]


class ScriptedTurn:
    """The turn of one prompt; `cost_usd` is its cost so far."""

    def __init__(self, session: ScriptedSession, context: ScriptedContext, prompt: Prompt) -> None:
        self.cost_usd = 0.0
        self._session = session
        self._context = context
        self._prompt = prompt
        self._output = ""

    async def execute(self) -> AsyncGenerator[TurnUpdate, None]:
        """Execute the script and yield its updates; raise AgentFailed if the turn fails."""
        last: TurnQuestion | TurnAnswer | None = None
        try:
            steps = self._begin(self._session.history.find_continued_script(self._prompt))
            async for update in self._execute_steps(steps or ()):
                if isinstance(update, TurnQuestion):
                    last = update
                else:
                    yield update
            if last is None:
                last = TurnAnswer(self._final_text(scripted=steps is not None), self.cost_usd)
                self._record(answer=last.text)
        except AgentFailed as failure:
            self._record(failed=failure.reason)
            failure.cost_usd = self.cost_usd
            raise
        except (asyncio.CancelledError, GeneratorExit):
            self._record(failed="interrupted")
            raise
        yield last

    def _begin(self, continued: UnfinishedScript | None) -> tuple[script.ScriptStep, ...] | None:
        """Record the prompt before anything is done; return the steps of its script."""
        prompt = self._prompt
        text = prompt.text if continued is None else continued.text
        scripted = script.has_script(text)
        self._session.record(
            prompt=prompt.id, text=prompt.text, reply=prompt.reply, goesOn=continued is not None, scripted=scripted
        )
        return script.parse_script(text)

    async def _execute_steps(self, steps: tuple[script.ScriptStep, ...]) -> AsyncIterator[TurnUpdate]:
        history = self._session.history
        done = history.unfinished.done if history.unfinished else 0
        if history.unfinished and history.unfinished.asking:
            # There is no reply yet, so the question is asked again.
            done -= 1
        for number, step_template in enumerate(steps[done:], start=done + 1):
            if step_template.first_time_only:
                if history.began_before(number, step_template):
                    continue
                self._record(begun=number, does=msgspec.to_builtins(step_template))
            step = step_template.with_prompts(history.prompts).with_reply(history.reply)
            self._output = ""
            if isinstance(step, script.CostStep):
                self.cost_usd = round(self.cost_usd + step.cost, 9)
            if isinstance(step, script.AskStep | script.PetitionStep | script.UsageLimitStep | script.CostStep):
                # The host acts on these updates, so their steps are recorded first: no update is lost or sent twice.
                self._record(step=number, does=msgspec.to_builtins(step))
                if isinstance(step, script.UsageLimitStep):
                    raise UsageLimited("usage limit reached", utc_now() + timedelta(seconds=step.usage_limit))
                if isinstance(step, script.AskStep):
                    yield TurnQuestion(step.ask, step.choices, self.cost_usd)
                    return
                yield (
                    CostUpdate(self.cost_usd)
                    if isinstance(step, script.CostStep)
                    else PetitionRequest(step.petition, step.body)
                )
                continue
            async for update in self._execute_step(step):
                yield update
            self._record(
                step=number, does=msgspec.to_builtins(step), **({"output": self._output} if self._output else {})
            )

    async def _execute_step(self, step: script.ScriptStep) -> AsyncIterator[TurnUpdate]:
        match step:
            case script.SayStep(say=text):
                yield AgentMessage(text)
            case script.StreamStep(stream=text, every=seconds):
                for word in re.findall(r"\S+\s*|\s+", text):
                    yield AgentMessage(word)
                    await asyncio.sleep(seconds)
            case script.WriteStep(write=path, text=text):
                yield ToolUse("write", path)
                self._write(path, text, mode="w")
            case script.AppendStep(append=path, text=text):
                yield ToolUse("append", path)
                self._write(path, text, mode="a")
            case script.RunStep(run=command, may_fail=may_fail):
                yield ToolUse("run", command)
                await self._run(command, may_fail=may_fail)
            case script.ResultStep(result=arguments):
                yield ToolUse("report_result", str(arguments.get("summary", "")))
                self._report_or_remember("report_result", arguments)
            case script.RememberStep(remember=arguments):
                yield ToolUse("remember", str(arguments.get("text", "")))
                self._report_or_remember("remember", arguments)
            case _:
                await self._wait_or_end(step)

    async def _wait_or_end(self, step: script.ScriptStep) -> None:
        match step:
            case script.WaitForStep(wait_for=path):
                while not self._exists(path):  # noqa: ASYNC110 - another process creates it
                    await asyncio.sleep(_POLL_SECONDS)
            case script.FailStep(fail=reason):
                raise AgentFailed(reason)
            case script.HangStep(hang="deaf"):
                self._context.block_forever()
            case script.HangStep(hang=True):
                await asyncio.Event().wait()
            case script.CrashStep(crash=code):
                self._context.crash(code)

    async def _run(self, command: str, *, may_fail: bool) -> None:
        # The output goes to a file, because a pipe stays open until all background processes end.
        with tempfile.TemporaryFile() as output:
            starting = asyncio.ensure_future(
                asyncio.create_subprocess_exec(
                    "/bin/sh",
                    "-c",
                    command,
                    cwd=self._context.work_space,
                    env=self._context.environment,
                    stdin=DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            )
            try:
                code = await (await asyncio.shield(starting)).wait()
            finally:
                # The start of a process cannot be cancelled halfway, so an interrupted turn waits until it is done.
                process = await starting
                if process.returncode is None:
                    await kill_group(process.pid)
                    await process.wait()
            output.seek(max(0, output.seek(0, os.SEEK_END) - _OUTPUT_TAIL))
            self._output = output.read().decode(errors="replace")
        if code and not may_fail:
            raise AgentFailed(with_reason(f"{command!r} failed with exit code {code}", self._output))

    def _write(self, path: str, text: str, *, mode: str) -> None:
        target = self._context.work_space / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open(mode, encoding="utf-8", newline="") as file:
                file.write(text)
        except OSError as error:
            raise AgentFailed(f"{path} could not be written: {error}") from error

    def _report_or_remember(self, tool: str, arguments: Mapping[str, Any]) -> None:
        try:
            match parse_tool_input(tool, arguments):
                case ReportResultInput() as report:
                    write_result(self._context.work_space, report)
                case RememberInput() as memory:
                    add_memory(self._context.work_space, memory)
        except (MalformedEvent, OSError) as error:
            raise AgentFailed(str(error)) from error

    def _exists(self, path: str) -> bool:
        return (self._context.work_space / path).exists()

    def _final_text(self, *, scripted: bool) -> str:
        history = self._session.history
        if scripted:
            return history.unfinished.answer if history.unfinished else DEFAULT_ANSWER
        first_line = self._prompt.text.strip().partition("\n")[0]
        return history.report_for(self._prompt.id) or f"I was asked: {first_line}"

    def _record(self, **entry: object) -> None:
        self._session.record(prompt=self._prompt.id, **entry, costUsd=self.cost_usd)
