"""What is known of a session without its process: from our transcript, and from the one Claude Code keeps itself."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kingdom.soldiers.agent import Prompt
from kingdom.soldiers.claude.command import settings_folder
from kingdom.soldiers.notebook import GO_ON
from kingdom.soldiers.transcript import Entry, read_entries
from kingdom.soldiers.voice.voice import Question

_TAKEN = "You have made these petitions already, and they were taken; do not make them again:"
_PETITION_SHOWN = 500
# What Claude Code writes in the name of the model.
SYNTHETIC = "<synthetic>"
_ENDS = frozenset({"asked", "answered", "failed", "interrupted"})
_BYTES_MAX = 256 << 20
_LATEST_BYTES = 16 << 20


@dataclass(slots=True)
class Unfinished:
    """The latest prompt of a session, as long as it has no answer; `uuid` is what Claude Code knows it by."""

    text: str
    sent: str
    uuid: str
    reply: str = ""
    question: Question | None = None
    petitions: tuple[str, ...] = ()

    def told_of_petitions(self) -> list[str]:
        """Return what the agent is told of the petitions it has made, some of which it may not remember."""
        return ["\n- ".join([_TAKEN, *self.petitions])] if self.petitions else []


@dataclass(slots=True)
class Past:
    """What a session has come to."""

    session: str
    unfinished: Unfinished | None = None
    # What was asked by the latest prompt that has its answer.
    answered: str = ""

    def learn(self, entry: Mapping[str, Any]) -> None:
        """Take in the next entry of its transcript."""
        match entry:
            case {"type": "prompt", "text": str(text), "uuid": str(uuid)}:
                goes_on = self.unfinished if entry.get("continues") or entry.get("reply") else None
                self.unfinished = Unfinished(text, entry.get("sent", text), uuid, entry.get("reply", ""))
                self.unfinished.petitions = goes_on.petitions if goes_on else ()
            case {"type": "petition", "kind": str(kind)} if self.unfinished:
                made = f"{kind} {json.dumps(entry.get('body', {}), ensure_ascii=False)}"
                self.unfinished.petitions += (made[:_PETITION_SHOWN],)
            case {"type": "asked", "question": str(question)} if self.unfinished:
                self.unfinished.question = Question(text=question, choices=tuple(entry.get("choices", ())))
            case {"type": "answered"}:
                self.answered = self.unfinished.text if self.unfinished else ""
                self.unfinished = None

    def question_again(self, prompt: Prompt) -> Question | None:
        """Return the question that nobody has replied to, if a prompt goes on without the reply."""
        return self.unfinished.question if self.unfinished and prompt.continues and not prompt.reply else None

    def text_for(self, prompt: Prompt, own: Path | None) -> str:
        """Return what the agent is to be told, who may have heard of it already."""
        before = self.unfinished
        if before is None and prompt.text == self.answered and (prompt.continues or prompt.reply):
            # It was answered, but not as it should be; what was done is not to be done again.
            return prompt.reply or GO_ON
        if before is None or not (prompt.continues or prompt.reply):
            return f"{prompt.text}\n\nA person has replied: {prompt.reply}" if prompt.reply else prompt.text
        if prompt.reply and (before.question or before.reply != prompt.reply):
            return prompt.reply
        if own is None or _turn_of(own, before.uuid) is None:
            return before.sent
        parts = [GO_ON, *before.told_of_petitions(), *([prompt.text] if prompt.text != before.text else [])]
        return "\n\n".join(parts)


@dataclass(frozen=True, slots=True)
class OpenPrompt:
    """A prompt whose turn has no end in our transcript."""

    session: str
    uuid: str


def open_prompt(entries: Iterable[Entry], prompt_id: str) -> OpenPrompt | None:
    """Return under which names Claude Code has a prompt, if our transcript does not tell how its turn ended."""
    session, found = "", None
    for entry in entries:
        match entry:
            case {"type": "session", "session": str(session)}:
                continue
            case {"type": "prompt", "prompt": str(name), "uuid": str(uuid)} if name == prompt_id:
                found = OpenPrompt(session, uuid)
            case {"type": str(kind), "prompt": str(name)} if name == prompt_id and kind in _ENDS:
                found = None
    return found


def own_transcript(environment: Mapping[str, str], session: str) -> Path | None:
    """Return the transcript that Claude Code keeps itself, if it has begun one.

    The agent may write where it lies: a link to somewhere else is none, and neither is a file beyond all measure.
    """
    folder = settings_folder(environment)
    root = folder.parent.resolve() / folder.name
    for path in folder.glob(f"projects/*/{session}.jsonl"):
        if path.is_file() and path.resolve() == root / path.relative_to(folder) and path.stat().st_size <= _BYTES_MAX:
            return path
    return None


class OwnRecord:
    """Follows the transcript that Claude Code keeps itself, which lags behind what it does."""

    def __init__(self, environment: Mapping[str, str], session: str) -> None:
        self._environment = environment
        self._session = session
        path = own_transcript(environment, session)
        self._offset = path.stat().st_size if path else 0
        self._latest = b""

    def tells_of(self, call: str) -> bool:
        """Return whether the call of a tool has been written down."""
        path = own_transcript(self._environment, self._session)
        if path is None:
            return False
        with path.open("rb") as file:
            file.seek(self._offset)
            self._latest = (self._latest + file.read())[-_LATEST_BYTES:]
            self._offset = file.tell()
        return call.encode() in self._latest


def own_answer(own: Path, uuid: str) -> str | None:
    """Return the answer to a prompt according to Claude Code's own transcript, or None if there is none."""
    turn = _turn_of(own, uuid)
    if not turn:
        return None
    last = turn[-1]
    match last:
        case {"type": "assistant", "message": {"stop_reason": "end_turn", "id": message_id, "model": str(model)}}:
            if model == SYNTHETIC or last.get("isApiErrorMessage"):
                return None
            return "".join(text for entry in turn for text in _texts(entry, message_id))
    return None


def _turn_of(own: Path, uuid: str) -> list[Entry] | None:
    """Return what came of a prompt, or None if Claude Code has not heard of it."""
    turn: list[Entry] | None = None
    for entry in read_entries(own):
        if entry.get("type") not in {"user", "assistant"} or entry.get("isSidechain"):
            continue
        if entry.get("uuid") == uuid:
            turn = []
        elif turn is not None:
            if _is_prompt(entry):
                break
            turn.append(entry)
    return turn


def _is_prompt(entry: Entry) -> bool:
    return entry["type"] == "user" and "promptSource" in entry


def _texts(entry: Entry, message_id: Any) -> Iterator[str]:
    """Yield the texts of a message that came in several entries; nobody has checked what stands in them."""
    match entry:
        case {"message": {"id": found, "content": list(blocks)}} if found == message_id:
            for block in blocks:
                match block:
                    case {"type": "text", "text": str(text)}:
                        yield text
