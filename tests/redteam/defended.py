"""Attempts that are tried with a defence and, to show that they can succeed, without it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True, slots=True)
class Ground:
    """Where one attempt takes place: a folder of its own, and whether the defence against it stands."""

    folder: Path
    is_defended: bool
    patch: pytest.MonkeyPatch

    def remove(self, place: object, name: str, instead: object) -> None:
        """Put something in the place of the defence, unless it stands."""
        if not self.is_defended:
            self.patch.setattr(place, name, instead)


@dataclass(frozen=True, slots=True, kw_only=True)
class DefendedAttempt:
    """One attempt of a class; `act` returns what was won, if anything. `quick` ones are in everyday tests too."""

    by: str
    name: str
    stopped_by: str
    act: Callable[[Ground], Awaitable[str]]
    quick: bool


class AttemptClass:
    """The attempts of one class, in the order of its module."""

    def __init__(self, by: str) -> None:
        self.by = by
        self.attempts: list[DefendedAttempt] = []

    def stopped_by(
        self, guard: str, cases: Mapping[str, Any] | None = None, *, quick: bool = False
    ) -> Callable[[Callable[..., Awaitable[str]]], Callable[..., Awaitable[str]]]:
        """Note an attempt with what the house relies on; with `cases` it is one attempt for each, by its name."""

        def noted(act: Callable[..., Awaitable[str]]) -> Callable[..., Awaitable[str]]:
            words = act.__name__.replace("_", " ")
            named = [("", ())] if cases is None else [(f": {case}", (value,)) for case, value in cases.items()]
            for number, (case, values) in enumerate(named):
                self.attempts.append(
                    DefendedAttempt(
                        by=self.by,
                        name=f"{words}{case}",
                        stopped_by=guard,
                        act=lambda ground, values=values: act(ground, *values),  # type: ignore[misc]
                        quick=quick and not number,
                    )
                )
            return act

        return noted
