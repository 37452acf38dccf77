"""The screen of `kingdom up`: the processes, the state of the court, and the last warnings and errors."""

from collections.abc import Iterable
from datetime import datetime

from rich.console import Group, RenderableType
from rich.text import Text

from kingdom.cli.court.status_view import facts, troubles
from kingdom.cli.framework.output import table
from kingdom.cli.up.log_lines import RoleLogLine
from kingdom.court.status import CourtStatus
from kingdom.supervisor.processes import ProcessState, RoleProcess
from kingdom.text import format_duration, printable

_COLORS = {ProcessState.RUNNING: "green", ProcessState.WAITING: "yellow", ProcessState.ENDED: "dim"}


def up_view(
    children: Iterable[RoleProcess],
    court_status: CourtStatus | None,
    missing: str,
    lines: Iterable[RoleLogLine],
    now: datetime,
) -> RenderableType:
    """Return the screen. Without a state of the court, `missing` is shown instead."""
    columns = ("role", "state", "pid", "since", "restarts", "last exit")
    known = (
        [*facts(court_status), *troubles(court_status)] if court_status else [Text(printable(missing), style="yellow")]
    )
    return Group(
        table(columns, [_row(child, now) for child in children]),
        *known,
        Text(),
        *(Text(printable(str(line)), style="dim", no_wrap=True, overflow="ellipsis") for line in lines),
    )


def _row(child: RoleProcess, now: datetime) -> tuple[object, ...]:
    runs = child.state is ProcessState.RUNNING and child.started_at
    since = format_duration((now - child.started_at).total_seconds()) if runs and child.started_at else None
    return (
        child.role,
        Text(child.state, style=_COLORS[child.state]),
        str(child.pid) if child.pid else None,
        since,
        str(child.restarts),
        child.last_end or None,
    )
