"""Start Claude Code as a process, and inspect its sessions without a process."""

import asyncio
import shutil
import uuid
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from kingdom.errors import Misconfigured
from kingdom.soldiers.agents.claude.command import build_arguments, build_environment
from kingdom.soldiers.agents.claude.history import ClaudeHistory, find_session_file, find_unanswered_prompt, read_answer
from kingdom.soldiers.agents.port import Agent, AgentClient, Inspection, Launch, SessionGone, return_when_ready
from kingdom.soldiers.agents.session_log import SessionLog, load_history
from kingdom.soldiers.agents.transcript import TranscriptEntry, inspect_entries, inspect_transcript
from kingdom.soldiers.processes.program import start_program
from kingdom.soldiers.sandbox.sandbox import Sandbox
from kingdom.workflow.model.messages.answers import TranscriptFinding

if TYPE_CHECKING:
    from kingdom.soldiers.agents.claude.agent import ClaudeAgent


class ClaudeAgentClient(AgentClient):
    """Runs Claude Code: the given `program`, or the one bundled with the SDK, or `claude` on the PATH.

    `contained` is whether an agent without a sandbox runs in its own pid namespace; by default it does if bubblewrap is
    installed.
    """

    name = "claude"
    has_process = True
    takes_over_sessions = True

    def __init__(self, program: Path | None = None, *, contained: bool | None = None) -> None:
        self._program = program
        self._contained = contained

    def program(self, path: str) -> Path:
        """Return the program that `start` runs."""
        return self._program or _find_program(path)

    async def start(self, launch: Launch) -> Agent:
        """Start the process and wait until it takes prompts."""
        # The import runs in a thread, because the SDK takes long to load.
        agent_class = await asyncio.to_thread(_import_agent_class)
        history = await asyncio.to_thread(load_history, launch, ClaudeHistory, str(uuid.uuid4()))
        # Claude Code keeps no session without a prompt, so such a session is started again under the same id.
        resumes = await asyncio.to_thread(find_session_file, launch.environment, history.session) is not None
        if launch.earlier_transcript and not resumes:
            raise SessionGone(f"Claude Code has no session {history.session} any more")
        executable = self.program(launch.environment.get("PATH", ""))
        program = await start_program(
            [str(executable), *build_arguments(launch, history.session, resumes=resumes)],
            cwd=launch.work_space,
            environment=build_environment(launch),
            errors=launch.errors,
            redaction=launch.redaction,
            contained=self._contained,
            sandbox=_sandbox_with_program(launch, executable),
        )
        agent = agent_class(program, launch, SessionLog(launch, history))
        return await return_when_ready(agent, agent.wait_until_ready())

    async def inspect(self, launch: Launch, prompt_id: str) -> Inspection:
        """Look up the prompt in Kingdom's transcript, and a missing answer in Claude Code's session file."""
        return await asyncio.to_thread(inspect_transcript, launch.transcript, prompt_id, partial(_inspect, launch))


def _import_agent_class() -> "type[ClaudeAgent]":
    from kingdom.soldiers.agents.claude.agent import ClaudeAgent  # noqa: PLC0415 - the SDK is optional and slow to load

    return ClaudeAgent


def _find_program(path: str) -> Path:
    library = find_spec("claude_agent_sdk")
    bundled = Path(library.origin).with_name("_bundled") / "claude" if library and library.origin else None
    found = str(bundled) if bundled and bundled.exists() else shutil.which("claude", path=path)
    if found is None:
        raise Misconfigured(
            "Claude Code was not found: claude-agent-sdk bundles no program for this machine, and `claude` is not on"
            " the PATH of agents; install Claude Code"
        )
    return Path(found).resolve()


def _sandbox_with_program(launch: Launch, executable: Path) -> Sandbox | None:
    """Return the sandbox of a launch with the folder of the program readable."""
    sandbox = launch.sandbox
    return sandbox and replace(sandbox, readable=(*sandbox.readable, executable.parent))


def _inspect(launch: Launch, entries: list[TranscriptEntry], prompt_id: str) -> Inspection:
    found = inspect_entries(entries, prompt_id)
    unanswered = find_unanswered_prompt(entries, prompt_id)
    session_file = find_session_file(launch.environment, unanswered.session) if unanswered else None
    answer = read_answer(session_file, unanswered.uuid) if unanswered and session_file else None
    return found if answer is None else replace(found, finding=TranscriptFinding.ANSWERED, text=answer)
