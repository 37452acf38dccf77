"""Set up a fresh checkout: copy files that git ignores, and run a setup script.

A checkout is set up once, before its first agent. The setup script is the command that the settings contain for the
repository, or else `.kingdom/setup.sh` in the checkout. The script runs in the sandbox of agents, within a time limit,
and its output is kept.
"""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path, PurePosixPath

from kingdom.atomic_write import write_atomically
from kingdom.errors import ProgramFailed
from kingdom.soldiers.checkouts.run_checkouts import CheckoutSpec
from kingdom.soldiers.checkouts.worktree_include import IgnoredFilter, copy_included, read_patterns
from kingdom.soldiers.files.agent_files import AgentFile
from kingdom.soldiers.processes.program import start_program
from kingdom.soldiers.redaction import DEFAULT_REDACTION, RedactedFile, Redaction, secrets_in
from kingdom.soldiers.sandbox.sandbox import Sandbox
from kingdom.text import with_reason

SETUP_LIMIT = timedelta(minutes=10)
_SCRIPT = Path(".kingdom", "setup.sh")
_SHOWN_BYTES = 2000


class CheckoutSetupFailed(ProgramFailed):
    """Raised when a checkout could not be set up."""

    code = "outfit_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckoutSetup:
    """How checkouts are set up.

    `files` has one folder per repository id, with the ignored files to copy. `setup` has commands by repository id.
    """

    files: Path | None = None
    setup: Mapping[str, str] = field(default_factory=dict)
    limit: timedelta = SETUP_LIMIT


async def set_up_checkout(
    tree: CheckoutSpec,
    checkout_setup: CheckoutSetup,
    *,
    folder: Path,
    environment: Mapping[str, str],
    ignored: IgnoredFilter,
    sandbox: Sandbox | None = None,
    redaction: Redaction = DEFAULT_REDACTION,
) -> None:
    """Copy ignored files into a checkout and run its setup script, unless the checkout is set up already.

    Raise CheckoutSetupFailed if this fails. `ignored` returns the given paths that git ignores. `folder` has the marker
    `{tree}.done`, the names of copied `.env` files in `{tree}.env-files`, and the output of the script in `{tree}.log`.
    """
    done = folder / f"{tree.id}.done"
    if _is_done(done):
        return
    try:
        await _copy(tree, checkout_setup, folder, ignored)
        redaction = redaction.with_secrets(copied_secrets(tree, checkout_setup, folder=folder))
        await _run_setup_script(tree, checkout_setup, folder / f"{tree.id}.log", environment, sandbox, redaction)
    except CheckoutSetupFailed:
        raise
    except ProgramFailed as error:
        raise CheckoutSetupFailed(f"the checkout of {tree.git_id} could not be set up: {error}") from error
    write_atomically(done, "")


def copied_secrets(tree: CheckoutSpec, checkout_setup: CheckoutSetup, *, folder: Path) -> set[str]:
    """Return the secrets in the `.env` files that a checkout requests, because agents may print them."""
    if checkout_setup.files is None:
        return set()
    files = [checkout_setup.files / tree.git_id / name for name in _recorded_env_files(tree, folder)]
    return {secret for file in files for secret in secrets_in(_variables(file))}


async def _copy(tree: CheckoutSpec, checkout_setup: CheckoutSetup, folder: Path, ignored: IgnoredFilter) -> None:
    """Copy ignored files. The names of `.env` files are recorded first, so their secrets are known if a copy fails."""
    source = checkout_setup.files / tree.git_id if checkout_setup.files else None
    if source and source.is_dir():
        requested = await asyncio.to_thread(_env_files, source, tree.path)
        write_atomically(
            _env_files_record(tree, folder),
            "".join(f"{name}\n" for name in sorted(requested | _recorded_env_files(tree, folder))),
        )
        await copy_included(source, tree.path, ignored=lambda names: ignored([*filter(_may_copy, names)]))


def _env_files(source: Path, checkout: Path) -> set[str]:
    """Return the names of the `.env` files in `source` that a checkout requests."""
    patterns = read_patterns(checkout)
    names = [PurePosixPath(path.relative_to(source)) for path in source.rglob(".env*")] if patterns else []
    last_matches = {name: next((each for each in reversed(patterns) if each.matches(name)), None) for name in names}
    return {str(name) for name, last in last_matches.items() if last and last.included and _may_copy(str(name))}


def _may_copy(name: str) -> bool:
    """Return whether the secrets of a copied file would be known: the record of `.env` files has one name per line."""
    return name.isprintable() or not PurePosixPath(name).name.startswith(".env")


def _env_files_record(tree: CheckoutSpec, folder: Path) -> Path:
    return folder / f"{tree.id}.env-files"


def _recorded_env_files(tree: CheckoutSpec, folder: Path) -> set[str]:
    record = _env_files_record(tree, folder)
    return set(record.read_text().splitlines()) if record.exists() else set()


async def _run_setup_script(
    tree: CheckoutSpec,
    checkout_setup: CheckoutSetup,
    log: Path,
    environment: Mapping[str, str],
    sandbox: Sandbox | None,
    redaction: Redaction,
) -> None:
    command = checkout_setup.setup.get(tree.git_id)
    if command is None and not AgentFile(tree.path, _SCRIPT.parts[0]).exists():
        return
    # The shell in the sandbox tests whether the script exists, because no symbolic link leads out of there.
    argv = ["/bin/sh", "-c", command or f"test ! -f {_SCRIPT} || exec /bin/sh {_SCRIPT}"]
    program = await start_program(argv, cwd=tree.path, environment=environment, errors=None, sandbox=sandbox)
    program.close_input()
    try:
        with RedactedFile(log, redaction) as file:
            async with asyncio.timeout(checkout_setup.limit.total_seconds()):
                async for chunk in program.chunks():
                    file.write(chunk)
                code = await program.wait()
    except TimeoutError:
        problem = f"took longer than {checkout_setup.limit.total_seconds():g} s and was killed"
    else:
        problem = f"failed ({program.describe_exit(code)})" if code else ""
    finally:
        await program.kill()
    if problem:
        name = str(_SCRIPT) if command is None else f"`{command}`"
        text = with_reason(f"the setup script {name} of {tree.git_id} {problem}; its output is in {log}", _tail(log))
        raise CheckoutSetupFailed(redaction.text(text))


def _is_done(done: Path) -> bool:
    """Create the folder of a marker, and return whether the marker exists."""
    done.parent.mkdir(parents=True, exist_ok=True)
    return done.exists()


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _SHOWN_BYTES))
        return file.read().decode(errors="replace").strip()


def _variables(file: Path) -> dict[str, str]:
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.removeprefix("export ").partition("=") for line in lines if "=" in line)
    return {name.strip(): value.strip().strip("\"'") for name, _, value in pairs}
