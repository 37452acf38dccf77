"""The one place that reads the environment: where the store is, and who is asking."""

import getpass
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from kingdom.errors import Misconfigured

DEFAULT_SCHEMA = "kingdom"
# The settings of a realm, beside which its paths begin.
FILE = "kingdom.yaml"
# With nothing installed and nothing said: files in a directory beside the work.
DEFAULT_URL = "file:realm"
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a process must know from outside; nothing of it is known while modules are imported."""

    database_url: str
    # The file of settings that counts here, if there is one.
    file: Path | None = None
    # False where a file of settings may name another: no option and no variable of ours has named one.
    store_is_named: bool = True
    schema: str = DEFAULT_SCHEMA
    through_pgbouncer: bool = False
    listen_url: str | None = None
    application: str | None = None
    actor: str = ""

    @property
    def is_files(self) -> bool:
        """Tell whether the store is a directory of files."""
        return self.database_url.lower().startswith("file:")

    @property
    def beside(self) -> Path:
        """Return the directory that the paths in the file of settings begin at."""
        return self.file.parent if self.file else Path()

    @property
    def direct_url(self) -> str:
        """Return a way to the server itself, for what needs a session of its own: wake-ups and migrations."""
        if not self.through_pgbouncer:
            return self.database_url
        if self.listen_url is None:
            raise Misconfigured(
                "this needs a session of its own, which PgBouncer does not give:"
                " set KINGDOM_LISTEN_URL to the server behind it"
            )
        return self.listen_url

    @classmethod
    def read(
        cls,
        *,
        file: Path | None = None,
        database_url: str | None = None,
        schema: str | None = None,
        application: str | None = None,
    ) -> "Settings":
        """Read the environment; what is given here, from a command line, comes first."""
        named = database_url or os.environ.get("KINGDOM_DATABASE_URL")
        default = f"file:{file.parent / 'realm'}" if file else DEFAULT_URL
        return cls(
            # The common variable may belong to the application beside us, so whatever names our store comes first.
            database_url=named or os.environ.get("DATABASE_URL") or default,
            file=file,
            store_is_named=bool(named),
            schema=schema or os.environ.get("KINGDOM_SCHEMA") or DEFAULT_SCHEMA,
            through_pgbouncer=_flag("KINGDOM_THROUGH_PGBOUNCER"),
            listen_url=os.environ.get("KINGDOM_LISTEN_URL") or None,
            application=application or os.environ.get("KINGDOM_APP") or None,
            actor=os.environ.get("KINGDOM_ACTOR") or _user_at_host(),
        )


def find_realm_file() -> Path | None:
    """Return the file of settings of this directory, if there is one."""
    file = Path(FILE)
    return file if file.exists() else None


def read_environment(name: str) -> str | None:
    """Return a variable that a person named, such as the place of a secret."""
    return os.environ.get(name)


def environment_of_children(settings: Settings) -> dict[str, str]:
    """Return the environment for a process of ours in the same store; a command line would show a password."""
    return {**os.environ, "KINGDOM_DATABASE_URL": settings.database_url, "KINGDOM_SCHEMA": settings.schema}


def _flag(name: str) -> bool:
    value = os.environ.get(name, "").strip().lower()
    if value not in _TRUE | _FALSE:
        raise Misconfigured(f"{name} is {value!r}: set it to 1 or 0, or leave it unset")
    return value in _TRUE


def _user_at_host() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # A container may run under a number that no account belongs to.
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
