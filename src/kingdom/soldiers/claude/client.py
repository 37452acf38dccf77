"""The client of Claude Code: starts it as a process of its own, and knows its sessions without one."""

import asyncio
import shutil
import uuid
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

from kingdom.errors import Misconfigured
from kingdom.soldiers.agent import Agent, AgentClient, AgentGone, Inspection, Launch
from kingdom.soldiers.claude.command import arguments, environment
from kingdom.soldiers.claude.memory import Past, open_prompt, own_answer, own_transcript
from kingdom.soldiers.notebook import Notebook, recalled
from kingdom.soldiers.process import start_program
from kingdom.soldiers.sandbox.sandbox import Sandbox
from kingdom.soldiers.transcript import inspected, read_entries
from kingdom.workflow.model.answers import Finding


class ClaudeAgents(AgentClient):
    """Runs Claude Code; without a `program` the one that comes with the SDK, or else the `claude` on PATH."""

    name = "claude"
    has_process = True

    def __init__(self, program: Path | None = None, *, contained: bool | None = None) -> None:
        self._program = program
        self._contained = contained

    async def start(self, launch: Launch) -> Agent:
        """Start the process and wait until it takes prompts."""
        agent_module = await asyncio.to_thread(_needing_sdk, "kingdom.soldiers.claude.agent")
        past = await asyncio.to_thread(_past, launch)
        # A session that was never prompted is none to Claude Code: it begins anew, under its old name.
        resumes = own_transcript(launch.environment, past.session) is not None
        executable = self._program or _find_program(launch)
        program = await start_program(
            [str(executable), *arguments(launch, past.session, resumes=resumes)],
            cwd=launch.work_space,
            environment=environment(launch),
            errors=launch.errors,
            redaction=launch.redaction,
            contained=self._contained,
            sandbox=_showing(launch, executable),
        )
        agent: Agent = agent_module.ClaudeAgent(program, launch, Notebook(launch, past))
        try:
            await agent_module.ClaudeAgent.comes_up(agent)
        except BaseException:
            await agent.stop(timedelta())
            raise
        return agent

    async def inspect(self, launch: Launch, prompt_id: str) -> Inspection:
        """Look the prompt up in our transcript, and if that does not tell its end, in the one of Claude Code."""
        return await asyncio.to_thread(_inspected, launch, prompt_id)


def _needing_sdk(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise Misconfigured(
            f"Claude Code is run with a library that is not installed ({error}): pip install 'kingdom[claude]'"
        ) from error


def _find_program(launch: Launch) -> Path:
    bundled = Path(_needing_sdk("claude_agent_sdk").__file__).with_name("_bundled") / "claude"
    found = str(bundled) if bundled.exists() else shutil.which("claude", path=launch.environment.get("PATH", ""))
    if found is None:
        raise Misconfigured(
            "there is no program of Claude Code: neither does claude-agent-sdk carry one for this machine, nor is there"
            " a `claude` on the PATH of agents; install it"
        )
    return Path(found).resolve()


def _showing(launch: Launch, executable: Path) -> Sandbox | None:
    """Return the sandbox of a launch, with the program itself in it."""
    sandbox = launch.sandbox
    return sandbox and replace(sandbox, readable=(*sandbox.readable, executable.parent))


def _past(launch: Launch) -> Past:
    if launch.session is None:
        return Past(str(uuid.uuid4()))
    entries = read_entries(launch.transcript) if launch.transcript.exists() else ()
    past = recalled(entries, launch.session, Past)
    if past is None:
        raise AgentGone(
            f"session {launch.session} cannot be continued: {launch.transcript} does not tell of it; begin a new one"
        )
    return past


def _inspected(launch: Launch, prompt_id: str) -> Inspection:
    try:
        entries = read_entries(launch.transcript)
    except FileNotFoundError:
        return Inspection(finding=Finding.NO_TRANSCRIPT)
    found = inspected(entries, prompt_id)
    left = open_prompt(entries, prompt_id)
    own = own_transcript(launch.environment, left.session) if left else None
    answer = own_answer(own, left.uuid) if left and own else None
    return found if answer is None else replace(found, finding=Finding.ANSWERED, text=answer)
