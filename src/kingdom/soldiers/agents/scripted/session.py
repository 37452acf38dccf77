"""A scripted session: what it remembers, and the transcript in which everything is noted."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from kingdom.soldiers.agents.port import AgentGone
from kingdom.soldiers.agents.scripted.memory import Memory, recalled
from kingdom.soldiers.agents.transcript import TranscriptEntry, append_entry, read_entries
from kingdom.soldiers.redaction import DEFAULT_REDACTION, Redaction


class Session:
    """The memory of a session; `write` puts what happens into its transcript."""

    def __init__(self, session: str, memory: Memory, write: Callable[[TranscriptEntry], None]) -> None:
        self.id = session
        self.memory = memory
        self._write = write

    def note(self, **entry: Any) -> None:
        """Write down what happened, then remember it."""
        self._write(entry)
        self.memory.learn(entry)


def open_session(
    transcript: Path,
    *,
    soldier_id: str,
    session: str | None,
    model: str,
    durable: bool = True,
    redaction: Redaction = DEFAULT_REDACTION,
) -> Session:
    """Begin a new session, or go on with the one that the transcript tells of."""
    memory = recalled(read_entries(transcript)) if transcript.exists() else Memory()
    if session is None:
        session = f"{soldier_id}-{memory.sessions + 1}"
        memory = Memory(session=session, sessions=memory.sessions + 1)
    elif session != memory.session:
        raise AgentGone(f"session {session} cannot be continued: {transcript} does not tell of it; begin a new one")
    write = partial(append_entry, transcript, durable=durable, redaction=redaction)
    write({"session": session, "model": model})
    return Session(session, memory, write)
