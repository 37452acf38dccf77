"""Count the durable steps of a process, and kill the process at one of them."""

import os
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

ENGINE, HOST, CLIENT = "engine", "host", "client"
COMMIT_BEFORE, COMMIT_AFTER = "before a commit", "after a commit"
CLAIM_AFTER = "after a claim"
PROGRAM_BEFORE, PROGRAM_DURING, PROGRAM_AFTER = "before a program", "while a program starts", "after a program"
GIT_DURING = "with a git at work"
AGENT_BEFORE, AGENT_AFTER = "before a call of an agent", "after a call of an agent"
AGENT_UPDATE = "after an update of an agent"
REQUEST_BEFORE, REQUEST_AFTER = "before a request", "after a request"
# At these steps the agent dies, but not its host.
AGENT_KILLED = "agent killed after an update"
# Between the kind and the label of a step.
LABEL = ": "


class Point(msgspec.Struct, frozen=True):
    """One step at which a process dies: its kind and its number within that kind."""

    role: str
    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.role} {self.kind} #{self.number}"


class Steps:
    """Counts the steps of one process by kind, and kills the process at one of them.

    With `by_label`, the label of a step is a part of its kind.
    """

    def __init__(self, role: str, victim: Point | None, note: Path, *, by_label: bool = False) -> None:
        self.counts: Counter[str] = Counter()
        self._role = role
        self._victim = victim
        self._note = note
        self._by_label = by_label

    def reach(self, kind: str, label: str, last_act: Callable[[], None] | None = None) -> None:
        """Count a step. If the process must die at this step, record it, run `last_act` and die."""
        if self._is_reached(kind, label):
            if last_act:
                last_act()
            os.kill(os.getpid(), signal.SIGKILL)

    def reach_and_kill(self, kind: str, label: str, pid: int) -> None:
        """Count a step. If the other process must die at this step, record it and kill that process."""
        if self._is_reached(kind, label):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _is_reached(self, kind: str, label: str) -> bool:
        kind = f"{kind}{LABEL}{label}" if self._by_label else kind
        self.counts[kind] += 1
        reached = self._victim == Point(self._role, kind, self.counts[kind])
        if reached:
            self._note.write_text(label)
        return reached
