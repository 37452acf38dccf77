"""What is known of a session from its transcript: everything is written down first, then it is remembered."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from kingdom.soldiers.agents.port import AgentGone, Launch, Prompt
from kingdom.soldiers.agents.transcript import TranscriptEntry, append_entry, read_entries
from kingdom.soldiers.tools.port import AgentQuestion

CONTINUE_PROMPT = (
    "Go on with what you were asked and have not finished: you were interrupted. See first how far you had come; what"
    " is done already must not be done again."
)


@dataclass
class UnfinishedPrompt:
    """The latest prompt of a session, as long as it has no answer."""

    asked: str
    reply: str = ""
    question: AgentQuestion | None = None


U = TypeVar("U", bound=UnfinishedPrompt)


@dataclass
class SessionHistory(Generic[U]):
    """What a session has come to; `answered` is what was asked by the latest prompt that has its answer."""

    session: str
    unfinished: U | None = None
    answered: str = ""

    def apply(self, entry: Mapping[str, Any]) -> None:
        """Take in the next entry of its transcript."""
        match entry:
            case {"type": "asked", "question": str(question)} if self.unfinished:
                self.unfinished.question = AgentQuestion(text=question, choices=tuple(entry.get("choices", ())))
            case {"type": "answered"}:
                self.answered = self.unfinished.asked if self.unfinished else ""
                self.unfinished = None

    def open_question(self, prompt: Prompt) -> AgentQuestion | None:
        """Return the question that nobody has replied to, if a prompt goes on without the reply."""
        return self.unfinished.question if self.unfinished and prompt.continues and not prompt.reply else None

    def text_or_unfinished(self, prompt: Prompt) -> str | U:
        """Return what the agent is to be told, or what it goes on with, where it may have heard all of it already."""
        before, goes_on = self.unfinished, prompt.continues or prompt.reply
        if before is None and goes_on and prompt.text == self.answered:
            # It was answered, but not as it should be; what was done is not to be done again.
            return prompt.reply or CONTINUE_PROMPT
        if before is None or not goes_on:
            return f"{prompt.text}\n\nA person has replied: {prompt.reply}" if prompt.reply else prompt.text
        return prompt.reply if prompt.reply and (before.question or before.reply != prompt.reply) else before


P = TypeVar("P", bound=SessionHistory[Any])


class SessionLog(Generic[P]):
    """The transcript of a session, and what it amounts to."""

    def __init__(self, launch: Launch, history: P) -> None:
        self.history = history
        self._launch = launch

    def write(self, entry: TranscriptEntry, *, durable: bool) -> None:
        """Write down what happened, then remember it."""
        append_entry(self._launch.transcript, entry, durable=durable, redaction=self._launch.redaction)
        self.history.apply(entry)


def read_history(entries: Iterable[TranscriptEntry], session: str, begin: Callable[[str], P]) -> P | None:
    """Return what our transcript tells of a session, or None if that is not the one it tells of last."""
    history: P | None = None
    for entry in entries:
        if entry.get("type") == "session":
            history = history if history and history.session == entry["session"] else begin(entry["session"])
        elif history is not None:
            history.apply(entry)
    return history if history and history.session == session else None


def load_history(launch: Launch, begin: Callable[[str], P], new: str) -> P:
    """Return what is known of the session of a launch, or a new one; raises AgentGone where nothing tells of it."""
    if launch.session is None:
        return begin(new)
    history = read_history(read_entries(launch.transcript) if launch.transcript.exists() else (), launch.session, begin)
    if history is None:
        raise AgentGone(
            f"session {launch.session} cannot be continued: {launch.transcript} does not tell of it; begin a new one"
        )
    return history
