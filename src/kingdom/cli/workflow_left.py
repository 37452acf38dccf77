"""`kingdom workflow report`, `diff` and `egress`: what a run left."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer
from rich.syntax import Syntax

from kingdom.bus.port import Bus, Transaction
from kingdom.cli.command import Call, command
from kingdom.cli.host_record import folders_here
from kingdom.cli.shape import array
from kingdom.cli.workflow_id import RunId, find_checkpoint, find_task, find_workflow, short
from kingdom.errors import NotFound
from kingdom.soldiers.briefing import document_of, tree_here
from kingdom.soldiers.checkout import GitUse
from kingdom.soldiers.folders import Folders
from kingdom.soldiers.sandbox.egress_ledger import EgressAttempt, read_attempts
from kingdom.soldiers.settings import SoldierSettings
from kingdom.soldiers.trees import Trees
from kingdom.text import plain, printable
from kingdom.workflow.model.git import Git
from kingdom.workflow.model.machine import WorkTreeStatus
from kingdom.workflow.model.work import Task, Work
from kingdom.workflow.model.workflow import Workflow
from kingdom.workflow.model.worktree import WorkTree
from kingdom.workflow.reactions import engine
from kingdom.workflow.records import DOCUMENTS, load

app = typer.Typer()
BASE = "base"
_TAB = 4


class LeftReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The report of a Task; `versions` are the files of rounds that were rolled back."""

    task_id: str
    work_id: str
    work_name: str
    file_path: str
    text: str
    versions: Sequence[str]


class TreeDifference(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What changed in a checkout since a commit, in the form of git."""

    work_tree_id: str
    git_id: str
    branch: str
    since: str
    diff: str


@command(app, "report", answer=array(LeftReport))
async def report(
    call: Call,
    workflow_id: RunId,
    task: Annotated[str | None, typer.Argument(metavar="TASK", help="Only this one: its id, or such as w1-t2.")] = None,
) -> None:
    """Print the reports that the tasks of a run left.

    Example: kingdom workflow report last w1-t1

    JSON: an array of {taskId, workId, workName, filePath, text, versions: [filePath]}; versions are of rounds that were
    rolled back.
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
        call.output.say(f"{whose} has no report: {_why_none(workflow, chosen)}")
    for each in reports:
        if chosen is None:
            call.output.say(f"── {short(workflow, each.task_id)} of {each.work_name} ──")
        _print(call, each.text.rstrip() + "\n\n")


@command(app, "diff", answer=array(TreeDifference))
async def diff(
    call: Call,
    workflow_id: RunId,
    *,
    since: Annotated[str, typer.Option(metavar="base|CHECKPOINT", help="What to compare with.")] = BASE,
) -> None:
    """Print what a run changed in its checkouts, with all that is not committed yet; its host must be this machine.

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


@command(app, "egress", answer=array(EgressAttempt))
async def egress(call: Call, workflow_id: RunId) -> None:
    """Print which hosts the programs of a run asked for by name, and which of them they reached.

    The host of the run must be this machine. `soldiers.egress` in kingdom.yaml names the hosts that are allowed.

    Example: kingdom workflow egress last

    JSON: an array of {at, host, outcome, reason, address, sent, received}; outcome is opened, closed, refused or
    failed, and the bytes that were sent and received stand with closed.
    """
    async with call.bus(engine(), create=False) as bus:
        workflow = await find_workflow(bus, workflow_id)
        folders = await folders_here(bus, workflow, "log of hosts")
    attempts = list(read_attempts(folders.egress_log(workflow.id)))
    if call.output.json:
        call.output.document(attempts)
        return
    if not attempts:
        call.output.say(f"No program of {workflow.id} asked for a host by name")
        return
    rows = [
        (each.at, each.outcome, plain(each.host), each.sent, each.received, plain(each.reason)) for each in attempts
    ]
    call.output.table(("at", "outcome", "host", "sent", "received", "reason"), rows)


async def differences(
    bus: Bus, settings: SoldierSettings, workflow: Workflow, since: str = BASE
) -> list[TreeDifference]:
    """Return what a run changed in each of its checkouts since a checkpoint or its base."""
    there = [tree for tree in workflow.work_trees if tree.status is WorkTreeStatus.READY]
    if not there:
        branches = ", ".join(f"{tree.branch} of {tree.ref.git_id}" for tree in workflow.work_trees) or "none"
        raise NotFound(f"workflow {workflow.id} has no checkout now; its branches: {branches}")
    folders = await folders_here(bus, workflow, "checkout")
    use = GitUse.under(settings.sandbox, may_commit=settings.may_commit)
    trees = Trees(folders.repositories, home=folders.directory, use=use)
    return [await _diff(bus, workflow, tree, trees, folders, since) for tree in there]


def written_view(text: str, lexer: str) -> Syntax:
    """Return what an agent wrote, coloured and harmless to a terminal."""
    return Syntax(printable(text.expandtabs(_TAB)), lexer, background_color="default", word_wrap=True)


async def _report(transaction: Transaction, work: Work, task: Task) -> LeftReport:
    path = task.report.file_path
    record = await transaction.get(DOCUMENTS.name, document_of(path))
    if record is None:
        raise NotFound(f"the text of {path} has left the store: documents are kept for a year")
    return LeftReport(
        task_id=task.id,
        work_id=work.id,
        work_name=work.definition.name,
        file_path=path,
        text=record.doc["text"],
        versions=task.report.versions,
    )


def _why_none(workflow: Workflow, task: Task | None) -> str:
    tasks = [task] if task else [each for work in workflow.works for each in work.tasks]
    if not any(each.definition.report_outline for each in tasks):
        return "none is asked for, its definition has no reportOutline"
    return ", ".join(f"{short(workflow, each.id)} is {each.report.status}" for each in tasks)


async def _diff(
    bus: Bus, workflow: Workflow, tree: WorkTree, trees: Trees, folders: Folders, since: str
) -> TreeDifference:
    async with bus.transaction() as transaction:
        _, git = await load(transaction, Git, tree.ref.git_id)
    checkout = tree_here(workflow, tree, git, folders)
    point = None if since == BASE else find_checkpoint(workflow, since)
    # A repository that came later was at its base at this checkpoint.
    commit = (point and point.commits.get(tree.id)) or await trees.base_of(checkout)
    text = await trees.diff(checkout, commit)
    return TreeDifference(work_tree_id=tree.id, git_id=git.id, branch=tree.branch, since=commit, diff=text)


def _show_diff(call: Call, found: TreeDifference, *, several: bool) -> None:
    if several or not found.diff:
        what = "" if found.diff else ": no difference"
        call.output.note(f"{found.git_id}, {found.branch} since {found.since[:12]}{what}")
    _print(call, found.diff, lexer="diff")


def _print(call: Call, text: str, lexer: str = "markdown") -> None:
    """Print what an agent wrote: coloured and harmless to a terminal; a file or a program gets it as it is."""
    console = call.output.console
    if console.is_terminal:
        console.print(written_view(text, lexer))
    else:
        typer.echo(text, nl=False)
