"""Clean up recorded agent sessions: orphaned ones, unwanted ones that still run, and ended ones."""

import asyncio
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

import psutil
import structlog

from kingdom.bus.port import Bus, Transaction
from kingdom.chronicle.events import InternalEvent, SessionKilled, SessionOrphaned, SessionsCleaned, SoldierKilled
from kingdom.court.chamberlain.records import log_internal_event
from kingdom.court.general.context import run_id_of_root
from kingdom.court.records import ASSIGNMENTS
from kingdom.court.sessions import ORPHANED, TIMEOUT, SoldierSession, list_sessions, load_sessions, save_sessions
from kingdom.workflow.hosts import find_host
from kingdom.workflow.model.resources.host import Host, HostStatus
from kingdom.workflow.model.run.work import soldier_of
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.records import WORKFLOWS, run_transaction

# Younger sessions are left alone, because they may not be recorded everywhere yet.
GRACE = timedelta(seconds=60)
# If a process and its session started further apart than this, another process has reused the pid.
_SAME_START_SECONDS = 120.0
_KILL_SECONDS = 10.0
_log = structlog.get_logger("kingdom.court")


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """Whether the run of a session needs it, whether its host is up, and whether its process runs.

    `is_running` is None if the process is on another machine or its pid is unknown.
    """

    is_wanted: bool
    host_is_up: bool
    is_running: bool | None


@dataclass(frozen=True, slots=True)
class SessionVerdict:
    """The sessions to remove from the record, by reason."""

    orphaned: tuple[str, ...] = ()
    to_kill: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.orphaned or self.to_kill or self.ended)


def judge_sessions(
    sessions: Mapping[str, SoldierSession], facts: Mapping[str, SessionFacts], now: datetime
) -> SessionVerdict:
    """Decide which sessions to remove.

    A wanted session that does not run is orphaned: the engine places its run again. An unwanted session is killed if it
    runs on this machine. Otherwise it counts as ended.
    """
    orphaned: list[str] = []
    to_kill: list[str] = []
    ended: list[str] = []
    for soldier, session in sorted(sessions.items()):
        known = facts[soldier]
        if known.is_wanted:
            is_gone = not known.host_is_up or known.is_running is False
            if is_gone and now - session.started_at > GRACE:
                orphaned.append(soldier)
        elif now - session.started_at > GRACE:
            (to_kill if known.is_running else ended).append(soldier)
    return SessionVerdict(tuple(orphaned), tuple(to_kill), tuple(ended))


async def clean_up_sessions(bus: Bus, now: datetime) -> SessionVerdict:
    """Remove sessions that do not run, and kill unwanted ones on this machine."""
    async with bus.transaction() as transaction:
        sessions = await list_sessions(transaction)
        facts = await _gather_facts(transaction, sessions)
    verdict = judge_sessions(sessions, facts, now)
    killed = [soldier for soldier in verdict.to_kill if await asyncio.to_thread(_kill, sessions[soldier])]
    if not verdict:
        return verdict

    async def act(transaction: Transaction) -> None:
        record, known = await load_sessions(transaction)
        # Meanwhile another process may have removed a session, or the same soldier may have started again.
        unchanged = {soldier for soldier, session in sessions.items() if known.get(soldier) == session}
        gone = unchanged & {*verdict.orphaned, *verdict.to_kill, *verdict.ended}
        for event in _internal_events(verdict, sessions, gone, killed):
            await log_internal_event(transaction, event, now)
        if gone:
            await save_sessions(transaction, record, {each: known[each] for each in known.keys() - gone})

    await run_transaction(bus, act)
    return verdict


def _internal_events(
    verdict: SessionVerdict, sessions: Mapping[str, SoldierSession], gone: set[str], killed: list[str]
) -> list[InternalEvent]:
    events: list[InternalEvent] = [
        SessionOrphaned(soldier_id=soldier, assignment_id=sessions[soldier].assignment_id)
        for soldier in verdict.orphaned
        if soldier in gone
    ]
    for kind in (SoldierKilled, SessionKilled):
        events += [kind(soldier_id=soldier, reason=_reason(sessions[soldier])) for soldier in killed if soldier in gone]
    return [*events, SessionsCleaned(removed_count=len(gone))] if gone else events


def _reason(session: SoldierSession) -> str:
    return TIMEOUT if session.timed_out else ORPHANED


async def _gather_facts(transaction: Transaction, sessions: Mapping[str, SoldierSession]) -> dict[str, SessionFacts]:
    hosts = {session.host: await find_host(transaction, session.host) for session in sessions.values()}
    facts = {}
    for soldier, session in sessions.items():
        host = hosts[session.host][1]
        facts[soldier] = SessionFacts(
            is_wanted=await _is_wanted(transaction, soldier, session),
            host_is_up=host is not None and host.status is HostStatus.UP,
            is_running=_is_running(session, host),
        )
    return facts


async def _is_wanted(transaction: Transaction, soldier: str, session: SoldierSession) -> bool:
    """Return whether a run still needs a session, because the host has not reported the end of its agent."""
    assignment = await transaction.get(ASSIGNMENTS.name, session.assignment_id)
    document = assignment.doc if assignment else {}
    workflow_id = document.get("workflow_id") or run_id_of_root(document.get("root") or session.assignment_id)
    record = await transaction.get(WORKFLOWS.name, workflow_id)
    if record is None or record.state in WORKFLOWS.final:
        return False
    agents = [work.agent for work in Workflow.read(record.doc).works]
    return any(agent.alive and soldier_of(agent.session or soldier) == soldier for agent in agents)


def _is_running(session: SoldierSession, host: Host | None) -> bool | None:
    """Return whether the process of a session runs, or None if that cannot be checked on this machine."""
    if session.pid is None or host is None or host.machine != socket.gethostname():
        return None
    return _find_process(session) is not None


def _find_process(session: SoldierSession) -> psutil.Process | None:
    """Return the process of a session, or None if it has ended or its pid was reused."""
    try:
        process = psutil.Process(session.pid)
        apart = abs(process.create_time() - session.started_at.timestamp())
        has_ended = process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return None
    return None if has_ended or apart > _SAME_START_SECONDS else process


def _kill(session: SoldierSession) -> bool:
    """Kill the process of a session and all its children."""
    process = _find_process(session)
    if process is None:
        return False
    with suppress(psutil.NoSuchProcess):
        family = [process, *process.children(recursive=True)]
        for each in family:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        _, alive = psutil.wait_procs(family, timeout=_KILL_SECONDS)
        if alive:
            _log.warning("a session does not end", pid=session.pid, processes=[each.pid for each in alive])
    return True
