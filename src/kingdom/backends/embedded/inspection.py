"""Looking at an embedded server without starting it."""

from dataclasses import dataclass

from kingdom.backends.embedded.programs import programs_for, serving_account
from kingdom.backends.embedded.server_directory import ServerDirectory


@dataclass(frozen=True, slots=True)
class ServerInspection:
    """Which version a place has or would get, which process serves it, and whether somebody keeps it running."""

    version: str
    account: str
    is_made: bool
    pid: int | None
    has_keeper: bool


def inspect_server(place: ServerDirectory) -> ServerInspection:
    """Look at the server of a place; raises Misconfigured where there cannot be one."""
    place.refuse_if_not_ours()
    programs, account = programs_for(place), serving_account(place)
    return ServerInspection(
        version=programs.version,
        account=account.pw_name if account else "",
        is_made=place.is_made,
        pid=place.server_pid(),
        has_keeper=place.has_keeper(),
    )
