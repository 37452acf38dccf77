"""Check the configured agent: whether the soldier host accepts its settings, and whether its program starts."""

from pathlib import Path

from kingdom.doctor.check import CheckResult, fail, ok, run_in_thread, skipped
from kingdom.doctor.context import CheckContext
from kingdom.doctor.programs import describe_failure, find_version, run_program
from kingdom.settings import read_environment
from kingdom.soldiers.agent_kinds import AGENT_KINDS, build_agent_environment
from kingdom.soldiers.host.host import ENVIRONMENT
from kingdom.soldiers.settings import SoldierSettings

REMEDY = "fix what the message says, or choose another agent as soldiers.agent"


async def check_agent(context: CheckContext) -> CheckResult:
    """Check what the soldier host checks before it starts, and run the program of a known agent with --version."""
    settings = context.realm.soldiers
    if context.file_error and settings == SoldierSettings():
        return skipped("the settings cannot be read, so the agent is unknown")
    program, path = await run_in_thread(lambda: _program(settings))
    if program is None:
        return ok(f"{settings.agent}, which needs no installation")
    if settings.agent == "command":
        # An unknown program may do anything when called with --version.
        return ok(f"command: {program}")
    code, output = await run_program("/usr/bin/env", f"PATH={path}", str(program), "--version")
    if code:
        return fail(describe_failure(f"{program} --version", code, output), REMEDY)
    return ok(f"{settings.agent} {find_version(output)} in {program}")


def _program(settings: SoldierSettings) -> tuple[Path | None, str]:
    """Return the agent's program and its PATH; raise Misconfigured as the host would."""
    client = AGENT_KINDS[settings.agent].client(settings)
    path = build_agent_environment(settings, read_environment, set()).tool_environment(ENVIRONMENT)["PATH"]
    return client.program(path), path
