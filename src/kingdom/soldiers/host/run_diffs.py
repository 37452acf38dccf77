"""The changes of a run: from its checkouts on this machine, else from the diffs of its checkpoints in the store."""

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kingdom.bus.port import Bus
from kingdom.errors import NotFound
from kingdom.soldiers.checkouts.checkout import GitPolicy
from kingdom.soldiers.checkouts.checkout_program import LOCAL_DIFF_BYTES_MAX
from kingdom.soldiers.checkouts.run_checkouts import CheckoutSpec, RunCheckouts
from kingdom.soldiers.host.checkpoint_diffs import DIFF_BYTES_MAX, CheckpointDiff, DiffBase, read_diff
from kingdom.soldiers.host.command_input import local_checkout
from kingdom.soldiers.settings import SoldierSettings
from kingdom.soldiers.workplace.host_folders import HostFolders
from kingdom.storage.run_texts import RunTexts
from kingdom.workflow.hosts import find_host
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.model.run.checkpoint import Checkpoint
from kingdom.workflow.model.run.work_tree import WorkTree
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkTreeStatus
from kingdom.workflow.records import load_resource

_LOCAL_CUT = f"cut after {LOCAL_DIFF_BYTES_MAX >> 20} MiB"
_STORED_CUT = f"cut after {DIFF_BYTES_MAX >> 20} MiB, the rest is on the host of the run"


class TreeDiff(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The changes in a checkout since a commit, in git's diff format.

    `until` is the commit of a checkpoint, or empty for the files as they are now. `note` names this checkpoint, and
    says if the diff is cut.
    """

    work_tree_id: str
    git_id: str
    branch: str
    since: str
    until: str = ""
    diff: str
    note: str = ""


class RunDiffs:
    """Reads the changes of runs on any host. `texts` are the copies in the store, if it has any."""

    def __init__(self, bus: Bus, texts: RunTexts | None, settings: SoldierSettings) -> None:
        self._bus = bus
        self._texts = texts
        self._git_policy = GitPolicy.for_profile(settings.sandbox, may_commit=settings.may_commit)

    async def current(self, workflow: Workflow, since: Checkpoint | None = None) -> list[TreeDiff]:
        """Return the changes in each checkout since a checkpoint or the base.

        Uncommitted changes are included if the checkouts are on this machine. Otherwise the changes end at the last
        checkpoint: one diff since the base, or one diff for each checkpoint after `since`.
        """
        folders, place = await self._find_folders(workflow)
        ready = [tree for tree in workflow.work_trees if tree.status is WorkTreeStatus.READY]
        if folders and ready:
            checkouts = self._checkouts(folders)
            return [await self._live_diff(workflow, tree, checkouts, folders, since) for tree in ready]
        found: list[TreeDiff] = []
        for tree in workflow.work_trees:
            points = [point for point in _points_after(workflow, since) if tree.id in point.commits]
            side: DiffBase = "previous" if since else "base"
            for point in points if since else points[-1:]:
                found += await self._checkpoint_diff(workflow, tree, point, side, folders)
        if not found:
            raise NotFound(_why_no_diff(workflow, place, since))
        return found

    async def of_checkpoint(self, workflow: Workflow, point: Checkpoint, side: DiffBase) -> list[TreeDiff]:
        """Return the changes of a checkpoint in each checkout, as far as they can be read on this machine."""
        folders, _ = await self._find_folders(workflow)
        trees = [tree for tree in workflow.work_trees if tree.id in point.commits]
        return [each for tree in trees for each in await self._checkpoint_diff(workflow, tree, point, side, folders)]

    async def _live_diff(
        self,
        workflow: Workflow,
        tree: WorkTree,
        checkouts: RunCheckouts,
        folders: HostFolders,
        since: Checkpoint | None,
    ) -> TreeDiff:
        spec = await self._spec(workflow, tree, folders)
        # A repository that was added after the checkpoint is compared with its base.
        commit = (since and since.commits.get(tree.id)) or await checkouts.base_commit(spec)
        found = _local_diff(commit, "", await checkouts.diff(spec, commit))
        return _tree_diff(tree, found, _LOCAL_CUT if found.is_cut else "")

    async def _checkpoint_diff(
        self, workflow: Workflow, tree: WorkTree, point: Checkpoint, side: DiffBase, folders: HostFolders | None
    ) -> list[TreeDiff]:
        if folders:
            found = await self._diff_in_clone(workflow, tree, point, side, folders)
        else:
            found = await read_diff(self._texts, workflow.id, point.id, tree.id, side) if self._texts else None
        if found is None:
            return []
        note = f"as of checkpoint {point.id}"
        if found.is_cut:
            note += f"; {_LOCAL_CUT if folders else _STORED_CUT}"
        return [_tree_diff(tree, found, note)]

    async def _diff_in_clone(
        self, workflow: Workflow, tree: WorkTree, point: Checkpoint, side: DiffBase, folders: HostFolders
    ) -> CheckpointDiff | None:
        spec, checkouts = await self._spec(workflow, tree, folders), self._checkouts(folders)
        if not checkouts.clone_path(spec).exists():
            return None
        valid = workflow.valid_checkpoints()
        before = [each for each in valid[: valid.index(point)] if tree.id in each.commits] if point in valid else []
        since = before[-1].commits[tree.id] if before and side == "previous" else await checkouts.base_commit(spec)
        until = point.commits[tree.id]
        diff = await checkouts.diff_commits(spec, since, until, LOCAL_DIFF_BYTES_MAX + 1)
        return _local_diff(since, until, diff)

    async def _find_folders(self, workflow: Workflow) -> tuple[HostFolders | None, str]:
        """Return the folders of a run's host if it is this machine, and a description of the host."""
        if workflow.placement is None:
            raise NotFound(
                f"workflow {workflow.id} was never placed on a host, so there is no checkout: start it first"
            )
        async with self._bus.transaction() as transaction:
            _, host = await find_host(transaction, workflow.placement.host)
        if host is None:
            return None, f"host {workflow.placement.host}, which is no longer in the store"
        folders = HostFolders(Path(host.directory))
        is_here = host.machine == socket.gethostname() and await asyncio.to_thread(folders.repositories.is_dir)
        place = f"host {host.id}, machine {host.machine or 'unknown'}, in {host.directory}"
        return folders if is_here else None, place

    async def _spec(self, workflow: Workflow, tree: WorkTree, folders: HostFolders) -> CheckoutSpec:
        async with self._bus.transaction() as transaction:
            _, git = await load_resource(transaction, Git, tree.ref.git_id)
        return local_checkout(workflow, tree, git, folders)

    def _checkouts(self, folders: HostFolders) -> RunCheckouts:
        return RunCheckouts(folders.repositories, home=folders.directory, git_policy=self._git_policy)


def _local_diff(since: str, until: str, diff: str) -> CheckpointDiff:
    """Return a diff from a checkout or clone of this machine; a longer one than is shown is cut."""
    data = diff.encode()
    is_cut = len(data) > LOCAL_DIFF_BYTES_MAX
    kept = data[:LOCAL_DIFF_BYTES_MAX].decode(errors="ignore") if is_cut else diff
    return CheckpointDiff(since=since, until=until, diff=kept, is_cut=is_cut)


def _points_after(workflow: Workflow, since: Checkpoint | None) -> Sequence[Checkpoint]:
    after = [each.id for each in workflow.checkpoints].index(since.id) + 1 if since else 0
    later = {each.id for each in workflow.checkpoints[after:]}
    return [each for each in workflow.valid_checkpoints() if each.id in later]


def _tree_diff(tree: WorkTree, found: CheckpointDiff, note: str) -> TreeDiff:
    return TreeDiff(
        work_tree_id=tree.id,
        git_id=tree.ref.git_id,
        branch=tree.branch,
        since=found.since,
        until=found.until,
        diff=found.diff,
        note=note,
    )


def _why_no_diff(workflow: Workflow, place: str, since: Checkpoint | None) -> str:
    where = f"; its host is {place}" if place else ""
    if since:
        return f"workflow {workflow.id} has no diff of a checkpoint after {since.id}{where}"
    branches = ", ".join(f"{tree.branch} of {tree.ref.git_id}" for tree in workflow.work_trees) or "none"
    return f"workflow {workflow.id} has no checkout now, and no diff of a checkpoint{where}; its branches: {branches}"
