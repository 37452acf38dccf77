"""The client of Claude Code: starts it as a process of its own, and knows its sessions without one."""

import asyncio
import shutil
import uuid
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from kingdom.errors import Misconfigured
from kingdom.soldiers.agents.claude.command import arguments, environment
from kingdom.soldiers.agents.claude.memory import Past, open_prompt, own_answer, own_transcript
from kingdom.soldiers.agents.port import Agent, AgentClient, Inspection, Launch, return_when_ready
from kingdom.soldiers.agents.session_log import SessionLog, load_history
from kingdom.soldiers.agents.transcript import TranscriptEntry, inspect_entries, inspect_transcript
from kingdom.soldiers.processes.program import start_program
from kingdom.soldiers.sandbox.sandbox import Sandbox
from kingdom.workflow.model.answers import Finding


class ClaudeAgents(AgentClient):
    """Runs Claude Code; without a `program` the one that comes with the SDK, or else the `claude` on PATH."""

    name = "claude"
    has_process = True

    def __init__(self, program: Path | None = None, *, contained: bool | None = None) -> None:
        self._program = program
        self._contained = contained

    def program(self, path: str) -> Path:
        """See the port."""
        return self._program or _find_program(path)

    async def start(self, launch: Launch) -> Agent:
        """Start the process and wait until it takes prompts."""
        # In a thread, for the library takes long to load.
        module = await asyncio.to_thread(import_module, "kingdom.soldiers.agents.claude.agent")
        past = await asyncio.to_thread(load_history, launch, Past, str(uuid.uuid4()))
        # A session that was never prompted is none to Claude Code: it begins anew, under its old name.
        resumes = await asyncio.to_thread(own_transcript, launch.environment, past.session) is not None
        executable = self.program(launch.environment.get("PATH", ""))
        program = await start_program(
            [str(executable), *arguments(launch, past.session, resumes=resumes)],
            cwd=launch.work_space,
            environment=environment(launch),
            errors=launch.errors,
            redaction=launch.redaction,
            contained=self._contained,
            sandbox=_showing(launch, executable),
        )
        agent = module.ClaudeAgent(program, launch, SessionLog(launch, past))
        return await return_when_ready(agent, agent.comes_up())

    async def inspect(self, launch: Launch, prompt_id: str) -> Inspection:
        """Look the prompt up in our transcript, and if that does not tell its end, in the one of Claude Code."""
        inspect = partial(_told, launch)
        return await asyncio.to_thread(inspect_transcript, launch.transcript, prompt_id, inspect)


def _find_program(path: str) -> Path:
    library = find_spec("claude_agent_sdk")
    bundled = Path(library.origin).with_name("_bundled") / "claude" if library and library.origin else None
    found = str(bundled) if bundled and bundled.exists() else shutil.which("claude", path=path)
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


def _told(launch: Launch, entries: list[TranscriptEntry], prompt_id: str) -> Inspection:
    found = inspect_entries(entries, prompt_id)
    left = open_prompt(entries, prompt_id)
    own = own_transcript(launch.environment, left.session) if left else None
    answer = own_answer(own, left.uuid) if left and own else None
    return found if answer is None else replace(found, finding=Finding.ANSWERED, text=answer)
