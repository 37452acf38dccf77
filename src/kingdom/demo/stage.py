"""The port to whoever watches the demo: a screen, lines on a pipe, or nobody."""

from abc import ABC, abstractmethod

from kingdom.court.questions import HumanQuestion
from kingdom.demo.narration import Line
from kingdom.demo.watching import Standing


class Stage(ABC):
    """Where the story is shown, and where a person answers; between two parts it rests for so long."""

    rest_seconds: float = 0.0

    @abstractmethod
    def begin(self, number: int, total: int, title: str, words: str) -> None:
        """Say which part of the story begins."""

    @abstractmethod
    def tell(self, line: Line) -> None:
        """Tell one thing that happened."""

    @abstractmethod
    def show(self, standing: Standing) -> None:
        """Show how everything stands."""

    @abstractmethod
    async def ask(self, ask: HumanQuestion, default: str) -> str | None:
        """Return what a person answers to a question, or None where nobody does in time."""
