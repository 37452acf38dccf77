"""A scripted session: what it remembers, and the transcript in which it notes everything."""

from pathlib import Path
from typing import Any

from kingdom.soldiers.agent import AgentGone
from kingdom.soldiers.scripted.memory import Memory, recalled
from kingdom.soldiers.transcript import append_entry, read_entries


class Session:
    """The memory of a session and the transcript behind it."""

    def __init__(self, session: str, memory: Memory, transcript: Path, *, durable: bool) -> None:
        self.id = session
        self.memory = memory
        self._transcript = transcript
        self._durable = durable

    def note(self, **entry: Any) -> None:
        """Write down what happened, then remember it."""
        append_entry(self._transcript, entry, durable=self._durable)
        self.memory.learn(entry)


def open_session(
    transcript: Path, *, soldier_id: str, session: str | None, model: str, durable: bool = True
) -> Session:
    """Begin a new session, or go on with the one that the transcript tells of."""
    memory = recalled(read_entries(transcript)) if transcript.exists() else Memory()
    if session is None:
        session = f"{soldier_id}-{memory.sessions + 1}"
        memory = Memory(session=session, sessions=memory.sessions + 1)
    elif session != memory.session:
        raise AgentGone(f"session {session} cannot be continued: {transcript} does not tell of it; begin a new one")
    append_entry(transcript, {"session": session, "model": model}, durable=durable)
    return Session(session, memory, transcript, durable=durable)
