"""Deliberately broken courts, each of which the checks must detect."""

import sys
import tempfile
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench.court.chaos import prepare, run_without_kills
from bench.court.court_processes import opened
from bench.court.judge import judge
from kingdom.bus.effects.effect import Absent, Attempt, ReconcileResult
from kingdom.bus.port import Transaction

_EVENTS = 2


def leak_slots() -> None:
    """Never release a slot."""
    from kingdom.court.quota import Quota  # noqa: PLC0415 - only in the process that is broken

    _replace(Quota, "free", lambda quota, _holder: quota)


def blind_effects() -> None:
    """Treat a call whose answer was lost as not executed."""
    from kingdom.court.petitions.github.effect import GithubPetitions  # noqa: PLC0415 - only in the process that is broken
    from kingdom.roles import petition_worker  # noqa: PLC0415 - only in the process that is broken

    async def reconcile(_effect: object, _attempt: Attempt) -> ReconcileResult:
        return Absent()

    _replace(GithubPetitions, "reconcile", reconcile)
    # Otherwise the call would be repeated after the end of the run.
    soon = partial(GithubPetitions, visible_after=timedelta(seconds=1), longest_send=timedelta(seconds=5))
    _replace(petition_worker, "GithubPetitions", soon)


def lose_events() -> None:
    """Confirm an event without storing it."""
    from kingdom.court.sentinel import records  # noqa: PLC0415 - only in the process that is broken

    async def receive(_transaction: Transaction, *_said: object) -> bool:
        return True

    _replace(records, "receive_event", receive)


class Variant(NamedTuple):
    """A broken part of a role, the finding that it must cause, and the faults that trigger it."""

    break_it: Callable[[], None]
    role: str
    finding: str
    faults: tuple[dict[str, Any], ...] = ()


_LOST_ANSWER = {"kind": "lose_answer", "method": "POST", "path": "/repos/*/comments"}
VARIANTS: Mapping[str, Variant] = {
    "leak_slots": Variant(leak_slots, "king", "is still held by"),
    "blind_effects": Variant(blind_effects, "general", "has 2 comments", (_LOST_ANSWER,)),
    "lose_events": Variant(lose_events, "sentinel", "0 events were noticed"),
}


async def is_caught(name: str) -> bool:
    """Run a broken court, and return whether the checks detect it."""
    variant = VARIANTS[name]
    with tempfile.TemporaryDirectory(prefix="kingdom-broken-") as directory:
        async with opened(Path(directory)) as court:
            prepare(court)
            court.break_role(variant.role, name)
            counts = await run_without_kills(court, _EVENTS, variant.faults)
            await court.end()
            return any(variant.finding in words for words in judge(counts, _EVENTS, []))


def _replace(owner: object, name: str, method: Any) -> None:
    setattr(owner, name, method)


def main() -> None:
    """Run `kingdom` with a broken variant: the name of the variant, then the command line."""
    VARIANTS[sys.argv.pop(1)].break_it()
    from kingdom.cli.main import main as play  # noqa: PLC0415 - after it was broken

    play()


if __name__ == "__main__":
    main()
