"""`kingdom workflow report`, `diff` and `egress`: the results of a run."""

from typing import Annotated

import typer
from rich.syntax import Syntax

from kingdom.bus.port import Bus, Transaction
from kingdom.cli.framework.command import CommandCall, command
from kingdom.cli.framework.hosts import folders_here
from kingdom.cli.framework.json_result import array
from kingdom.cli.framework.workflow_ids import RunId, find_checkpoint, find_task, find_workflow, short
from kingdom.errors import NotFound
from kingdom.soldiers.checkouts.checkout import GitPolicy
from kingdom.soldiers.checkouts.run_checkouts import RunCheckouts
from kingdom.soldiers.host.command_input import local_checkout, report_document_id
from kingdom.soldiers.sandbox.egress_ledger import EgressAttempt, read_attempts
from kingdom.soldiers.settings import SoldierSettings
from kingdom.soldiers.workplace.host_folders import HostFolders
from kingdom.text import plain, printable
from kingdom.views.workflows import RunReport, TreeDiff
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.model.run.work import Task, Work
from kingdom.workflow.model.run.work_tree import WorkTree
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkTreeStatus
from kingdom.workflow.reactions import engine
from kingdom.workflow.records import DOCUMENTS, load_resource

app = typer.Typer()
BASE = "base"
_TAB_WIDTH = 4


@command(app, "report", result=array(RunReport))
async def report(
    call: CommandCall,
    workflow_id: RunId,
    task: Annotated[
        str | None, typer.Argument(metavar="TASK", help="Only this one: its id, or its short id such as w1-t2.")
    ] = None,
) -> None:
    """Print the reports of a run's tasks.

    Example: kingdom workflow report last w1-t1

    JSON: an array of {taskId, workId, workName, filePath, text, versions: [filePath]}; versions are the files of
    attempts that were rolled back.
    """
    async with call.bus(engine(), create=False) as bus:
        workflow = await find_workflow(bus, workflow_id)
        chosen = find_task(workflow, task) if task else None
        async with bus.transaction() as transaction:
            reports = [
                await _report(transaction, work, each)
                for work in workflow.works
                for each in work.tasks
                if each.report.file_path and (chosen is None or each.id == chosen.id)
            ]
    if call.output.json:
        call.output.document(reports)
        return
    if not reports:
        whose = f"Task {chosen.id}" if chosen else workflow.id
        call.output.say(f"{whose} has no report: {_why_no_report(workflow, chosen)}")
    for each in reports:
        if chosen is None:
            call.output.say(f"── {short(workflow, each.task_id)} of {each.work_name} ──")
        _print(call, each.text.rstrip() + "\n\n")


@command(app, "diff", result=array(TreeDiff))
async def diff(
    call: CommandCall,
    workflow_id: RunId,
    *,
    since: Annotated[str, typer.Option(metavar="base|CHECKPOINT", help="The state to compare with.")] = BASE,
) -> None:
    """Print the changes of a run in its checkouts, including uncommitted ones; its host must be this machine.

    Example: kingdom workflow diff last --since w1-c1

    JSON: an array of {workTreeId, gitId, branch, since, diff}.
    """
    async with call.bus(engine(), create=False) as bus:
        found = await differences(bus, call.realm.soldiers, await find_workflow(bus, workflow_id), since)
    if call.output.json:
        call.output.document(found)
        return
    for each in found:
        _show_diff(call, each, several=len(found) > 1)


@command(app, "egress", result=array(EgressAttempt))
async def egress(call: CommandCall, workflow_id: RunId) -> None:
    """Print the network hosts that the programs of a run tried to reach by name, and whether they reached them.

    The host of the run must be this machine. `soldiers.egress` in kingdom.yaml lists the allowed hosts.

    Example: kingdom workflow egress last

    JSON: an array of {at, host, outcome, reason, address, sent, received}; outcome is opened, closed, refused or
    failed; a closed attempt has the number of bytes sent and received.
    """
    async with call.bus(engine(), create=False) as bus:
        workflow = await find_workflow(bus, workflow_id)
        folders = await folders_here(bus, workflow, "egress log")
    attempts = list(read_attempts(folders.egress_log(workflow.id)))
    if call.output.json:
        call.output.document(attempts)
        return
    if not attempts:
        call.output.say(f"No program of {workflow.id} tried to reach a network host by name.")
        return
    rows = [
        (each.at, each.outcome, plain(each.host), each.sent, each.received, plain(each.reason)) for each in attempts
    ]
    call.output.table(("at", "outcome", "host", "sent", "received", "reason"), rows)


async def differences(bus: Bus, settings: SoldierSettings, workflow: Workflow, since: str = BASE) -> list[TreeDiff]:
    """Return the changes in each checkout of a run since a checkpoint or the base."""
    ready = [tree for tree in workflow.work_trees if tree.status is WorkTreeStatus.READY]
    if not ready:
        branches = ", ".join(f"{tree.branch} of {tree.ref.git_id}" for tree in workflow.work_trees) or "none"
        raise NotFound(f"workflow {workflow.id} has no checkout now; its branches: {branches}")
    folders = await folders_here(bus, workflow, "checkout")
    use = GitPolicy.for_profile(settings.sandbox, may_commit=settings.may_commit)
    trees = RunCheckouts(folders.repositories, home=folders.directory, git_policy=use)
    return [await _diff(bus, workflow, tree, trees, folders, since) for tree in ready]


def agent_text_view(text: str, lexer: str) -> Syntax:
    """Return text of an agent with syntax colors, safe for a terminal."""
    return Syntax(printable(text.expandtabs(_TAB_WIDTH)), lexer, background_color="default", word_wrap=True)


async def _report(transaction: Transaction, work: Work, task: Task) -> RunReport:
    path = task.report.file_path
    record = await transaction.get(DOCUMENTS.name, report_document_id(path))
    if record is None:
        raise NotFound(f"the text of {path} is no longer in the store: documents are kept for a year")
    return RunReport(
        task_id=task.id,
        work_id=work.id,
        work_name=work.definition.name,
        file_path=path,
        text=record.doc["text"],
        versions=task.report.versions,
    )


def _why_no_report(workflow: Workflow, task: Task | None) -> str:
    tasks = [task] if task else [each for work in workflow.works for each in work.tasks]
    if not any(each.definition.report_outline for each in tasks):
        return "its definition has no reportOutline"
    return ", ".join(f"{short(workflow, each.id)} is {each.report.status}" for each in tasks)


async def _diff(
    bus: Bus, workflow: Workflow, tree: WorkTree, trees: RunCheckouts, folders: HostFolders, since: str
) -> TreeDiff:
    async with bus.transaction() as transaction:
        _, git = await load_resource(transaction, Git, tree.ref.git_id)
    checkout = local_checkout(workflow, tree, git, folders)
    point = None if since == BASE else find_checkpoint(workflow, since)
    # A repository that was added after the checkpoint is compared with its base.
    commit = (point and point.commits.get(tree.id)) or await trees.base_commit(checkout)
    text = await trees.diff(checkout, commit)
    return TreeDiff(work_tree_id=tree.id, git_id=git.id, branch=tree.branch, since=commit, diff=text)


def _show_diff(call: CommandCall, found: TreeDiff, *, several: bool) -> None:
    if several or not found.diff:
        what = "" if found.diff else ": no difference"
        call.output.note(f"{found.git_id}, {found.branch} since {found.since[:12]}{what}")
    _print(call, found.diff, lexer="diff")


def _print(call: CommandCall, text: str, lexer: str = "markdown") -> None:
    """Print text of an agent: on a terminal with colors and escaped, to a file or pipe unchanged."""
    console = call.output.console
    if console.is_terminal:
        console.print(agent_text_view(text, lexer))
    else:
        typer.echo(text, nl=False)
