"""What the agents of a run said, did and changed, on whichever host they ran."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from kingdom.bus.log import LogCursor, LogEntry
from kingdom.bus.operations import read_log_to_end
from kingdom.errors import MalformedRequest, NotFound
from kingdom.soldiers.host.checkpoint_diffs import DIFF_BYTES_MAX, DiffBase
from kingdom.soldiers.host.run_diffs import RunDiffs, TreeDiff
from kingdom.soldiers.transcripts.logged_entries import to_transcript_entry
from kingdom.soldiers.transcripts.run_sessions import LogSubject, RunSession, locate, sessions_of, with_soldiers
from kingdom.views.transcripts import TranscriptLine
from kingdom.web.route import ApiCall, Page
from kingdom.workflow import lifecycle
from kingdom.workflow.model.run.checkpoint import Checkpoint
from kingdom.workflow.model.run.workflow import Workflow

_PART_BYTES = 256 << 10
# Each entry from the log can take one more SQL statement, so a part that is read from the log is short.
_PART_ENTRIES = 50
_OFFSET_MAX = 1 << 53


class TranscriptQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which transcript to read, by default that of the newest session; `after` is `next` of its previous part."""

    soldier: str = ""
    after: Annotated[int, Meta(ge=0, le=_OFFSET_MAX)] = 0


class DiffQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The id of the checkpoint to compare with; by default the start of the run."""

    since: str = ""


class CheckpointDiffQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to compare a checkpoint with: the checkpoint before it, or the start of the run."""

    since: DiffBase = "previous"


class TranscriptPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the transcript of one session. `soldiers` are those of all sessions of the run, the oldest first.

    `next` is the value of `after` for the next part, or null when there are no more entries. While the agent may
    continue, a part without items means that there are no more entries yet. `notes` say what cannot be shown.
    """

    soldier: str
    soldiers: list[str]
    items: list[TranscriptLine]
    next: int | None
    notes: list[str]


async def list_transcript(call: ApiCall) -> TranscriptPart:
    """List what an agent of a run was asked, said and did, and how each turn ended."""
    query: TranscriptQuery = call.query
    if query.after and not query.soldier:
        raise MalformedRequest("another session may be the newest one by now: give soldier with after")
    workflow = await lifecycle.show(call.context.bus, call.path["id"])
    logged, _ = await read_log_to_end(call.context.operations, workflow.id, LogCursor())
    sessions = sessions_of(workflow, logged)
    session = next((each for each in reversed(sessions) if query.soldier in ("", each.soldier)), None)
    if session is None and query.soldier:
        raise NotFound(f"workflow {workflow.id} has no soldier {query.soldier!r}: `soldiers` of its transcript has all")
    # The last entries are readable before the session is over, so a part that is read after this check misses none.
    is_over = LogSubject(workflow, soldier=session.soldier if session else "").is_over(workflow)
    end, items, notes = await _read(call, workflow, session, logged) if session else (query.after, [], [])
    return TranscriptPart(
        soldier=session.soldier if session else "",
        soldiers=[each.soldier for each in sessions],
        items=items,
        next=None if is_over and end == query.after else end,
        notes=notes,
    )


async def list_diffs(call: ApiCall) -> Page[TreeDiff]:
    """List the changes of a run in each checkout. If the run is on another machine, they end at its last checkpoint."""
    workflow = await lifecycle.show(call.context.bus, call.path["id"])
    since = _find_checkpoint(workflow, call.query.since) if call.query.since else None
    async with call.context.diff_slots:
        return _bounded(await _diffs(call).current(workflow, since))


async def list_checkpoint_diffs(call: ApiCall) -> Page[TreeDiff]:
    """List the changes of a checkpoint in each checkout."""
    workflow = await lifecycle.show(call.context.bus, call.path["id"])
    point = _find_checkpoint(workflow, call.path["checkpoint"])
    async with call.context.diff_slots:
        return _bounded(await _diffs(call).of_checkpoint(workflow, point, call.query.since))


async def _read(
    call: ApiCall, workflow: Workflow, session: RunSession, logged: Sequence[LogEntry]
) -> tuple[int, list[TranscriptLine], list[str]]:
    """Return entries of a session from the requested offset on, the offset after them, and notes."""
    after: int = call.query.after
    await locate(call.context.bus, call.context.texts, session, workflow)
    if session.source is None:
        return await _read_from_log(call, workflow, session, logged)
    page = await session.source.read(after, _PART_BYTES)
    while not page.entries and page.next_offset > after:
        # Lines that cannot be read are skipped.
        after = page.next_offset
        page = await session.source.read(after, _PART_BYTES)
    lines = [_line(session, end, entry) for entry, end in zip(page.entries, page.ends, strict=True)]
    return page.next_offset, lines, await session.source.missing_parts(session.place)


async def _read_from_log(
    call: ApiCall, workflow: Workflow, session: RunSession, logged: Sequence[LogEntry]
) -> tuple[int, list[TranscriptLine], list[str]]:
    """Return a part of the log entries of a session. The offset of an entry is its number."""
    about = [entry for soldier, entry in with_soldiers(logged, {}) if soldier == session.soldier]
    end, lines = call.query.after, list[TranscriptLine]()
    for entry in about[end:]:
        end += 1
        if shown := await to_transcript_entry(call.context.bus, workflow, entry):
            lines.append(_line(session, end, shown))
        if len(lines) == _PART_ENTRIES:
            break
    return end, lines, [session.note_about_log]


def _line(session: RunSession, end: int, entry: dict[str, object]) -> TranscriptLine:
    return TranscriptLine(soldier=session.soldier, work_id=session.work_id, next_offset=end, entry=entry)


def _diffs(call: ApiCall) -> RunDiffs:
    return RunDiffs(call.context.bus, call.context.texts, call.context.realm.soldiers)


def _find_checkpoint(workflow: Workflow, checkpoint_id: str) -> Checkpoint:
    for point in workflow.checkpoints:
        if point.id == checkpoint_id:
            return point
    raise NotFound(f"workflow {workflow.id} has no checkpoint {checkpoint_id!r}: list its checkpoints")


def _bounded(found: Sequence[TreeDiff]) -> Page[TreeDiff]:
    """Return diffs that a browser can show. A longer one is cut."""
    return Page(items=[_cut(each) for each in found])


def _cut(found: TreeDiff) -> TreeDiff:
    data = found.diff.encode()
    if len(data) <= DIFF_BYTES_MAX:
        return found
    note = f"cut after {DIFF_BYTES_MAX >> 20} MiB; `kingdom diff` shows more"
    diff = data[:DIFF_BYTES_MAX].decode(errors="ignore")
    return msgspec.structs.replace(found, diff=diff, note=f"{found.note}; {note}" if found.note else note)
