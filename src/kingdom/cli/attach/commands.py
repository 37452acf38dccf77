"""`kingdom attach`: watch a run in tmux."""

import asyncio
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from kingdom.bus.port import Bus
from kingdom.cli.attach.files_view import changed_files, files_view
from kingdom.cli.framework.command import CommandCall, command
from kingdom.cli.framework.hosts import folders_here
from kingdom.cli.framework.json_result import lines
from kingdom.cli.framework.workflow_ids import RunId, find_workflow
from kingdom.cli.logs.commands import watch
from kingdom.clock import utc_now
from kingdom.errors import NotFound, ProgramFailed
from kingdom.settings import environment_of_children
from kingdom.soldiers.transcripts.run_sessions import LogSubject
from kingdom.soldiers.workplace.host_folders import HostFolders
from kingdom.views.transcripts import TranscriptLine
from kingdom.workflow import lifecycle
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.reactions import engine

app = typer.Typer(add_completion=False)
_SESSION = "watch"
# The kernel accepts at most this many bytes in the path of a socket.
_SOCKET_MAX = 107
_FILES_SHOWN = 30
_POLL_SECONDS = 1.0


@command(app, "attach", result=lines(TranscriptLine))
async def attach(
    call: CommandCall,
    workflow_id: RunId,
    *,
    shell: Annotated[bool, typer.Option("--shell", help="Open a shell in the checkout.")] = False,
    files: Annotated[bool, typer.Option("--files", help="Only show the changing files, in this terminal.")] = False,
) -> int | None:
    """Watch a run: what its agent says and does, and the files that it changes.

    The view is read-only unless you add --shell. Ctrl-b d leaves it, and the run continues. Without tmux or a terminal,
    or if the host of the run is another machine, this command is `kingdom logs -f`.

    Example: kingdom attach last

    JSON: the lines of `kingdom logs --json`.
    """
    if files and call.output.json:
        raise typer.BadParameter("--files is only for people: `kingdom diff --json` prints the changes of a run.")
    async with call.bus(engine(), create=False) as bus:
        workflow = await find_workflow(bus, workflow_id)
        if files:
            await _show_files(call, bus, workflow)
            return None
        if why := await _why_no_tmux(call, bus, workflow):
            call.output.note(f"{why}: showing `kingdom logs -f` instead")
            await watch(call, bus, LogSubject(workflow), follow=True)
            return None
        folders = await folders_here(bus, workflow, "checkout")
    return await _watch_in_tmux(call, workflow, folders, shell=shell)


async def _why_no_tmux(call: CommandCall, bus: Bus, workflow: Workflow) -> str:
    """Return why a run cannot be watched in tmux, or an empty text if it can."""
    if shutil.which("tmux") is None:
        return "tmux is not installed"
    if call.output.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return "this is not a terminal"
    try:
        folders = await folders_here(bus, workflow, "checkout")
    except NotFound as error:
        return str(error)
    socket = _socket(folders)
    return f"{socket} is too long for the name of a socket" if len(os.fsencode(socket)) > _SOCKET_MAX else ""


async def _watch_in_tmux(call: CommandCall, workflow: Workflow, folders: HostFolders, *, shell: bool) -> int:
    """Show a run in a separate tmux server, which ends when the person leaves."""
    socket = _socket(folders)
    socket.parent.mkdir(mode=0o700, exist_ok=True)
    # If the user is in tmux, its variables would give the new tmux a wrong size.
    tmux = ("env", "-u", "TMUX", "-u", "COLUMNS", "-u", "LINES", "tmux", "-S", str(socket), "-f", "/dev/null")
    try:
        await _run(call, [*tmux, *_layout(workflow, folders, shell=shell)])
        rights = () if shell else ("-r",)
        return await _run(call, [*tmux, "attach-session", *rights, "-t", _SESSION])
    finally:
        await _run(call, [*tmux, "kill-server"], quiet=True)
        socket.unlink(missing_ok=True)


def _layout(workflow: Workflow, folders: HostFolders, *, shell: bool) -> list[str]:
    """Return the tmux commands that show the transcript above, and the files or a shell below."""
    below = ["split-window", "-v", "-l", "40%" if shell else "30%"]
    if shell:
        below += ["-c", str(_checkout(workflow, folders))]
    else:
        below += ["-c", str(Path.cwd()), _kingdom("attach", workflow.id, "--files")]
    words = "a shell in the checkout" if shell else "read-only"
    steps = [
        ["start-server"],
        # A pane stays readable after its command has ended.
        ["set-option", "-g", "remain-on-exit", "on"],
        # This hook ends the server even if this process was killed.
        ["set-hook", "-g", "client-detached", "run-shell -b -d 3 -C kill-server"],
        ["set-option", "-g", "history-limit", "50000"],
        ["set-option", "-g", "status-left-length", "60"],
        ["set-option", "-g", "status-right-length", "60"],
        ["set-option", "-g", "status-left", f" {workflow.id} "],
        ["set-option", "-g", "status-right", f" {words}; Ctrl-b d leaves "],
        ["new-session", "-d", "-s", _SESSION, "-c", str(Path.cwd()), _kingdom("logs", workflow.id, "-f")],
        below,
        ["select-pane", "-t", f"{_SESSION}:.{1 if shell else 0}"],
    ]
    return [word for number, step in enumerate(steps) for word in ([";", *step] if number else step)]


async def _run(call: CommandCall, argv: Sequence[str], *, quiet: bool = False) -> int:
    target = asyncio.subprocess.DEVNULL if quiet else None
    process = await asyncio.create_subprocess_exec(
        *argv, env=environment_of_children(call.settings), stdout=target, stderr=target
    )
    code = await process.wait()
    if code and not quiet:
        raise ProgramFailed(f"tmux failed with exit code {code}: `kingdom logs -f` works without tmux")
    return code


async def _show_files(call: CommandCall, bus: Bus, workflow: Workflow) -> None:
    """Show the changing files of a run until it ends."""
    folders = await folders_here(bus, workflow, "work space")
    console, subject = call.output.console, LogSubject(workflow)
    with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while True:
            current = await lifecycle.show(bus, workflow.id)
            view = await asyncio.to_thread(_files_of, current, folders)
            live.update(view, refresh=console.is_terminal)
            if subject.is_over(current):
                break
            await asyncio.sleep(_POLL_SECONDS)
    if console.is_terminal:
        console.print(view)


def _files_of(workflow: Workflow, folders: HostFolders) -> Group:
    places = [("trees", tree) for tree in (folders.run(workflow.id) / "trees").glob("[!.]*")]
    places += [("spaces", space) for space in folders.work_spaces.glob(f"*/{workflow.id}-w*-space*")]
    found = [
        replace(file, path=f"{place}/{folder.name.removeprefix(f'{workflow.id}-')}/{file.path}")
        for place, folder in places
        for file in changed_files(folder, _FILES_SHOWN)
    ]
    latest = sorted(found, key=lambda file: file.at, reverse=True)[:_FILES_SHOWN]
    head = Text(f"{workflow.id} is {workflow.status}. Files written last:")
    return Group(head, files_view(latest, utc_now().timestamp()))


def _checkout(workflow: Workflow, folders: HostFolders) -> Path:
    checkouts = [folders.checkout(workflow.id, tree.id) for tree in workflow.work_trees]
    place = next((path for path in (*checkouts, folders.run(workflow.id)) if path.is_dir()), None)
    if place is None:
        raise NotFound(f"workflow {workflow.id} has no checkout now: `kingdom logs` shows what its agents did")
    return place


def _socket(folders: HostFolders) -> Path:
    return folders.directory / "attached" / f"{os.getpid()}.sock"


def _kingdom(*words: str) -> str:
    return shlex.join([sys.executable, "-P", "-m", "kingdom", *words])
