"""The sessions of a run's agents, and where their transcripts can be read."""

import os
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kingdom.bus.log import LogEntry
from kingdom.bus.port import Bus
from kingdom.soldiers.transcripts.sources import StoredTranscript, TranscriptFile, TranscriptSource
from kingdom.soldiers.workplace.host_folders import HostFolders
from kingdom.storage.run_texts import RunTexts
from kingdom.workflow.hosts import find_host
from kingdom.workflow.model.run.work import soldier_of
from kingdom.workflow.model.run.workflow import Workflow

_STARTED = "AgentStarted"
# Why the file of a transcript cannot be read.
_MISSING, _INACCESSIBLE = "where it no longer exists", "which this account cannot read"


@dataclass(slots=True)
class RunSession:
    """A session of a run's agent. `offset` bytes of its transcript have been read.

    `source` is None if the transcript cannot be read on this machine, and `place` describes where the file is. `notes`
    are the notes about the transcript that were already shown.
    """

    soldier: str
    work_id: str
    host: str
    source: TranscriptSource | None = None
    place: str = ""
    offset: int = 0
    notes: set[str] = field(default_factory=set)

    @property
    def note_about_log(self) -> str:
        """Return a note that the entries come from the log because the transcript cannot be read here."""
        return f"From the log; the transcript is on {self.place}"


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


def started_session(entry: LogEntry) -> RunSession | None:
    """Return the session whose start a log entry reports, or None for other entries."""
    token = entry.data.get("session")
    if entry.type != _STARTED or not token or entry.data.get("ignored"):
        return None
    return RunSession(soldier_of(token), work_id=entry.data["workId"], host=entry.data.get("host", ""))


def with_soldiers(logged: Iterable[LogEntry], soldiers: dict[str, str]) -> Iterator[tuple[str, LogEntry]]:
    """Yield log entries with their soldier, or "". `soldiers` has the current soldier of each Work and is updated."""
    for entry in logged:
        if begun := started_session(entry):
            soldiers[begun.work_id] = begun.soldier
        work_id = entry.data.get("workId") or str(entry.data.get("taskId", "")).rpartition("-")[0]
        yield soldiers.get(work_id, ""), entry


def sessions_of(workflow: Workflow, logged: Iterable[LogEntry]) -> list[RunSession]:
    """Return the sessions of a run: those in log entries, the oldest first, then the others in the run's record."""
    begun = [session for entry in logged if (session := started_session(entry))]
    # Old log entries may have been removed, so the sessions in the record of the run are added.
    every: dict[str, RunSession] = {}
    for session in (*begun, *_current_sessions(workflow)):
        every.setdefault(session.soldier, session)
    return list(every.values())


def _current_sessions(workflow: Workflow) -> Iterator[RunSession]:
    """Yield the sessions in the record of a run. Sessions of Works that were rolled back are not in it."""
    for work in workflow.works:
        if work.agent.session:
            host = workflow.placement.host if workflow.placement else ""
            yield RunSession(soldier_of(work.agent.session), work_id=work.id, host=host)


async def locate(bus: Bus, texts: RunTexts | None, session: RunSession, workflow: Workflow) -> None:
    """Set the source of a session's transcript and the place of its file. The file is preferred to its copy."""
    async with bus.transaction() as transaction:
        _, host = await find_host(transaction, session.host)
    is_copied = texts is not None and session.soldier in await texts.extents(workflow.id)
    if host is None:
        session.place = f"host {session.host}, which is no longer in the store"
    else:
        path = HostFolders(Path(host.directory)).transcript(session.soldier)
        if host.machine != socket.gethostname():
            session.place = f"host {host.id}, machine {host.machine or 'unknown'}, in {path}"
        else:
            problem = _why_unreadable(path)
            if not problem or (problem == _MISSING and not (is_copied or workflow.ended_at)):
                session.source = TranscriptFile(path)
                return
            session.place = f"{path}, {problem}"
    # A session that has just started has no copy yet.
    if texts and (is_copied or _is_running(session, workflow)):
        session.source = StoredTranscript(texts, workflow.id, session.soldier)


def _why_unreadable(path: Path) -> str:
    """Return why a file cannot be read, or an empty text if it can."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return _MISSING
    except OSError:
        return _INACCESSIBLE
    return "" if os.access(path, os.R_OK) else _INACCESSIBLE


def _is_running(session: RunSession, workflow: Workflow) -> bool:
    work = workflow.find_work(session.work_id)
    return work is not None and work.agent.alive and soldier_of(work.agent.session or "") == session.soldier
