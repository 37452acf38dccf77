"""What is known of a session without its process: from our transcript, and from the one Claude Code keeps itself."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kingdom.soldiers.agents import session_log
from kingdom.soldiers.agents.port import Prompt
from kingdom.soldiers.agents.session_log import CONTINUE_PROMPT, SessionHistory
from kingdom.soldiers.agents.transcript import TranscriptEntry, try_decode_entry
from kingdom.soldiers.files.agent_files import AgentFile, find_files

_TAKEN = "You have made these petitions already, and they were taken; do not make them again:"
_PETITION_SHOWN = 500
# What Claude Code writes in the name of the model.
SYNTHETIC = "<synthetic>"
_ENDS = frozenset({"asked", "answered", "failed", "interrupted"})
_BYTES_MAX = 256 << 20
_LATEST_BYTES = 1 << 20


@dataclass
class Unfinished(session_log.UnfinishedPrompt):
    """The latest prompt of a session, as long as it has no answer; `uuid` is what Claude Code knows it by."""

    sent: str = ""
    uuid: str = ""
    petitions: tuple[str, ...] = ()

    def told_of_petitions(self) -> list[str]:
        """Return what the agent is told of the petitions it has made, some of which it may not remember."""
        return ["\n- ".join([_TAKEN, *self.petitions])] if self.petitions else []


class Past(SessionHistory[Unfinished]):
    """What a session has come to."""

    def apply(self, entry: Mapping[str, Any]) -> None:
        """Take in the next entry of its transcript."""
        super().apply(entry)
        match entry:
            case {"type": "prompt", "text": str(text), "uuid": str(uuid)}:
                reply, sent = entry.get("reply", ""), entry.get("sent", text)
                made = self.unfinished.petitions if self.unfinished and (entry.get("continues") or reply) else ()
                self.unfinished = Unfinished(text, reply, sent=sent, uuid=uuid, petitions=made)
            case {"type": "petition", "kind": str(kind)} if self.unfinished:
                petition = f"{kind} {json.dumps(entry.get('body', {}), ensure_ascii=False)}"
                self.unfinished.petitions += (petition[:_PETITION_SHOWN],)

    def text_for(self, prompt: Prompt, own: AgentFile | None) -> str:
        """Return what the agent is to be told, who may have heard of it already."""
        before = self.text_or_unfinished(prompt)
        if isinstance(before, str):
            return before
        if own is None or _turn_of(own, before.uuid) is None:
            return before.sent
        parts = [CONTINUE_PROMPT, *before.told_of_petitions(), *([prompt.text] if prompt.text != before.asked else [])]
        return "\n\n".join(parts)


@dataclass(frozen=True, slots=True)
class OpenPrompt:
    """A prompt whose turn has no end in our transcript."""

    session: str
    uuid: str


def open_prompt(entries: Iterable[TranscriptEntry], prompt_id: str) -> OpenPrompt | None:
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


def own_transcript(environment: Mapping[str, str], session: str) -> AgentFile | None:
    """Return the transcript that Claude Code keeps itself, if it has begun one.

    The agent may write where it lies: a link to somewhere else is none, and neither is a file beyond all measure.
    """
    found = find_files(Path(environment.get("HOME", "/")), f".claude/projects/*/{session}.jsonl")
    return next((each.file for each in found if each.size <= _BYTES_MAX), None)


class OwnRecord:
    """Follows the transcript that Claude Code keeps itself, which lags behind what it does."""

    def __init__(self, environment: Mapping[str, str], session: str) -> None:
        self._environment = environment
        self._session = session
        self._file: AgentFile | None = None

    def tells_of(self, call: str) -> bool:
        """Return whether the call of a tool has been written down of late."""
        # Looked for only once: the agent may have filled the place with folders.
        self._file = self._file or own_transcript(self._environment, self._session)
        latest = self._file.read_end(_LATEST_BYTES) if self._file else None
        if latest is None:
            self._file = None
            return False
        return call.encode() in latest


def own_answer(own: AgentFile, uuid: str) -> str | None:
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


def _turn_of(own: AgentFile, uuid: str) -> list[TranscriptEntry] | None:
    """Return what came of a prompt, or None if Claude Code has not heard of it."""
    turn: list[TranscriptEntry] | None = None
    for line in (own.read(_BYTES_MAX) or b"").split(b"\n"):
        entry = try_decode_entry(line) or {}
        if entry.get("type") not in {"user", "assistant"} or entry.get("isSidechain"):
            continue
        if entry.get("uuid") == uuid:
            turn = []
        elif turn is not None:
            if _is_prompt(entry):
                break
            turn.append(entry)
    return turn


def _is_prompt(entry: TranscriptEntry) -> bool:
    return entry["type"] == "user" and "promptSource" in entry


def _texts(entry: TranscriptEntry, message_id: Any) -> Iterator[str]:
    """Yield the texts of a message that came in several entries; nobody has checked what stands in them."""
    match entry:
        case {"message": {"id": found, "content": list(blocks)}} if found == message_id:
            for block in blocks:
                match block:
                    case {"type": "text", "text": str(text)}:
                        yield text
