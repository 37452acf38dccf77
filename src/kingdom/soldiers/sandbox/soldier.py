"""What the agent of a Work may see and write."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from kingdom.soldiers.sandbox.gate import Gate
from kingdom.soldiers.sandbox.sandbox import AGENT_LIMITS, Limits, Profile, Sandbox

_TELLING_PROGRAMS = ("config", "commondir")
_log = structlog.get_logger("kingdom.soldiers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One checkout of an agent: its files, its git directory, and the objects of the clone, which it reads.

    `pointer` is what it sees as `.git`, whatever lies there.
    """

    files: Path
    pointer: Path
    git_directory: Path
    objects: Path


def soldier_sandbox(
    profile: Profile,
    *,
    space: Path,
    home: Path,
    checkouts: Sequence[Place],
    reports: Path,
    tools: Sequence[Path] = (),
    gate: Gate | None = None,
    egress: Path | None = None,
    limits: Limits = AGENT_LIMITS,
    may_commit: bool = False,
) -> Sandbox:
    """Return the sandbox of an agent: its WorkSpace, its HOME and its checkouts for writing.

    It reads the reports, the folders of its `tools` and the git directories of its checkouts. The house commits; one
    that `may_commit` writes to these git directories too, but not to what tells git which programs to run.
    """
    writable, readable = [space, home, *(each.files for each in checkouts)], [*tools]
    covers: list[tuple[Path, Path]] = []
    if reports.is_dir():
        readable.append(reports)
    if profile is Profile.OFF:
        _log.warning(
            "an agent runs WITHOUT A SANDBOX: it can read and change whatever this user can; set the profile to strict"
        )
    else:
        for each in checkouts:
            readable.append(each.objects)
            covers.append((each.pointer, each.files / ".git"))
            (writable if may_commit else readable).append(each.git_directory)
            if may_commit:
                readable += [each.git_directory / name for name in _TELLING_PROGRAMS]
    sandbox = Sandbox(
        profile=profile,
        writable=(*writable,),
        readable=(*readable,),
        covers=(*covers,),
        limits=limits,
        egress=egress,
    )
    if gate is None:
        return sandbox
    return replace(sandbox, socket=gate.socket, url=gate.url or sandbox.url)
