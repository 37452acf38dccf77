"""The model stub, used by the real Claude Code."""

import asyncio
import json
import uuid
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.model.stub import ModelStub
from tests.fakes.scripts import scripted
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.agents
claude_agent_sdk = pytest.importorskip("claude_agent_sdk")

CLAUDE = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
KILLED = -9


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaudeRun:
    """The exit code and the output of Claude Code."""

    code: int
    lines: list[dict[str, Any]]

    @property
    def result(self) -> dict[str, Any]:
        return next(line for line in self.lines if line["type"] == "result")

    @property
    def texts(self) -> list[str]:
        messages = [line["message"]["content"] for line in self.lines if line["type"] == "assistant"]
        return [block["text"] for content in messages for block in content if block["type"] == "text"]

    @property
    def retries(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if line.get("subtype") == "api_retry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """Runs Claude Code in a folder, with the stub as its model."""

    stub: ModelStub
    work_space: Path
    home: Path

    async def claude(self, prompt: str, *options: str) -> ClaudeRun:
        process = await asyncio.create_subprocess_exec(
            CLAUDE,
            *("-p", prompt, "--output-format", "stream-json", "--verbose", "--permission-mode", "bypassPermissions"),
            *options,
            cwd=self.work_space,
            env=self._environment(),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=DEVNULL,
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), PATIENCE_SECONDS)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return ClaudeRun(code=process.returncode or 0, lines=[json.loads(line) for line in output.splitlines()])

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": "/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "HOME": str(self.home),
            "TMPDIR": str(self.home),
            "IS_SANDBOX": "1",
            "ANTHROPIC_BASE_URL": self.stub.url,
            "ANTHROPIC_API_KEY": "sk-test-local",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_RETRIES": "3",
        }


@pytest.fixture
async def terminal(tmp_path: Path) -> AsyncIterator[Terminal]:
    work_space, home = tmp_path / "work space", tmp_path / "home"
    work_space.mkdir()
    home.mkdir()
    async with ModelStub() as stub:
        yield Terminal(stub=stub, work_space=work_space, home=home)


async def test_claude_does_what_the_script_says_and_ends_with_its_answer(terminal: Terminal) -> None:
    ran = await terminal.claude(
        scripted(
            {"say": "I begin."},
            {"write": "notes/a.txt", "text": "it's a"},
            {"append": "notes/a.txt", "text": "b"},
            {"run": "pwd > where"},
            {"answer": "all is well"},
        )
    )
    assert (ran.code, ran.result["is_error"], ran.result["result"]) == (0, False, "all is well")
    assert ran.texts == ["I begin.", "all is well"]
    assert (terminal.work_space / "notes" / "a.txt").read_text() == "it's ab"
    assert (terminal.work_space / "where").read_text() == f"{terminal.work_space}\n"


@pytest.mark.parametrize("model", ["claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5", "free"])
async def test_a_run_costs_the_price_of_claude_for_the_usage_in_the_script(terminal: Terminal, model: str) -> None:
    ran = await terminal.claude(scripted({"cost": 0.25}, {"run": "true"}, {"cost": 2.5}), "--model", model)
    assert ran.result["total_cost_usd"] == pytest.approx(2.75, abs=1e-5)


async def test_a_run_without_a_cost_is_free(terminal: Terminal) -> None:
    assert (await terminal.claude(scripted({"write": "a"}))).result["total_cost_usd"] == 0


async def test_a_scripted_failure_is_an_api_error_after_the_scripted_cost(terminal: Terminal) -> None:
    ran = await terminal.claude(scripted({"cost": 0.5}, {"fail": "no access"}))
    assert (ran.code, ran.result["is_error"], ran.result["api_error_status"]) == (1, True, 400)
    assert "no access" in ran.result["result"]
    assert ran.result["total_cost_usd"] == pytest.approx(0.5)


async def test_errors_come_as_often_as_the_script_says(terminal: Terminal) -> None:
    overloaded = {"model_error": 529, "times": 1}
    limited = {"model_error": 429, "times": 1, "retry_after": 1}
    ran = await terminal.claude(scripted(limited, overloaded, {"answer": "at last"}))
    assert [retry["error_status"] for retry in ran.retries] == [429, 529]
    assert ran.retries[0]["retry_delay_ms"] == 1000
    assert ran.result["result"] == "at last"


async def test_a_stream_that_breaks_off_is_requested_again(terminal: Terminal) -> None:
    ran = await terminal.claude(scripted({"drop_stream": True, "times": 1}, {"answer": "whole"}))
    assert ran.result["result"] == "whole"
    assert len(terminal.stub.asked) == 2


async def test_a_killed_session_continues_after_the_steps_that_are_done(terminal: Terminal) -> None:
    session = str(uuid.uuid4())
    steps = ({"append": "log", "text": "a"}, {"crash": 1, "first_time_only": True}, {"append": "log", "text": "b"})
    assert (await terminal.claude(scripted(*steps), "--session-id", session)).code == KILLED
    ran = await terminal.claude("go on", "--resume", session)
    assert ran.result["result"] == "done"
    assert (terminal.work_space / "log").read_text() == "ab"


async def test_a_resumed_session_whose_script_has_ended_answers_further_prompts(terminal: Terminal) -> None:
    session = str(uuid.uuid4())
    await terminal.claude(scripted({"answer": "one"}, {"report": "a fine day"}), "--session-id", session)
    assert (await terminal.claude("Report.", "--resume", session)).result["result"] == "a fine day"
    assert (await terminal.claude("And now?", "--resume", session)).result["result"] == "I was asked: And now?"
    assert (await terminal.claude(scripted({"answer": "two"}), "--resume", session)).result["result"] == "two"
