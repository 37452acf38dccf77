"""The agent that soldiers run: whether their host would take its settings, and whether its program starts."""

from pathlib import Path

from kingdom.doctor.check import Verdict, fail, in_thread, ok, skipped
from kingdom.doctor.patient import Patient
from kingdom.doctor.programs import how_it_ended, said_by, version_in
from kingdom.settings import read_environment
from kingdom.soldiers.agent_kinds import AGENT_KINDS, build_agent_environment
from kingdom.soldiers.host.host import ENVIRONMENT
from kingdom.soldiers.settings import SoldierSettings

REMEDY = "do what it says, or choose another agent as soldiers.agent"


async def agent(patient: Patient) -> Verdict:
    """Look at what the soldier host looks at before it starts, and ask the program of its agent for its version."""
    settings = patient.realm.soldiers
    if patient.file_trouble and settings == SoldierSettings():
        return skipped("the settings cannot be read, so nobody knows which agent is meant")
    program, path = await in_thread(lambda: _program(settings))
    if program is None:
        return ok(f"{settings.agent}, which needs nothing to be installed")
    if settings.agent == "command":
        # Nobody knows what a stranger does when it is asked for its version.
        return ok(f"command: {program}")
    code, words = await said_by("/usr/bin/env", f"PATH={path}", str(program), "--version")
    if code:
        return fail(how_it_ended(f"{program} --version", code, words), REMEDY)
    return ok(f"{settings.agent} {version_in(words)} in {program}")


def _program(settings: SoldierSettings) -> tuple[Path | None, str]:
    """Return the program of the agent and the PATH that it gets; raises Misconfigured as the host would."""
    client = AGENT_KINDS[settings.agent].client(settings)
    path = build_agent_environment(settings, read_environment, set()).tool_environment(ENVIRONMENT)["PATH"]
    return client.program(path), path
