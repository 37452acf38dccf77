"""What the agent of a Work may see and write."""

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
    """One checkout of an agent: its files, its git directory, and the objects of the clone, which it reads.

    `pointer` is what it sees as `.git`, whatever lies there.
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
    gate: ModelProxy | None = None,
    egress: Path | None = None,
    limits: ResourceLimits = AGENT_LIMITS,
    may_commit: bool = False,
) -> Sandbox:
    """Return the sandbox of an agent: its WorkSpace, its HOME and its checkouts for writing.

    It reads the reports, the folders of its `tools` and the git directories of its checkouts. The house commits; one
    that `may_commit` writes to these git directories too, but not to what tells git which programs to run.
    """
    writable, readable = [space, home, *(each.files for each in checkouts)], [*tools]
    overlays: list[tuple[Path, Path]] = []
    if reports.is_dir():
        readable.append(reports)
    if profile is SandboxProfile.OFF:
        _log.warning(
            "an agent runs WITHOUT A SANDBOX: it can read and change whatever this user can; set the profile to strict"
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
        egress=egress,
    )
    if gate is None:
        return sandbox
    return replace(sandbox, socket=gate.socket, url=gate.url or sandbox.url)
