"""The screen of `kingdom up`: the processes here, how the court stands, and the last lines that matter."""

from collections.abc import Iterable
from datetime import datetime

from rich.console import Group, RenderableType
from rich.text import Text

from kingdom.cli.output import ago, table
from kingdom.cli.status_view import facts, troubles
from kingdom.cli.up_lines import Line
from kingdom.court.standing import Standing
from kingdom.supervisor.processes import Child, State
from kingdom.text import printable

_COLOURS = {State.RUNNING: "green", State.WAITING: "yellow", State.ENDED: "dim"}


def up_view(
    children: Iterable[Child], standing: Standing | None, missing: str, lines: Iterable[Line], now: datetime
) -> RenderableType:
    """Return the screen; where the store cannot be read, `missing` says why, in place of what was true before."""
    columns = ("role", "state", "pid", "since", "restarts", "ended last by")
    known = [*facts(standing), *troubles(standing)] if standing else [Text(printable(missing), style="yellow")]
    return Group(
        table(columns, [_row(child, now) for child in children]),
        *known,
        Text(),
        *(Text(printable(str(line)), style="dim", no_wrap=True, overflow="ellipsis") for line in lines),
    )


def _row(child: Child, now: datetime) -> tuple[object, ...]:
    runs = child.state is State.RUNNING and child.started_at
    since = ago((now - child.started_at).total_seconds()) if runs and child.started_at else None
    return (
        child.role,
        Text(child.state, style=_COLOURS[child.state]),
        str(child.pid) if child.pid else None,
        since,
        str(child.restarts),
        child.last_end or None,
    )
