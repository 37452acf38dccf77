"""Inspect an embedded server without starting it."""

from dataclasses import dataclass

from kingdom.backends.embedded.programs import programs_for, serving_account
from kingdom.backends.embedded.server_directory import ServerDirectory


@dataclass(frozen=True, slots=True)
class ServerInspection:
    """The version, the account and the process of an embedded server, and whether a keeper runs it."""

    version: str
    account: str
    is_created: bool
    pid: int | None
    has_keeper: bool


def inspect_server(directory: ServerDirectory) -> ServerInspection:
    """Inspect the server of a directory. Raise Misconfigured if the directory cannot have a server."""
    directory.check_usable()
    programs, account = programs_for(directory), serving_account(directory)
    return ServerInspection(
        version=programs.version,
        account=account.pw_name if account else "",
        is_created=directory.is_created,
        pid=directory.server_pid(),
        has_keeper=directory.has_keeper(),
    )
