"""Build the sandbox of the agent that works on one Work."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from kingdom.soldiers.sandbox.model_proxy import ModelProxy
from kingdom.soldiers.sandbox.sandbox import AGENT_LIMITS, ResourceLimits, Sandbox, SandboxProfile

_PROTECTED_GIT_FILES = ("config", "commondir")
_log = structlog.get_logger("kingdom.soldiers")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckoutPaths:
    """The paths of one checkout: its files, its git directory, and the object store of the clone, which is read-only.

    The agent sees the file `pointer` as `.git`, even if it has put something else there.
    """

    files: Path
    pointer: Path
    git_directory: Path
    objects: Path


def build_agent_sandbox(
    profile: SandboxProfile,
    *,
    space: Path,
    home: Path,
    checkouts: Sequence[CheckoutPaths],
    reports: Path,
    tools: Sequence[Path] = (),
    model_proxy: ModelProxy | None = None,
    egress_socket: Path | None = None,
    limits: ResourceLimits = AGENT_LIMITS,
    may_commit: bool = False,
) -> Sandbox:
    """Return the sandbox of an agent, with its WorkSpace, its HOME and its checkouts writable.

    The reports and the folders of `tools` are read-only. The git directories of the checkouts are read-only too,
    because Kingdom commits for the agent. With `may_commit` they are writable, except the files that can make git run
    programs. `egress_socket` belongs to the proxy to the allowed hosts.
    """
    writable, readable = [space, home, *(each.files for each in checkouts)], [*tools]
    overlays: list[tuple[Path, Path]] = []
    if reports.is_dir():
        readable.append(reports)
    if profile is SandboxProfile.OFF:
        _log.warning(
            "an agent runs without a sandbox and can read and change whatever this user can: set soldiers.sandbox to"
            " strict in kingdom.yaml"
        )
    else:
        for each in checkouts:
            readable.append(each.objects)
            overlays.append((each.pointer, each.files / ".git"))
            (writable if may_commit else readable).append(each.git_directory)
            if may_commit:
                readable += [each.git_directory / name for name in _PROTECTED_GIT_FILES]
    sandbox = Sandbox(
        profile=profile,
        writable=(*writable,),
        readable=(*readable,),
        overlays=(*overlays,),
        limits=limits,
        egress_socket=egress_socket,
    )
    if model_proxy is None:
        return sandbox
    return replace(sandbox, model_socket=model_proxy.socket, url=model_proxy.url or sandbox.url)
