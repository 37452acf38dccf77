"""Remove old data: records after the retention of their kind, files after the end of their assignment or session."""

import asyncio
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import msgspec
import structlog

from kingdom.bus.maintenance import RETAIN_EVERY, run_retention
from kingdom.bus.operations import Operations, Retention
from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import Record, RecordKind, RecordQuery, read_documents
from kingdom.chronicle.catalog import log_clean_up
from kingdom.court.chamberlain.settings import RetentionSettings
from kingdom.court.followups.records import FOLLOWUPS, Followup
from kingdom.court.king.release import BILLS
from kingdom.court.records import ASSIGNMENTS, EVENTS, MESSAGES, RESULTS
from kingdom.court.sessions import list_sessions
from kingdom.court.text_logs import NAMES, OLD
from kingdom.failure_log import log_failure
from kingdom.workflow.model.run.work import soldier_of
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.records import PAST_RESULTS, WORKFLOWS, each_record

_RESULT_SUFFIXES = ("-soldier-id", "-session-id")
# A run with one of these statuses has no running session.
_WITHOUT_SESSION = frozenset({WorkflowStatus.COMPLETED, WorkflowStatus.CANCELLED, WorkflowStatus.FAILED})
_log = structlog.get_logger("kingdom.court")


@dataclass(frozen=True, slots=True)
class SideFile:
    """A file that is not a record, how long it is kept, and the assignment or session that it belongs to."""

    path: Path
    written_at: datetime
    keep: timedelta
    assignment_id: str = ""
    soldier_id: str = ""


@dataclass(frozen=True, slots=True)
class FileOwners:
    """When each assignment ended (None if it has not), and the soldiers whose sessions may still run.

    `followed_until` is when the followup of a soldier's pull request ended, or None if it has not.
    """

    ended_at: dict[str, datetime | None]
    soldiers: frozenset[str]
    followed_until: dict[str, datetime | None] = field(default_factory=dict)


def with_retention(kinds: Iterable[RecordKind], settings: RetentionSettings) -> tuple[RecordKind, ...]:
    """Return record kinds with the retention of the settings, for opening the store."""
    days = {
        EVENTS.name: settings.queue_days,
        ASSIGNMENTS.name: settings.queue_days,
        MESSAGES.name: settings.queue_days,
        # A late cost of a stored assignment needs the bill: it says how much is already recorded.
        BILLS.name: settings.queue_days,
        RESULTS.name: settings.results_days,
        PAST_RESULTS.name: settings.results_days,
    }
    return tuple(
        replace(kind, retention=timedelta(days=days[kind.name])) if kind.name in days else kind for kind in kinds
    )


def store_retention(settings: RetentionSettings) -> Retention:
    """Return how long the store keeps handled events, its log, and copies of transcripts and diffs."""
    return Retention(
        archive=timedelta(days=settings.queue_days),
        log=timedelta(days=settings.logs_days),
        run_texts=timedelta(days=settings.session_logs_days),
    )


def expired_files(files: Iterable[SideFile], owners: FileOwners, now: datetime) -> list[SideFile]:
    """Return the files whose retention is over.

    A file is kept while its assignment or session has not ended. Its retention starts at the end of its assignment. For
    the session of a followed pull request, it starts at the end of the followup or at the last change of the file,
    whichever is later. If the end is unknown, it starts at the last change of the file.
    """
    return [file for file in files if (start := _retention_start(file, owners)) is not None and now - start > file.keep]


async def clean_up(
    bus: Bus, operations: Operations, settings: RetentionSettings, directory: Path | None, now: datetime
) -> int:
    """Remove files and records that are older than their retention, and return how many were removed.

    Files are removed first, because the records of their assignments decide which files are old.
    """
    removed = 0
    if directory is not None:
        files = await asyncio.to_thread(side_files, directory, settings)
        async with bus.transaction() as transaction:
            owners = await _find_owners(transaction, files)
        removed += await asyncio.to_thread(_remove, expired_files(files, owners, now))
    report = await operations.retain(store_retention(settings))
    return removed + report.removed


async def keep_retention(
    bus: Bus, operations: Operations, settings: RetentionSettings, actor: str, *, every: timedelta = RETAIN_EVERY
) -> None:
    """Remove expired records periodically until cancelled, and log how many were removed."""
    on_removed = partial(log_clean_up, bus, actor)
    await run_retention(operations, store_retention(settings), every=every, on_removed=on_removed)


def side_files(directory: Path, settings: RetentionSettings) -> list[SideFile]:
    """Return the files that are not records and expire: prompts, sessions, rotated logs."""
    return [file for file in _side_files(directory, settings) if file is not None]


def _side_files(directory: Path, settings: RetentionSettings) -> Iterator[SideFile | None]:
    for path in _files(directory, "state/prompts/*.md"):
        yield _side_file(path, settings.prompts_days, assignment_id=path.stem)
    for suffix in _RESULT_SUFFIXES:
        for path in _files(directory, f"state/results/*{suffix}"):
            yield _side_file(path, settings.results_days, assignment_id=path.name.removesuffix(suffix))
    # Each soldier host has its own directory, by default below the store directory.
    for folder in ("logs/sessions", "soldiers/*/logs/sessions"):
        for path in _files(directory, f"{folder}/*"):
            yield _side_file(path, settings.session_logs_days, soldier_id=path.stem)
    for name in NAMES:
        for path in _files(directory, f"logs/{name}.log{OLD}"):
            yield _side_file(path, settings.logs_days)


def _side_file(path: Path, days: float, *, assignment_id: str = "", soldier_id: str = "") -> SideFile | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        _log_kept(path, error)
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    written_at = datetime.fromtimestamp(status.st_mtime, UTC)
    return SideFile(path, written_at, timedelta(days=days), assignment_id, soldier_id)


def _files(directory: Path, pattern: str) -> list[Path]:
    return [path for path in sorted(directory.glob(pattern)) if not path.name.startswith(".")]


def _retention_start(file: SideFile, owners: FileOwners) -> datetime | None:
    if file.soldier_id in owners.soldiers:
        return None
    if file.soldier_id in owners.followed_until:
        followed_until = owners.followed_until[file.soldier_id]
        return max(followed_until, file.written_at) if followed_until else None
    return owners.ended_at.get(file.assignment_id, file.written_at)


async def _find_owners(transaction: Transaction, files: Iterable[SideFile]) -> FileOwners:
    ended_at: dict[str, datetime | None] = {}
    for file in files:
        if file.assignment_id and file.assignment_id not in ended_at:
            record = await transaction.get(ASSIGNMENTS.name, file.assignment_id)
            if record is None:
                continue
            is_over = record.state in ASSIGNMENTS.final
            ended_at[file.assignment_id] = (_ended_at(record) or file.written_at) if is_over else None
    soldiers = set(await list_sessions(transaction))
    for status in set(WorkflowStatus) - _WITHOUT_SESSION:
        async for record in each_record(transaction, RecordQuery(kind=WORKFLOWS.name, state=status)):
            soldiers |= _soldiers(Workflow.read(record.doc))
    return FileOwners(ended_at, frozenset(soldiers), await _find_followed(transaction))


async def _find_followed(transaction: Transaction) -> dict[str, datetime | None]:
    """Return when the followups of soldiers' pull requests ended, or None for those that have not."""
    found: dict[str, datetime | None] = {}
    records = [record async for record in each_record(transaction, RecordQuery(kind=FOLLOWUPS.name))]
    for followup in read_documents(records, Followup):
        await transaction.read_ahead([(WORKFLOWS.name, run) for run in followup.runs])
        runs = [await transaction.get(WORKFLOWS.name, run) for run in followup.runs]
        for workflow in read_documents([run for run in runs if run is not None], Workflow):
            for soldier in _soldiers(workflow):
                # A run can open several pull requests.
                ends = (followup.ended_at, found.get(soldier, followup.ended_at))
                found[soldier] = None if None in ends else max(end for end in ends if end)
    return found


def _soldiers(run: Workflow) -> set[str]:
    """Return the soldiers whose sessions a run has."""
    tokens = [work.agent.session for work in run.works]
    return {soldier_of(token) for token in tokens if token}


def _ended_at(record: Record) -> datetime | None:
    try:
        return msgspec.convert(record.doc.get("ended_at"), datetime | None)
    except msgspec.ValidationError:
        # One invalid document must not stop the cleanup.
        return None


def _remove(files: Iterable[SideFile]) -> int:
    removed = 0
    for file in files:
        try:
            # A file that was written again is kept.
            if datetime.fromtimestamp(file.path.stat().st_mtime, UTC) == file.written_at:
                file.path.unlink()
                removed += 1
        except FileNotFoundError:
            continue
        except OSError as error:
            _log_kept(file.path, error)
    return removed


def _log_kept(path: Path, error: OSError) -> None:
    log_failure(
        _log, "cannot remove an old file, trying again at the next cleanup", error, expected=(OSError,), path=str(path)
    )
