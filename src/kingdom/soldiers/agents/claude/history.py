"""The history of a session, from Kingdom's transcript and from the session file that Claude Code writes itself."""

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

_PETITIONS_REMINDER = "You have made these petitions already, and they were accepted; do not make them again:"
_PETITION_SHOWN = 500
# The model name in messages that come from Claude Code and not from a model.
SYNTHETIC = "<synthetic>"
_ENDS = frozenset({"asked", "answered", "failed", "interrupted"})
_BYTES_MAX = 256 << 20
_LATEST_BYTES = 1 << 20


@dataclass
class ClaudeUnfinishedPrompt(session_log.UnfinishedPrompt):
    """The latest prompt of a session while it has no answer.

    `sent` is the text that the agent got, and `uuid` is the id of the prompt in the session file.
    """

    sent: str = ""
    uuid: str = ""
    petitions: tuple[str, ...] = ()

    def petitions_reminder(self) -> list[str]:
        """Return a reminder of the petitions that were made, because the agent may not remember all of them."""
        return ["\n- ".join([_PETITIONS_REMINDER, *self.petitions])] if self.petitions else []


class ClaudeHistory(SessionHistory[ClaudeUnfinishedPrompt]):
    """The state of a session according to Kingdom's transcript."""

    def apply(self, entry: Mapping[str, Any]) -> None:
        """Apply the next entry of the transcript."""
        super().apply(entry)
        match entry:
            case {"type": "prompt", "text": str(text), "uuid": str(uuid)}:
                reply, sent = entry.get("reply", ""), entry.get("sent", text)
                made = self.unfinished.petitions if self.unfinished and (entry.get("continues") or reply) else ()
                self.unfinished = ClaudeUnfinishedPrompt(text, reply, sent=sent, uuid=uuid, petitions=made)
            case {"type": "petition", "kind": str(kind)} if self.unfinished:
                petition = f"{kind} {json.dumps(entry.get('body', {}), ensure_ascii=False)}"
                self.unfinished.petitions += (petition[:_PETITION_SHOWN],)

    def text_for(self, prompt: Prompt, session_file: AgentFile | None) -> str:
        """Return the text to send for a prompt, which depends on what the agent has already received."""
        before = self.text_or_unfinished(prompt)
        if isinstance(before, str):
            return before
        if session_file is None or _read_turn(session_file, before.uuid) is None:
            return before.sent
        parts = [CONTINUE_PROMPT, *before.petitions_reminder(), *([prompt.text] if prompt.text != before.asked else [])]
        return "\n\n".join(parts)


@dataclass(frozen=True, slots=True)
class UnansweredPrompt:
    """A prompt whose turn has no end in Kingdom's transcript; `uuid` is its id in the session file."""

    session: str
    uuid: str


def find_unanswered_prompt(entries: Iterable[TranscriptEntry], prompt_id: str) -> UnansweredPrompt | None:
    """Return a prompt with its ids in Claude Code, or None if the entries lack it or contain the end of its turn."""
    session, found = "", None
    for entry in entries:
        match entry:
            case {"type": "session", "session": str(session)}:
                continue
            case {"type": "prompt", "prompt": str(name), "uuid": str(uuid)} if name == prompt_id:
                found = UnansweredPrompt(session, uuid)
            case {"type": str(kind), "prompt": str(name)} if name == prompt_id and kind in _ENDS:
                found = None
    return found


def find_session_file(environment: Mapping[str, str], session: str) -> AgentFile | None:
    """Return the session file that Claude Code writes, if it exists.

    The agent can write to the folder of this file, so symbolic links and oversized files are ignored.
    """
    found = find_files(Path(environment.get("HOME", "/")), f".claude/projects/*/{session}.jsonl")
    return next((each.file for each in found if each.size <= _BYTES_MAX), None)


class SessionFileTail:
    """Reads the end of the session file, which Claude Code writes with a delay."""

    def __init__(self, environment: Mapping[str, str], session: str) -> None:
        self._environment = environment
        self._session = session
        self._file: AgentFile | None = None

    def mentions(self, call: str) -> bool:
        """Return whether the end of the file contains the id of a tool call."""
        # The search for the file runs only once, because it is slow if the agent has created many folders.
        self._file = self._file or find_session_file(self._environment, self._session)
        latest = self._file.read_end(_LATEST_BYTES) if self._file else None
        if latest is None:
            self._file = None
            return False
        return call.encode() in latest


def read_answer(session_file: AgentFile, uuid: str) -> str | None:
    """Return the answer to a prompt according to the session file, or None if it has no answer."""
    turn = _read_turn(session_file, uuid)
    if not turn:
        return None
    last = turn[-1]
    match last:
        case {"type": "assistant", "message": {"stop_reason": "end_turn", "id": message_id, "model": str(model)}}:
            if model == SYNTHETIC or last.get("isApiErrorMessage"):
                return None
            return "".join(text for entry in turn for text in _texts(entry, message_id))
    return None


def _read_turn(session_file: AgentFile, uuid: str) -> list[TranscriptEntry] | None:
    """Return the entries between a prompt and the next one, or None if the session file lacks the prompt."""
    turn: list[TranscriptEntry] | None = None
    for line in (session_file.read(_BYTES_MAX) or b"").split(b"\n"):
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
    """Yield the texts in an entry that belong to a message.

    A message may span several entries. The agent can write to the session file, so the content may have any form.
    """
    match entry:
        case {"message": {"id": found, "content": list(blocks)}} if found == message_id:
            for block in blocks:
                match block:
                    case {"type": "text", "text": str(text)}:
                        yield text
