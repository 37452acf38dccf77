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
from kingdom.soldiers.agent import Agent, AgentClient, Inspection, Launch, once_up
from kingdom.soldiers.claude.command import arguments, environment
from kingdom.soldiers.claude.memory import Past, open_prompt, own_answer, own_transcript
from kingdom.soldiers.notebook import Notebook, past_of
from kingdom.soldiers.process import start_program
from kingdom.soldiers.sandbox.sandbox import Sandbox
from kingdom.soldiers.transcript import Entry, inspected, looked_up
from kingdom.workflow.model.messages.answers import TranscriptFinding


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
        module = await asyncio.to_thread(import_module, "kingdom.soldiers.claude.agent")
        past = await asyncio.to_thread(past_of, launch, Past, str(uuid.uuid4()))
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
        agent = module.ClaudeAgent(program, launch, Notebook(launch, past))
        return await once_up(agent, agent.comes_up())

    async def inspect(self, launch: Launch, prompt_id: str) -> Inspection:
        """Look the prompt up in our transcript, and if that does not tell its end, in the one of Claude Code."""
        tells = partial(_told, launch)
        return await asyncio.to_thread(looked_up, launch.transcript, prompt_id, tells)


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


def _told(launch: Launch, entries: list[Entry], prompt_id: str) -> Inspection:
    found = inspected(entries, prompt_id)
    left = open_prompt(entries, prompt_id)
    own = own_transcript(launch.environment, left.session) if left else None
    answer = own_answer(own, left.uuid) if left and own else None
    return found if answer is None else replace(found, finding=TranscriptFinding.ANSWERED, text=answer)
