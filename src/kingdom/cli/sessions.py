"""The sessions of a run: which agents were started for it, and where their transcripts lie."""

import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kingdom.bus.log import LogEntry
from kingdom.bus.port import Bus
from kingdom.bus.record import RecordQuery
from kingdom.cli.host_record import find_host
from kingdom.cli.workflow_id import find_work, find_workflow
from kingdom.errors import NotFound
from kingdom.soldiers.folders import Folders
from kingdom.workflow.model.work import soldier_of
from kingdom.workflow.model.workflow import Workflow
from kingdom.workflow.records import WORKFLOWS, each

_SOLDIER = "soldier-"
_WORK = re.compile(r"(?P<run>.+)-(?P<work>w\d+)")
_STARTED = "AgentStarted"


@dataclass(slots=True)
class Session:
    """A soldier of a run; `path` is its transcript, or None where that lies elsewhere, as `place` tells."""

    soldier: str
    work_id: str
    host: str
    path: Path | None = None
    place: str = ""
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Subject:
    """What somebody wants to watch: a run, or only one Work or soldier of it."""

    workflow: Workflow
    work_id: str = ""
    soldier: str = ""

    def has(self, session: Session) -> bool:
        """Tell whether a session belongs to it."""
        return self.work_id in {"", session.work_id} and self.soldier in {"", session.soldier}

    def is_over(self, workflow: Workflow) -> bool:
        """Tell whether nothing more will come of it, the run being in this state."""
        left = [
            work
            for work in workflow.works
            if self.work_id in {"", work.id}
            and self.soldier in {"", soldier_of(work.agent.session or "")}
            and not work.is_finished
        ]
        return workflow.ended_at is not None or not left


async def find_subject(bus: Bus, text: str) -> Subject:
    """Return what somebody means by the name of a run, a Work such as `last-w2`, or a soldier."""
    if text.startswith(_SOLDIER):
        return await _run_of_soldier(bus, text)
    if found := _WORK.fullmatch(text):
        workflow = await find_workflow(bus, found["run"])
        return Subject(workflow, work_id=find_work(workflow, found["work"]).id)
    return Subject(await find_workflow(bus, text))


def session_begun(entry: LogEntry) -> Session | None:
    """Return the session whose agent came up according to an entry of the log."""
    token = entry.data.get("session")
    if entry.type != _STARTED or not token or entry.data.get("ignored"):
        return None
    return Session(soldier_of(token), work_id=entry.data["workId"], host=entry.data.get("host", ""))


def sessions_now(workflow: Workflow) -> Iterator[Session]:
    """Yield the sessions that a run knows of itself, which are those that were not undone."""
    for work in workflow.works:
        if work.agent.session:
            host = workflow.placement.host if workflow.placement else ""
            yield Session(soldier_of(work.agent.session), work_id=work.id, host=host)


async def locate(bus: Bus, session: Session, workflow: Workflow) -> None:
    """Find out where the transcript of a session is."""
    try:
        host = await find_host(bus, session.host)
    except NotFound:
        session.place = f"host {session.host}, which the store does not know any more"
        return
    path = Folders(Path(host.directory)).transcript(session.soldier)
    if host.machine != socket.gethostname():
        session.place = f"host {host.id}, machine {host.machine or 'unknown'}, in {path}"
    elif workflow.ended_at and not path.exists():
        session.place = f"{path}, where it is not any more"
    else:
        session.path = path


async def _run_of_soldier(bus: Bus, soldier: str) -> Subject:
    async with bus.transaction() as transaction:
        async for record in each(transaction, RecordQuery(kind=WORKFLOWS.name)):
            workflow = Workflow.read(record.doc)
            if any(work.agent.session and soldier_of(work.agent.session) == soldier for work in workflow.works):
                return Subject(workflow, soldier=soldier)
    raise NotFound(f"no run has a soldier {soldier!r} now: name its run, whose earlier sessions are shown too")
