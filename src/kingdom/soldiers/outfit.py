"""What a fresh checkout lacks: files that git ignores, what a setup script makes, and ports for what is started there.

A checkout is fitted out once, before its first agent. The setup script is the one that the settings name for its
repository, or `.kingdom/setup.sh` in it; it runs as an agent would, within a time limit, and its output is kept.
"""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path, PurePosixPath

from kingdom.atomic_write import write_atomically
from kingdom.errors import ProgramFailed
from kingdom.soldiers.agent_files import AgentFile
from kingdom.soldiers.folders import Folders
from kingdom.soldiers.process import start_program
from kingdom.soldiers.redaction import WELL_KNOWN, RedactedFile, Redaction, secrets_in
from kingdom.soldiers.sandbox.sandbox import Sandbox
from kingdom.soldiers.trees import Tree
from kingdom.soldiers.worktree_include import Ignored, copy_included, read_patterns
from kingdom.text import with_reason

PORTS_PER_RUN = 10
PORT_VARIABLE = "KINGDOM_PORT_BASE"
SETUP_LIMIT = timedelta(minutes=10)
_SCRIPT = Path(".kingdom", "setup.sh")
# Below the ports that the kernel gives away by itself.
_PORT_FIRST, _PORT_END = 12_000, 32_760
_PORTS = "ports"
_SHOWN = 2000


class OutfitFailed(ProgramFailed):
    """Raised when a checkout could not be fitted out."""

    code = "outfit_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outfit:
    """What checkouts of this host get: files from `files`/{git}, and a setup command by the id of the repository."""

    files: Path | None = None
    setup: Mapping[str, str] = field(default_factory=dict)
    limit: timedelta = SETUP_LIMIT


async def fit_out(
    tree: Tree,
    outfit: Outfit,
    *,
    folder: Path,
    environment: Mapping[str, str],
    ignored: Ignored,
    sandbox: Sandbox | None = None,
    redaction: Redaction = WELL_KNOWN,
) -> None:
    """Copy files that are `ignored` into a checkout and run its setup script, unless that was done; or OutfitFailed.

    `folder` is where it is noted that it was done, which `.env` files the checkout asked for, and the output of the
    script: `{tree}.done`, `{tree}.env-files`, `{tree}.log`.
    """
    done = folder / f"{tree.id}.done"
    if _is_there(done):
        return
    try:
        await _copy(tree, outfit, folder, ignored)
        redaction = redaction.knowing(copied_secrets(tree, outfit, folder=folder))
        await _set_up(tree, outfit, folder / f"{tree.id}.log", environment, sandbox, redaction)
    except OutfitFailed:
        raise
    except ProgramFailed as error:
        raise OutfitFailed(f"the checkout of {tree.git_id} could not be fitted out: {error}") from error
    write_atomically(done, "")


def copied_secrets(tree: Tree, outfit: Outfit, *, folder: Path) -> set[str]:
    """Return the secrets in the `.env` files that a checkout asked for, which agents may print."""
    if outfit.files is None:
        return set()
    files = [outfit.files / tree.git_id / name for name in _noted(tree, folder)]
    return {secret for file in files for secret in secrets_in(_variables(file))}


def port_base(folders: Folders, workflow_id: str) -> int:
    """Return the first of the ten ports of a run, which are its own until it has not asked for them for very long."""
    claim = folders.run(workflow_id) / _PORTS
    if (own := _claimed(claim)) is not None:
        claim.touch()
        return own
    others = {base: other for other in folders.runs.glob(f"*/{_PORTS}") if (base := _claimed(other)) is not None}
    free = (base for base in range(_PORT_FIRST, _PORT_END, PORTS_PER_RUN) if base not in others)
    if (base := next(free, None)) is None:
        # Far fewer agents run here than there are blocks: the run that asked longest ago has ended.
        base, oldest = min(others.items(), key=lambda item: _asked_at(item[1]))
        oldest.unlink(missing_ok=True)
    write_atomically(claim, f"{base}\n")
    return base


async def _copy(tree: Tree, outfit: Outfit, folder: Path, ignored: Ignored) -> None:
    """Copy files, having noted where their secrets stand: a later attempt finds them in the checkout already."""
    source = outfit.files / tree.git_id if outfit.files else None
    if source and source.is_dir():
        asked_for = await asyncio.to_thread(_env_files, source, tree.path)
        write_atomically(_note(tree, folder), "".join(f"{name}\n" for name in sorted(asked_for | _noted(tree, folder))))
        await copy_included(source, tree.path, ignored=ignored)


def _env_files(source: Path, checkout: Path) -> set[str]:
    """Return those `.env` files of a folder that a checkout asks for, whether it has them yet or not."""
    patterns = read_patterns(checkout)
    names = [PurePosixPath(path.relative_to(source)) for path in source.rglob(".env*")] if patterns else []
    decisive = {name: next((each for each in reversed(patterns) if each.matches(name)), None) for name in names}
    # Others are not copied: git would write their names in quotes.
    return {str(name) for name, last in decisive.items() if last and last.taken and str(name).isprintable()}


def _note(tree: Tree, folder: Path) -> Path:
    return folder / f"{tree.id}.env-files"


def _noted(tree: Tree, folder: Path) -> set[str]:
    note = _note(tree, folder)
    return set(note.read_text().splitlines()) if note.exists() else set()


async def _set_up(
    tree: Tree,
    outfit: Outfit,
    log: Path,
    environment: Mapping[str, str],
    sandbox: Sandbox | None,
    redaction: Redaction,
) -> None:
    command = outfit.setup.get(tree.git_id)
    if command is None and not AgentFile(tree.path, _SCRIPT.parts[0]).is_there():
        return
    # Whether there really is a script is found out inside, where links lead nowhere else.
    argv = ["/bin/sh", "-c", command or f"test ! -f {_SCRIPT} || exec /bin/sh {_SCRIPT}"]
    program = await start_program(argv, cwd=tree.path, environment=environment, errors=None, sandbox=sandbox)
    program.close_input()
    try:
        with RedactedFile(log, redaction) as file:
            async with asyncio.timeout(outfit.limit.total_seconds()):
                async for chunk in program.chunks():
                    file.write(chunk)
                code = await program.wait()
    except TimeoutError:
        words = f"took longer than {outfit.limit.total_seconds():g} s and was killed"
    else:
        words = f"failed ({program.described(code)})" if code else ""
    finally:
        await program.kill()
    if words:
        name = str(_SCRIPT) if command is None else f"`{command}`"
        text = with_reason(f"the setup script {name} of {tree.git_id} {words}; its output is in {log}", _tail(log))
        raise OutfitFailed(redaction.text(text))


def _is_there(done: Path) -> bool:
    """Tell whether a note is there; if not, it can be made."""
    done.parent.mkdir(parents=True, exist_ok=True)
    return done.exists()


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _SHOWN))
        return file.read().decode(errors="replace").strip()


def _variables(file: Path) -> dict[str, str]:
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.removeprefix("export ").partition("=") for line in lines if "=" in line)
    return {name.strip(): value.strip().strip("\"'") for name, _, value in pairs}


def _asked_at(claim: Path) -> float:
    try:
        return claim.stat().st_mtime
    except OSError:
        return 0.0


def _claimed(claim: Path) -> int | None:
    try:
        return int(claim.read_text())
    except (OSError, ValueError):
        return None
