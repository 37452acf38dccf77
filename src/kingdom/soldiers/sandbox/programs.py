"""Find programs outside of the system folders, the folders that they need, and commands that install packages."""

import os
import pwd
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

# Toolchains that people install in their home. Folders where these tools keep passwords are not listed.
TOOLCHAINS = (
    *(".asdf/installs", ".bun/bin", ".cargo/bin", ".cargo/registry", ".deno/bin", ".local/bin", ".local/pipx"),
    *(".local/share/mise", ".local/share/pnpm", ".local/share/uv", ".nvm/versions", ".pyenv", ".rustup"),
    *(".sdkman/candidates", ".volta", "go/bin", "go/pkg"),
)
_PROGRAM_FOLDERS = (
    *(".local/bin", ".cargo/bin", "go/bin", ".pyenv/shims", ".local/share/mise/shims", ".local/share/pnpm"),
    *(".nvm/versions/node/*/bin", ".volta/bin", ".bun/bin", ".deno/bin", ".sdkman/candidates/*/current/bin"),
)
_SYSTEM = ("/usr", "/bin", "/sbin")
_LINKS_MAX = 40
_INSTALL_COMMANDS = {
    "apt-get": "sudo apt-get install",
    "dnf": "sudo dnf install",
    "pacman": "sudo pacman -S",
    "apk": "sudo apk add",
    "zypper": "sudo zypper install",
}


def how_to_install(package: str) -> str:
    """Return the command that installs a package on this machine, or a hint if its package manager is unknown."""
    for program, command in _INSTALL_COMMANDS.items():
        if shutil.which(program):
            return f"{command} {package}"
    return f"install {package} with the installer of your system"


def user_home() -> Path:
    """Return the home directory of the current user, independent of HOME."""
    return Path(pwd.getpwuid(os.getuid()).pw_dir)


def toolchain_environment(home: Path) -> dict[str, str]:
    """Return variables that locate the user's toolchains, because agents have another HOME."""
    return {"RUSTUP_HOME": str(home / ".rustup")} if (home / ".rustup").is_dir() else {}


def toolchain_programs(home: Path) -> list[Path]:
    """Return the program folders of the user's toolchains, newest versions first."""
    return [
        path
        for pattern in _PROGRAM_FOLDERS
        for path in sorted(home.glob(pattern), key=lambda found: [*map(int, re.findall(r"\d+", str(found)))])[::-1]
        if path.is_dir()
    ]


def folders_of_program(program: Path) -> tuple[Path, ...]:
    """Return the folders that a program needs to run: its own folder or its whole installation.

    An installation is a virtual environment with its Python, a Rust toolchain, or a `node_modules` folder.
    """
    folders = [step.parent for step in _link_chain(program)]
    return _outside_system(place for folder in folders for place in [*_installation(folder)] or [folder])


def folders_of_tools(folder: Path) -> tuple[Path, ...]:
    """Return the folders that the programs of a folder need to run, including the targets of its links."""
    if not folder.is_dir():
        return ()
    links = [path for path in folder.iterdir() if path.is_symlink() and path.exists()]
    folders = [folder, *(step.parent for link in links for step in _link_chain(link))]
    return _outside_system([folder, *(place for each in folders for place in _installation(each))])


def _link_chain(path: Path) -> list[Path]:
    """Return a path, every step of its chain of links, and its real path."""
    steps = [path.absolute()]
    while steps[-1].is_symlink() and len(steps) < _LINKS_MAX:
        steps.append(Path(os.path.normpath(steps[-1].parent / steps[-1].readlink())))
    return [*steps, path.resolve()]


def _installation(folder: Path) -> Iterator[Path]:
    """Yield the installation that a folder of programs belongs to, if it is recognized."""
    modules = [part for part in (folder, *folder.parents) if part.name == "node_modules"]
    if modules:
        yield modules[-1]
    elif (folder.parent / "lib" / "rustlib").is_dir():
        yield folder.parent
    elif (folder.parent / "pyvenv.cfg").exists():
        yield folder.parent
        for interpreter in _link_chain(folder / "python")[1:]:
            # Agents see the whole folder only if it is clearly a Python installation.
            if any(interpreter.parents[1].glob("lib/python3*/os.py")):
                yield interpreter.parents[1]
            elif interpreter.parent.name == "bin":
                yield interpreter.parent


def _outside_system(places: Iterator[Path] | list[Path]) -> tuple[Path, ...]:
    return tuple(sorted(place for place in {*places} if place.is_dir() and not _is_system(place)))


def _is_system(place: Path) -> bool:
    return place == Path("/") or any(place.is_relative_to(part) for part in _SYSTEM)
