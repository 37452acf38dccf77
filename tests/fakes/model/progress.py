"""Find out how many steps of its script a conversation has executed."""

import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.fakes.model.conversation import Entry, ModelEntry, PromptEntry, ToolCallEntry, ToolResultEntry
from tests.fakes.model.steps import Step, filled, has_script, steps_of

DEFAULT_ANSWER = "done"

_ID = re.compile(r"step(?P<number>\d+)(?P<way>[ab])")
_GOES_ON = re.compile(r"\s*(go on|continue)\b", re.IGNORECASE)
_REPLY = re.compile(r"\brepl(y|ied)[^\n:]*:\s*(?P<reply>.*)", re.IGNORECASE | re.DOTALL)
# What agents record as the result of a tool that was stopped before its end.
_STOPPED = re.compile(
    r"interrupted by user|Tool call interrupted|doesn't want to proceed with this tool use|PreToolUse:\S+ hook error"
    r"|^aborted$|aborted by user|Process running with session ID|Tool execution aborted|cancelled by user",
    re.IGNORECASE,
)


@dataclass(slots=True)
class Progress:
    """How many steps are done, whether a question waits for a reply, and the latest reply.

    `refused` is the step for which the tool that writes files has failed. `failure` is the output of a failed command
    that must not fail. `later` is the number of prompts after the end of the script, and `texts` are the texts of the
    model since the last step.
    """

    steps: list[Step]
    done: int = 0
    waiting: bool = False
    reply: str = ""
    refused: int = 0
    failure: str | None = None
    finished: bool = False
    later: int = 0
    texts: set[str] = field(default_factory=set)

    @property
    def answer(self) -> str:
        """The text with which the turn ends."""
        answers = [step["answer"] for step in self.steps if "answer" in step]
        return str(filled(answers[-1] if answers else DEFAULT_ANSWER, self.reply))

    def prompted(self, text: str) -> None:
        """Apply a prompt that has no script."""
        if self.finished:
            self.later += 1
        if not _GOES_ON.match(text):
            self.reply = _reply_in(text) or text.strip()
        elif self.waiting:
            self.done -= 1
        self.waiting = False
        self.failure = None

    def spoke(self, text: str) -> None:
        """Apply a message of the model. Its last text ends the script."""
        self.texts.add(text)
        self.finished = self.finished or text.strip().endswith(self.answer.strip())

    def returned(self, entry: ToolResultEntry) -> None:
        """Apply the result of a tool. Its step is done, unless it was stopped or has failed."""
        call = _ID.search(entry.id)
        if call is None or _STOPPED.search(entry.text):
            return
        number = int(call["number"])
        step = self.steps[number - 1] if number <= len(self.steps) else {}
        if entry.is_error and "write" in step and call["way"] == "a":
            self.refused = number
        elif entry.is_error and "run" in step and not step.get("may_fail"):
            self.failure = f"{step['run']!r} failed: {entry.text}"
        else:
            self.done = number
            self.texts.clear()
            self.waiting = "ask" in step


def progress_of(entries: Iterable[Entry]) -> Progress | None:
    """Return the progress of the last script, or None if there is no script. Raise WrongScript if it is invalid."""
    progress: Progress | None = None
    for entry in entries:
        match entry:
            case PromptEntry(text=text) if has_script(text) and not _goes_on(progress, text):
                progress = Progress(steps_of(text), reply=_reply_in(text.rpartition("```")[2]))
            case PromptEntry(text=text) if progress is not None:
                progress.prompted(text)
            case ModelEntry(text=text) if progress is not None:
                progress.spoke(text)
            case ToolCallEntry() if progress is not None and not progress.later:
                progress.finished = False
            case ToolResultEntry() if progress is not None:
                progress.returned(entry)
    return progress


def call_id(prefix: str, number: int, *, second_way: bool) -> str:
    """Return the id of a tool call. Later requests repeat it, so the stub recognizes the step.

    `second_way` means that the shell executes the step, because the tool that writes files has failed.
    """
    return f"{prefix}step{number}{'b' if second_way else 'a'}{uuid.uuid4().hex[:12]}"


def _goes_on(progress: Progress | None, text: str) -> bool:
    """Return whether a prompt repeats a script only to continue with it."""
    if progress is None or progress.finished or not _GOES_ON.match(text):
        return False
    return progress.steps == steps_of(text)


def _reply_in(text: str) -> str:
    reply = _REPLY.search(text)
    return reply["reply"].strip() if reply else ""
