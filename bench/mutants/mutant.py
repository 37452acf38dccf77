"""One mutant: a span of a product file and its replacement."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """Replaces the characters `start` to `end` of a file. `place` is the statement or function around them."""

    file: str
    place: str
    damage: str
    line: int
    start: int
    end: int
    text: str

    @property
    def name(self) -> str:
        """Return the name for reports, which does not change when lines move."""
        return f"{self.file} {self.place}: {self.damage}"

    def applied(self, source: str) -> str:
        """Return the changed source."""
        return source[: self.start] + self.text + source[self.end :]


def shown(text: str) -> str:
    """Return a piece of source on one line, short enough for a report."""
    line = " ".join(text.split())
    return line if len(line) <= 70 else f"{line[:69]}…"
