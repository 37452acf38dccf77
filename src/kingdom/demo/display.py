"""Where the demo is shown: a screen, plain lines, or nothing."""

from abc import ABC, abstractmethod

from kingdom.court.questions import HumanQuestion
from kingdom.demo.narration import NarrationLine
from kingdom.demo.store_watcher import DemoState


class DemoDisplay(ABC):
    """Shows the demo and takes the user's answer. `pause_seconds` is the pause between two steps."""

    pause_seconds: float = 0.0

    @abstractmethod
    def begin(self, number: int, total: int, title: str, words: str) -> None:
        """Show that a step begins."""

    @abstractmethod
    def tell(self, line: NarrationLine) -> None:
        """Show one line of the narration."""

    @abstractmethod
    def show(self, state: DemoState) -> None:
        """Show the current state of all runs and roles."""

    @abstractmethod
    async def ask(self, ask: HumanQuestion, default: str) -> str | None:
        """Return the user's answer to a question, or None if the user does not answer in time."""
