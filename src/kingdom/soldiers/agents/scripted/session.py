"""A scripted session: its history and its transcript."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from kingdom.soldiers.agents.port import AgentGone, SessionGone
from kingdom.soldiers.agents.scripted.history import ScriptedHistory, read_history
from kingdom.soldiers.agents.transcript import TranscriptEntry, append_entry, read_entries
from kingdom.soldiers.redaction import DEFAULT_REDACTION, Redaction


class ScriptedSession:
    """A session with its history; `write` appends an entry to its transcript."""

    def __init__(self, session: str, history: ScriptedHistory, write: Callable[[TranscriptEntry], None]) -> None:
        self.id = session
        self.history = history
        self._write = write

    def record(self, **entry: Any) -> None:
        """Write an entry, then apply it to the history."""
        self._write(entry)
        self.history.apply(entry)


def open_session(
    transcript: Path,
    *,
    soldier_id: str,
    session: str | None,
    model: str,
    durable: bool = True,
    redaction: Redaction = DEFAULT_REDACTION,
    earlier: Path | None = None,
) -> ScriptedSession:
    """Start a new session, or continue the latest one of the transcript, or of another soldier's transcript."""
    history = _read_history(transcript)
    if session is None:
        session = f"{soldier_id}-{history.sessions + 1}"
        history = ScriptedHistory(session=session, sessions=history.sessions + 1)
    elif earlier is not None:
        before = _read_history(earlier)
        if session != before.session:
            raise SessionGone(f"session {session} cannot be continued: {earlier} does not contain it")
        history = ScriptedHistory(session=session, sessions=history.sessions + 1, prompts=before.prompts)
    elif session != history.session:
        raise AgentGone(f"session {session} cannot be continued: {transcript} does not contain it; start a new one")
    write = partial(append_entry, transcript, durable=durable, redaction=redaction)
    write({"session": session, "model": model, **({"prompts": history.prompts} if earlier else {})})
    return ScriptedSession(session, history, write)


def _read_history(transcript: Path) -> ScriptedHistory:
    return read_history(read_entries(transcript)) if transcript.exists() else ScriptedHistory()
