"""The history of a session: every entry is written to the transcript first, then applied to the history."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from kingdom.soldiers.agent_tools.port import AgentQuestion
from kingdom.soldiers.agents.port import AgentGone, Launch, Prompt
from kingdom.soldiers.agents.transcript import TranscriptEntry, append_entry, read_entries

CONTINUE_PROMPT = (
    "Continue what you were asked and have not finished: you were interrupted. First check how far you got; do not"
    " repeat what is already done."
)


@dataclass
class UnfinishedPrompt:
    """The latest prompt of a session while it has no answer."""

    asked: str
    reply: str = ""
    question: AgentQuestion | None = None


U = TypeVar("U", bound=UnfinishedPrompt)


@dataclass
class SessionHistory(Generic[U]):
    """The state of a session; `answered` is the text of the latest prompt that has an answer."""

    session: str
    unfinished: U | None = None
    answered: str = ""

    def apply(self, entry: Mapping[str, Any]) -> None:
        """Apply the next entry of the transcript."""
        match entry:
            case {"type": "asked", "question": str(question)} if self.unfinished:
                self.unfinished.question = AgentQuestion(text=question, choices=tuple(entry.get("choices", ())))
            case {"type": "answered"}:
                self.answered = self.unfinished.asked if self.unfinished else ""
                self.unfinished = None

    def open_question(self, prompt: Prompt) -> AgentQuestion | None:
        """Return the question that still has no reply, if a prompt continues without one."""
        return self.unfinished.question if self.unfinished and prompt.continues and not prompt.reply else None

    def text_or_unfinished(self, prompt: Prompt) -> str | U:
        """Return the text to send, or the unfinished prompt if the agent may already know all of it."""
        before, goes_on = self.unfinished, prompt.continues or prompt.reply
        if before is None and goes_on and prompt.text == self.answered:
            # The answer was not accepted; the work behind it must not be repeated.
            return prompt.reply or CONTINUE_PROMPT
        if before is None or not goes_on:
            return f"{prompt.text}\n\nA person has replied: {prompt.reply}" if prompt.reply else prompt.text
        return prompt.reply if prompt.reply and (before.question or before.reply != prompt.reply) else before


P = TypeVar("P", bound=SessionHistory[Any])


class SessionLog(Generic[P]):
    """The transcript of a session together with the history that it amounts to."""

    def __init__(self, launch: Launch, history: P) -> None:
        self.history = history
        self._launch = launch

    def write(self, entry: TranscriptEntry, *, durable: bool) -> None:
        """Write an entry to the transcript, then apply it to the history."""
        append_entry(self._launch.transcript, entry, durable=durable, redaction=self._launch.redaction)
        self.history.apply(entry)


def read_history(entries: Iterable[TranscriptEntry], session: str, begin: Callable[[str], P]) -> P | None:
    """Return the history of a session, or None if it is not the last session of the transcript."""
    history: P | None = None
    for entry in entries:
        if entry.get("type") == "session":
            history = history if history and history.session == entry["session"] else begin(entry["session"])
        elif history is not None:
            history.apply(entry)
    return history if history and history.session == session else None


def load_history(launch: Launch, begin: Callable[[str], P], new: str) -> P:
    """Return the history of the launch's session, or of a new one.

    Raises AgentGone if the transcript does not contain the session.
    """
    if launch.session is None:
        return begin(new)
    history = read_history(read_entries(launch.transcript) if launch.transcript.exists() else (), launch.session, begin)
    if history is None:
        raise AgentGone(
            f"session {launch.session} cannot be continued: {launch.transcript} lacks it; start a new session"
        )
    return history
