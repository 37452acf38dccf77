"""The result of a run in a comparable form: trees, reports, events, transcripts and leftovers."""

import asyncio
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from bench.crash_sweep.roles import opened
from bench.crash_sweep.stage import Outcome, Stage
from bench.crash_sweep.transcripts import TaskTranscript, read_task_transcripts, read_transcript_cost
from kingdom.bootstrap import operations_of
from kingdom.bus.log import LogCursor
from kingdom.bus.port import Bus
from kingdom.bus.record import RecordQuery
from kingdom.soldiers.host.command_input import report_document_id
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.records import ACCEPTED, COMMANDS, DOCUMENTS, load_workflow

_LOG_MAX = 10_000
_LOG_SECONDS = 30.0
_POLL_SECONDS = 0.02
_DYING_SECONDS = 30.0
_SUBJECTS = ("reportId", "taskId", "workTreeId", "workId")
_DETAILS = ("status", "finding")


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the log about the run."""

    type: str
    subject: str = ""
    detail: str = ""
    attempt: int = 0
    epoch: int = 0
    ignored: str = ""


class Ending(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    """The result of a run. Two correct results differ only in the events of repeated attempts.

    `trees` describes the checkout of each repository, `transcripts` each Task, and `leftovers` what should not exist.
    `cost_usd` is the cost according to the record of the run, `transcript_cost_usd` according to its transcripts.
    """

    status: str
    reason: str
    trees: dict[str, str]
    checkpoints: dict[str, dict[str, str]]
    reports: dict[str, str]
    events: list[Event]
    transcripts: dict[str, TaskTranscript]
    cost_usd: float
    transcript_cost_usd: float
    leftovers: list[str]

    @property
    def steps_again(self) -> int:
        """Return how many steps agents did before a crash and again after it."""
        return sum(task.again for task in self.transcripts.values())


async def read_ending(stage: Stage) -> Ending:
    """Read the result of a run after its processes have ended."""
    outcome = msgspec.json.decode(stage.outcome.read_bytes(), type=Outcome)
    sessions = stage.host_directory / "logs" / "sessions"
    async with opened(stage.url) as bus:
        async with bus.transaction() as transaction:
            _, workflow = await load_workflow(transaction, outcome.workflow_id)
            accepted = await transaction.find(RecordQuery(kind=COMMANDS.name, state=ACCEPTED))
        return Ending(
            status=outcome.status,
            reason=outcome.reason,
            trees=_trees(stage, workflow),
            checkpoints=_checkpoints(stage, workflow),
            reports=await _reports(bus, stage, workflow),
            events=await _events(bus, workflow),
            transcripts={
                _plain(task, workflow.id): each
                for task, each in read_task_transcripts(
                    sessions, stage.host_directory / "runs" / workflow.id / "home"
                ).items()
            },
            cost_usd=workflow.cost_usd,
            transcript_cost_usd=read_transcript_cost(sessions),
            leftovers=[
                *(f"command {record.doc['type']} is accepted and not answered" for record in accepted),
                *await _open_events(bus),
                *end_leftover_processes(stage.directory),
                *locks_of(stage),
            ],
        )


def _trees(stage: Stage, workflow: Workflow) -> dict[str, str]:
    """Describe each repository of the run: the content of its branch, the number of commits, uncommitted changes."""
    trees = {}
    for tree in workflow.work_trees:
        branch = f"refs/heads/{tree.branch}"
        content = _git(stage, tree.ref.git_id, "rev-parse", f"{branch}^{{tree}}")
        commits = _git(stage, tree.ref.git_id, "rev-list", "--count", branch)
        checkout = stage.host_directory / "runs" / workflow.id / "trees" / tree.id
        status = ["git", "-C", str(checkout), "status", "--porcelain"]
        dirty = subprocess.run(status, capture_output=True, text=True, check=False)
        trees[tree.ref.git_id] = f"{content} after {commits} commits, {dirty.stdout + dirty.stderr or 'clean'}"
    return trees


def _checkpoints(stage: Stage, workflow: Workflow) -> dict[str, dict[str, str]]:
    """Return the content of each checkpoint by Work and repository."""
    repositories = {tree.id: tree.ref.git_id for tree in workflow.work_trees}
    return {
        _plain(checkpoint.work_id, workflow.id): {
            repositories[tree]: _git(stage, repositories[tree], "rev-parse", f"{commit}^{{tree}}")
            for tree, commit in checkpoint.commits.items()
        }
        for checkpoint in workflow.checkpoints
    }


async def _reports(bus: Bus, stage: Stage, workflow: Workflow) -> dict[str, str]:
    """Return the text of every current report. It must be the same in the store and in its file."""
    reports = {}
    for task in (task for work in workflow.works for task in work.tasks):
        path, name = task.report.file_path, _plain(task.id, workflow.id)
        if not path:
            continue
        async with bus.transaction() as transaction:
            record = await transaction.get(DOCUMENTS.name, report_document_id(path))
        text = str(record.doc["text"]) if record else "nothing"
        file = stage.host_directory / "runs" / workflow.id / path
        same = file.is_file() and file.read_text() == text
        reports[name] = text if same else f"{text}, and another one in its file"
    return reports


async def _events(bus: Bus, workflow: Workflow) -> list[Event]:
    """Return the log entries of a run. A store may show the newest entries with a delay."""
    deadline = time.monotonic() + _LOG_SECONDS
    while True:
        logged = await operations_of(bus).read_log(LogCursor(), _LOG_MAX, workflow.id)
        events = [_event(each.entry.type, each.entry.data, workflow.id) for each in logged]
        statuses = [event.detail for event in events if event.type == "WorkflowStatusChanged"]
        if statuses[-1:] == [workflow.status] or time.monotonic() > deadline:
            return events
        await asyncio.sleep(_POLL_SECONDS)


def _event(kind: str, data: Mapping[str, Any], workflow_id: str) -> Event:
    subject = next((str(data[name]) for name in _SUBJECTS if name in data), "")
    return Event(
        type=kind,
        subject=_plain(subject, workflow_id),
        detail=next((str(data[name]) for name in _DETAILS if name in data), ""),
        attempt=data.get("attempt", 0),
        epoch=data.get("epoch", 0),
        ignored=data.get("ignored", ""),
    )


async def _open_events(bus: Bus) -> list[str]:
    return [
        f"stream {stream.stream}: {stream.pending} pending, {stream.processing} processing, {stream.dead} dead"
        for stream in await operations_of(bus).stats()
        if stream.pending or stream.processing or stream.dead
    ]


def processes_of(directory: Path) -> dict[int, str]:
    """Return the processes that have the directory of a run in their arguments, environment or working directory."""
    mark, found = str(directory).encode(), {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes()
            where = str((process / "cwd").readlink()).encode()
            if mark in b"\0".join([words, where, (process / "environ").read_bytes()]):
                found[int(process.name)] = words.replace(b"\0", b" ").decode(errors="replace")
    return found


def end_leftover_processes(directory: Path) -> Iterator[str]:
    """End and report leftover processes. A process that was just started gets a moment to end."""
    deadline = time.monotonic() + _DYING_SECONDS
    while processes_of(directory) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    for pid, words in processes_of(directory).items():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        yield f"process {pid} still runs: {words}"


def locks_of(stage: Stage) -> Iterator[str]:
    """Yield lock files that git has left, and locks of the host that are still held."""
    repositories = stage.host_directory / "repositories"
    checkouts = stage.host_directory / "runs"
    for lock in [*repositories.glob("*.git/**/*.lock"), *checkouts.glob("*/trees/.*/git/**/*.lock")]:
        yield f"lock file {lock.relative_to(stage.directory)} is left"
    for lock in [stage.host_directory / "host.lock", *repositories.glob("*.lock")]:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield f"{lock.relative_to(stage.directory)} is held"
        finally:
            os.close(descriptor)


def _git(stage: Stage, repository: str, *arguments: str) -> str:
    directory = next((stage.host_directory / "repositories").glob(f"{repository}-*.git"), Path())
    done = subprocess.run(["git", f"--git-dir={directory}", *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else f"none: {done.stderr.strip()}"


def _plain(name: str, workflow_id: str) -> str:
    """Return a name without the id of its run."""
    return name.removeprefix(f"{workflow_id}-")
