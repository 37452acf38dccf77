"""One checkout: the files of a run on a branch of their own, and what an agent may leave in them.

An agent can change the files at any moment, so this process opens none of them. Whatever is to be done there is done
by a program in a sandbox that sees the checkout, its git directory and the objects of the clone, and nothing else.
What comes out of it are objects, which git checks before the clone takes them in, and then one branch is moved.
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
from kingdom.soldiers import checkout_program
from kingdom.soldiers.git import (
    CHECKOUT_ENVIRONMENT,
    CHECKOUT_SETTINGS,
    LOCAL_LIMIT,
    LOCAL_TRIES,
    GitFailed,
    finish,
    retried,
)
from kingdom.soldiers.process import start_program
from kingdom.soldiers.removal import remove_tree
from kingdom.soldiers.repository import Repository
from kingdom.soldiers.sandbox.sandbox import AGENT_LIMITS, Profile, Sandbox
from kingdom.soldiers.sandbox.soldier import Place

# Without `site`, and compiled already: it starts often.
_CODE = f"import sys; sys.path.append(sys.argv[1]); from {checkout_program.__name__} import main; main()"
_PROGRAM = (sys.executable, "-I", "-S", "-c", _CODE, str(Path(*kingdom.__path__).parent))
_LINE_MAX = 1 << 20
_OUTPUT_MAX = 8 << 30
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All that a checkout holds: a commit of its files, where its agent stands, other commits of it, and its branch."""

    files: str
    head: str
    others: tuple[str, ...]
    tip: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GitUse:
    """How git is run on checkouts: in a sandbox, unless agents have none, and whether agents may commit too."""

    sandboxed: bool = True
    may_commit: bool = False

    @classmethod
    def under(cls, profile: Profile, *, may_commit: bool) -> "GitUse":
        """Return how git is run for agents under a profile."""
        return cls(sandboxed=profile is not Profile.OFF, may_commit=may_commit)

    @property
    def shares_git_directory(self) -> bool:
        """Tell whether agents can write to the git directories of their checkouts."""
        return self.may_commit or not self.sandboxed


class Checkout:
    """The files of one run.

    Beside them, where no agent gets, lies a folder with their git directory, which `.git` leads to, and a note of their
    branch, which is written when they are complete.
    """

    def __init__(self, repository: Repository, path: Path, branch: str, use: GitUse) -> None:
        self._repository = repository
        self._path = path
        self._branch = f"refs/heads/{branch}"
        self._use = use
        self._kept = _kept_of(path)
        self._note = self._kept / "branch"
        self.git_directory = git_directory_of(path)

    @property
    def is_there(self) -> bool:
        """Tell whether the checkout was made to its end."""
        return self._note.exists() and self._path.is_dir()

    @property
    def is_on_branch(self) -> bool:
        """Tell whether a checkout was begun here for no other branch."""
        return self._kept.exists() and self._noted() in {"", self._branch}

    async def make(self, start: str) -> None:
        """Check out the branch, or a new one from `start`, also after a call that was killed; the lock must be held."""
        if self._noted() not in {"", self._branch}:
            raise ProgramFailed(
                f"{self._path} is a checkout of {self._noted()}, not of {self._branch}: use another path, or look at"
                " what lies there and release it"
            )
        self._make_room()
        tip = await self._repository.commit(self._branch)
        if tip is None:
            tip = start
            await self._repository.point(self._branch, tip)
        await asyncio.to_thread(self._make_git_directory, await self._repository.shown_refs())
        self._path.mkdir(exist_ok=True)
        await self._act_anyway("go_to", tip, commit=tip, head=tip)
        write_atomically(self._note, self._branch)

    async def adopt(self) -> None:
        """Take over the files that an earlier version has checked out here."""
        self._make_git_directory(await self._repository.shown_refs())
        await self._act_anyway("adopt", await self.tip())
        write_atomically(self._note, self._branch)

    async def commit(self, message: str) -> str:
        """Commit everything but ignored files, where anything has changed, and return the commit that is there then."""
        tip = await self.tip()
        (made, *_), _ = await self._act("commit", tip, message=message)
        if made != tip:
            await self._repository.point(self._branch, made, tip)
        return made

    async def tip(self) -> str:
        """Return the commit that the branch is at."""
        if tip := await self._repository.commit(self._branch):
            return tip
        raise ProgramFailed(f"the branch {self._branch} of {self._path} is gone: release the checkout, and prepare it")

    async def state(self) -> State:
        """Return all that the checkout holds, and change nothing but the store of objects."""
        tip = await self.tip()
        (files, head, *others), _ = await self._act("state", tip, message="What lay in the checkout")
        return State(files=files, head=head, others=tuple(others), tip=tip)

    async def go_to(self, commit: str) -> None:
        """Bring branch, index and files to a commit; only ignored files stay."""
        await self._repository.point(self._branch, commit)
        await self._act("go_to", commit=commit, head=commit)

    async def put_back(self, state: State) -> None:
        """Bring the checkout back to what it held; what was staged is a mere change afterwards."""
        await self._act("go_to", commit=state.files, head=state.head)
        await self._repository.point(self._branch, state.tip)

    async def diff(self, since: str) -> str:
        """Return what the files differ in from a commit, with all that is not committed yet."""
        return (await self._act("diff", since=since))[1].decode(errors="replace")

    async def differing(self) -> list[str]:
        """Return the names of some files that differ from the branch; each file is read again."""
        return _names((await self._act("differing"))[1])

    async def ignored(self, names: list[str]) -> list[str]:
        """Return those of these names that git ignores in the checkout."""
        said = {*_names((await self._act("ignored", names=names))[1])} if names else set()
        return [name for name in names if name in said]

    async def nested(self) -> list[str]:
        """Return commits with all that the repositories inside of the checkout hold; raises ProgramFailed if it cannot.

        A `.git` that an agent put in the place of ours makes the checkout itself such a repository.
        """
        return (await self._act("nested"))[0]

    async def remove(self) -> None:
        """Remove the files and all that is kept of them; the branch stays. One that is not there is fine."""
        if not self._kept.exists():
            self._make_room()
            return
        if self._path.exists():
            # At once or not at all, so that half of it is never taken for the work of an agent.
            self._path.rename(self._kept / f"removed-{os.getpid()}-{os.urandom(4).hex()}")
        self._note.unlink(missing_ok=True)
        await finish(asyncio.to_thread(_delete, self._kept))

    def _noted(self) -> str:
        return self._note.read_text() if self._note.exists() else ""

    def _make_room(self) -> None:
        """Remove an empty folder at the path; raises ProgramFailed where it has files that Kingdom did not make."""
        if not self._kept.exists() and self._path.exists():
            try:
                self._path.rmdir()
            except OSError as error:
                raise ProgramFailed(
                    f"{self._path} has files, but is no checkout of {self._repository.path}: look whether they are"
                    " still wanted, and move them away"
                ) from error

    def _make_git_directory(self, refs: str) -> None:
        """Make the git directory, in the place of one that is there; `refs` are the branches that agents see in it."""
        with suppress(FileNotFoundError):
            remove_tree(self.git_directory)
        for folder in ("objects/info", "refs/heads"):
            (self.git_directory / folder).mkdir(parents=True)
        texts = {
            "HEAD": f"ref: {self._branch}\n",
            "config": self._repository.checkout_config,
            # Git looks for its configuration where this says; agents that may commit can write to all but these two.
            "commondir": ".\n",
            "packed-refs": refs,
            "objects/info/alternates": f"{self._repository.objects}\n",
        }
        for name, text in texts.items():
            (self.git_directory / name).write_text(text)
        place_of(self._path, self._repository.objects).pointer.write_text(f"gitdir: {self.git_directory}\n")

    async def _act(self, action: str, tip: str = "", **request: Any) -> tuple[list[str], bytes]:
        """Have something done to the files, more than once if git fails; returns commits, and what else was written."""
        if not self.is_there:
            raise ProgramFailed(f"there is no complete checkout at {self._path}: prepare it first")
        return await self._act_anyway(action, tip or await self.tip(), **request)

    async def _act_anyway(self, action: str, tip: str, **request: Any) -> tuple[list[str], bytes]:
        return await retried(lambda: self._act_once(action, tip, request), tries=LOCAL_TRIES)

    async def _act_once(self, action: str, tip: str, request: dict[str, Any]) -> tuple[list[str], bytes]:
        with TemporaryFile(dir=self._kept) as output:
            with self._scratch() as scratch:
                told = {
                    **request,
                    "action": action,
                    "files": str(self._path),
                    "own": str(self.git_directory),
                    "objects": str(self._repository.objects),
                    "scratch": str(scratch),
                    "settings": CHECKOUT_SETTINGS.encode(),
                    "tip": tip,
                    "branch": self._branch,
                    "is_shared": self._use.shares_git_directory,
                }
                code = await self._run(marshal.dumps(told), output, scratch)
            output.seek(0)
            verdict, *words = output.readline(_LINE_MAX).decode(errors="replace").split() or [""]
            if verdict == "refused":
                raise ProgramFailed(f"the checkout at {self._path} cannot be used: {' '.join(words)}")
            if verdict != "done" or code:
                output.seek(0)
                said = output.read(_LINE_MAX).decode(errors="replace").strip()
                raise GitFailed(f"git failed in {self._path}: {said or f'exit code {code}'}", code or 1)
            if action not in _RETURNING_COMMITS:
                return [], output.read()
            if not all(_COMMIT.fullmatch(word) for word in words):
                raise GitFailed(f"git in {self._path} named what is no commit", 1)
            await self._repository.take_in(output)
            return words, b""

    async def _run(self, request: bytes, output: IO[bytes], scratch: Path) -> int:
        """Run the program in its sandbox, and write down what it answers."""
        sandbox = Sandbox(
            profile=Profile.STRICT,
            writable=(self._path, self.git_directory, scratch),
            readable=(self._repository.objects,),
            limits=AGENT_LIMITS,
        )
        program = await start_program(
            _PROGRAM,
            cwd=self.git_directory,
            # A home in the directory of the host, so that one that a killed host has left is found.
            environment={**CHECKOUT_ENVIRONMENT, "HOME": str(self._repository.home / "nowhere")},
            errors=None,
            sandbox=sandbox if self._use.sandboxed else None,
        )
        try:
            program.write(request)
            program.close_input()
            size = 0
            async with asyncio.timeout(LOCAL_LIMIT.total_seconds()):
                async for chunk in program.chunks():
                    size += len(chunk)
                    if size > _OUTPUT_MAX:
                        raise ProgramFailed(f"{self._path} holds more than {_OUTPUT_MAX >> 30} GiB of new files")
                    output.write(chunk)
                return await program.wait()
        except TimeoutError:
            raise GitFailed(
                f"git took longer than {LOCAL_LIMIT.total_seconds():g} s in {self._path} and was ended: look for pipes"
                " and very large files there, and remove them"
            ) from None
        finally:
            await finish(program.kill())

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        """Give a place for what is needed for a moment only, on the disk and out of the reach of agents."""
        scratch = Path(mkdtemp(prefix="scratch-", dir=self._kept))
        try:
            yield scratch
        finally:
            remove_tree(scratch)


_RETURNING_COMMITS = frozenset({"commit", "state", "nested"})


def git_directory_of(checkout: Path) -> Path:
    """Return the git directory of a checkout."""
    return _kept_of(checkout) / "git"


def place_of(checkout: Path, objects: Path) -> Place:
    """Return what an agent sees of a checkout, with the objects of its clone."""
    return Place(
        files=checkout,
        pointer=_kept_of(checkout) / "pointer",
        git_directory=git_directory_of(checkout),
        objects=objects,
    )


def _kept_of(checkout: Path) -> Path:
    return checkout.with_name(f".{checkout.name}")


def _names(told: bytes) -> list[str]:
    return [os.fsdecode(name) for name in told.split(b"\0") if name]


def _delete(directory: Path) -> None:
    try:
        remove_tree(directory)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ProgramFailed(f"{directory} could not be removed: {error}; remove it by hand") from error
