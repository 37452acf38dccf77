"""What a profile comes to for one launch: the command, the environment, and the files that are written first."""

import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template

from kingdom.errors import Misconfigured, ProgramFailed
from kingdom.soldiers.acp.profile import Price, Profile
from kingdom.soldiers.agent import Launch
from kingdom.soldiers.sandbox.programs import places_of
from kingdom.soldiers.sandbox.sandbox import Sandbox

_AGENTS = ".kingdom-agents"
# What stands in files of settings, where anything else could be read as more than a name.
_NAME = re.compile(r"[\w./:@+\[\]-]+")
_BEGINNING = 8
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class Outfit:
    """How an agent is started; `folder` is what it has for itself."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    sandbox: Sandbox | None
    folder: Path


def outfit(profile: Profile, launch: Launch, price: Price, url: str, directory: Path | None) -> Outfit:
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
        "read": f"{price.read:g}",
        "cached": f"{price.cached:g}",
        "written": f"{price.written:g}",
    }
    environment = {name: Template(value).substitute(texts) for name, value in profile.environment.items()}
    environment |= launch.environment
    environment["PATH"] = search_path(environment.get("PATH", ""), directory)
    program, shown = program_of(profile, environment["PATH"]), launch.sandbox
    for name, text in profile.files.items():
        _write(Path(home), folder / name, Template(text).substitute(texts))
    return Outfit(
        argv=(str(program), *(Template(argument).substitute(texts) for argument in profile.arguments)),
        environment=environment,
        sandbox=shown and replace(shown, readable=(*shown.readable, *places_of(program))),
        folder=folder,
    )


def put_aside(profile: Profile, outfit: Outfit, session: str) -> None:
    """Move what a session has left out of the way of its loading, under a name that no session of now gets."""
    if not profile.aside:
        return
    pattern = Template(profile.aside).substitute(session=session[:_BEGINNING])
    # Only what really lies there: the agent may have put links.
    root = outfit.folder.parents[1].resolve() / _AGENTS / outfit.folder.name
    files = [file for file in root.glob(pattern) if file.is_file() and file.resolve() == file]
    if not files:
        return
    # Of several only the longest has the conversation; the others are what earlier loadings began.
    *others, longest = sorted(files, key=lambda file: file.stat().st_size)
    for file in others:
        file.unlink()
    longest.rename(longest.with_name(f"session-2000-01-01T00-00-{session[:_BEGINNING]}{longest.suffix}"))


def search_path(path: str, directory: Path | None) -> str:
    """Return where programs are looked for: first where npm has installed agents, if it has."""
    return f"{directory / 'node_modules' / '.bin'}:{path}" if directory else path


def program_of(profile: Profile, path: str) -> Path:
    """Return the program of an agent; raises Misconfigured where there is none on the PATH."""
    program = shutil.which(profile.program, path=path)
    if program is None:
        raise Misconfigured(
            f"there is no program {profile.program!r} on the PATH of agents: npm install --prefix DIRECTORY"
            f" {profile.install}, and name the directory as soldiers.agents in kingdom.yaml; where it is installed"
            " already, name its folder in soldiers.path"
        )
    return Path(program)


def _write(home: Path, file: Path, text: str) -> None:
    """Write a file where agents may write too: no link is followed, neither now nor when one comes in between."""
    *way, name = file.relative_to(home).parts
    try:
        folder = os.open(home, _FOLDER)
        try:
            for part in way:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=folder)
                outer, folder = folder, os.open(part, _FOLDER, dir_fd=folder)
                os.close(outer)
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            with os.fdopen(os.open(name, _NEW, 0o600, dir_fd=folder), "w", encoding="utf-8") as written:
                written.write(text)
        finally:
            os.close(folder)
    except OSError as error:
        raise ProgramFailed(
            f"{file} could not be written: {error}; an agent may have put something in its way: look at it, and remove"
            " it"
        ) from error
