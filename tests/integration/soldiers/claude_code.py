"""The real Claude Code, started directly for a single prompt."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import claude_agent_sdk

from kingdom.soldiers.processes.program import start_program
from kingdom.soldiers.sandbox.sandbox import Sandbox

CLAUDE = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "ANTHROPIC_API_KEY": "none",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_MAX_RETRIES": "1",
    "DISABLE_AUTOUPDATER": "1",
    "IS_SANDBOX": "1",
}


async def ask_claude(
    prompt: str, folder: Path, sandbox: Sandbox, *, url: str = "", options: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the result line of Claude Code for a prompt; its HOME is the folder."""
    argv = [str(CLAUDE), "-p", prompt, "--output-format=json", "--permission-mode=bypassPermissions", *options]
    environment = {**_ENVIRONMENT, "HOME": str(folder), "ANTHROPIC_BASE_URL": url or sandbox.url}
    program = await start_program(argv, cwd=folder, environment=environment, errors=folder / "errors", sandbox=sandbox)
    try:
        program.close_input()
        lines = [line async for line in program.lines()]
    finally:
        code = await program.kill()
    assert code == 0, (lines, program.stderr_tail())
    result: dict[str, Any] = json.loads(lines[-1])
    return result
