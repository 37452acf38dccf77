"""What the agent of a Work may see and write."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from kingdom.errors import ProgramFailed
from kingdom.soldiers.sandbox.gate import Gate
from kingdom.soldiers.sandbox.sandbox import AGENT_LIMITS, Limits, Profile, Sandbox

_LINK = "gitdir: "
_log = structlog.get_logger("kingdom.soldiers")


def soldier_sandbox(
    profile: Profile,
    *,
    space: Path,
    home: Path,
    checkouts: Mapping[Path, Path],
    reports: Path,
    tools: Sequence[Path] = (),
    gate: Gate | None = None,
    limits: Limits = AGENT_LIMITS,
    branch: str | None = None,
) -> Sandbox:
    """Return the sandbox of an agent: its WorkSpace, its HOME and its checkouts for writing.

    `checkouts` tells of each the clone that it belongs to, which the agent reads, as it reads the reports and the
    folders of its `tools`. The house commits; with a `branch` the agent may too, on branches of the folder which that
    one is in, and can then damage the objects of the clone.
    """
    writable, readable = [space, home, *checkouts], [*tools]
    if reports.is_dir():
        readable.append(reports)
    if profile is Profile.OFF:
        _log.warning(
            "an agent runs WITHOUT A SANDBOX: it can read and change whatever this user can; set the profile to strict"
        )
    else:
        for checkout, clone in checkouts.items():
            readable += [clone, _link(checkout)]
            if branch is not None:
                writable += _for_commits(checkout, clone, branch)
                readable += [_entry(checkout, clone) / name for name in ("commondir", "gitdir")]
    sandbox = Sandbox(profile=profile, writable=(*writable,), readable=(*readable,), limits=limits)
    if gate is None:
        return sandbox
    return replace(sandbox, socket=gate.socket, url=gate.url or sandbox.url)


def _for_commits(checkout: Path, clone: Path, branch: str) -> Iterator[Path]:
    """Yield what git writes for a commit; neither configuration nor hooks nor the branches of others are in it."""
    yield from (clone / "objects", _entry(checkout, clone))
    for names in (clone / "refs", clone / "logs" / "refs"):
        branches = (names / "heads" / branch).parent
        branches.mkdir(parents=True, exist_ok=True)
        yield branches


def _entry(checkout: Path, clone: Path) -> Path:
    """Return where git keeps the data of a checkout."""
    entry = Path(_link(checkout).read_text().strip().removeprefix(_LINK))
    if entry.parent != clone / "worktrees" or not entry.is_dir():
        raise ProgramFailed(f"{checkout} does not belong to {clone}: look at its .git, and release the checkout")
    return entry


def _link(checkout: Path) -> Path:
    link = checkout / ".git"
    if link.is_symlink() or not link.is_file():
        raise ProgramFailed(
            f"{link} is not what git has put there, an agent may have replaced it: look at it, and release the checkout"
        )
    return link
