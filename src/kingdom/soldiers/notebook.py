"""What is known of a session from its transcript: everything is written down first, then it is remembered."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from kingdom.soldiers.agent import Launch
from kingdom.soldiers.transcript import Entry, append_entry

GO_ON = (
    "Go on with what you were asked and have not finished: you were interrupted. See first how far you had come; what"
    " is done already must not be done again."
)


class Remembered(Protocol):
    """What a session has come to."""

    session: str

    def learn(self, entry: Mapping[str, Any]) -> None:
        """Take in the next entry of its transcript."""


P = TypeVar("P", bound=Remembered)


class Notebook(Generic[P]):
    """The transcript of a session, and what it amounts to."""

    def __init__(self, launch: Launch, past: P) -> None:
        self.past = past
        self._launch = launch

    def write(self, entry: Entry, *, durable: bool) -> None:
        """Write down what happened, then remember it."""
        append_entry(self._launch.transcript, entry, durable=durable, redaction=self._launch.redaction)
        self.past.learn(entry)


def recalled(entries: Iterable[Entry], session: str, begin: Callable[[str], P]) -> P | None:
    """Return what our transcript tells of a session, or None if that is not the one it tells of last."""
    past: P | None = None
    for entry in entries:
        if entry.get("type") == "session":
            past = past if past and past.session == entry["session"] else begin(entry["session"])
        elif past is not None:
            past.learn(entry)
    return past if past and past.session == session else None
