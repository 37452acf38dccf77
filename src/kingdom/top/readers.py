"""What the screen is told by whoever opens it: how a run looks to a person."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from rich.console import RenderableType

from kingdom.workflow.model.run.workflow import Workflow

# Returns what there is to show now; of something that grows, what has come since the last time.
Read = Callable[[], Awaitable[Sequence[RenderableType]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """What a run looks like to a person, by its id: as the commands `show`, `diff`, `explain` and `logs` tell it.

    `logs` returns what reads on from where it stopped; `left_outside` tells what a run that goes back cannot undo.
    """

    show: Callable[[str], Awaitable[RenderableType]]
    diff: Callable[[str], Awaitable[RenderableType]]
    explain: Callable[[str], Awaitable[RenderableType]]
    logs: Callable[[str], Awaitable[Read]]
    left_outside: Callable[[Workflow], Awaitable[Sequence[str]]]
