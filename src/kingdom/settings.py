"""The only module that reads the environment: settings of the process, the name of the user, and named secrets."""

import getpass
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kingdom.errors import Misconfigured

DEFAULT_SCHEMA = "kingdom"
DEFAULT_METRICS_PREFIX = "kingdom"
# The file with the settings of a realm. Relative paths in it start at its directory.
FILE = "kingdom.yaml"
# The default store: files in a subdirectory of the current directory.
DEFAULT_URL = "file:realm"
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a process from its command line and environment. No module reads them at import time.

    `application` is the MODULE:OBJECT that declares streams and handlers; `actor` is the user's name in the log.
    """

    database_url: str
    # The kingdom.yaml that applies, if there is one.
    file: Path | None = None
    # False if neither an option nor KINGDOM_DATABASE_URL names the store. Then kingdom.yaml may name it.
    store_is_named: bool = True
    schema: str = DEFAULT_SCHEMA
    through_pgbouncer: bool = False
    listen_url: str | None = None
    application: str | None = None
    actor: str = ""
    # The first part of the names of the metrics of the bus.
    metrics_prefix: str = DEFAULT_METRICS_PREFIX
    # The brokers of streams with the transport kafka, the first part of the names of their topics, the number of
    # partitions of a new topic, and options of the client.
    kafka_servers: str | None = None
    kafka_prefix: str | None = None
    kafka_partitions: int = 12
    kafka_options: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_files(self) -> bool:
        """Return whether the store is a directory of files."""
        return self.database_url.lower().startswith("file:")

    @property
    def base_directory(self) -> Path:
        """Return the directory where relative paths in kingdom.yaml start."""
        return self.file.parent if self.file else Path()

    @property
    def direct_url(self) -> str:
        """Return a URL that bypasses PgBouncer, for wake-ups and migrations, which need their own session."""
        if not self.through_pgbouncer:
            return self.database_url
        if self.listen_url is None:
            raise Misconfigured(
                "this command needs its own database session, which PgBouncer does not provide:"
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
        """Read the environment. The arguments, from a command line, take precedence."""
        named = database_url or os.environ.get("KINGDOM_DATABASE_URL")
        default = f"file:{file.parent / 'realm'}" if file else DEFAULT_URL
        return cls(
            # DATABASE_URL may belong to another application, so our own variable takes precedence.
            database_url=named or os.environ.get("DATABASE_URL") or default,
            file=file,
            store_is_named=bool(named),
            schema=schema or os.environ.get("KINGDOM_SCHEMA") or DEFAULT_SCHEMA,
            through_pgbouncer=_flag("KINGDOM_THROUGH_PGBOUNCER"),
            listen_url=os.environ.get("KINGDOM_LISTEN_URL") or None,
            application=application or os.environ.get("KINGDOM_APP") or None,
            actor=os.environ.get("KINGDOM_ACTOR") or _user_at_host(),
            metrics_prefix=_metrics_prefix(),
            kafka_servers=os.environ.get("KINGDOM_KAFKA_SERVERS") or None,
            kafka_prefix=os.environ.get("KINGDOM_KAFKA_PREFIX"),
            kafka_partitions=_kafka_partitions(),
            kafka_options=_kafka_options(),
        )


def find_realm_file() -> Path | None:
    """Return the kingdom.yaml of the current directory, if there is one."""
    file = Path(FILE)
    return file if file.exists() else None


def read_environment(name: str) -> str | None:
    """Return an environment variable that a person named, such as one that holds a secret."""
    return os.environ.get(name)


def environment_of_children(settings: Settings) -> dict[str, str]:
    """Return the environment of a child process on the same store.

    The URL is not passed as an option, because other users can see the options of a process, and so the password.
    """
    return {**os.environ, "KINGDOM_DATABASE_URL": settings.database_url, "KINGDOM_SCHEMA": settings.schema}


def _flag(name: str) -> bool:
    value = os.environ.get(name, "").strip().lower()
    if value not in _TRUE | _FALSE:
        raise Misconfigured(f"{name} is {value!r}: set it to 1 or 0, or leave it unset")
    return value in _TRUE


def _metrics_prefix() -> str:
    prefix = os.environ.get("KINGDOM_METRICS_PREFIX") or DEFAULT_METRICS_PREFIX
    if not re.fullmatch(r"[A-Za-z_]\w*", prefix, re.ASCII):
        raise Misconfigured(
            f"KINGDOM_METRICS_PREFIX is {prefix!r}: a metric name has letters, digits and _, and no digit at its start"
        )
    return prefix


def _kafka_partitions() -> int:
    text = os.environ.get("KINGDOM_KAFKA_PARTITIONS") or "12"
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise Misconfigured(f"KINGDOM_KAFKA_PARTITIONS is {text!r}: set it to a positive number")
    return int(text)


def _kafka_options() -> dict[str, str]:
    pairs = [pair.partition("=") for pair in os.environ.get("KINGDOM_KAFKA_OPTIONS", "").split(";") if pair.strip()]
    if wrong := [name for name, equals, _ in pairs if not equals]:
        raise Misconfigured(f"KINGDOM_KAFKA_OPTIONS: {wrong[0]!r} has no value; write NAME=VALUE;NAME=VALUE")
    return {name.strip(): value for name, _, value in pairs}


def _user_at_host() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # A container may run under a user id without an account.
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
