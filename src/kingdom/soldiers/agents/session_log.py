"""The history of a session: the state that follows from the entries of its transcript."""

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
    """The latest prompt of a session while it has no answer.

    `asked` is its text, `question` is what the agent asked a person, and `reply` is what the person replied.
    """

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
        """Return the agent's question if it has no reply yet and `prompt` continues the turn without a reply."""
        return self.unfinished.question if self.unfinished and prompt.continues and not prompt.reply else None

    def text_or_unfinished(self, prompt: Prompt) -> str | U:
        """Return the text to send, or the unfinished prompt if the agent has to continue it without a new text."""
        before, continues = self.unfinished, prompt.continues or prompt.reply
        if before is None and continues and prompt.text == self.answered:
            # The agent has answered, but its answer was not accepted. It must not repeat the work.
            return prompt.reply or CONTINUE_PROMPT
        if before is None or not continues:
            return f"{prompt.text}\n\nA person has replied: {prompt.reply}" if prompt.reply else prompt.text
        return prompt.reply if prompt.reply and (before.question or before.reply != prompt.reply) else before


P = TypeVar("P", bound=SessionHistory[Any])


class SessionLog(Generic[P]):
    """The transcript of a session together with the history that follows from it."""

    def __init__(self, launch: Launch, history: P) -> None:
        self.history = history
        self._launch = launch

    def write(self, entry: TranscriptEntry, *, durable: bool) -> None:
        """Write an entry to the transcript, then apply it to the history."""
        append_entry(self._launch.transcript, entry, durable=durable, redaction=self._launch.redaction)
        self.history.apply(entry)


def read_history(entries: Iterable[TranscriptEntry], session: str, new_history: Callable[[str], P]) -> P | None:
    """Return the history of a session, or None if it is not the last session of the transcript.

    `new_history` creates the empty history of a session.
    """
    history: P | None = None
    for entry in entries:
        if entry.get("type") == "session":
            history = history if history and history.session == entry["session"] else new_history(entry["session"])
        elif history is not None:
            history.apply(entry)
    return history if history and history.session == session else None


def load_history(launch: Launch, new_history: Callable[[str], P], new_session: str) -> P:
    """Return the history of the launch's session; a launch without a session begins `new_session`.

    The history of a session that belonged to another soldier begins here, because its earlier turns have ended. Any
    other session must be the last one of the transcript; otherwise AgentGone is raised.
    """
    if launch.session is None:
        return new_history(new_session)
    if launch.earlier_transcript:
        return new_history(launch.session)
    entries = read_entries(launch.transcript) if launch.transcript.exists() else []
    history = read_history(entries, launch.session, new_history)
    if history is None:
        raise AgentGone(
            f"session {launch.session} cannot be continued: {launch.transcript} lacks it; start a new session"
        )
    return history
