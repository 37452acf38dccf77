"""One checkout: the files of a run on their own branch.

An agent can change the files at any moment, so this process opens none of them. Instead, a program in a sandbox works
on them. It sees only the checkout, its git directory and the objects of the clone, which is the host's own copy of the
repository. The program returns git objects. Git checks them before the clone imports them. Then the branch is moved.
"""

import asyncio
import marshal
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile, mkdtemp
from typing import IO, Any

import kingdom
from kingdom.atomic_write import write_atomically
from kingdom.errors import ProgramFailed
from kingdom.soldiers.checkouts import checkout_program
from kingdom.soldiers.checkouts.git import (
    CHECKOUT_ENVIRONMENT,
    CHECKOUT_SETTINGS,
    LOCAL_LIMIT,
    LOCAL_TRIES,
    GitFailed,
    retry_git,
    run_to_completion,
)
from kingdom.soldiers.checkouts.repository import Repository, read_small_file
from kingdom.soldiers.files.removal import remove_tree
from kingdom.soldiers.processes.program import start_program
from kingdom.soldiers.sandbox.agent_sandbox import CheckoutPaths
from kingdom.soldiers.sandbox.sandbox import AGENT_LIMITS, Sandbox, SandboxProfile

# The program starts often, so Python starts without `site`, and the code is in a module, which is compiled once.
_CODE = f"import sys; sys.path.append(sys.argv[1]); from {checkout_program.__name__} import main; main()"
_PROGRAM = (sys.executable, "-I", "-S", "-c", _CODE, str(Path(*kingdom.__path__).parent))
_LINE_BYTES_MAX = 1 << 20
_OUTPUT_BYTES_MAX = 8 << 30
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckoutState:
    """The contents of a checkout. Every field has the ids of commits.

    The commit `files` contains the current files. `head` is the HEAD of the checkout, `tip` the last commit of its
    branch, and `others` are further commits of the agent.
    """

    files: str
    head: str
    others: tuple[str, ...]
    tip: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GitPolicy:
    """The rules for git on checkouts: whether it runs in a sandbox, as agents do, and whether agents may commit."""

    sandboxed: bool = True
    may_commit: bool = False

    @classmethod
    def for_profile(cls, profile: SandboxProfile, *, may_commit: bool) -> "GitPolicy":
        """Return the policy for agents with a sandbox profile."""
        return cls(sandboxed=profile is not SandboxProfile.OFF, may_commit=may_commit)

    @property
    def agents_can_write_git(self) -> bool:
        """Return whether agents can write to the git directories of their checkouts."""
        return self.may_commit or not self.sandboxed


class Checkout:
    """The files of one run in one repository.

    A folder beside the files has the git directory, and files with the names of the clone and of the branch. A sandbox
    shows agents only the git directory in it. The file with the branch is written last, so a checkout with this file is
    complete. In the checkout, `.git` is a file that points to the git directory.
    """

    def __init__(self, repository: Repository, path: Path, branch: str, git_policy: GitPolicy) -> None:
        self._repository = repository
        self._path = path
        self._branch = f"refs/heads/{branch}"
        self._git_policy = git_policy
        self._metadata = _metadata_folder(path)
        self._branch_file = _branch_file(path)
        self.git_directory = git_directory_of(path)

    @property
    def is_complete(self) -> bool:
        """Return whether the checkout is complete."""
        return self._branch_file.exists() and self._path.is_dir()

    @property
    def is_on_branch(self) -> bool:
        """Return whether there is a checkout of this branch, or an incomplete one without a recorded branch."""
        return self._metadata.exists() and self._recorded_branch() in {"", self._branch}

    async def make(self, start: str) -> None:
        """Check out the branch, creating it from `start` if needed. The caller holds the lock.

        If a call is interrupted, the next call completes the checkout.
        """
        if self._recorded_branch() not in {"", self._branch}:
            raise ProgramFailed(
                f"{self._path} is a checkout of {self._recorded_branch()}, not of {self._branch}: use another path, or"
                " check its files and release it"
            )
        self._remove_empty_folder()
        tip = await self._repository.resolve_commit(self._branch)
        if tip is None:
            tip = start
            await self._repository.set_ref(self._branch, tip)
        await asyncio.to_thread(self._make_git_directory, await self._repository.packed_remote_refs())
        self._path.mkdir(exist_ok=True)
        await self._run_unchecked("reset_to", tip, commit=tip, head=tip)
        self._record_as_complete()

    async def adopt(self) -> None:
        """Take over files that an earlier version of Kingdom checked out here."""
        self._make_git_directory(await self._repository.packed_remote_refs())
        await self._run_unchecked("adopt", await self.tip())
        self._record_as_complete()

    async def commit(self, message: str) -> str:
        """Commit all changes except ignored files, and return the last commit of the branch."""
        tip = await self.tip()
        (made, *_), _ = await self._run_action("commit", tip, message=message)
        if made != tip:
            await self._repository.set_ref(self._branch, made, tip)
        return made

    async def tip(self) -> str:
        """Return the commit of the branch."""
        if tip := await self._repository.resolve_commit(self._branch):
            return tip
        raise ProgramFailed(
            f"the branch {self._branch} of {self._path} is gone: release the checkout, and prepare it again"
        )

    async def state(self) -> CheckoutState:
        """Return the contents of the checkout. This only adds objects, and repairs a damaged `.git` file or HEAD."""
        tip = await self.tip()
        (files, head, *others), _ = await self._run_action("state", tip, message="Contents of the checkout")
        return CheckoutState(files=files, head=head, others=tuple(others), tip=tip)

    async def reset_to(self, commit: str) -> None:
        """Reset branch, index and files to a commit; ignored files stay."""
        await self._repository.set_ref(self._branch, commit)
        await self._run_action("reset_to", commit=commit, head=commit)

    async def restore(self, state: CheckoutState) -> None:
        """Restore the earlier contents of the checkout; staged changes become unstaged."""
        await self._run_action("reset_to", commit=state.files, head=state.head)
        await self._repository.set_ref(self._branch, state.tip)

    async def diff(self, since: str) -> str:
        """Return a diff of the files against a commit, including everything that is not committed yet."""
        return (await self._run_action("diff", since=since))[1].decode(errors="replace")

    async def changed_files(self) -> list[str]:
        """Return the names of the first files that differ from the branch. The content of all files is compared."""
        return _names((await self._run_action("changed_files"))[1])

    async def ignored(self, names: list[str]) -> list[str]:
        """Return the given names that git ignores in the checkout."""
        git_output = {*_names((await self._run_action("ignored", names=names))[1])} if names else set()
        return [name for name in names if name in git_output]

    async def collect_nested(self) -> list[str]:
        """Return commits with the contents of repositories inside the checkout; raises ProgramFailed on failure.

        If an agent replaced the file `.git` with a repository, the checkout itself is that repository.
        """
        return (await self._run_action("collect_nested"))[0]

    async def remove(self) -> None:
        """Remove the files and their git directory, if they exist; the branch stays."""
        if not self._metadata.exists():
            self._remove_empty_folder()
            return
        if self._path.exists():
            # Move the files away in one step. In a half-removed checkout, files would seem to be deleted by an agent.
            self._path.rename(self._metadata / f"removed-{os.getpid()}-{os.urandom(4).hex()}")
        self._branch_file.unlink(missing_ok=True)
        await run_to_completion(asyncio.to_thread(_delete, self._metadata))

    def _record_as_complete(self) -> None:
        write_atomically(_clone_file(self._path), self._repository.path.name)
        write_atomically(self._branch_file, self._branch)

    def _recorded_branch(self) -> str:
        return self._branch_file.read_text() if self._branch_file.exists() else ""

    def _remove_empty_folder(self) -> None:
        """Remove an empty folder at the path; raises ProgramFailed if it has files that Kingdom did not create."""
        if not self._metadata.exists() and self._path.exists():
            try:
                self._path.rmdir()
            except OSError as error:
                raise ProgramFailed(
                    f"{self._path} has files, but is not a checkout of {self._repository.path}: check whether they are"
                    " still needed, and move them away"
                ) from error

    def _make_git_directory(self, refs: str) -> None:
        """Create the git directory, replacing an existing one; `refs` are the branches that agents see in it."""
        with suppress(FileNotFoundError):
            remove_tree(self.git_directory)
        for folder in ("objects/info", "refs/heads"):
            (self.git_directory / folder).mkdir(parents=True)
        texts = {
            "HEAD": f"ref: {self._branch}\n",
            "config": self._repository.checkout_config,
            # Makes git read its configuration from here. Agents that may commit can write all files of this directory
            # except `config` and `commondir`.
            "commondir": ".\n",
            "packed-refs": refs,
            "objects/info/alternates": f"{self._repository.objects}\n",
        }
        for name, text in texts.items():
            (self.git_directory / name).write_text(text)
        checkout_paths(self._path, self._repository.objects).pointer.write_text(f"gitdir: {self.git_directory}\n")

    async def _run_action(self, action: str, tip: str = "", **request: Any) -> tuple[list[str], bytes]:
        """Run an action of `checkout_program`, and repeat it if git fails; return its commits and other output."""
        if not self.is_complete:
            raise ProgramFailed(f"there is no complete checkout at {self._path}: prepare it first")
        return await self._run_unchecked(action, tip or await self.tip(), **request)

    async def _run_unchecked(self, action: str, tip: str, **request: Any) -> tuple[list[str], bytes]:
        """Run an action even if the checkout is not complete."""
        return await retry_git(lambda: self._run_once(action, tip, request), tries=LOCAL_TRIES)

    async def _run_once(self, action: str, tip: str, request: dict[str, Any]) -> tuple[list[str], bytes]:
        with TemporaryFile(dir=self._metadata) as output:
            with self._scratch() as scratch:
                full_request = {
                    **request,
                    "action": action,
                    "files": str(self._path),
                    "agent_git": str(self.git_directory),
                    "objects": str(self._repository.objects),
                    "scratch": str(scratch),
                    "settings": CHECKOUT_SETTINGS.encode(),
                    "tip": tip,
                    "branch": self._branch,
                    "agent_can_write_git": self._git_policy.agents_can_write_git,
                }
                code = await self._run(marshal.dumps(full_request), output, scratch)
            output.seek(0)
            outcome, *details = output.readline(_LINE_BYTES_MAX).decode(errors="replace").split() or [""]
            if outcome == "refused":
                raise ProgramFailed(f"the checkout at {self._path} cannot be used: {' '.join(details)}")
            if outcome != "done" or code:
                output.seek(0)
                git_output = output.read(_LINE_BYTES_MAX).decode(errors="replace").strip()
                raise GitFailed(f"git failed in {self._path}: {git_output or f'exit code {code}'}", code or 1)
            if action not in _RETURNING_COMMITS:
                return [], output.read()
            if not all(_COMMIT.fullmatch(detail) for detail in details):
                raise GitFailed(f"git in {self._path} returned an invalid commit", 1)
            await self._repository.import_pack(output)
            return details, b""

    async def _run(self, request: bytes, output: IO[bytes], scratch: Path) -> int:
        """Run the program in its sandbox, and copy its answer to `output`."""
        sandbox = Sandbox(
            profile=SandboxProfile.STRICT,
            writable=(self._path, self.git_directory, scratch),
            readable=(self._repository.objects,),
            limits=AGENT_LIMITS,
        )
        program = await start_program(
            _PROGRAM,
            cwd=self.git_directory,
            # After a restart, a host recognizes its leftover processes by their HOME, which is in the host's directory.
            environment={**CHECKOUT_ENVIRONMENT, "HOME": str(self._repository.home / "nowhere")},
            errors=None,
            sandbox=sandbox if self._git_policy.sandboxed else None,
        )
        try:
            program.write(request)
            program.close_input()
            size = 0
            async with asyncio.timeout(LOCAL_LIMIT.total_seconds()):
                async for chunk in program.chunks():
                    size += len(chunk)
                    if size > _OUTPUT_BYTES_MAX:
                        raise ProgramFailed(f"{self._path} holds more than {_OUTPUT_BYTES_MAX >> 30} GiB of new files")
                    output.write(chunk)
                return await program.wait()
        except TimeoutError:
            raise GitFailed(
                f"git took longer than {LOCAL_LIMIT.total_seconds():g} s in {self._path} and was killed: look for pipes"
                " and very large files there, and remove them"
            ) from None
        finally:
            await run_to_completion(program.kill())

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        """Create a temporary folder on the same disk, out of reach of agents."""
        scratch = Path(mkdtemp(prefix="scratch-", dir=self._metadata))
        try:
            yield scratch
        finally:
            remove_tree(scratch)


_RETURNING_COMMITS = frozenset({"commit", "state", "collect_nested"})


def git_directory_of(checkout: Path) -> Path:
    """Return the git directory of a checkout."""
    return _metadata_folder(checkout) / "git"


def recorded_clone(checkout: Path) -> str:
    """Return the folder name of the clone of a complete checkout, or an empty text if it is not known.

    The repository may have another address by now, and therefore another clone. Earlier versions recorded no name.
    """
    name = read_small_file(_clone_file(checkout)) or "" if _branch_file(checkout).exists() else ""
    return Path(name).name


def checkout_paths(checkout: Path, objects: Path) -> CheckoutPaths:
    """Return the paths of a checkout that an agent sees, with the objects of its clone."""
    return CheckoutPaths(
        files=checkout,
        pointer=_metadata_folder(checkout) / "pointer",
        git_directory=git_directory_of(checkout),
        objects=objects,
    )


def _metadata_folder(checkout: Path) -> Path:
    return checkout.with_name(f".{checkout.name}")


def _branch_file(checkout: Path) -> Path:
    return _metadata_folder(checkout) / "branch"


def _clone_file(checkout: Path) -> Path:
    return _metadata_folder(checkout) / "clone"


def _names(output: bytes) -> list[str]:
    return [os.fsdecode(name) for name in output.split(b"\0") if name]


def _delete(directory: Path) -> None:
    try:
        remove_tree(directory)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ProgramFailed(f"{directory} could not be removed: {error}; remove it by hand") from error
