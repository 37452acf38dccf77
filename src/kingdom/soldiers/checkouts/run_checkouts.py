"""The checkouts of a run in all its repositories; they are created and reset together or not at all."""

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import structlog

from kingdom.errors import ProgramFailed
from kingdom.soldiers.checkouts.checkout import Checkout, CheckoutState, GitPolicy, recorded_clone
from kingdom.soldiers.checkouts.git import REMOTE_PAUSE, run_to_completion
from kingdom.soldiers.checkouts.repository import Repository, clone_name, clone_url, without_password

# The record of a run contains the changed paths, and each step of the run rewrites the record.
CHANGED_PATHS_BYTES_MAX = 16_384
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckoutSpec:
    """One checkout of a run on this host; without `checkpoint_remote` no other host can continue from it."""

    id: str
    git_id: str
    url: str
    checkpoint_remote: str
    base_branch: str
    branch: str
    path: Path

    @property
    def start_ref(self) -> str:
        """Return the ref of the commit from which the checkout started."""
        return f"refs/kingdom/start/{self.id}"

    def checkpoint_ref(self, checkpoint_id: str) -> str:
        """Return the ref of a checkpoint."""
        return f"refs/kingdom/checkpoints/{checkpoint_id}/{self.id}"

    def rescue_ref(self, rescue_id: str) -> str:
        """Return the ref of a rescued commit; further commits get the same name with a number."""
        return f"refs/kingdom/rescue/{rescue_id}/{self.id}"


class CheckoutFailed(ProgramFailed):
    """Raised when a checkout could not be created; `work_tree_id` identifies it."""

    def __init__(self, work_tree_id: str, message: str) -> None:
        super().__init__(message)
        self.work_tree_id = work_tree_id


class RunCheckouts:
    """Handles the checkouts of all runs on this host; git finds its configuration and credentials in `home`.

    Only one caller at a time may change a checkout. Failed calls of a remote are retried after a `pause` that doubles.
    """

    def __init__(
        self,
        repositories: Path,
        *,
        home: Path | None = None,
        pause: timedelta = REMOTE_PAUSE,
        git_policy: GitPolicy = GitPolicy(),  # noqa: B008 - it is immutable
    ) -> None:
        self._repositories = repositories
        self._home = home or repositories
        self._pause = pause
        self._git_policy = git_policy

    async def prepare(self, trees: Sequence[CheckoutSpec]) -> None:
        """Create these checkouts, all or none; existing checkouts stay as they are."""
        begun: list[CheckoutSpec] = []
        for tree in trees:
            try:
                await self._prepare(tree, begun)
            except (ProgramFailed, OSError, asyncio.CancelledError) as error:
                await run_to_completion(self._undo(begun))
                if isinstance(error, asyncio.CancelledError):
                    raise
                raise CheckoutFailed(tree.id, f"no checkout of {tree.branch} could be created: {error}") from error

    async def commit(self, trees: Sequence[CheckoutSpec], message: str) -> dict[str, str]:
        """Commit all changes except ignored files, and return the commit of each checkout."""
        with _disk_failures():
            return {tree.id: await self._checkout(tree).commit(message) for tree in trees}

    async def changed_files(self, trees: Sequence[CheckoutSpec]) -> list[str]:
        """Return the names of the first files whose content differs from the last commit. All files are compared."""
        with _disk_failures():
            return [f"{tree.git_id}/{name}" for tree in trees for name in await self._checkout(tree).changed_files()]

    async def ignored(self, tree: CheckoutSpec, names: list[str]) -> list[str]:
        """Return the given names that git ignores in a checkout."""
        return await self._checkout(tree).ignored(names)

    async def checkpoint(self, trees: Sequence[CheckoutSpec], checkpoint_id: str) -> dict[str, str]:
        """Keep the last commits under refs, and push these refs to the checkpoint remotes, if any."""
        commits = {tree.id: await self._checkout(tree).tip() for tree in trees}
        for tree in trees:
            await self._repository(tree).set_ref(tree.checkpoint_ref(checkpoint_id), commits[tree.id])
        for tree in trees:
            if tree.checkpoint_remote:
                refs = [tree.checkpoint_ref(checkpoint_id), tree.start_ref]
                await self._repository(tree).push(tree.checkpoint_remote, refs)
        return commits

    async def roll_back(
        self, trees: Sequence[CheckoutSpec], commits: Mapping[str, str], to_base: Collection[str], rescue_id: str
    ) -> tuple[str, ...]:
        """Reset checkouts to the given commits, or to their base if listed in `to_base`; return refs of rescued work.

        Missing checkouts are created first, all or none. Before any file is reset, all commits have been found, and all
        work that would be lost is kept under refs.
        """
        await self.prepare([tree for tree in trees if not self._checkout(tree).is_complete])
        targets = {tree.id: await self._find_target(tree, commits, to_base) for tree in trees}
        with _disk_failures():
            states = {tree.id: await self._checkout(tree).state() for tree in trees}
        for tree in trees:
            await self._keep(tree, states[tree.id], targets[tree.id], rescue_id)
        begun: list[CheckoutSpec] = []
        try:
            for tree in trees:
                begun.append(tree)
                with _disk_failures():
                    await self._checkout(tree).reset_to(targets[tree.id])
        except ProgramFailed:
            await run_to_completion(self._restore(begun, states))
            raise
        return tuple([ref for tree in trees for ref in await _rescue_refs(self._repository(tree), tree, rescue_id)])

    async def release(self, tree: CheckoutSpec, rescue_id: str) -> tuple[str, ...]:
        """Remove a checkout and return the refs of its uncommitted files; commits are never removed.

        Repositories that an agent created inside are kept too, each as one commit of its files on top of its branches.
        If that is impossible, the release fails. Ignored files are removed with the checkout.
        """
        repository, checkout = self._repository(tree), self._checkout(tree)
        if not repository.exists:
            if tree.path.exists():
                raise ProgramFailed(
                    f"{tree.path} cannot be released, because there is no clone at {repository.path}; the address of"
                    f" {tree.git_id} may have changed: set the earlier address, or save the files and remove the folder"
                )
            return ()
        with _disk_failures():
            if checkout.is_complete:
                state = await checkout.state()
                await self._keep(tree, state, state.tip, rescue_id)
                for commit in await checkout.collect_nested():
                    await repository.keep_commit(tree.rescue_ref(rescue_id), commit)
            await checkout.remove()
        return tuple(await _rescue_refs(repository, tree, rescue_id))

    async def diff(self, tree: CheckoutSpec, since: str) -> str:
        """Return a unified diff of the checkout against a commit, including everything that is not committed yet."""
        with _disk_failures():
            return await self._checkout(tree).diff(since)

    async def diff_commits(self, tree: CheckoutSpec, since: str, until: str, at_most: int | None) -> str:
        """Return the first `at_most` bytes of a unified diff between two commits, from the clone of this host."""
        return await self._repository(tree).diff(since, until, at_most)

    async def changed_paths(self, trees: Sequence[CheckoutSpec], commits: Mapping[str, str]) -> dict[str, list[str]]:
        """Return the paths that differ between the start of each checkout and its commit, from the clones of this host.

        A checkout with too many changes is left out.
        """
        found = {
            tree.id: await self._repository(tree).changed_paths(
                await self.base_commit(tree), commits[tree.id], CHANGED_PATHS_BYTES_MAX
            )
            for tree in trees
        }
        return {tree_id: paths for tree_id, paths in found.items() if paths is not None}

    async def base_commit(self, tree: CheckoutSpec) -> str:
        """Return the commit from which the checkout started, wherever its base branch is now."""
        if commit := await self._repository(tree).resolve_commit(tree.start_ref):
            return commit
        raise ProgramFailed(f"the start of {tree.id} is not known: prepare it first")

    def clone_path(self, tree: CheckoutSpec) -> Path:
        """Return the bare clone of a checkout, which may be that of an earlier address of its repository."""
        return self._repositories / (recorded_clone(tree.path) or clone_name(tree.git_id, tree.url))

    def _repository(self, tree: CheckoutSpec) -> Repository:
        path = self.clone_path(tree)
        url = tree.url if path.name == clone_name(tree.git_id, tree.url) else clone_url(path)
        return Repository(path, url=url, home=self._home, pause=self._pause)

    def _checkout(self, tree: CheckoutSpec) -> Checkout:
        return Checkout(self._repository(tree), tree.path, tree.branch, self._git_policy)

    async def _prepare(self, tree: CheckoutSpec, begun: list[CheckoutSpec]) -> None:
        """Create one checkout, unless it is complete. Its start ref is written last."""
        repository, checkout = self._repository(tree), self._checkout(tree)
        async with repository.locked():
            if checkout.is_complete and await repository.resolve_commit(tree.start_ref):
                return
            await repository.fetch(tree.base_branch)
            base = await repository.base_commit(tree.base_branch)
            begun.append(tree)
            await checkout.make(base)
            if not await repository.resolve_commit(tree.start_ref):
                await repository.set_ref(tree.start_ref, await repository.merge_base(base, f"refs/heads/{tree.branch}"))

    async def _undo(self, begun: list[CheckoutSpec]) -> None:
        """Remove the checkouts that a failed call has begun; a branch with its own commits stays."""
        for tree in reversed(begun):
            repository, checkout = self._repository(tree), self._checkout(tree)
            try:
                # If the path has files of another branch, this call did not create them.
                if checkout.is_on_branch:
                    await checkout.remove()
                async with repository.locked():
                    await repository.delete_merged_branch(tree.branch, base=tree.base_branch, start=tree.start_ref)
            except (ProgramFailed, OSError) as error:
                # The next call continues from here.
                _log.warning("a checkout could not be removed after a failure", tree=tree.id, error=str(error))

    async def _find_target(self, tree: CheckoutSpec, commits: Mapping[str, str], to_base: Collection[str]) -> str:
        """Return the commit to which a checkout is rolled back; it is fetched if it is not on this host."""
        if tree.id in to_base:
            return await self.base_commit(tree)
        wanted = commits.get(tree.id)
        if wanted is None:
            raise ProgramFailed(f"no commit is given for {tree.id}: name one, or choose its base")
        repository = self._repository(tree)
        if not await repository.resolve_commit(wanted) and tree.checkpoint_remote:
            async with repository.locked():
                await repository.fetch_refs(tree.checkpoint_remote, f"refs/kingdom/*/{tree.id}")
        if not await repository.resolve_commit(wanted):
            where = f" nor in {without_password(tree.checkpoint_remote)}" if tree.checkpoint_remote else ""
            raise ProgramFailed(
                f"the commit {wanted} of {tree.id} is not on this host{where}: nothing was changed; choose another"
                " checkpoint, or continue from the base"
            )
        return wanted

    async def _keep(self, tree: CheckoutSpec, state: CheckoutState, next_tip: str, rescue_id: str) -> None:
        """Keep a checkout's commits under refs, except those that its next tip or its base branch contains."""
        repository = self._repository(tree)
        safe = [commit for commit in (next_tip, await repository.fetched_commit(tree.base_branch)) if commit]
        for commit in dict.fromkeys((state.files, state.tip, *state.others)):
            if not any([await repository.contains(each, commit) for each in safe]):
                await repository.keep_commit(tree.rescue_ref(rescue_id), commit)
                safe.append(commit)

    async def _restore(self, begun: list[CheckoutSpec], states: Mapping[str, CheckoutState]) -> None:
        for tree in reversed(begun):
            try:
                await self._checkout(tree).restore(states[tree.id])
            except (ProgramFailed, OSError) as error:
                _log.warning(
                    "a checkout could not be restored; its rescue ref has all its work", tree=tree.id, error=str(error)
                )


async def _rescue_refs(repository: Repository, tree: CheckoutSpec, rescue_id: str) -> list[str]:
    ref = tree.rescue_ref(rescue_id)
    return await repository.refs(ref, f"{ref}.*")


@contextmanager
def _disk_failures() -> Iterator[None]:
    """Raise ProgramFailed when the disk fails in the block."""
    try:
        yield
    except OSError as error:
        raise ProgramFailed(f"a checkout cannot be used: {error}; check the disk of this host") from error
