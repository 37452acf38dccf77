"""Copy the transcripts of a host's sessions to the store while they grow."""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from kingdom.atomic_write import write_atomically
from kingdom.errors import KingdomError
from kingdom.soldiers.checkouts.repository import read_small_file
from kingdom.soldiers.redaction import Redaction
from kingdom.soldiers.transcripts.copied_text import MARGIN_BYTES, cut_into_pieces, read_lines, redact_lines
from kingdom.soldiers.workplace.host_folders import HostFolders
from kingdom.storage.run_texts import RunTexts
from kingdom.workflow.model.run.work import SOLDIER_PREFIX

# How many bytes of one run's transcripts the store keeps.
RUN_BYTES_MAX = 20 << 20
COPY_EVERY_SECONDS = 1.0
_BATCH_BYTES = 1 << 20
# The end of a session waits at most this long for the store. The rest is copied later.
_FLUSH_SECONDS = 10.0
# A session is still copied for this long after its end, because the turn of an ended agent may still append its cost.
_LINGER_SECONDS = 60.0
_log = structlog.get_logger("kingdom.soldiers")


@dataclass(slots=True, eq=False)
class _CopiedSession:
    """A session whose transcript is copied. `offset` is None while it is not known how much is stored."""

    run: str
    soldier: str
    redaction: Redaction
    offset: int | None = None
    is_cut: bool = False
    ended_at: float | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class TranscriptCopier:
    """Copies transcripts without secrets, each at most once a second.

    A file in the folder `copying` names each session that is not copied completely, so a host that was killed continues
    where it stopped. A slow store delays only the copies.
    """

    def __init__(
        self,
        texts: RunTexts,
        folders: HostFolders,
        redaction: Redaction,
        *,
        every: float = COPY_EVERY_SECONDS,
        run_bytes_max: int = RUN_BYTES_MAX,
    ) -> None:
        self._texts = texts
        self._folders = folders
        self._redaction = redaction
        self._every = every
        self._run_bytes_max = run_bytes_max
        self._sessions: dict[str, _CopiedSession] = {}
        # How many bytes of transcripts of each run are stored.
        self._stored: dict[str, int] = {}
        self._is_failing = False

    def begin(self, run: str, soldier: str, redaction: Redaction) -> None:
        """Copy the transcript of a session from now on."""
        known = self._sessions.get(soldier)
        if known is not None:
            known.ended_at, known.redaction = None, redaction
            return
        try:
            self._folders.copying.mkdir(exist_ok=True)
            write_atomically(self._folders.copying / soldier, run)
        except (KingdomError, OSError) as error:
            _log.warning("a transcript will not be copied after a restart", soldier=soldier, error=str(error))
        self._sessions[soldier] = _CopiedSession(run, soldier, redaction)

    async def end(self, soldier: str) -> None:
        """Copy the rest of a session that has ended, unless the store takes too long."""
        session = self._sessions.get(soldier)
        if session is None:
            return
        session.ended_at = time.monotonic()
        await self._flush([session])

    async def flush(self) -> None:
        """Copy everything that was written so far, unless the store takes too long."""
        await self._flush(list(self._sessions.values()))

    async def run(self) -> None:
        """Copy until cancelled, beginning with the sessions that an earlier process of this host left."""
        self._find_unfinished_sessions()
        while True:
            for session in list(self._sessions.values()):
                await self._try_to_copy(session)
                self._drop_if_over(session)
            await asyncio.sleep(self._every)

    def _find_unfinished_sessions(self) -> None:
        with suppress(OSError):
            for marker in self._folders.copying.iterdir():
                run = read_small_file(marker)
                if run and marker.name.startswith(SOLDIER_PREFIX) and marker.name not in self._sessions:
                    left = _CopiedSession(run, marker.name, self._redaction, ended_at=time.monotonic())
                    self._sessions[marker.name] = left

    def _drop_if_over(self, session: _CopiedSession) -> None:
        if session.offset is None or session.ended_at is None or time.monotonic() - session.ended_at < _LINGER_SECONDS:
            return
        with suppress(OSError):
            (self._folders.copying / session.soldier).unlink(missing_ok=True)
            del self._sessions[session.soldier]
            if not any(other.run == session.run for other in self._sessions.values()):
                self._stored.pop(session.run, None)

    async def _flush(self, sessions: list[_CopiedSession]) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_SECONDS):
                for session in sessions:
                    await self._try_to_copy(session)

    async def _try_to_copy(self, session: _CopiedSession) -> None:
        try:
            await self._copy(session)
            self._is_failing = False
        except Exception as error:  # noqa: BLE001 - a copy must never disturb the agents; it is tried again
            if not self._is_failing:
                _log.warning("transcripts cannot be copied, trying again", soldier=session.soldier, error=repr(error))
            self._is_failing = True

    async def _copy(self, session: _CopiedSession) -> None:
        """Copy all whole lines of a transcript that are not stored yet."""
        path = self._folders.transcript(session.soldier)
        async with session.lock:
            offset = session.offset if session.offset is not None else await self._find_offset(session)
            while not session.is_cut:
                room = self._run_bytes_max - self._stored[session.run]
                limits = {"at_most": _BATCH_BYTES, "line_max": room + MARGIN_BYTES}
                lines = await asyncio.to_thread(read_lines, path, offset, **limits) if room > 0 else b""
                if not lines:
                    break
                data = await asyncio.to_thread(redact_lines, lines, session.redaction)
                pieces = list(cut_into_pieces(data, offset, room))
                # If the answer of the store is lost, the store is asked how much it has.
                session.offset = None
                end = await self._texts.append(session.run, session.soldier, pieces)
                self._stored[session.run] += end - offset
                session.is_cut = pieces[-1].is_cut
                session.offset = offset = end

    async def _find_offset(self, session: _CopiedSession) -> int:
        extents = await self._texts.extents(session.run)
        self._stored[session.run] = sum(
            each.end - each.start for name, each in extents.items() if name.startswith(SOLDIER_PREFIX)
        )
        known = extents.get(session.soldier)
        session.is_cut = known is not None and known.is_cut
        session.offset = known.end if known else 0
        return session.offset
