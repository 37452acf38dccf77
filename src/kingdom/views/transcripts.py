"""Lines of transcripts."""

import msgspec

from kingdom.soldiers.agents.transcript import TranscriptEntry


class TranscriptLine(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An entry of a transcript, its soldier and Work, and the offset of the next entry.

    The offset is null for an entry that `kingdom logs` reads from the log.
    """

    soldier: str
    work_id: str
    next_offset: int | None
    entry: TranscriptEntry
