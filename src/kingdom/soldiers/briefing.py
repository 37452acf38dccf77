"""Everything that a host must know to execute one command, read from the store when the command is taken on."""

from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record
from kingdom.errors import NotFound
from kingdom.soldiers.folders import Folders
from kingdom.soldiers.trees import Tree
from kingdom.workflow.model.messages import commands
from kingdom.workflow.model.references import McpServerRef
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.model.resources.mcp_server import McpServer
from kingdom.workflow.model.run.work import Work
from kingdom.workflow.model.run.work_tree import WorkTree
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.records import DOCUMENTS, load_resource

C = TypeVar("C", bound=commands.HostCommand)


@dataclass(frozen=True, slots=True, kw_only=True)
class Briefing(Generic[C]):
    """A command with the facts about its run; `accepted` is the record that an answer closes.

    `ended` tells that the run will never run again.
    """

    command: C
    accepted: Record
    general: str
    work: Work | None
    ended: bool
    trees: dict[str, Tree]
    mcp_servers: tuple[McpServer, ...] = ()
    reports: dict[str, str]

    def some_trees(self, *tree_ids: str) -> list[Tree]:
        """Return checkouts by their ids."""
        return [self.trees[tree_id] for tree_id in tree_ids]


async def brief(
    transaction: Transaction, workflow: Workflow, command: commands.HostCommand, accepted: Record, folders: Folders
) -> Briefing[commands.HostCommand]:
    """Read what a command needs; raises NotFound or IllegalTransition where a repository or server is gone."""
    work_id = getattr(command, "work_id", None)
    work = workflow.find_work(work_id) if work_id else None
    reports: dict[str, str] = {}
    servers: tuple[McpServer, ...] = ()
    if isinstance(command, commands.StartAgent):
        reports = {path: await _report(transaction, path) for path in command.reports}
    if isinstance(command, commands.StartAgent | commands.VerifyWork):
        refs = workflow.mcp_server_refs_of(work.definition) if work else ()
        servers = tuple([await _server(transaction, ref, workflow.id) for ref in refs])
    return Briefing(
        command=command,
        accepted=accepted,
        general=workflow.general,
        work=work,
        ended=workflow.status in workflow.machine.final or workflow.deleted_at is not None,
        trees=await _trees(transaction, workflow, command, folders),
        mcp_servers=servers,
        reports=reports,
    )


def document_of(file_path: str) -> str:
    """Return the id of the document that holds the text of a report file."""
    return file_path.removeprefix("reports/").removesuffix(".md")


def tree_here(workflow: Workflow, tree: WorkTree, git: Git, folders: Folders) -> Tree:
    """Return a checkout of a run as this host has it."""
    return Tree(
        id=tree.id,
        git_id=git.id,
        url=git.url,
        checkpoint_remote=git.checkpoint_remote,
        base_branch=tree.ref.base_branch,
        branch=tree.branch,
        path=folders.tree(workflow.id, tree.id),
    )


async def _trees(
    transaction: Transaction, workflow: Workflow, command: commands.HostCommand, folders: Folders
) -> dict[str, Tree]:
    """Return the checkouts that a command is about, with the addresses of their repositories."""
    match command:
        case commands.PrepareResources(trees=wanted):
            ids = {tree.work_tree_id for tree in wanted}
        case commands.RollBack(commits=commits, to_base=to_base):
            ids = {*commits, *to_base}
        case commands.ReleaseWorkTree(work_tree_id=tree_id):
            ids = {tree_id}
        case commands.StartAgent() | commands.VerifyWork() | commands.TakeCheckpoint():
            ids = set(command.work_tree_ids)
        case _:
            ids = set()
    trees: dict[str, Tree] = {}
    for tree in workflow.work_trees:
        if tree.id in ids:
            _, git = await load_resource(transaction, Git, tree.ref.git_id)
            if isinstance(command, commands.PrepareResources):
                git.refuse_if_deleted("git", workflow.id)
            trees[tree.id] = tree_here(workflow, tree, git, folders)
    return trees


async def _server(transaction: Transaction, ref: McpServerRef, workflow_id: str) -> McpServer:
    _, server = await load_resource(transaction, McpServer, ref.mcp_server_id)
    server.refuse_if_deleted("mcp server", workflow_id)
    return msgspec.structs.replace(server, env={**server.env, **ref.env})


async def _report(transaction: Transaction, path: str) -> str:
    record = await transaction.get(DOCUMENTS.name, document_of(path))
    if record is None:
        raise NotFound(f"the text of {path} is not in the store: go on from a checkpoint before it")
    return str(record.doc["text"])
