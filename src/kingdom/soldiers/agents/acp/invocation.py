"""Apply a profile to one launch: the command, the environment, and the files that the agent reads."""

import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template

from kingdom.errors import Misconfigured
from kingdom.soldiers.agents.acp.profile import AcpProfile
from kingdom.soldiers.agents.port import Launch
from kingdom.soldiers.files.agent_files import AgentFile, find_files
from kingdom.soldiers.sandbox.prices import Price
from kingdom.soldiers.sandbox.programs import folders_of_program
from kingdom.soldiers.sandbox.sandbox import Sandbox

_AGENTS = ".kingdom-agents"
# The model name is written into settings files, so it must not contain syntax.
_MODEL_NAME = re.compile(r"[\w./:@+\[\]-]+")
# The length of the part of a session's id that file names contain.
_SESSION_PREFIX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class AcpInvocation:
    """How an agent is started; `folder` is its private folder below HOME."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    sandbox: Sandbox | None
    folder: Path


def prepare_acp_invocation(
    profile: AcpProfile, launch: Launch, price: Price, url: str, directory: Path | None
) -> AcpInvocation:
    """Write the files of an agent and return how to start it; raises Misconfigured or ProgramFailed."""
    model = launch.model or profile.model
    if not _MODEL_NAME.fullmatch(model):
        raise Misconfigured(f"{model!r} is not a valid model name: write it without spaces and quotes")
    home = launch.environment.get("HOME")
    if not home:
        raise Misconfigured(
            f"{profile.name} keeps its sessions in HOME, but the environment of the agent does not set HOME"
        )
    folder = Path(home, _AGENTS, f"{profile.name}-{launch.soldier_id}")
    texts = {
        "folder": str(folder),
        "url": url,
        "model": model,
        "instructions": launch.instructions,
        "input": f"{price.input:g}",
        "cache_read": f"{price.input if price.cache_read is None else price.cache_read:g}",
        "output": f"{price.output:g}",
    }
    environment = {name: Template(value).substitute(texts) for name, value in profile.environment.items()}
    environment |= launch.environment
    environment["PATH"] = search_path(environment.get("PATH", ""), directory)
    program, sandbox = find_program(profile, environment["PATH"]), launch.sandbox
    for name, text in profile.files.items():
        AgentFile(Path(home), f"{folder.relative_to(home)}/{name}").write(Template(text).substitute(texts))
    return AcpInvocation(
        argv=(str(program), *(Template(argument).substitute(texts) for argument in profile.arguments)),
        environment=environment,
        sandbox=sandbox and replace(sandbox, readable=(*sandbox.readable, *folders_of_program(program))),
        folder=folder,
    )


def move_session_files_aside(profile: AcpProfile, invocation: AcpInvocation, session: str) -> None:
    """Keep the longest file of a session under a name that loading does not overwrite, and remove its other files."""
    if not profile.conflicting_files:
        return
    pattern = Template(profile.conflicting_files).substitute(session=session[:_SESSION_PREFIX])
    home = invocation.folder.parents[1]
    found = find_files(home, f"{invocation.folder.relative_to(home)}/{pattern}")
    if not found:
        return
    # Only the longest file has the whole conversation; the others are leftovers of earlier loads.
    *others, longest = (each.file for each in sorted(found, key=lambda each: each.size))
    for file in others:
        file.remove()
    longest.rename(f"session-2000-01-01T00-00-{session[:_SESSION_PREFIX]}{longest.path.suffix}")


def search_path(path: str, directory: Path | None) -> str:
    """Return the search path of programs, which begins with the folder of agents that npm has installed, if any."""
    return f"{directory / 'node_modules' / '.bin'}:{path}" if directory else path


def find_program(profile: AcpProfile, path: str) -> Path:
    """Return the program of an agent; raises Misconfigured if it is not on the PATH."""
    program = shutil.which(profile.program, path=path)
    if program is None:
        raise Misconfigured(
            f"there is no program {profile.program!r} on the PATH of agents: run npm install --prefix DIRECTORY"
            f" {profile.npm_packages}, and set soldiers.agents in kingdom.yaml to that directory; if it is installed"
            " already, add its folder to soldiers.path"
        )
    return Path(program)
