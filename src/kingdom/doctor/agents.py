"""The agents that are installed, and their versions."""

import importlib.util
import shutil
from functools import partial
from pathlib import Path

from kingdom.doctor.check import Check, Verdict, fail, in_thread, ok, skipped
from kingdom.doctor.patient import Patient
from kingdom.doctor.programs import how_it_ended, said_by, version_in

_INSTALL = {
    "claude": "pip install claude-agent-sdk",
    "codex": "npm install --global @openai/codex",
    "gemini": "npm install --global @google/gemini-cli",
    "opencode": "npm install --global opencode-ai",
    "aider": "pip install aider-chat",
}


def agent_checks() -> list[Check]:
    """Return a check for each agent that is known."""
    return [Check(name=name, look=partial(_agent, name), remedy=command) for name, command in _INSTALL.items()]


async def _agent(name: str, patient: Patient) -> Verdict:
    wanted = patient.realm.soldiers.agent == name
    program = await in_thread(lambda: _program(name))
    if program is None:
        found = "it is not on PATH" + (" nor in claude-agent-sdk" if name == "claude" else "")
        if wanted:
            return fail(f"{found}, and soldiers.agent names it", _INSTALL[name])
        return skipped("agents that are not installed; the scripted one always is")
    code, words = await said_by(program, "--version")
    if code or not version_in(words):
        return fail(how_it_ended(f"{program} --version", code, words), _INSTALL[name])
    return ok(f"{version_in(words)} in {program}")


def _program(name: str) -> str | None:
    """Return where an agent is: the Claude that comes with its SDK first, since that needs nothing else."""
    package = importlib.util.find_spec("claude_agent_sdk") if name == "claude" else None
    if package and package.origin:
        bundled = Path(package.origin).parent / "_bundled" / name
        if bundled.is_file():
            return str(bundled)
    return shutil.which(name)
