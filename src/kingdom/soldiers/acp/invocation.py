"""What a profile comes to for one launch: the command, the environment, and the files that are written first."""

import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template

from kingdom.errors import Misconfigured
from kingdom.soldiers.acp.profile import AcpProfile
from kingdom.soldiers.agent import Launch
from kingdom.soldiers.agent_files import AgentFile, matching
from kingdom.soldiers.sandbox.prices import Price
from kingdom.soldiers.sandbox.programs import folders_of_program
from kingdom.soldiers.sandbox.sandbox import Sandbox

_AGENTS = ".kingdom-agents"
# What stands in files of settings, where anything else could be read as more than a name.
_NAME = re.compile(r"[\w./:@+\[\]-]+")
_BEGINNING = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class AcpInvocation:
    """How an agent is started; `folder` is what it has for itself."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    sandbox: Sandbox | None
    folder: Path


def prepare_acp_invocation(
    profile: AcpProfile, launch: Launch, price: Price, url: str, directory: Path | None
) -> AcpInvocation:
    """Return how an agent is started, once what it needs is in its folder; raises Misconfigured or ProgramFailed."""
    model = launch.model or profile.model
    if not _NAME.fullmatch(model):
        raise Misconfigured(f"{model!r} is no name of a model: write it without spaces and quotes")
    home = launch.environment.get("HOME")
    if not home:
        raise Misconfigured(f"{profile.name} keeps its sessions in HOME, but the environment of the agent has none")
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
    program, shown = find_program(profile, environment["PATH"]), launch.sandbox
    for name, text in profile.files.items():
        AgentFile(Path(home), f"{folder.relative_to(home)}/{name}").write(Template(text).substitute(texts))
    return AcpInvocation(
        argv=(str(program), *(Template(argument).substitute(texts) for argument in profile.arguments)),
        environment=environment,
        sandbox=shown and replace(shown, readable=(*shown.readable, *folders_of_program(program))),
        folder=folder,
    )


def move_session_files_aside(profile: AcpProfile, invocation: AcpInvocation, session: str) -> None:
    """Move what a session has left out of the way of its loading, under a name that no session of now gets."""
    if not profile.aside:
        return
    pattern = Template(profile.aside).substitute(session=session[:_BEGINNING])
    home = invocation.folder.parents[1]
    found = matching(home, f"{invocation.folder.relative_to(home)}/{pattern}")
    if not found:
        return
    # Of several only the longest has the conversation; the others are what earlier loadings began.
    *others, longest = (each.file for each in sorted(found, key=lambda each: each.size))
    for file in others:
        file.remove()
    longest.rename(f"session-2000-01-01T00-00-{session[:_BEGINNING]}{longest.path.suffix}")


def search_path(path: str, directory: Path | None) -> str:
    """Return where programs are looked for: first where npm has installed agents, if it has."""
    return f"{directory / 'node_modules' / '.bin'}:{path}" if directory else path


def find_program(profile: AcpProfile, path: str) -> Path:
    """Return the program of an agent; raises Misconfigured where there is none on the PATH."""
    program = shutil.which(profile.program, path=path)
    if program is None:
        raise Misconfigured(
            f"there is no program {profile.program!r} on the PATH of agents: npm install --prefix DIRECTORY"
            f" {profile.install}, and name the directory as soldiers.agents in kingdom.yaml; where it is installed"
            " already, name its folder in soldiers.path"
        )
    return Path(program)
