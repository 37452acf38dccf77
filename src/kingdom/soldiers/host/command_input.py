"""Everything that a host needs to execute one command, read from the store when the command is accepted."""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record
from kingdom.errors import NotFound
from kingdom.soldiers.checkouts.run_checkouts import CheckoutSpec
from kingdom.soldiers.redaction import secrets_in
from kingdom.soldiers.workplace.host_folders import HostFolders
from kingdom.workflow.model.messages import commands
from kingdom.workflow.model.references import McpServerRef
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.model.resources.mcp_server import McpServer
from kingdom.workflow.model.run.continuation import home_run
from kingdom.workflow.model.run.work import Work
from kingdom.workflow.model.run.work_tree import WorkTree
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.records import DOCUMENTS, is_session_in_use, load_resource

C = TypeVar("C", bound=commands.HostCommand)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandInput(Generic[C]):
    """A command with the facts about its run; `accepted` is the record that a reply closes.

    The agent uses the HOME of the run `home_run`. `may_remove_files` means that the run has ended for good and no
    later run goes on with its session. A run that a person started has no `assignment_id`. `sessions` are the session
    tokens of the other Works. `checkpoint_commits` has the last valid checkpoint's commit of each checkout.
    `mcp_servers` are those of the Work, and `server_secrets` the secrets of all MCP servers of the run, because an
    earlier Work may have left them in a file.
    """

    command: C
    accepted: Record
    general: str
    assignment_id: str = ""
    work: Work | None
    home_run: str
    may_remove_files: bool
    trees: dict[str, CheckoutSpec]
    mcp_servers: tuple[McpServer, ...] = ()
    server_secrets: frozenset[str] = frozenset()
    reports: dict[str, str]
    sessions: tuple[str, ...] = ()
    checkpoint_commits: dict[str, str] = field(default_factory=dict)

    def select_trees(self, *tree_ids: str) -> list[CheckoutSpec]:
        """Return checkouts by their ids."""
        return [self.trees[tree_id] for tree_id in tree_ids]


async def load_command_input(
    transaction: Transaction, workflow: Workflow, command: commands.HostCommand, accepted: Record, folders: HostFolders
) -> CommandInput[commands.HostCommand]:
    """Read the input of a command; raises NotFound or IllegalTransition if a repository or MCP server is gone."""
    work_id = getattr(command, "work_id", None)
    work = workflow.find_work(work_id) if work_id else None
    reports: dict[str, str] = {}
    servers: tuple[McpServer, ...] = ()
    secrets: frozenset[str] = frozenset()
    if isinstance(command, commands.StartAgent):
        reports = {path: await _report(transaction, path) for path in command.reports}
    if isinstance(command, commands.StartAgent | commands.VerifyWork | commands.TakeCheckpoint):
        known = [(ref, await _server(transaction, ref, workflow.id)) for ref in workflow.all_mcp_server_refs()]
        own = workflow.mcp_server_refs_of(work.definition) if work else ()
        servers = tuple(server for ref, server in known if ref in own)
        secrets = frozenset(secret for _, server in known for secret in secrets_in(server.env))
    return CommandInput(
        command=command,
        accepted=accepted,
        general=workflow.general,
        assignment_id=workflow.assignment_id,
        work=work,
        home_run=home_run(workflow, work),
        may_remove_files=workflow.is_over and not await is_session_in_use(transaction, workflow),
        trees=await _trees(transaction, workflow, command, folders),
        mcp_servers=servers,
        server_secrets=secrets,
        reports=reports,
        sessions=tuple(each.agent.session for each in workflow.works if each is not work and each.agent.session),
        checkpoint_commits={
            tree: commit for each in workflow.valid_checkpoints() for tree, commit in each.commits.items()
        },
    )


def report_document_id(file_path: str) -> str:
    """Return the id of the document with the text of a report file."""
    return file_path.removeprefix("reports/").removesuffix(".md")


def local_checkout(workflow: Workflow, tree: WorkTree, git: Git, folders: HostFolders) -> CheckoutSpec:
    """Return a checkout of a run with its path on this host."""
    return CheckoutSpec(
        id=tree.id,
        git_id=git.id,
        url=git.url,
        checkpoint_remote=git.checkpoint_remote,
        base_branch=tree.ref.base_branch,
        branch=tree.branch,
        path=folders.checkout(workflow.id, tree.id),
    )


async def _trees(
    transaction: Transaction, workflow: Workflow, command: commands.HostCommand, folders: HostFolders
) -> dict[str, CheckoutSpec]:
    """Return the checkouts of a command, with the addresses of their repositories."""
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
    trees: dict[str, CheckoutSpec] = {}
    for tree in workflow.work_trees:
        if tree.id in ids:
            _, git = await load_resource(transaction, Git, tree.ref.git_id)
            if isinstance(command, commands.PrepareResources):
                git.refuse_if_deleted("git", workflow.id)
            trees[tree.id] = local_checkout(workflow, tree, git, folders)
    return trees


async def _server(transaction: Transaction, ref: McpServerRef, workflow_id: str) -> McpServer:
    _, server = await load_resource(transaction, McpServer, ref.mcp_server_id)
    server.refuse_if_deleted("mcp server", workflow_id)
    return msgspec.structs.replace(server, env={**server.env, **ref.env})


async def _report(transaction: Transaction, path: str) -> str:
    record = await transaction.get(DOCUMENTS.name, report_document_id(path))
    if record is None:
        raise NotFound(f"the text of {path} is not in the store: continue from an earlier checkpoint")
    return str(record.doc["text"])
