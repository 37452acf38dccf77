"""The voice of one agent: what it says is written down, asked, or put to the court, and it is told what follows."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from kingdom.errors import KingdomError, MalformedEvent, ProgramFailed
from kingdom.soldiers.redaction import WELL_KNOWN, Redaction
from kingdom.soldiers.voice.calls import TOOLS, AskHuman, Petition, Remember, ReportResult, read_call
from kingdom.soldiers.voice.report import add_memory, write_report
from kingdom.soldiers.voice.voice import Question, Reply, Voice
from kingdom.text import sentence, with_reason
from kingdom.workflow.verdicts import Verdict

# Shorter than any agent waits for a tool.
PATIENCE = timedelta(seconds=20)
_PETITIONS_MAX = 50

_NO_TURN = "Nothing is asked of you at the moment, so nothing is taken down: wait for your next prompt, and call again."
_ASKED_ALREADY = "You have asked a person and must wait: end your turn now. The answer comes as your next prompt."
_ASKED = (
    "A person is asked. Stop here: end your turn now, without any further work. The answer comes as your next prompt."
)
_REPORTED = "Your result is written down. Unless there is more to do, end your turn; a later report replaces this one."
_REMEMBERED = "It is kept, and becomes memory with your result."
_NOTED = "It is noted and will be decided. Go on without it, and do not ask for the same again."
_TOO_MANY = f"You have made {_PETITIONS_MAX} petitions in this turn, which is the limit: this one is not taken."


@dataclass(slots=True)
class _Turn:
    prompt_id: str
    on_petition: Callable[[str, dict[str, Any]], None]
    petitions: int = 0
    question: Question | None = None
    # Whether the question is the result that was reported, which another may replace.
    is_result: bool = False


def petition_id(prompt_id: str, number: int) -> str:
    """Return the id of the petition that comes at this place in the turn of a prompt, counted from 1."""
    attempted, _, attempt = prompt_id.partition("#")
    return f"{attempted}-a{attempt}-p{number}"


class HouseVoice(Voice):
    """Takes what the agent in one WorkSpace says.

    `verdict` waits for what becomes of a petition, by its id; where it takes too long the agent goes on without it.
    Secrets are removed from all that is said.
    """

    def __init__(
        self,
        space: Path,
        verdict: Callable[[str], Awaitable[Verdict | None]],
        *,
        patience: timedelta = PATIENCE,
        redaction: Redaction = WELL_KNOWN,
    ) -> None:
        self.tools = TOOLS
        self._space = space
        self._verdict = verdict
        self._patience = patience
        self._redaction = redaction
        self._turn: _Turn | None = None
        # The prompt of the last turn, and how many petitions were made in it.
        self._made = ("", 0)

    def begin(self, prompt_id: str, on_petition: Callable[[str, dict[str, Any]], None]) -> None:
        """Take calls; what was asked in an earlier turn is forgotten."""
        made, self._made = self._made, (prompt_id, 0)
        # A prompt may be given twice, as to an agent that went in circles: its petitions are counted on.
        self._turn = _Turn(prompt_id, on_petition, made[1] if made[0] == prompt_id else 0)

    def end(self) -> Question | None:
        """Take no calls any more."""
        turn, self._turn = self._turn, None
        if turn:
            self._made = (turn.prompt_id, turn.petitions)
        return turn.question if turn else None

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Reply:
        """Do what a tool is for."""
        turn = self._turn
        try:
            # First of all: whatever is said is read by others, and some of it leaves the house.
            call = read_call(tool, self._redaction.value(arguments))
            if turn is None:
                return Reply(text=_NO_TURN, is_error=True)
            if turn.question and not turn.is_result and not isinstance(call, Remember):
                return Reply(text=_ASKED_ALREADY, is_error=True)
            match call:
                case ReportResult():
                    write_report(self._space, call)
                    turn.is_result = call.status == "needs_human"
                    turn.question = Question(text=call.question, choices=()) if turn.is_result else None
                    return Reply(text=_ASKED if turn.is_result else _REPORTED)
                case Remember():
                    add_memory(self._space, call)
                    return Reply(text=_REMEMBERED)
                case AskHuman():
                    text = f"{call.question}\n\n{call.context}" if call.context.strip() else call.question
                    turn.question = Question(text=text, choices=call.choices)
                    return Reply(text=_ASKED)
                case Petition():
                    return await self._petition(turn, call)
        except (MalformedEvent, ProgramFailed, OSError, RecursionError) as error:
            return Reply(text=str(error), is_error=True)

    async def _petition(self, turn: _Turn, call: Petition) -> Reply:
        if turn.petitions >= _PETITIONS_MAX:
            return Reply(text=_TOO_MANY, is_error=True)
        turn.on_petition(call.kind, call.body)
        turn.petitions += 1
        named = petition_id(turn.prompt_id, turn.petitions)
        try:
            async with asyncio.timeout(self._patience.total_seconds()):
                verdict = await self._verdict(named)
        except (TimeoutError, OSError, KingdomError):
            # It is on its way all the same: only what became of it is not known here.
            verdict = None
        return _told(verdict)


def _told(verdict: Verdict | None) -> Reply:
    if verdict is None:
        return Reply(text=_NOTED)

    def told(word: str) -> str:
        return sentence(with_reason(word, verdict.reason))

    match verdict.granted:
        case True:
            return Reply(
                text=f"{told('Granted')} It is allowed and will be done for you; do not ask for the same again."
            )
        case False:
            return Reply(text=f"{told('Refused')} Nothing was done. Do not ask for the same again.", is_error=True)
        case None:
            return Reply(text=f"{told('It waits')} Go on without it, and do not ask for the same again.")
