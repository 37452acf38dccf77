"""The views of a run that the screen shows; the command line provides them."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from rich.console import RenderableType

from kingdom.workflow.model.run.workflow import Workflow

# A function that returns the content to show now. For a growing document, it returns only the new lines.
ReadContent = Callable[[], Awaitable[Sequence[RenderableType]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunViews:
    """Functions that render a run by its id, as the commands `show`, `diff`, `explain` and `logs` do.

    `logs` returns a function; each call of it returns only the new lines. `irreversible_effects` lists the effects of a
    run that a rollback cannot undo.
    """

    show: Callable[[str], Awaitable[RenderableType]]
    diff: Callable[[str], Awaitable[RenderableType]]
    explain: Callable[[str], Awaitable[RenderableType]]
    logs: Callable[[str], Awaitable[ReadContent]]
    irreversible_effects: Callable[[Workflow], Awaitable[Sequence[str]]]
