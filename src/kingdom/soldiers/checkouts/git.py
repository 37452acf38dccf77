"""Run git without prompts, user configuration, hooks or leftover processes."""

import asyncio
import os
import re
import resource
import shutil
import signal
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, TypeVar
from urllib.parse import unquote

from kingdom.errors import ProgramFailed
from kingdom.soldiers.processes.process_table import kill_group

T = TypeVar("T")

# These limits apply to operations over a network: clone, fetch, push.
REMOTE_TRIES = 3
REMOTE_PAUSE = timedelta(seconds=2)
REMOTE_LIMIT = timedelta(hours=1)
# These limits apply to operations on disk: checkouts, commits, resets.
LOCAL_TRIES = 2
LOCAL_LIMIT = timedelta(minutes=10)

_GRACE_SECONDS = 2.0
_ERROR_LENGTH_MAX = 2000
_NAME, _EMAIL = "Kingdom", "kingdom@localhost"
# The author of commits, because agents have no git configuration.
IDENTITY = {
    "GIT_AUTHOR_NAME": _NAME,
    "GIT_AUTHOR_EMAIL": _EMAIL,
    "GIT_COMMITTER_NAME": _NAME,
    "GIT_COMMITTER_EMAIL": _EMAIL,
}
_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "commit.gpgsign=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "diff.noprefix=false",
    "diff.mnemonicPrefix=false",
    "protocol.ext.allow=never",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "push.recurseSubmodules=no",
    # The files of a branch can choose a Git LFS server, so the LFS program never runs.
    "filter.lfs.clean=",
    "filter.lfs.smudge=",
    "filter.lfs.process=",
    "filter.lfs.required=false",
    # A busy server sends something every few seconds. After 300 silent seconds, the connection counts as lost.
    "http.lowSpeedLimit=1",
    "http.lowSpeedTime=300",
)
# Git on a checkout ignores the configuration of the machine, and accepts a folder of any owner.
CHECKOUT_SETTINGS = "".join(
    "[{}]\n\t{} = {}\n".format(*name.split(".", 1), value)
    for name, _, value in (each.partition("=") for each in (*_SETTINGS, "safe.directory=*", "pack.threads=1"))
    if name.count(".") == 1
)
CHECKOUT_ENVIRONMENT = {
    "PATH": os.defpath,
    "LC_ALL": "C",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    **IDENTITY,
}


_WITH_USER = re.compile(
    r"(?i)(?P<scheme>https?://)(?P<user>[^/@:]*)(?P<colon>:?)(?P<password>[^/@]*)@(?P<rest>.*)", re.DOTALL
)
_USER, _PASSWORD = "ADDRESS_USER", "ADDRESS_PASSWORD"
# Git calls this credential helper with an operation as its argument: get, store or erase.
_HELPER = f"""!f() {{ test "$1" = get && printf 'username=%s\\npassword=%s\\n' "${_USER}" "${_PASSWORD}"; }}; f"""


class GitFailed(ProgramFailed):
    """Raised when git fails; `exit_code` is None if it took too long or did not start."""

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code


async def run_git(
    *arguments: str,
    cwd: Path,
    home: Path,
    limit: timedelta = LOCAL_LIMIT,
    stdin: IO[bytes] | None = None,
    at_most: int | None = None,
) -> str:
    """Run git and return its output, or its first `at_most` bytes; `stdin` is read from its current position.

    After the time limit or a cancellation, git is killed with everything it started.
    """
    options = [part for setting in _SETTINGS for part in ("-c", setting)]
    shown, secret = extract_credentials(arguments)
    # Git writes to files, not to pipes, because a leftover process could keep a pipe open forever.
    with TemporaryFile() as output, TemporaryFile() as errors:
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                _program(),
                *options,
                *shown,
                cwd=cwd,
                env={**_environment(home), **secret},
                stdin=stdin or DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
        )
        try:
            process = await asyncio.shield(starting)
            if at_most is not None:
                # Otherwise the diff of a hostile branch could fill the disk.
                with suppress(ProcessLookupError):
                    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (at_most, at_most))
            async with asyncio.timeout(limit.total_seconds()):
                code = await process.wait()
        except TimeoutError:
            raise GitFailed(
                f"git {_verb(arguments)} took longer than {limit.total_seconds():g} s in {cwd} and was killed:"
                " check whether the disk or the remote is slow, then try again"
            ) from None
        except OSError as error:
            raise GitFailed(f"git {_verb(arguments)} could not be started in {cwd}: {error}") from error
        finally:
            await run_to_completion(_end(starting))
        if code and not (at_most is not None and code == -signal.SIGXFSZ):
            words = _read(errors).strip()[-_ERROR_LENGTH_MAX:]
            raise GitFailed(f"git {_verb(arguments)} failed in {cwd} with exit code {code}: {words}", code)
        return _read(output, -1 if at_most is None else at_most)


def _read(file: IO[bytes], size: int = -1) -> str:
    file.seek(0)
    return file.read(size).decode(errors="replace")


def extract_credentials(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return arguments without users and passwords, and environment variables that give them to git instead.

    Every account can read the arguments of a process, but only its owner can read its environment.
    """
    shown, secret = list[str](), dict[str, str]()
    for argument in arguments:
        if found := _WITH_USER.fullmatch(argument):
            user = unquote(found["user"])
            # The empty helper disables all configured helpers, because they might store the password. Without a
            # password the user may be a token, or the configured helpers know the password of the user.
            first = ("credential.helper", "") if found["colon"] else ("credential.username", user)
            secret = {**_settings(first, ("credential.helper", _HELPER)), _USER: user}
            secret[_PASSWORD] = unquote(found["password"])
        shown.append(found["scheme"] + found["rest"] if found else argument)
    return shown, secret


def _settings(*settings: tuple[str, str]) -> dict[str, str]:
    """Return environment variables that give settings to git, after those of its configuration files."""
    variables = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (name, value) in enumerate(settings):
        variables |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return variables


async def retry_git(act: Callable[[], Awaitable[T]], *, tries: int, pause: timedelta = timedelta()) -> T:
    """Retry when git fails, after a pause that doubles; a timeout or a failed start is not retried."""
    for number in range(tries - 1):
        try:
            return await act()
        except GitFailed as error:
            if error.exit_code is None:
                raise
            await asyncio.sleep(pause.total_seconds() * 2**number)
    return await act()


async def run_to_completion(act: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end even if the caller is cancelled; the cancellation is raised afterwards."""
    ended = asyncio.ensure_future(act)
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        while not ended.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([ended])
        # Retrieve a failure, because asyncio warns about failures that are never retrieved.
        if not ended.cancelled():
            ended.exception()
        raise


async def _end(starting: "asyncio.Future[Process]") -> None:
    """Stop git if it is still running. SIGTERM is sent first, because git then removes its own lock files."""
    try:
        process = await starting
    except OSError:
        return
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_SECONDS):
                await process.wait()
    # Processes that git started may outlive it.
    with suppress(TimeoutError):
        async with asyncio.timeout(_GRACE_SECONDS):
            await kill_group(process.pid)
    await process.wait()


def _program() -> str:
    program = shutil.which("git")
    if program is None:
        raise GitFailed("git is not on PATH: install it on this host")
    return program


def _environment(home: Path) -> dict[str, str]:
    return {
        "PATH": os.pathsep.join([str(Path(_program()).parent), os.defpath]),
        "HOME": str(home),
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        # Ignore replacement objects, and do not fetch missing objects.
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_NO_LAZY_FETCH": "1",
        # Credentials and other settings of the operator are in the `.gitconfig` of `home`.
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_LFS_SKIP_SMUDGE": "1",
        **IDENTITY,
    }


def _verb(arguments: tuple[str, ...]) -> str:
    """Return the git command without its arguments, which may contain a password."""
    return next((argument for argument in arguments if not argument.startswith("-")), "")
