"""The sessions of a run's agents, and the paths of their transcripts."""

import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kingdom.actions.hosts import find_host
from kingdom.bus.log import LogEntry
from kingdom.bus.port import Bus
from kingdom.bus.record import RecordQuery
from kingdom.cli.framework.workflow_ids import find_work, find_workflow
from kingdom.errors import NotFound
from kingdom.soldiers.workplace.host_folders import HostFolders
from kingdom.workflow.model.run.work import soldier_of
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.records import WORKFLOWS, each_record

_SOLDIER = "soldier-"
_WORK = re.compile(r"(?P<run>.+)-(?P<work>w\d+)")
_STARTED = "AgentStarted"


@dataclass(slots=True)
class RunSession:
    """A session of a run's agent, with the `path` of its transcript. `offset` bytes of the transcript have been read.

    If the transcript is not on this machine, `path` is None, and `place` describes where it is.
    """

    soldier: str
    work_id: str
    host: str
    path: Path | None = None
    place: str = ""
    offset: int = 0


@dataclass(frozen=True, slots=True)
class LogSubject:
    """What to show: a run, or one Work or soldier of it."""

    workflow: Workflow
    work_id: str = ""
    soldier: str = ""

    def has(self, session: RunSession) -> bool:
        """Return whether a session belongs to this subject."""
        return self.work_id in {"", session.work_id} and self.soldier in {"", session.soldier}

    def is_over(self, workflow: Workflow) -> bool:
        """Return whether this subject gets no more entries, given the current state of its run."""
        unfinished = [
            work
            for work in workflow.works
            if self.work_id in {"", work.id}
            and self.soldier in {"", soldier_of(work.agent.session or "")}
            and not work.is_finished
        ]
        return workflow.ended_at is not None or not unfinished


async def find_subject(bus: Bus, text: str) -> LogSubject:
    """Find a run, a Work such as `last-w2`, or a soldier by its name."""
    if text.startswith(_SOLDIER):
        return await _run_of_soldier(bus, text)
    if found := _WORK.fullmatch(text):
        workflow = await find_workflow(bus, found["run"])
        return LogSubject(workflow, work_id=find_work(workflow, found["work"]).id)
    return LogSubject(await find_workflow(bus, text))


def started_session(entry: LogEntry) -> RunSession | None:
    """Return the session whose start a log entry reports, or None for other entries."""
    token = entry.data.get("session")
    if entry.type != _STARTED or not token or entry.data.get("ignored"):
        return None
    return RunSession(soldier_of(token), work_id=entry.data["workId"], host=entry.data.get("host", ""))


def current_sessions(workflow: Workflow) -> Iterator[RunSession]:
    """Yield the sessions in the record of a run. Sessions of Works that were rolled back are not in it."""
    for work in workflow.works:
        if work.agent.session:
            host = workflow.placement.host if workflow.placement else ""
            yield RunSession(soldier_of(work.agent.session), work_id=work.id, host=host)


async def locate(bus: Bus, session: RunSession, workflow: Workflow) -> None:
    """Set the path or place of a session's transcript."""
    try:
        host = await find_host(bus, session.host)
    except NotFound:
        session.place = f"host {session.host}, which is no longer in the store"
        return
    path = HostFolders(Path(host.directory)).transcript(session.soldier)
    if host.machine != socket.gethostname():
        session.place = f"host {host.id}, machine {host.machine or 'unknown'}, in {path}"
    elif workflow.ended_at and not path.exists():
        session.place = f"{path}, where it no longer exists"
    else:
        session.path = path


async def _run_of_soldier(bus: Bus, soldier: str) -> LogSubject:
    async with bus.transaction() as transaction:
        async for record in each_record(transaction, RecordQuery(kind=WORKFLOWS.name)):
            workflow = Workflow.read(record.doc)
            if any(work.agent.session and soldier_of(work.agent.session) == soldier for work in workflow.works):
                return LogSubject(workflow, soldier=soldier)
    raise NotFound(f"no run has a soldier {soldier!r} now: name its run, which shows earlier sessions too")
