"""Attempts that are tried with a defense, and without it to show that they can succeed."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True, slots=True)
class Ground:
    """Where one attempt takes place: its own folder, and whether the defense is active."""

    folder: Path
    is_defended: bool
    patch: pytest.MonkeyPatch

    def remove(self, place: object, name: str, instead: object) -> None:
        """Replace a part of the defense, if the attempt is made without it."""
        if not self.is_defended:
            self.patch.setattr(place, name, instead)


@dataclass(frozen=True, slots=True, kw_only=True)
class DefendedAttempt:
    """One attempt of a class; `act` returns evidence of success, or an empty text. The gate tries only `quick` ones."""

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
        """Register an attempt with the defense against it; with `cases`, register one attempt per case."""

        def register(act: Callable[..., Awaitable[str]]) -> Callable[..., Awaitable[str]]:
            words = act.__name__.replace("_", " ")
            named = [("", ())] if cases is None else [(f": {case}", (value,)) for case, value in cases.items()]
            for number, (case, values) in enumerate(named):
                self.attempts.append(
                    DefendedAttempt(
                        by=self.by,
                        name=f"{words}{case}",
                        stopped_by=guard,
                        # A default argument of a lambda has no type.
                        act=lambda ground, values=values: act(ground, *values),  # type: ignore[misc]
                        quick=quick and not number,
                    )
                )
            return act

        return register
