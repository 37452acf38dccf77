"""`kingdom workflow report`, `diff` and `egress`: the results of a run."""

from typing import Annotated

import typer
from rich.syntax import Syntax

from kingdom.bootstrap import run_texts_of
from kingdom.bus.port import Bus, Transaction
from kingdom.cli.framework.command import CommandCall, command
from kingdom.cli.framework.hosts import folders_here
from kingdom.cli.framework.json_result import array
from kingdom.cli.framework.workflow_ids import RunId, find_checkpoint, find_task, find_workflow, short
from kingdom.errors import NotFound
from kingdom.soldiers.host.command_input import report_document_id
from kingdom.soldiers.host.run_diffs import RunDiffs, TreeDiff
from kingdom.soldiers.sandbox.egress_ledger import EgressAttempt, read_attempts
from kingdom.soldiers.settings import SoldierSettings
from kingdom.text import plain, printable
from kingdom.views.workflows import RunReport
from kingdom.workflow.model.run.work import Task, Work
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.reactions import engine
from kingdom.workflow.records import DOCUMENTS

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
    """Print the changes of a run in its checkouts, including uncommitted ones.

    If the checkouts are on another machine, the changes up to the last checkpoint are read from the store.

    Example: kingdom workflow diff last --since w1-c1

    JSON: an array of {workTreeId, gitId, branch, since, until, diff, note}; until is empty unless the diff ends at a
    checkpoint, and note says what is not in the diff.
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
    point = None if since == BASE else find_checkpoint(workflow, since)
    return await RunDiffs(bus, run_texts_of(bus), settings).current(workflow, point)


def describe_diff(found: TreeDiff) -> str:
    """Return in one line what a diff compares, and what is not in it."""
    what = "" if found.diff else ": no difference"
    note = f" ({found.note})" if found.note else ""
    return f"{found.git_id}, {found.branch} since {found.since[:12]}{what}{note}"


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


def _show_diff(call: CommandCall, found: TreeDiff, *, several: bool) -> None:
    if several or not found.diff or found.note:
        call.output.note(describe_diff(found))
    _print(call, found.diff, lexer="diff")


def _print(call: CommandCall, text: str, lexer: str = "markdown") -> None:
    """Print text of an agent: on a terminal with colors and escaped, to a file or pipe unchanged."""
    console = call.output.console
    if console.is_terminal:
        console.print(agent_text_view(text, lexer))
    else:
        typer.echo(text, nl=False)
